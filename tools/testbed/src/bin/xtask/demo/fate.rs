//! What becomes of the demo's deals, and what must have become of them in the end.

use domain::state::Status;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    PaidOut,
    /// Paid in two halves.
    Halves,
    /// Paid half as much again.
    Surplus,
    /// The watcher reports the deposit before it has enough confirmations.
    Unconfirmed,
    /// The deposit overtakes the command that names its address.
    PaidTooEarly,
    /// The publisher fails twice, then succeeds.
    FailsTwice,
    FailsThrice,
    /// The post is edited: the operator decides for the advertiser.
    Edited,
    /// The post is deleted, and nobody has decided yet.
    Deleted,
    BothCancel,
    CancelledThenPaid,
    NeverPaid,
}

impl Fate {
    /// Of twenty deals a dozen meets something unusual.
    pub fn of(number: u32) -> Self {
        match number % 20 {
            0 => Self::NeverPaid,
            1 => Self::CancelledThenPaid,
            2 => Self::Halves,
            3 => Self::Surplus,
            4 => Self::Unconfirmed,
            5 => Self::FailsTwice,
            6 => Self::FailsThrice,
            7 => Self::PaidTooEarly,
            8 => Self::Edited,
            9 => Self::Deleted,
            10 => Self::BothCancel,
            _ => Self::PaidOut,
        }
    }

    pub fn any(self) -> bool {
        true
    }

    pub fn is_published(self) -> bool {
        !matches!(self, Self::NeverPaid | Self::CancelledThenPaid | Self::BothCancel)
    }

    /// Whether the verifier gets to its verdict.
    pub fn has_verdict(self) -> bool {
        self.is_published() && !matches!(self, Self::FailsThrice | Self::Deleted)
    }

    pub fn ends_in(self) -> Status {
        match self {
            Self::PaidOut
            | Self::Halves
            | Self::Surplus
            | Self::Unconfirmed
            | Self::PaidTooEarly
            | Self::FailsTwice => Status::CompletedReleased,
            Self::Edited => Status::Refunded,
            Self::FailsThrice | Self::Deleted => Status::Disputed,
            Self::BothCancel | Self::CancelledThenPaid => Status::Cancelled,
            Self::NeverPaid => Status::AwaitingPayment,
        }
    }

    /// What of it waits in escrow at the end, in nanotons.
    pub fn escrow(self, price: i64) -> i64 {
        if self.ends_in() == Status::Disputed { price } else { 0 }
    }
}
