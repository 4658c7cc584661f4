//! Samples of `deposit-confirmed`.

use domain::state::Status;
use serde_json::json;

use super::{AWAITING, CANCELLED, SECOND, Sample, UNKNOWN, answer, retry_event};
use crate::deals;
use crate::records::{self, Deposit, Record, kafka_event};

pub fn all() -> Vec<Sample> {
    let sample = |case, shows, event, answer, deal, ends_in| {
        Sample::new("deposit-confirmed", case, shows, event, answer, deal, ends_in)
    };
    let funded = Some(Status::Funded);
    let waiting = Some(Status::AwaitingPayment);
    let full = || Deposit::new(AWAITING, 1);
    let mut young = full();
    young.confirmations = 1.into();
    let mut seen_again = full();
    seen_again.confirmations = 9.into();
    let mut as_float = full();
    as_float.amount = json!(1e9);
    let mut elsewhere = full();
    elsewhere.to = deals::address(0xee);
    let forged =
        full().record().signed_by(records::WATCHER, &"00".repeat(32), records::RECORDED_AT_MS);
    vec![
        sample(
            "confirmed",
            "a deposit of the whole price: AWAITING_PAYMENT → FUNDED",
            kafka_event(&[full().record()]),
            answer(&[("applied", 1)]),
            AWAITING,
            funded,
        ),
        sample(
            "duplicate",
            "the same deposit twice, the second time with more confirmations: one effect",
            kafka_event(&[full().record(), seen_again.record()]),
            answer(&[("applied", 1), ("duplicate", 1)]),
            AWAITING,
            funded,
        ),
        sample(
            "partial",
            "a deposit below the price: booked, and the deal waits for the rest",
            kafka_event(&[full().amount(400_000_000).record()]),
            answer(&[("applied", 1)]),
            AWAITING,
            waiting,
        ),
        sample(
            "surplus",
            "a deposit above the price: FUNDED, and a refund of the surplus is ordered",
            kafka_event(&[full().amount(1_500_000_000).record()]),
            answer(&[("applied", 1)]),
            AWAITING,
            funded,
        ),
        sample(
            "late",
            "a deposit for a cancelled deal: booked, and its refund is ordered",
            kafka_event(&[Deposit::new(CANCELLED, 3).record()]),
            answer(&[("applied", 1)]),
            CANCELLED,
            Some(Status::Cancelled),
        ),
        sample(
            "too-few-confirmations",
            "a deposit with one confirmation of three: a letter waits for the confirmed report",
            kafka_event(&[young.record()]),
            answer(&[("retrying", 1)]),
            AWAITING,
            waiting,
        ),
        sample(
            "unknown-deal",
            "a deposit ahead of its deal: to the retry queue with document 1's backoff",
            kafka_event(&[Deposit::new(UNKNOWN, 4).record()]),
            answer(&[("retrying", 1)]),
            UNKNOWN,
            None,
        ),
        sample(
            "other-address",
            "a deposit to another address than the deal's: parked, CRITICAL",
            kafka_event(&[elsewhere.record()]),
            answer(&[("parked", 1)]),
            AWAITING,
            waiting,
        ),
        sample(
            "bad-signature",
            "a forged record: parked, nothing read, nothing believed",
            kafka_event(std::slice::from_ref(&forged)),
            answer(&[("parked", 1)]),
            AWAITING,
            waiting,
        ),
        sample(
            "malformed",
            "an amount that is no whole number, and a body that is no JSON: parked, each says why",
            kafka_event(&[as_float.record(), Record::new(b"{\"event_type\":".to_vec())]),
            answer(&[("parked", 2)]),
            AWAITING,
            waiting,
        ),
        sample(
            "mixed-batch",
            "good, forged, good, unknown deal, repeated: the good ones take effect, none is lost",
            kafka_event(&[
                full().record(),
                forged,
                Deposit::new(SECOND, 2).record(),
                Deposit::new(UNKNOWN, 4).record(),
                full().record(),
            ]),
            answer(&[("applied", 2), ("parked", 1), ("retrying", 1), ("duplicate", 1)]),
            AWAITING,
            funded,
        ),
        sample(
            "retry-queue",
            "a record that waited in the retry queue until its deal was there",
            retry_event("deposit-confirmed"),
            json!({"batchItemFailures": []}),
            AWAITING,
            funded,
        ),
    ]
}
