//! What a plan tells others, as data. Messages leave through the outbox row of the plan's own
//! transaction; their wire form is the platform's business. The `deal.events` message of each fact
//! is implied by the fact and not listed in a plan.

use crate::ids::ActorId;
use crate::money::Nano;
use crate::ton::{Address, TxHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Command(Command),
    Notification(Notification),
}

/// An order to a worker. Its id is the same however often it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    ExecuteRefund { number: u32, amount: Nano, to: Address, deposit: TxHash },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    pub kind: Kind,
    pub recipients: Vec<Recipient>,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Money was booked to SUSPENSE because the deal row is full.
    DepositSuspended,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::DepositSuspended => "DEPOSIT_SUSPENDED",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    User(ActorId),
    Operator,
}
