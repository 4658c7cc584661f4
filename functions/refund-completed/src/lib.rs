//! Decides what a completed refund does to its deal: it settles the oldest open order with its amount
//! and address, whatever the state. The deal row alone decides; equal orders are interchangeable.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

use domain::deal::Deal;
use domain::decision::{Decision, Wait};
use domain::fact::Change;
use domain::key::Key;
use domain::money::{Account, Nano, transfer};
use domain::plan::{Plan, Step};
use domain::policy::Moment;
use domain::result::RefundCompleted;
use domain::state::Status;

pub fn decide(deal: &Deal, refund: &RefundCompleted, moment: &Moment<'_>) -> Decision {
    if deal.status == Status::Published {
        return Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED");
    }
    if let Some(order) = deal.refunds.iter().find(|order| order.settled == Some(refund.tx)) {
        if order.amount == refund.amount && order.to == refund.to {
            return Decision::Duplicate;
        }
        let detail = format!("this transaction settled refund {} with other content", order.number);
        return Decision::refuse_critical("CONFLICT", detail);
    }
    let open = deal.refunds.iter().filter(|order| order.settled.is_none());
    let mut matching =
        open.clone().filter(|order| order.amount == refund.amount && order.to == refund.to);
    let Some(order) = matching.next() else {
        let detail = format!(
            "none of {} open refund orders has payload.amount_nano {} and payload.to_address",
            open.count(),
            refund.amount
        );
        return Decision::refuse_critical("REFUND_NOT_ORDERED", detail);
    };
    let required = moment.policy.required_confirmations;
    if refund.confirmations < required {
        let detail = format!("{} of {required} confirmations", refund.confirmations);
        return Decision::not_ready("TOO_FEW_CONFIRMATIONS", detail, Wait::AnotherReport);
    }
    let mut changes = vec![Change::RefundSettled { number: order.number, tx: refund.tx }];
    if deal.refundable == order.amount && deal.payable == Nano::ZERO {
        changes.push(Change::SettlementDue(None));
    }
    let postings = transfer(Account::Refundable(deal.id), Account::ExternalTon, refund.amount);
    Decision::Apply(Plan {
        key: Key::refund(deal.id, order.number),
        fingerprint: refund.fingerprint(),
        event_type: RefundCompleted::EVENT_TYPE,
        deal: deal.id,
        steps: vec![Step {
            event_type: "REFUND_SETTLED",
            to: deal.status,
            actor: None,
            changes,
            postings: postings.to_vec(),
        }],
        messages: Vec::new(),
    })
}
