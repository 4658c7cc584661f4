//! Decides what a confirmed deposit does to its deal. Every deposit that is really ours is booked:
//! it funds the deal, waits for the rest of the price, goes back to its sender, or, where it is too
//! small or one too many, rests in SUSPENSE.

use domain::deal::{Deal, Deposit, MAX_DEPOSITS};
use domain::decision::{Decision, Wait};
use domain::fact::Change;
use domain::message::Message;
use domain::money::{Account, Nano, Posting, transfer};
use domain::plan::{Plan, Step};
use domain::policy::Moment;
use domain::refund::{give_back, suspended};
use domain::result::DepositConfirmed;
use domain::state::Status;

pub fn decide(deal: &Deal, deposit: &DepositConfirmed, moment: &Moment<'_>) -> Decision {
    match deal.status {
        Status::Published => {
            return Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED");
        }
        Status::Draft | Status::OfferPending | Status::Negotiating | Status::Accepted => {
            return Decision::not_ready(
                "DEAL_NOT_AWAITING_PAYMENT",
                format!("the deal is {}", deal.status),
                Wait::Backoff,
            );
        }
        Status::AwaitingPayment
        | Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled
        | Status::DeliveryVerifying
        | Status::CompletedReleased
        | Status::Disputed
        | Status::Cancelled
        | Status::Refunded
        | Status::Expired => {}
    }
    if deal.deposit_address != Some(deposit.deposit_address) {
        return Decision::refuse_critical(
            "OTHER_DEPOSIT_ADDRESS",
            "payload.deposit_address is not the address of this deal",
        );
    }
    let required = moment.policy.required_confirmations;
    if deposit.confirmations < required {
        return Decision::not_ready(
            "TOO_FEW_CONFIRMATIONS",
            format!("{} of {required} confirmations", deposit.confirmations),
            Wait::AnotherReport,
        );
    }
    // Any sum that an i64 cannot hold is above all TON there is.
    let Some(paid) = deal.escrow.checked_add(deposit.amount) else {
        return Decision::refuse_critical("IMPOSSIBLE_AMOUNT", "payload.amount_nano overflows");
    };

    let funds = deal.status == Status::AwaitingPayment && paid >= deal.terms.price;
    let dust = deposit.amount < moment.policy.min_refund && !funds;
    if dust || deal.deposits.len() >= MAX_DEPOSITS {
        return Decision::Apply(suspend(deal, deposit, dust));
    }
    Decision::Apply(if funds {
        fund(deal, deposit, paid, moment)
    } else if deal.status == Status::AwaitingPayment {
        wait_for_the_rest(deal, deposit)
    } else {
        send_back(deal, deposit, moment)
    })
}

fn fund(deal: &Deal, deposit: &DepositConfirmed, paid: Nano, moment: &Moment<'_>) -> Plan {
    let surplus = paid.checked_sub(deal.terms.price).expect("what is paid reaches the price");
    let given = give_back(deal, deposit.tx, deposit.from, surplus, moment);
    let mut changes = vec![deposited(deposit)];
    changes.extend(given.changes);
    changes.push(Change::Deadline(moment.deadline(Status::Funded)));
    let mut postings = credit(deal, deposit);
    postings.extend(given.postings);
    plan(deal, deposit, Status::Funded, "FUNDED", changes, postings, given.messages)
}

fn wait_for_the_rest(deal: &Deal, deposit: &DepositConfirmed) -> Plan {
    let changes = vec![deposited(deposit)];
    let postings = credit(deal, deposit);
    plan(deal, deposit, deal.status, "DEPOSIT_PARTIAL", changes, postings, Vec::new())
}

fn send_back(deal: &Deal, deposit: &DepositConfirmed, moment: &Moment<'_>) -> Plan {
    let given = give_back(deal, deposit.tx, deposit.from, deposit.amount, moment);
    let mut changes = vec![deposited(deposit)];
    changes.extend(given.changes);
    let mut postings = credit(deal, deposit);
    postings.extend(given.postings);
    plan(deal, deposit, deal.status, "DEPOSIT_RETURNED", changes, postings, given.messages)
}

/// Books a deposit past the deal: dust must not grow the deal row, and a row has an end.
fn suspend(deal: &Deal, deposit: &DepositConfirmed, dust: bool) -> Plan {
    let postings = transfer(Account::ExternalTon, Account::Suspense, deposit.amount).to_vec();
    let messages: Vec<Message> = if dust {
        Vec::new()
    } else {
        vec![suspended(deposit.tx, deposit.amount, "the deal has too many deposits")]
    };
    plan(deal, deposit, deal.status, "DEPOSIT_SUSPENDED", Vec::new(), postings, messages)
}

fn deposited(deposit: &DepositConfirmed) -> Change {
    Change::Deposited(Deposit {
        tx: deposit.tx,
        sender: deposit.from,
        amount: deposit.amount,
        returned: Nano::ZERO,
    })
}

fn credit(deal: &Deal, deposit: &DepositConfirmed) -> Vec<Posting> {
    transfer(Account::ExternalTon, Account::Escrow(deal.id), deposit.amount).to_vec()
}

fn plan(
    deal: &Deal,
    deposit: &DepositConfirmed,
    to: Status,
    event_type: &'static str,
    changes: Vec<Change>,
    postings: Vec<Posting>,
    messages: Vec<Message>,
) -> Plan {
    Plan {
        key: deposit.key(),
        fingerprint: deposit.fingerprint(),
        event_type: DepositConfirmed::EVENT_TYPE,
        deal: deal.id,
        steps: vec![Step { event_type, to, actor: None, changes, postings }],
        messages,
    }
}
