//! The files in `events/`: complete Lambda payloads, what each shows, and what to expect. This list
//! makes the files and the page that explains them; a test keeps all three in step.

use domain::ids::DealId;
use domain::state::Status;
use domain::time::Timestamp;
use platform::letter::{Failure, Held, LetterId, Letters, envelope};
use platform::wire::{Event, Incoming};
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::deals;
use crate::records::{self, Deposit, Record, kafka_event, sqs_event};

pub struct Sample {
    pub function: &'static str,
    pub case: &'static str,
    pub shows: &'static str,
    pub event: Value,
    /// The function's answer, after the seeds.
    pub answer: Value,
    /// The deal that the sample is about, and its state afterwards.
    pub deal: DealId,
    pub ends_in: Option<Status>,
}

impl Sample {
    pub fn path(&self) -> String {
        format!("events/{}/{}.json", self.function, self.case)
    }

    pub fn file(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.event).expect("an event is plain JSON");
        text.push('\n');
        text
    }
}

/// The deal of most samples: it awaits payment of 1 TON.
pub const AWAITING: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0000);
/// A deal that was cancelled while it awaited payment.
pub const CANCELLED: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0001);
/// A second deal that awaits payment, for batches.
pub const SECOND: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0002);
/// A deal that nobody created.
pub const UNKNOWN: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_00ff);

const FUNCTION: &str = "deposit-confirmed";

/// Brings about the deals that the samples name.
pub async fn seed_deals(bed: &Bed) {
    let now = platform::clock::now();
    for (deal, status) in [
        (AWAITING, Status::AwaitingPayment),
        (CANCELLED, Status::Cancelled),
        (SECOND, Status::AwaitingPayment),
    ] {
        deals::open(&bed.store, deal, status, now).await;
    }
}

/// Holds the letter that the retry-queue sample names, as if its deal had been unknown before.
pub async fn seed_letter(bed: &Bed) {
    let letters = Letters::new(
        bed.clients.dynamodb.clone(),
        bed.config.tables.operations.clone(),
        bed.clients.sqs.clone(),
        bed.config.queues.clone(),
        &platform::catalog::DEPOSIT_CONFIRMED,
    );
    let record = retried_record();
    let held = Held { record: &record, verified: true, key: None, deal: Some(AWAITING) };
    let failure = Failure::NotReady {
        code: "UNKNOWN_DEAL",
        detail: "no such deal yet".to_owned(),
        wait: domain::decision::Wait::Backoff,
    };
    let long_ago = Timestamp::from_millis(records::RECORDED_AT_MS);
    letters.hold(&held, &failure, long_ago).await.expect("the letter is held");
}

fn retried_record() -> Incoming {
    let event = kafka_event(&[Deposit::new(AWAITING, 1).record().offset(14)]);
    match Event::read(event).expect("a Kafka event") {
        Event::Kafka(mut records) => records.remove(0).incoming,
        Event::Sqs(_) => unreachable!("it is a Kafka event"),
    }
}

fn retry_event() -> Value {
    let record = retried_record();
    let id = LetterId::new(FUNCTION, &record.origin, Some(AWAITING));
    let body = json!({
        "letter_id": id.to_string(),
        "generation": 1,
        "state": "RETRY",
        "original_topic": record.origin.topic,
        "original_partition": record.origin.partition,
        "original_offset": 14,
        "original_value": serde_json::from_slice::<Value>(&record.body).expect("a report"),
        "error_details": {"exception_class": "UNKNOWN_DEAL", "message": "no such deal yet"},
        "retry_count": 1,
        "worker_instance": FUNCTION,
    })
    .to_string();
    assert_eq!(envelope::read(&body), Some((id, 1)), "the sample names its letter");
    sqs_event("escrow-deposit-confirmed-retry", &[body])
}

fn answer(counts: &[(&str, u64)]) -> Value {
    let mut answer = json!({
        "applied": 0, "duplicate": 0, "parked": 0, "retrying": 0, "skipped": 0, "dropped": 0
    });
    for (name, count) in counts {
        answer[*name] = (*count).into();
    }
    answer["records"] = counts.iter().map(|(_, count)| count).sum::<u64>().into();
    answer
}

pub fn all() -> Vec<Sample> {
    let sample = |case, shows, event, answer, deal, ends_in| Sample {
        function: FUNCTION,
        case,
        shows,
        event,
        answer,
        deal,
        ends_in,
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
            retry_event(),
            json!({"batchItemFailures": []}),
            AWAITING,
            funded,
        ),
    ]
}

/// `events/README.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Sample events\n\n\
         Complete Lambda payloads, `<function>/<case>.json`. `make events` makes them from\n\
         `tools/testbed/src/samples.rs`; a test fails when they are out of step.\n\n\
         They are signed with the development secret `development-secret-of-the-samples`. The deals\n\
         that they name are seeded by `make invoke`. Freshness is measured from a record's own\n\
         timestamp, so they never go stale.\n\n\
         | event | what it shows | answer | deal afterwards |\n|---|---|---|---|\n",
    );
    for sample in all() {
        let counts = sample.answer.as_object().expect("an answer is an object");
        let told = counts.iter().filter(|(name, count)| **count != json!(0) && *name != "records");
        let told = told.map(|(name, count)| format!("`{name}: {count}`")).collect::<Vec<_>>();
        let ends_in = sample.ends_in.map_or("none", Status::name);
        let path = sample.path().replace("events/", "");
        page += &format!("| `{path}` | {} | {} | {ends_in} |\n", sample.shows, told.join(", "));
    }
    page
}
