//! What a plan tells others, as data. Messages leave through the outbox row of the plan's own
//! transaction; their wire form is the platform's business. The `deal.events` message of each fact
//! is implied by the fact and not listed in a plan.

use crate::deal::{Deal, Publication};
use crate::ids::ActorId;
use crate::money::Nano;
use crate::state::Status;
use crate::time::Timestamp;
use crate::ton::{Address, TxHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Command(Command),
    Notification(Notification),
}

/// An order to a worker. Its id is the same however often it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    GenerateDepositAddress,
    ExecutePayout { amount: Nano, commission: Nano, to: Address },
    ExecuteRefund { number: u32, amount: Nano, to: Address, deposit: TxHash },
    PublishPost { publish_at: Timestamp, creative: String },
    StartVerification { publication: Publication, until: Timestamp },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    pub kind: Kind,
    pub recipients: Vec<Recipient>,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The deal moved, and document 4 wants somebody told.
    DealMoved {
        from: Status,
        to: Status,
    },
    /// A command that came by the queue was refused.
    CommandRefused,
    /// New terms were proposed without a move.
    TermsProposed,
    CancelAgreed,
    /// Money was booked to SUSPENSE because the deal row is full.
    DepositSuspended,
    DisputeOpened,
    PublicationFailed,
    /// A report came after the deal was disputed or closed.
    LateReport,
    /// The post failed a check after the escrow was released.
    ReleasedTooEarly,
    ReconciliationAlert,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::DealMoved { .. } => "DEAL_STATUS_CHANGED",
            Self::CommandRefused => "COMMAND_REFUSED",
            Self::TermsProposed => "TERMS_PROPOSED",
            Self::CancelAgreed => "CANCEL_AGREED",
            Self::DepositSuspended => "DEPOSIT_SUSPENDED",
            Self::DisputeOpened => "DISPUTE_OPENED",
            Self::PublicationFailed => "PUBLICATION_FAILED",
            Self::LateReport => "LATE_REPORT",
            Self::ReleasedTooEarly => "RELEASED_TOO_EARLY",
            Self::ReconciliationAlert => "RECONCILIATION_ALERT",
        }
    }

    /// Somebody must act on this at once.
    pub const fn is_critical(self) -> bool {
        match self {
            Self::DepositSuspended | Self::ReleasedTooEarly | Self::ReconciliationAlert => true,
            Self::DealMoved { .. }
            | Self::CommandRefused
            | Self::TermsProposed
            | Self::CancelAgreed
            | Self::DisputeOpened
            | Self::PublicationFailed
            | Self::LateReport => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    User(ActorId),
    Operator,
}

impl Message {
    pub fn notify(kind: Kind, recipients: Vec<Recipient>, text: impl Into<String>) -> Self {
        Self::Notification(Notification { kind, recipients, text: text.into() })
    }

    pub fn tell_operator(kind: Kind, text: impl Into<String>) -> Self {
        Self::notify(kind, vec![Recipient::Operator], text)
    }

    /// Tells the operator that a dispute waits for a decision.
    pub fn dispute(reason: &str) -> Self {
        Self::tell_operator(Kind::DisputeOpened, format!("a dispute waits for you: {reason}"))
    }
}

pub fn both_parties(deal: &Deal) -> Vec<Recipient> {
    vec![Recipient::User(deal.advertiser), Recipient::User(deal.owner)]
}
