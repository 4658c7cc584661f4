//! What workers report, as values: parsed, checked, with every identifier in its one canonical form.

use crate::deal::Publication;
use crate::ids::{ChannelId, DealId};
use crate::key::{Fingerprint, Key};
use crate::money::Nano;
use crate::time::Timestamp;
use crate::ton::{Address, TxHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepositConfirmed {
    pub deal: DealId,
    pub tx: TxHash,
    /// Positive.
    pub amount: Nano,
    pub confirmations: u32,
    pub from: Address,
    pub deposit_address: Address,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayoutCompleted {
    pub deal: DealId,
    pub tx: TxHash,
    /// Positive.
    pub amount: Nano,
    /// Zero or more.
    pub commission: Nano,
    pub to: Address,
    pub confirmations: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundCompleted {
    pub deal: DealId,
    pub tx: TxHash,
    /// Positive.
    pub amount: Nano,
    pub to: Address,
    pub confirmations: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationResult {
    pub deal: DealId,
    pub outcome: PublicationOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicationOutcome {
    Succeeded {
        publication: Publication,
        channel: ChannelId,
    },
    Failed {
        error: String,
        details: String,
        /// The worker's number of the attempt, or the beginning of the report's hash: a failure that
        /// is delivered twice is one failure.
        which: String,
    },
}

/// One check of a post, or the final word on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationResult {
    pub deal: DealId,
    /// Absent for the final result.
    pub check: Option<u32>,
    pub verified: bool,
    /// Document 1's reports name none; one that does is held to it.
    pub channel: Option<ChannelId>,
    pub message_id: Option<i64>,
    pub checks_failed: Option<u32>,
    pub final_content_hash: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconciliationResult {
    pub trigger_id: String,
    pub checks: Vec<ReconciliationCheck>,
    pub completed_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconciliationCheck {
    pub name: String,
    pub passed: bool,
    /// As the worker wrote them, in JSON.
    pub details: String,
}

impl DepositConfirmed {
    pub const EVENT_TYPE: &'static str = "DEPOSIT_CONFIRMED";

    /// The hash alone: claimed for a second deal it is a conflict.
    pub fn key(&self) -> Key {
        Key::deposit(self.tx)
    }

    /// Confirmations are left out: the same deposit seen one block later is the same deposit.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&[
            ("deal", &self.deal.to_string()),
            ("tx", &self.tx.to_string()),
            ("amount", &self.amount.to_string()),
            ("from", &self.from.to_string()),
            ("deposit_address", &self.deposit_address.to_string()),
        ])
    }
}

impl PayoutCompleted {
    pub const EVENT_TYPE: &'static str = "PAYOUT_COMPLETED";

    /// A deal is paid out once.
    pub fn key(&self) -> Key {
        Key::payout(self.deal)
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&[
            ("tx", &self.tx.to_string()),
            ("amount", &self.amount.to_string()),
            ("commission", &self.commission.to_string()),
            ("to", &self.to.to_string()),
        ])
    }
}

impl RefundCompleted {
    pub const EVENT_TYPE: &'static str = "REFUND_COMPLETED";

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&[
            ("tx", &self.tx.to_string()),
            ("amount", &self.amount.to_string()),
            ("to", &self.to.to_string()),
        ])
    }
}

impl PublicationResult {
    pub const EVENT_TYPE: &'static str = "PUBLICATION_RESULT";

    pub fn key(&self) -> Key {
        match &self.outcome {
            PublicationOutcome::Succeeded { .. } => Key::publication(self.deal),
            PublicationOutcome::Failed { which, .. } => Key::failed_publication(self.deal, which),
        }
    }

    /// The time is left out: it is when the worker looked, not what it did.
    pub fn fingerprint(&self) -> Fingerprint {
        match &self.outcome {
            PublicationOutcome::Succeeded { publication, channel } => Fingerprint::of(&[
                ("message_id", &publication.message_id.to_string()),
                ("channel_id", &channel.0.to_string()),
                ("content_hash", &publication.content_hash),
            ]),
            PublicationOutcome::Failed { error, .. } => Fingerprint::of(&[("error", error)]),
        }
    }
}

impl VerificationResult {
    pub const EVENT_TYPE: &'static str = "VERIFICATION_RESULT";

    pub fn key(&self) -> Key {
        Key::verification(self.deal, self.check)
    }

    pub fn fingerprint(&self) -> Fingerprint {
        let number = |number: Option<String>| number.unwrap_or_default();
        Fingerprint::of(&[
            ("verified", if self.verified { "true" } else { "false" }),
            ("message_id", &number(self.message_id.map(|id| id.to_string()))),
            ("channel_id", &number(self.channel.map(|channel| channel.0.to_string()))),
            ("reason", self.reason.as_deref().unwrap_or_default()),
            ("checks_failed", &number(self.checks_failed.map(|count| count.to_string()))),
            ("final_content_hash", self.final_content_hash.as_deref().unwrap_or_default()),
        ])
    }
}

impl ReconciliationResult {
    pub const EVENT_TYPE: &'static str = "RECONCILIATION_RESULT";

    pub fn key(&self) -> Key {
        Key::reconciliation(&self.trigger_id)
    }

    /// The statuses: their details may be told in other words.
    pub fn fingerprint(&self) -> Fingerprint {
        let statuses = self.checks.iter();
        let statuses: Vec<(&str, &str)> =
            statuses.map(|check| (check.name.as_str(), check.status())).collect();
        Fingerprint::of(&statuses)
    }
}

impl ReconciliationCheck {
    pub fn status(&self) -> &'static str {
        if self.passed { "PASS" } else { "FAIL" }
    }
}
