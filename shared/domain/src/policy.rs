//! The numbers that a deployment may set, with the defaults of the documents, and the moment a
//! decision is made in.

use crate::deal::{Deal, Publication};
use crate::money::{BasisPoints, Nano};
use crate::state::Status;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub required_confirmations: u32,
    /// What the platform keeps of a new deal's price.
    pub commission: BasisPoints,
    /// Less than this is not worth its gas: it goes to SUSPENSE.
    pub min_refund: Nano,
    /// How long a commanded payout or refund may take before somebody is told.
    pub settlement_due_secs: u32,
    /// How much later than the verification's 24 h the auto-approval comes.
    pub verification_grace_secs: u32,
    pub timeouts: Timeouts,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            required_confirmations: 3,
            commission: BasisPoints::DEFAULT,
            min_refund: Nano::new(20_000_000),
            settlement_due_secs: 6 * HOUR,
            verification_grace_secs: 2 * HOUR,
            timeouts: Timeouts::default(),
        }
    }
}

const HOUR: u32 = 3600;
/// How long a post must stay, unedited, from its publication.
pub const RETENTION_SECS: u32 = 24 * HOUR;

/// How much before its time a post may appear, or clocks may differ.
const EARLY_SECS: u32 = 3600;

/// From when a post has to stay. Not before its command wanted it, whatever the publisher says: a
/// made-up time must not shorten what the advertiser paid for.
pub fn retention_begins(publication: &Publication, publish_at: Option<Timestamp>) -> Timestamp {
    let wanted = publish_at.map(|at| at.minus_secs(EARLY_SECS));
    wanted.map_or(publication.published_at, |at| at.max(publication.published_at))
}

/// How long a deal may stay in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts([Option<u32>; Status::ALL.len()]);

impl Timeouts {
    pub fn secs(&self, status: Status) -> Option<u32> {
        self.0[status as usize]
    }

    /// Replaces one state's timeout; false for a state that has none.
    pub fn set(&mut self, status: Status, secs: u32) -> bool {
        let slot = &mut self.0[status as usize];
        let known = slot.is_some();
        if known {
            *slot = Some(secs);
        }
        known
    }
}

impl Default for Timeouts {
    /// Document 4's table; ours are ACCEPTED, CREATIVE_APPROVED, SCHEDULED (after its publication
    /// time) and DISPUTED, where passing it only alarms.
    fn default() -> Self {
        let secs = Status::ALL.map(|status| match status {
            Status::OfferPending => Some(48 * HOUR),
            Status::Negotiating => Some(72 * HOUR),
            Status::Accepted => Some(24 * HOUR),
            Status::AwaitingPayment => Some(24 * HOUR),
            Status::Funded => Some(72 * HOUR),
            Status::CreativeSubmitted => Some(48 * HOUR),
            Status::CreativeApproved => Some(72 * HOUR),
            Status::Scheduled => Some(24 * HOUR),
            Status::DeliveryVerifying => Some(24 * HOUR),
            Status::Disputed => Some(7 * 24 * HOUR),
            Status::Draft
            | Status::Published
            | Status::CompletedReleased
            | Status::Cancelled
            | Status::Refunded
            | Status::Expired => None,
        });
        Self(secs)
    }
}

/// The clock's and the deployment's part in a decision.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    pub now: Timestamp,
    /// The record's own timestamp: what "when" means for the worker's report.
    pub recorded_at: Timestamp,
    pub policy: &'a Policy,
}

impl Moment<'_> {
    /// The deadline of a state that is entered now.
    pub fn deadline(&self, status: Status) -> Option<Timestamp> {
        let secs = self.policy.timeouts.secs(status)?;
        let verifying = status == Status::DeliveryVerifying;
        let grace = if verifying { self.policy.verification_grace_secs } else { 0 };
        Some(self.now.plus_secs(secs.saturating_add(grace)))
    }

    /// A settlement that is already awaited keeps its time: more money to settle is no excuse.
    pub fn settlement_due(&self, deal: &Deal) -> Timestamp {
        let due = self.now.plus_secs(self.policy.settlement_due_secs);
        deal.settlement_due_at.map_or(due, |before| before.min(due))
    }
}
