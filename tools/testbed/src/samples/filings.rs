//! Samples of `reconciliation-result` and `unclaimed-results`.

use domain::state::Status;
use serde_json::json;

use super::{AWAITING, Sample, all_done, answer, deal_in, forged, retry_event};
use crate::records::{Deposit, Record, check, kafka_event, reconciliation, report};

const NIGHT: &str = "7f2b1d9e-5c4a-4e3b-9f8a-1a2b3c4d5e6f";

pub fn all() -> Vec<Sample> {
    let mut all = reconciliations();
    all.extend(unclaimed());
    all
}

fn reconciliations() -> Vec<Sample> {
    let (deal, ends) = (AWAITING, Some(Status::AwaitingPayment));
    let sample = |case, shows, records: &[Record], counts: &[(&str, u64)]| {
        let event = kafka_event(records);
        Sample::new("reconciliation-result", case, shows, event, answer(counts), deal, ends)
    };
    let passed = reconciliation(NIGHT, true);
    let failed = reconciliation(NIGHT, false);
    let malformed = report(
        "RECONCILIATION_RESULT",
        None,
        &json!({"trigger_id": NIGHT, "checks": {"LEDGER_BALANCE": {"status": "MAYBE"}}}),
    );
    let mut trigger =
        report("RECONCILIATION_TRIGGER", None, &json!({"trigger_id": NIGHT, "scope": "FULL"}));
    trigger.topic = "reconciliation.triggers".to_owned();
    vec![
        sample(
            "passed",
            "all four checks pass: stored",
            std::slice::from_ref(&passed),
            &[("applied", 1)],
        ),
        sample(
            "failed",
            "a check fails: stored, and a RECONCILIATION_ALERT goes out",
            std::slice::from_ref(&failed),
            &[("applied", 1)],
        ),
        sample(
            "duplicate",
            "the same result twice: stored once",
            &[failed.clone(), failed.clone()],
            &[("applied", 1), ("duplicate", 1)],
        ),
        sample(
            "conflict",
            "another outcome under the same trigger: parked, CRITICAL",
            &[passed.clone(), failed.clone()],
            &[("applied", 1), ("parked", 1)],
        ),
        sample(
            "trigger",
            "the trigger itself, on the same topic: whoever reconciles claims it",
            std::slice::from_ref(&trigger),
            &[("skipped", 1)],
        ),
        sample("bad-signature", "a forged result: parked", &[forged(&passed)], &[("parked", 1)]),
        sample(
            "malformed",
            "a status that is neither PASS nor FAIL: parked, says which",
            std::slice::from_ref(&malformed),
            &[("parked", 1)],
        ),
        sample(
            "mixed-batch",
            "trigger, forged, malformed, good, repeated",
            &[trigger, forged(&passed), malformed, passed.clone(), passed.clone()],
            &[("skipped", 1), ("parked", 2), ("applied", 1), ("duplicate", 1)],
        ),
        Sample::new(
            "reconciliation-result",
            "retry-queue",
            "a result that waited in the retry queue",
            retry_event("reconciliation-result"),
            all_done(),
            deal,
            ends,
        ),
    ]
}

fn unclaimed() -> Vec<Sample> {
    let (deal, ends) = (AWAITING, Some(Status::AwaitingPayment));
    let sample = |case, shows, records: &[Record], counts: &[(&str, u64)]| {
        let event = kafka_event(records);
        Sample::new("unclaimed-results", case, shows, event, answer(counts), deal, ends)
    };
    let claimed = Deposit::new(AWAITING, 1).record();
    let misspelt = report("DEPOSIT_CONFIRMD", Some(AWAITING), &json!({}));
    let no_json = Record::new(b"{\"event_type\": \"DEPOSIT_CONF".to_vec());
    let tombstone = Record { body: Vec::new(), ..claimed.clone() };
    let mut misplaced = check(deal_in(Status::DeliveryVerifying), 1, true);
    misplaced.topic = "escrow.confirmations".to_owned();
    vec![
        sample(
            "claimed",
            "a record that a sibling claims: skipped by a cheap look",
            std::slice::from_ref(&claimed),
            &[("skipped", 1)],
        ),
        sample(
            "duplicate",
            "the same misspelt record twice: two records, two letters, nothing dropped",
            &[misspelt.clone(), misspelt.clone()],
            &[("parked", 2)],
        ),
        sample(
            "misspelt",
            "a type that every filter drops: parked",
            std::slice::from_ref(&misspelt),
            &[("parked", 1)],
        ),
        sample(
            "other-topic",
            "a known type on a topic where nobody claims it: parked",
            std::slice::from_ref(&misplaced),
            &[("parked", 1)],
        ),
        sample(
            "malformed",
            "what is no JSON never passes a filter: parked",
            &[no_json.clone(), tombstone],
            &[("parked", 2)],
        ),
        sample(
            "bad-signature",
            "a forged record of a claimed type: its own function parks it",
            &[forged(&claimed)],
            &[("skipped", 1)],
        ),
        sample(
            "mixed-batch",
            "claimed, misspelt, claimed on three topics, no JSON, misplaced",
            &[
                claimed.clone(),
                misspelt,
                check(deal_in(Status::DeliveryVerifying), 1, true),
                reconciliation(NIGHT, true),
                no_json,
                misplaced,
            ],
            &[("skipped", 3), ("parked", 3)],
        ),
        Sample::new(
            "unclaimed-results",
            "retry-queue",
            "a redriven letter whose type is claimed by now: forwarded to that function",
            retry_event("unclaimed-results"),
            all_done(),
            deal,
            ends,
        ),
    ]
}
