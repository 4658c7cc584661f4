//! What deciding can come to. `decide` never does anything: it says which of these it is.

use crate::filing::Filing;
use crate::plan::Plan;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Apply(Plan),
    /// Nothing of a deal changes: the key is recorded, perhaps with a result and messages.
    File(Filing),
    /// The deal itself shows that this very report took effect before.
    Duplicate,
    /// Final: the report can never take effect. It is parked for an operator.
    Refuse(Refusal),
    /// The report may take effect later.
    NotReady(NotReady),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// A stable word for metrics, letters and answers.
    pub code: &'static str,
    /// What and where, for a person.
    pub detail: String,
    /// Money is involved: page somebody.
    pub critical: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    pub code: &'static str,
    pub detail: String,
    pub wait: Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Try again with the backoff of document 1.
    Backoff,
    /// Only another report can help: wait for it, then tell somebody.
    AnotherReport,
}

impl Decision {
    pub fn refuse(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Refuse(Refusal { code, detail: detail.into(), critical: false })
    }

    pub fn refuse_critical(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Refuse(Refusal { code, detail: detail.into(), critical: true })
    }

    pub fn not_ready(code: &'static str, detail: impl Into<String>, wait: Wait) -> Self {
        Self::NotReady(NotReady { code, detail: detail.into(), wait })
    }
}
