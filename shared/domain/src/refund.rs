//! Giving money back. Refunds go per deposit, to its sender, as orders on the deal; what is too small
//! or does not fit the row goes to SUSPENSE. Either way it leaves the escrow at once.

use crate::deal::{Deal, MAX_DEPOSITS, RefundOrder};
use crate::fact::Change;
use crate::message::{Command, Kind, Message};
use crate::money::{Account, Nano, Posting, transfer};
use crate::policy::Moment;
use crate::ton::{Address, TxHash};

/// The parts of a fact that give money back.
#[derive(Debug, Default)]
pub struct GivenBack {
    pub changes: Vec<Change>,
    pub postings: Vec<Posting>,
    pub messages: Vec<Message>,
}

/// Gives back `amount` of one deposit, which must be on the deal when the changes apply.
pub fn give_back(
    deal: &Deal,
    deposit: TxHash,
    sender: Address,
    amount: Nano,
    moment: &Moment<'_>,
) -> GivenBack {
    let mut given = GivenBack::default();
    given.add(deal, deposit, sender, amount, deal.refunds.len(), moment);
    given
}

/// Gives back all that is in escrow, deposit by deposit.
pub fn give_back_all(deal: &Deal, moment: &Moment<'_>) -> GivenBack {
    let mut given = GivenBack::default();
    let mut orders = deal.refunds.len();
    for deposit in &deal.deposits {
        let left = deposit.amount.checked_sub(deposit.returned);
        let left = left.expect("no deposit returns more than itself");
        orders += usize::from(given.add(deal, deposit.tx, deposit.sender, left, orders, moment));
    }
    given
}

impl GivenBack {
    /// Whether it took an order.
    fn add(
        &mut self,
        deal: &Deal,
        deposit: TxHash,
        sender: Address,
        amount: Nano,
        orders: usize,
        moment: &Moment<'_>,
    ) -> bool {
        if !amount.is_positive() {
            return false;
        }
        self.changes.push(Change::Returned { deposit, amount });
        let escrow = Account::Escrow(deal.id);
        let full = orders >= MAX_DEPOSITS;
        if amount < moment.policy.min_refund || full {
            self.postings.extend(transfer(escrow, Account::Suspense, amount));
            if full {
                let why = "the deal has too many refund orders";
                self.messages.push(suspended(deposit, amount, why));
            }
            return false;
        }
        let number = u32::try_from(orders + 1).expect("orders are bounded");
        self.postings.extend(transfer(escrow, Account::Refundable(deal.id), amount));
        let order = RefundOrder { number, amount, to: sender, deposit, settled: None };
        self.messages.push(Message::Command(order.command()));
        self.changes.push(Change::RefundOrdered(order));
        self.changes.push(Change::SettlementDue(Some(moment.settlement_due(deal))));
        true
    }
}

impl RefundOrder {
    /// The same however often it is issued.
    pub fn command(&self) -> Command {
        Command::ExecuteRefund {
            number: self.number,
            amount: self.amount,
            to: self.to,
            deposit: self.deposit,
        }
    }
}

/// Tells the operator about money that was booked to SUSPENSE for want of room.
pub fn suspended(deposit: TxHash, amount: Nano, why: &str) -> Message {
    let text = format!("{amount} nanotons of deposit {deposit} went to SUSPENSE: {why}");
    Message::tell_operator(Kind::DepositSuspended, text)
}
