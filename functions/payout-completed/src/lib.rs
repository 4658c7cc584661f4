//! Decides what a completed payout does to its deal: it settles what is payable, exactly, once. The
//! status was set when the escrow was released; here only the money moves. Whatever differs from what
//! was commanded is parked and pages somebody: money has left.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

use domain::deal::Deal;
use domain::decision::{Decision, Wait};
use domain::fact::Change;
use domain::money::{Account, Nano, transfer};
use domain::plan::{Plan, Step};
use domain::policy::Moment;
use domain::release::commission;
use domain::result::PayoutCompleted;
use domain::state::Status;

pub fn decide(deal: &Deal, payout: &PayoutCompleted, moment: &Moment<'_>) -> Decision {
    match deal.status {
        Status::CompletedReleased => {}
        Status::Published => {
            return Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED");
        }
        Status::Draft
        | Status::OfferPending
        | Status::Negotiating
        | Status::Accepted
        | Status::AwaitingPayment
        | Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled
        | Status::DeliveryVerifying
        | Status::Disputed
        | Status::Cancelled
        | Status::Refunded
        | Status::Expired => {
            let detail = format!("nobody commanded a payout: the deal is {}", deal.status);
            return Decision::refuse_critical("PAYOUT_NOT_COMMANDED", detail);
        }
    }
    if !deal.payable.is_positive() {
        return Decision::refuse_critical("NOTHING_PAYABLE", "the deal has nothing to pay out");
    }
    if payout.amount != deal.payable || payout.commission != commission(deal) {
        let detail = format!(
            "payload.amount_nano and payload.commission_nano are {} and {}; commanded were {} and {}",
            payout.amount,
            payout.commission,
            deal.payable,
            commission(deal)
        );
        return Decision::refuse_critical("OTHER_AMOUNT", detail);
    }
    if deal.payout_address != Some(payout.to) {
        let detail = "payload.to_address is not the address that was commanded";
        return Decision::refuse_critical("OTHER_PAYOUT_ADDRESS", detail);
    }
    let required = moment.policy.required_confirmations;
    if payout.confirmations < required {
        let detail = format!("{} of {required} confirmations", payout.confirmations);
        return Decision::not_ready("TOO_FEW_CONFIRMATIONS", detail, Wait::AnotherReport);
    }
    let mut changes = vec![Change::PayoutSettled(payout.tx)];
    if deal.refundable == Nano::ZERO {
        changes.push(Change::SettlementDue(None));
    }
    let postings = transfer(Account::Payable(deal.id), Account::ExternalTon, payout.amount);
    Decision::Apply(Plan {
        key: payout.key(),
        fingerprint: payout.fingerprint(),
        event_type: PayoutCompleted::EVENT_TYPE,
        deal: deal.id,
        steps: vec![Step {
            event_type: "PAYOUT_SETTLED",
            to: deal.status,
            actor: None,
            changes,
            postings: postings.to_vec(),
        }],
        messages: Vec::new(),
    })
}
