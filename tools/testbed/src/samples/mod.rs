//! The files in `events/`: complete Lambda payloads, what each shows, and what to expect. This list
//! makes the files and the page that explains them; a test keeps all three in step.

mod bells;
mod commands;
mod delivery;
mod deposits;
mod filings;
mod settlements;

use domain::decision::Wait;
use domain::ids::DealId;
use domain::state::Status;
use domain::time::Timestamp;
use platform::catalog::{self, Function};
use platform::letter::{Failure, Held, LetterId, Letters, Understood, envelope};
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
    fn new(
        function: &'static str,
        case: &'static str,
        shows: &'static str,
        event: Value,
        answer: Value,
        deal: DealId,
        ends_in: Option<Status>,
    ) -> Self {
        Self { function, case, shows, event, answer, deal, ends_in }
    }

    pub fn path(&self) -> String {
        format!("events/{}/{}.json", self.function, self.case)
    }

    pub fn file(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.event).expect("an event is plain JSON");
        text.push('\n');
        text
    }
}

/// The deal of most samples of deposits: it awaits payment of 1 TON.
pub const AWAITING: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0000);
/// A deal that was cancelled while it awaited payment.
pub const CANCELLED: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0001);
/// A second deal that awaits payment, for batches.
pub const SECOND: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0002);
/// A deal that nobody created.
pub const UNKNOWN: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_00ff);
/// A deal whose payout was settled.
pub const PAID_OUT: DealId = DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0003);

/// A seeded deal that rests in this state.
pub const fn deal_in(status: Status) -> DealId {
    DealId::from_u128(0x550e_8400_e29b_41d4_a716_4466_5544_0100 + status as u128)
}

pub fn all() -> Vec<Sample> {
    let all = [
        deposits::all(),
        settlements::all(),
        delivery::all(),
        filings::all(),
        commands::all(),
        bells::all(),
    ];
    all.into_iter().flatten().collect()
}

/// Brings about what an event of a function is about: the deals that it names and, where it comes
/// from the retry queue, the letter.
pub async fn seed(bed: &Bed, function: &str, event: &Value) {
    if function == catalog::OUTBOX_RELAY.name {
        // A bell names no deal, but the bucket in which a deal's rows wait.
        seed_deals(bed, &bells::DEALS).await;
    }
    seed_deals(bed, &deals_of(event)).await;
    if event["Records"].to_string().contains("letter_id") {
        let function = functions().find(|each| each.name == function).expect("it has a queue");
        seed_letter(bed, function).await;
    }
}

/// Opens those of the samples' deals that are named.
pub async fn seed_deals(bed: &Bed, named: &[DealId]) {
    let own = [
        (AWAITING, Status::AwaitingPayment),
        (CANCELLED, Status::Cancelled),
        (SECOND, Status::AwaitingPayment),
    ];
    let by_status = Status::ALL.map(|status| (deal_in(status), status));
    for (deal, status) in own.into_iter().chain(by_status) {
        // PUBLISHED is passed through, never rested in.
        if status != Status::Published && named.contains(&deal) {
            deals::open(&bed.store, deal, status).await;
        }
    }
    if named.contains(&PAID_OUT) {
        deals::open_paid_out(&bed.store, PAID_OUT).await;
    }
}

/// The deals that an event's records, messages or body speak of.
pub fn deals_of(event: &Value) -> Vec<DealId> {
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    bodies.extend(event["body"].as_str().map(|body| body.as_bytes().to_vec()));
    match Event::read(event.clone()) {
        Ok(Event::Kafka(records)) => {
            bodies.extend(records.into_iter().map(|record| record.incoming.body));
        }
        Ok(Event::Sqs(messages)) => {
            bodies.extend(messages.into_iter().map(|message| message.body.into_bytes()));
        }
        Err(_) => {}
    }
    let mut found = Vec::new();
    for body in bodies {
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        for named in [&body["deal_id"], &body["original_value"]["deal_id"]] {
            let deal = named.as_str().and_then(DealId::parse);
            found.extend(deal.filter(|deal| !found.contains(deal)));
        }
    }
    found
}

/// The record that each function's retry-queue sample is about, and its deal.
fn retried(function: &'static Function) -> (Incoming, Option<DealId>) {
    let record = match function.name {
        "deposit-confirmed" => Deposit::new(AWAITING, 1).record(),
        "payout-completed" => records::payout(deal_in(Status::CompletedReleased), 0xa1),
        "refund-completed" => records::refund(deal_in(Status::Refunded), 0xb1, deals::PRICE.get()),
        "publication-result" => records::publication(deal_in(Status::Scheduled)),
        "verification-result" => records::final_verification(deal_in(Status::DeliveryVerifying)),
        "reconciliation-result" => records::reconciliation("2a3d9a4c-nightly", true),
        // It was parked while nobody claimed its type.
        "unclaimed-results" => Deposit::new(SECOND, 2).record(),
        "deal-transition" => {
            let mut incoming = incoming(&Record::new(commands::submit_offer().into_bytes()));
            incoming.origin.topic = "escrow-deal-commands".to_owned();
            incoming.headers.clear();
            return (incoming, Some(deal_in(Status::Draft)));
        }
        name => unreachable!("{name} has no retry queue"),
    };
    let deal = record.key.as_deref().and_then(DealId::parse);
    let deal = deal.filter(|_| function.name != "unclaimed-results");
    (incoming(&record.offset(14)), deal)
}

