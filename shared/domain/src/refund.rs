//! Giving money back. Refunds go per deposit, to its sender, as orders on the deal; what is too small
//! or does not fit the row goes to SUSPENSE. Either way it leaves the escrow at once.

use crate::deal::{Deal, MAX_DEPOSITS, RefundOrder};
use crate::fact::Change;
use crate::message::{Command, Kind, Message, Notification, Recipient};
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
    if !amount.is_positive() {
        return given;
    }
    given.changes.push(Change::Returned { deposit, amount });
    let escrow = Account::Escrow(deal.id);
    let full = deal.refunds.len() >= MAX_DEPOSITS;
    if amount < moment.policy.min_refund || full {
        given.postings.extend(transfer(escrow, Account::Suspense, amount));
        if full {
            given.messages.push(suspended(deposit, amount, "the deal has too many refund orders"));
        }
        return given;
    }
    let number = u32::try_from(deal.refunds.len() + 1).expect("orders are bounded");
    given.postings.extend(transfer(escrow, Account::Refundable(deal.id), amount));
    given.changes.push(Change::RefundOrdered(RefundOrder {
        number,
        amount,
        to: sender,
        deposit,
        settled: None,
    }));
    given.changes.push(Change::SettlementDue(Some(moment.settlement_due(deal))));
    given.messages.push(Message::Command(Command::ExecuteRefund {
        number,
        amount,
        to: sender,
        deposit,
    }));
    given
}

/// Tells the operator about money that was booked to SUSPENSE for want of room.
pub fn suspended(deposit: TxHash, amount: Nano, why: &str) -> Message {
    Message::Notification(Notification {
        kind: Kind::DepositSuspended,
        recipients: vec![Recipient::Operator],
        text: format!("{amount} nanotons of deposit {deposit} went to SUSPENSE: {why}"),
    })
}
