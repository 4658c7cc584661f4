//! A deal as it stands now: the fold of its journal. Nothing changes a deal but a fact.

use crate::fact::{Change, Fact};
use crate::ids::{ActorId, ChannelId, DealId};
use crate::money::{Account, BasisPoints, Nano};
use crate::state::Status;
use crate::time::Timestamp;
use crate::ton::{Address, TxHash};

/// More deposits or refund orders than this do not fit the deal row: what exceeds them is booked to
/// SUSPENSE for an operator to sort out.
pub const MAX_DEPOSITS: usize = 100;
/// As many channel admins as fit a small row.
pub const MAX_ADMINS: usize = 20;
/// How often a publication may fail before it is disputed.
pub const MAX_PUBLICATION_FAILURES: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    Advertiser,
    Owner,
}

impl Party {
    pub const fn other(self) -> Self {
        match self {
            Self::Advertiser => Self::Owner,
            Self::Owner => Self::Advertiser,
        }
    }
}

/// What the parties negotiate. Each proposal raises the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub version: u32,
    pub price: Nano,
    pub proposed_by: Party,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deposit {
    pub tx: TxHash,
    pub sender: Address,
    pub amount: Nano,
    /// What refund orders (or SUSPENSE, for dust) already took out of this deposit.
    pub returned: Nano,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundOrder {
    /// 1 for a deal's first order.
    pub number: u32,
    pub amount: Nano,
    pub to: Address,
    /// The deposit that it returns.
    pub deposit: TxHash,
    pub settled: Option<TxHash>,
}

/// The post as the publisher reported it. Verification is held against this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub message_id: i64,
    pub content_hash: String,
    pub published_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deal {
    pub id: DealId,
    pub status: Status,
    /// The seq of the last fact.
    pub version: u64,
    pub advertiser: ActorId,
    pub owner: ActorId,
    pub channel: ChannelId,
    pub commission: BasisPoints,
    pub terms: Terms,
    pub deposit_address: Option<Address>,
    pub payout_address: Option<Address>,
    pub escrow: Nano,
    pub payable: Nano,
    pub refundable: Nano,
    pub deposits: Vec<Deposit>,
    pub refunds: Vec<RefundOrder>,
    pub payout_tx: Option<TxHash>,
    /// Whom the owner lets act for the channel.
    pub admins: Vec<ActorId>,
    /// The party that agreed to cancel, in this stay in this status.
    pub cancel_agreed_by: Option<Party>,
    /// What the owner handed in: a reference that the publisher understands.
    pub creative: Option<String>,
    /// Set once the publication was commanded: when it is to appear.
    pub publish_at: Option<Timestamp>,
    pub publication: Option<Publication>,
    pub publication_failures: u32,
    pub deadline_at: Option<Timestamp>,
    pub settlement_due_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Where this deal's last messages stand in the outbox.
    pub outbox_position: String,
}

/// Why a journal does not fold: each of these is a corrupted store, never a business case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldError {
    NotCreated,
    CreatedTwice,
    Gap { expected: u64, found: u64 },
    WrongFrom { expected: Status, found: Option<Status> },
    Overflow(Account),
    NoSuchDeposit(TxHash),
    NoSuchRefund(u32),
}

impl Deal {
    /// The deal that a journal describes.
    pub fn fold<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Result<Self, FoldError> {
        let mut facts = facts.into_iter();
        let mut deal = Self::created_by(facts.next().ok_or(FoldError::NotCreated)?)?;
        for fact in facts {
            deal.apply(fact)?;
        }
        Ok(deal)
    }

    /// The deal that its first fact brings into being.
    pub fn created_by(first: &Fact) -> Result<Self, FoldError> {
        let Some(Change::Created(creation)) = first.changes.first() else {
            return Err(FoldError::NotCreated);
        };
        let mut deal = Self {
            id: creation.deal,
            status: first.to,
            version: 0,
            advertiser: creation.advertiser,
            owner: creation.owner,
            channel: creation.channel,
            commission: creation.commission,
            terms: creation.terms.clone(),
            deposit_address: None,
            payout_address: None,
            escrow: Nano::ZERO,
            payable: Nano::ZERO,
            refundable: Nano::ZERO,
            deposits: Vec::new(),
            refunds: Vec::new(),
            payout_tx: None,
            admins: Vec::new(),
            cancel_agreed_by: None,
            creative: None,
            publish_at: None,
            publication: None,
            publication_failures: 0,
            deadline_at: None,
            settlement_due_at: None,
            created_at: first.at,
            updated_at: first.at,
            outbox_position: String::new(),
        };
        deal.record(first, &first.changes[1..])?;
        Ok(deal)
    }

