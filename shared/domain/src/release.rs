//! Releasing the escrow: the owner's share becomes payable, the commission is deducted, the payout is
//! commanded. The commission is computed here, once.

use crate::deal::Deal;
use crate::fact::Change;
use crate::message::{Command, Message};
use crate::money::{Account, Nano, Posting};
use crate::policy::Moment;
use crate::ton::Address;

/// The parts of a fact that releases the escrow.
#[derive(Debug)]
pub struct Released {
    pub changes: Vec<Change>,
    pub postings: Vec<Posting>,
    pub messages: Vec<Message>,
}

pub fn commission(deal: &Deal) -> Nano {
    deal.commission.of(deal.terms.price)
}

/// The same however often it is issued.
pub fn payout_command(deal: &Deal, amount: Nano, to: Address) -> Command {
    Command::ExecutePayout { amount, commission: commission(deal), to }
}

/// Nothing, where the deal has no address to pay to: then it must not be released.
pub fn release(deal: &Deal, moment: &Moment<'_>) -> Option<Released> {
    let to = deal.payout_address?;
    let commission = commission(deal);
    let amount = deal.escrow.checked_sub(commission).expect("both lie between 0 and the price");
    let entries = [
        (Account::Escrow(deal.id), -deal.escrow),
        (Account::Payable(deal.id), amount),
        (Account::Commission, commission),
    ];
    let postings = entries.into_iter().filter(|(_, amount)| *amount != Nano::ZERO);
    let postings = postings.map(|(account, amount)| Posting { account, amount }).collect();
    let mut changes = vec![Change::Deadline(None)];
    let mut messages = Vec::new();
    // With a commission of the whole price there is nothing to pay out.
    if amount.is_positive() {
        changes.push(Change::SettlementDue(Some(moment.settlement_due(deal))));
        messages.push(Message::Command(payout_command(deal, amount, to)));
    }
    Some(Released { changes, postings, messages })
}
