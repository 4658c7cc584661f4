//! An event source mapping: which records of which topic go to which function, and how.

use crate::filter::Criteria;

/// AWS's default and limits.
pub const DEFAULT_BATCH_SIZE: usize = 100;
pub const MAX_BATCH_SIZE: usize = 10_000;
pub const MAX_WINDOW_MS: u64 = 300_000;
/// A mapping that names no window waits half a second for a batch to fill.
pub const DEFAULT_WINDOW_MS: u64 = 500;

#[derive(Debug, Clone, PartialEq)]
pub struct Mapping {
    /// Where it stands in the template, for messages: `Function/Event`.
    pub name: String,
    /// The function's name, as it is invoked.
    pub function: String,
    pub topic: String,
    pub group: String,
    pub source: Source,
    pub start: Start,
    pub criteria: Criteria,
    pub batch_size: usize,
    pub window_ms: u64,
    /// What only provisioned mode obeys; absent in on-demand mode, where an error brings the whole
    /// batch again until it succeeds.
    pub provisioned: Option<Provisioned>,
}

/// What the event says of its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Msk { cluster_arn: String },
    SelfManaged,
}

/// Where a group without committed offsets begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    TrimHorizon,
    Latest,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provisioned {
    /// `ReportBatchItemFailures`
    pub reports_items: bool,
    pub bisects: bool,
    /// None: until it succeeds.
    pub max_retries: Option<u32>,
    /// None: however old.
    pub max_age_secs: Option<u64>,
}