    pub fn apply(&mut self, fact: &Fact) -> Result<(), FoldError> {
        if fact.from != Some(self.status) {
            return Err(FoldError::WrongFrom { expected: self.status, found: fact.from });
        }
        self.record(fact, &fact.changes)
    }

    fn record(&mut self, fact: &Fact, changes: &[Change]) -> Result<(), FoldError> {
        if fact.seq != self.version + 1 {
            return Err(FoldError::Gap { expected: self.version + 1, found: fact.seq });
        }
        // Consent is bound to the stay in a status.
        if self.status != fact.to {
            self.cancel_agreed_by = None;
        }
        for change in changes {
            self.change(change)?;
        }
        for posting in &fact.postings {
            if let Some(balance) = self.balance_mut(posting.account) {
                *balance = balance
                    .checked_add(posting.amount)
                    .ok_or(FoldError::Overflow(posting.account))?;
            }
        }
        self.status = fact.to;
        self.version = fact.seq;
        self.updated_at = fact.at;
        self.outbox_position.clone_from(&fact.outbox_position);
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), FoldError> {
        match change {
            Change::Created(_) => return Err(FoldError::CreatedTwice),
            Change::DepositAddress(address) => self.deposit_address = Some(*address),
            Change::PayoutAddress(address) => self.payout_address = Some(*address),
            Change::Deposited(deposit) => self.deposits.push(deposit.clone()),
            Change::Returned { deposit, amount } => {
                let found = self.deposits.iter_mut().find(|each| each.tx == *deposit);
                let found = found.ok_or(FoldError::NoSuchDeposit(*deposit))?;
                found.returned = found
                    .returned
                    .checked_add(*amount)
                    .ok_or(FoldError::Overflow(Account::Escrow(self.id)))?;
            }
            Change::RefundOrdered(order) => self.refunds.push(order.clone()),
            Change::RefundSettled { number, tx } => {
                let found = self.refunds.iter_mut().find(|each| each.number == *number);
                found.ok_or(FoldError::NoSuchRefund(*number))?.settled = Some(*tx);
            }
            Change::PayoutSettled(tx) => self.payout_tx = Some(*tx),
            Change::Terms(terms) => self.terms = terms.clone(),
            Change::Admins(admins) => self.admins.clone_from(admins),
            Change::CancelAgreed(party) => self.cancel_agreed_by = *party,
            Change::Creative(reference) => self.creative = Some(reference.clone()),
            Change::PublicationCommanded { publish_at } => self.publish_at = Some(*publish_at),
            Change::PublicationFailed => self.publication_failures += 1,
            Change::Published(publication) => self.publication = Some(publication.clone()),
            Change::Noted(_) => {}
            Change::Deadline(at) => self.deadline_at = *at,
            Change::SettlementDue(at) => self.settlement_due_at = *at,
        }
        Ok(())
    }

    fn balance_mut(&mut self, account: Account) -> Option<&mut Nano> {
        match account {
            Account::Escrow(deal) if deal == self.id => Some(&mut self.escrow),
            Account::Payable(deal) if deal == self.id => Some(&mut self.payable),
            Account::Refundable(deal) if deal == self.id => Some(&mut self.refundable),
            Account::Escrow(_)
            | Account::Payable(_)
            | Account::Refundable(_)
            | Account::ExternalTon
            | Account::Commission
            | Account::NetworkFees
            | Account::Suspense => None,
        }
    }

    /// The party that an actor is.
    pub fn party(&self, actor: ActorId) -> Option<Party> {
        if actor == self.advertiser {
            Some(Party::Advertiser)
        } else if actor == self.owner {
            Some(Party::Owner)
        } else {
            None
        }
    }

    pub fn actor(&self, party: Party) -> ActorId {
        match party {
            Party::Advertiser => self.advertiser,
            Party::Owner => self.owner,
        }
    }

    /// The earlier of deadline and settlement due time: when somebody must look at this deal.
    pub fn due_at(&self) -> Option<Timestamp> {
        [self.deadline_at, self.settlement_due_at].into_iter().flatten().min()
    }
}
