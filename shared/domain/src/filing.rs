//! What is recorded without changing a deal: a key alone, a reconciliation's result, a refused
//! command's answer. It has an aggregate of its own, so that its messages have no predecessor.

use crate::ids::DealId;
use crate::key::{Fingerprint, Key};
use crate::message::Message;
use crate::result::ReconciliationResult;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filing {
    pub key: Key,
    pub fingerprint: Fingerprint,
    pub event_type: &'static str,
    /// The deal it is about, if any.
    pub deal: Option<DealId>,
    /// False where there was nothing to do.
    pub took_effect: bool,
    pub record: Option<ReconciliationResult>,
    pub messages: Vec<Message>,
}

impl Filing {
    /// The key alone: recorded, nothing to do.
    pub fn skip(
        key: Key,
        fingerprint: Fingerprint,
        event_type: &'static str,
        deal: DealId,
    ) -> Self {
        Self {
            key,
            fingerprint,
            event_type,
            deal: Some(deal),
            took_effect: false,
            record: None,
            messages: Vec::new(),
        }
    }
}
