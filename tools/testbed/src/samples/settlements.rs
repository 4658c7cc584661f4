//! Samples of `payout-completed` and `refund-completed`.

use domain::ids::DealId;
use domain::state::Status;
use serde_json::json;

use super::{PAID_OUT, Sample, UNKNOWN, all_done, answer, deal_in, forged, retry_event};
use crate::deals;
use crate::records::{Record, kafka_event, payout, refund, report};

pub fn all() -> Vec<Sample> {
    let mut all = payouts();
    all.extend(refunds());
    all
}

fn payouts() -> Vec<Sample> {
    let deal = deal_in(Status::CompletedReleased);
    let ends = Some(Status::CompletedReleased);
    let sample =
        |case, shows, records: &[Record], counts: &[(&str, u64)], deal: DealId, ends_in| {
            let event = kafka_event(records);
            Sample::new("payout-completed", case, shows, event, answer(counts), deal, ends_in)
        };
    let good = payout(deal, 0xa1);
    let other_split = report(
        "PAYOUT_COMPLETED",
        Some(deal),
        &json!({
            "tx_hash": "a1".repeat(32), "amount_nano": 950_000_000, "commission_nano": 50_000_000,
            "to_address": deals::payout_address().to_string(), "confirmations": 3,
        }),
    );
    let malformed = report("PAYOUT_COMPLETED", Some(deal), &json!({"tx_hash": "def789..."}));
    let unasked = payout(deal_in(Status::Funded), 0xa2);
    vec![
        sample(
            "completed",
            "the commanded payout: PAYABLE is settled",
            std::slice::from_ref(&good),
            &[("applied", 1)],
            deal,
            ends,
        ),
        sample(
            "duplicate",
            "the same payout twice: one effect, no alarm",
            &[good.clone(), good.clone()],
            &[("applied", 1), ("duplicate", 1)],
            deal,
            ends,
        ),
        sample(
            "settled-before",
            "a payout redelivered after it settled: a duplicate, though nothing is payable",
            &[payout(PAID_OUT, 0xa1)],
            &[("duplicate", 1)],
            PAID_OUT,
            ends,
        ),
        sample(
            "second-payout",
            "another transaction for a deal that was paid out: parked, CRITICAL for ever",
            &[payout(PAID_OUT, 0xa9)],
            &[("parked", 1)],
            PAID_OUT,
            ends,
        ),
        sample(
            "other-amount",
            "another split than commanded: parked, CRITICAL",
            &[other_split],
            &[("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "not-commanded",
            "a payout that nobody commanded: parked, CRITICAL",
            std::slice::from_ref(&unasked),
            &[("parked", 1)],
            deal_in(Status::Funded),
            Some(Status::Funded),
        ),
        sample(
            "bad-signature",
            "a forged payout: parked, nothing read, nothing believed",
            &[forged(&good)],
            &[("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "malformed",
            "a payout without its amount and addresses: parked, says what is missing",
            std::slice::from_ref(&malformed),
            &[("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "mixed-batch",
            "forged, good, not commanded, malformed, unknown deal, repeated",
            &[forged(&good), good.clone(), unasked, malformed, payout(UNKNOWN, 0xa3), good.clone()],
            &[("applied", 1), ("duplicate", 1), ("parked", 3), ("retrying", 1)],
            deal,
            ends,
        ),
        Sample::new(
            "payout-completed",
            "retry-queue",
            "a payout that waited in the retry queue",
            retry_event("payout-completed"),
            all_done(),
            deal,
            ends,
        ),
    ]
}

fn refunds() -> Vec<Sample> {
    let deal = deal_in(Status::Refunded);
    let ends = Some(Status::Refunded);
    let sample =
        |case, shows, records: &[Record], counts: &[(&str, u64)], deal: DealId, ends_in| {
            let event = kafka_event(records);
            Sample::new("refund-completed", case, shows, event, answer(counts), deal, ends_in)
        };
    let good = refund(deal, 0xb1, deals::PRICE.get());
    let malformed = report("REFUND_COMPLETED", Some(deal), &json!({"amount_nano": -5}));
    let siblings = payout(deal_in(Status::CompletedReleased), 0xa1);
    vec![
        sample(
            "completed",
            "the ordered refund: REFUNDABLE is settled, the status stays",
            std::slice::from_ref(&good),
            &[("applied", 1)],
            deal,
            ends,
        ),
        sample(
            "duplicate",
            "the same refund twice: one effect",
            &[good.clone(), good.clone()],
            &[("applied", 1), ("duplicate", 1)],
            deal,
            ends,
        ),
        sample(
            "second-transaction",
            "a second transaction for a settled order: parked, CRITICAL for ever",
            &[good.clone(), refund(deal, 0xb2, deals::PRICE.get())],
            &[("applied", 1), ("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "other-amount",
            "an amount that no open order has: parked, CRITICAL",
            &[refund(deal, 0xb1, 5)],
            &[("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "not-ordered",
            "a refund that nobody ordered: parked, CRITICAL",
            &[refund(deal_in(Status::Funded), 0xb3, deals::PRICE.get())],
            &[("parked", 1)],
            deal_in(Status::Funded),
            Some(Status::Funded),
        ),
        sample(
            "bad-signature",
            "a forged refund: parked, nothing read, nothing believed",
            &[forged(&good)],
            &[("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "malformed",
            "a negative amount and no transaction: parked, says what is wrong",
            std::slice::from_ref(&malformed),
            &[("parked", 1)],
            deal,
            ends,
        ),
        sample(
            "mixed-batch",
            "a sibling's record, forged, good, malformed, repeated",
            &[siblings, forged(&good), good.clone(), malformed, good.clone()],
            &[("skipped", 1), ("applied", 1), ("duplicate", 1), ("parked", 2)],
            deal,
            ends,
        ),
        Sample::new(
            "refund-completed",
            "retry-queue",
            "a refund that waited in the retry queue",
            retry_event("refund-completed"),
            all_done(),
            deal,
            ends,
        ),
    ]
}
