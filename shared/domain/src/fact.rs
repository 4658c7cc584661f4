//! A journal row: one immutable fact about a deal, with the money it moved. Facts are all there is;
//! the deal row is their fold.

use crate::deal::{Deposit, Party, Publication, RefundOrder, Terms};
use crate::ids::{ActorId, ChannelId, DealId};
use crate::money::{BasisPoints, Nano, Posting};
use crate::state::Status;
use crate::time::Timestamp;
use crate::ton::{Address, TxHash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    pub seq: u64,
    /// What happened, in the words of the `deal_events` table: the new state's name for a move, a
    /// word of its own for a fact without one.
    pub event_type: &'static str,
    /// Absent for the fact that creates the deal.
    pub from: Option<Status>,
    pub to: Status,
    /// Absent for the system.
    pub actor: Option<ActorId>,
    pub changes: Vec<Change>,
    pub postings: Vec<Posting>,
    pub at: Timestamp,
    pub outbox_position: String,
}

/// What a fact says about the deal beyond its status and balances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Created(Box<Creation>),
    DepositAddress(Address),
    PayoutAddress(Address),
    Deposited(Deposit),
    /// A part of a deposit left the escrow again, by a refund order or as dust.
    Returned {
        deposit: TxHash,
        amount: Nano,
    },
    RefundOrdered(RefundOrder),
    RefundSettled {
        number: u32,
        tx: TxHash,
    },
    PayoutSettled(TxHash),
    Terms(Terms),
    Admins(Vec<ActorId>),
    /// None where a party took its consent back.
    CancelAgreed(Option<Party>),
    Creative(String),
    PublicationCommanded {
        publish_at: Timestamp,
    },
    PublicationFailed,
    Published(Publication),
    /// What was reported or said, for whoever reads the journal; it changes nothing.
    Noted(String),
    Deadline(Option<Timestamp>),
    SettlementDue(Option<Timestamp>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    pub deal: DealId,
    pub advertiser: ActorId,
    pub owner: ActorId,
    pub channel: ChannelId,
    pub commission: BasisPoints,
    pub terms: Terms,
}

/// The words for facts that are no moves; a move has its new state's name.
pub const WORDS: &[&str] = &[
    "CANCEL_AGREED",
    "CANCEL_REVOKED",
    "CHANNEL_ADMINS_SET",
    "COMMAND_REISSUED",
    "COUNTER_OFFER",
    "DEPOSIT_PARTIAL",
    "DEPOSIT_RETURNED",
    "DEPOSIT_SUSPENDED",
    "PAYOUT_SETTLED",
    "PUBLICATION_COMMANDED",
    "PUBLICATION_FAILED",
    "PUBLICATION_REPORTED",
    "REFUND_SETTLED",
    "VERIFICATION_REPORTED",
];

/// Reads a fact's word back. One that is not known here is a corrupted row.
pub fn event_type(text: &str) -> Option<&'static str> {
    let word = WORDS.iter().copied().find(|word| *word == text);
    word.or_else(|| Status::parse(text).map(Status::name))
}