fn incoming(record: &Record) -> Incoming {
    match Event::read(kafka_event(std::slice::from_ref(record))).expect("a Kafka event") {
        Event::Kafka(mut records) => records.remove(0).incoming,
        Event::Sqs(_) => unreachable!("it is a Kafka event"),
    }
}

pub fn functions() -> impl Iterator<Item = &'static Function> {
    let others = [&catalog::UNCLAIMED_RESULTS, &catalog::DEAL_TRANSITION, &catalog::OUTBOX_RELAY];
    catalog::RESULT_FUNCTIONS.iter().copied().chain(others)
}

/// Holds the letter that a function's retry-queue sample names, as if it had failed long ago.
async fn seed_letter(bed: &Bed, function: &'static Function) {
    let letters = Letters::new(
        bed.clients.dynamodb.clone(),
        bed.config.tables.operations.clone(),
        bed.clients.sqs.clone(),
        bed.config.queues.letters.clone(),
        function,
    );
    let (record, deal) = retried(function);
    let understood = Understood { verified: deal.is_some(), deal, ..Understood::default() };
    let held = Held { record: &record, understood };
    let failure = match function.name {
        "unclaimed-results" => Failure::permanent("UNCLAIMED", "nobody claimed it then"),
        _ => Failure::NotReady {
            code: "UNKNOWN_DEAL",
            detail: "no such deal yet".to_owned(),
            wait: Wait::Backoff,
        },
    };
    let long_ago = Timestamp::from_millis(records::RECORDED_AT_MS);
    letters.hold(&held, &failure, long_ago).await.expect("the letter is held");
}

/// The Lambda event of a function's retry queue.
fn retry_event(name: &str) -> Value {
    let function = functions().find(|function| function.name == name).expect("it has a queue");
    let (record, deal) = retried(function);
    let id = LetterId::new(name, &record, deal);
    let body = json!({
        "letter_id": id.to_string(),
        "generation": 1,
        "state": "RETRY",
        "original_topic": record.origin.topic,
        "original_partition": record.origin.partition,
        "original_offset": record.origin.offset.parse::<i64>().unwrap_or_default(),
        "original_value": serde_json::from_slice::<Value>(&record.body).expect("a report"),
        "error_details": {"exception_class": "UNKNOWN_DEAL", "message": "no such deal yet"},
        "retry_count": 1,
        "worker_instance": name,
    })
    .to_string();
    assert_eq!(envelope::read(&body), Some((id, 1)), "the sample names its letter");
    sqs_event(&format!("escrow-{name}-retry"), &[body])
}

/// What a retry queue's messages are answered with when all are done.
fn all_done() -> Value {
    json!({"batchItemFailures": []})
}

fn answer(counts: &[(&str, u64)]) -> Value {
    let mut answer = json!({
        "applied": 0, "duplicate": 0, "parked": 0, "retrying": 0, "skipped": 0, "refused": 0,
        "forwarded": 0,
    });
    for (name, count) in counts {
        answer[*name] = (*count).into();
    }
    answer["records"] = counts.iter().map(|(_, count)| count).sum::<u64>().into();
    answer
}

/// The same record as somebody without the key would sign it.
fn forged(record: &Record) -> Record {
    let mut forged = record.clone();
    let signature = "X-Worker-Signature";
    let headers = forged.headers.as_array_mut().expect("a record has headers");
    let found = headers.iter_mut().find(|header| !header[signature].is_null());
    found.expect("it is signed")[signature] = json!(vec![48; 64]);
    forged
}

/// `events/README.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Sample events\n\n\
         Complete Lambda payloads, `<function>/<case>.json`. `make events` makes them from\n\
         `tools/testbed/src/samples.rs`; a test fails when they are out of step.\n\n\
         They are signed with the development secret `development-secret-of-the-samples`; the HTTP\n\
         ones carry the key `development-key-of-the-samples`. The deals that they name are seeded by\n\
         `make invoke`. Freshness is measured from a record's own\n\
         timestamp, so they never go stale.\n\n\
         | event | what it shows | answer | deal afterwards |\n|---|---|---|---|\n",
    );
    for sample in all() {
        let counts = sample.answer.as_object().expect("an answer is an object");
        let told = counts.iter().filter(|(name, count)| **count != json!(0) && *name != "records");
        let told = told.filter(|(name, _)| *name != "batchItemFailures");
        let told = told.map(|(name, count)| format!("`{name}: {count}`")).collect::<Vec<_>>();
        let told = match sample.answer["statusCode"].as_u64() {
            Some(status) => format!("HTTP {status}"),
            None if told.is_empty() => "nothing to do again".to_owned(),
            None => told.join(", "),
        };
        let ends_in = sample.ends_in.map_or("none", Status::name);
        let path = sample.path().replace("events/", "");
        page += &format!("| `{path}` | {} | {} | {ends_in} |\n", sample.shows, told);
    }
    page
}
