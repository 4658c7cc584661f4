//! The money path on a faulty network, and with processes that die at every step. Injected at the
//! SDK's HTTP connector, since no local engine throttles, conflicts or loses replies.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use domain::ids::DealId;
use domain::result::DepositConfirmed;
use domain::state::Status;
use platform::aws::Clients;
use platform::catalog::DEPOSIT_CONFIRMED;
use platform::pipeline::Pipeline;
use platform::results::{self, Results};
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::deals;
use testbed::faults::{Fault, Network};
use testbed::functions::{self, in_a_minute};
use testbed::records::{self, Deposit, Record, kafka_event};

const DEAL: DealId = DealId::from_u128(1);

fn on(clients: Clients, bed: &Bed) -> Pipeline<Results<DepositConfirmed>> {
    results::pipeline(&DEPOSIT_CONFIRMED, deposit_confirmed::decide, bed.config.clone(), clients)
}

async fn awaiting() -> Bed {
    let bed = Bed::new("faults").await;
    deals::open(&bed.store, DEAL, Status::AwaitingPayment).await;
    bed
}

/// Answers the first `count` calls of an operation with a fault.
fn first(operation: &'static str, count: u32, fault: Fault) -> Network {
    let mut left = count;
    Network::new(move |called| {
        if called == operation && left > 0 {
            left -= 1;
            return fault.clone();
        }
        Fault::None
    })
}

fn event() -> Value {
    kafka_event(&[Deposit::new(DEAL, 1).record()])
}

async fn nothing_happened(bed: &Bed) {
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::AwaitingPayment);
    assert_eq!(bed.letters().await, Vec::<Value>::new());
}

const CONFLICT: &str = "TransactionConflict";

#[tokio::test]
async fn what_passes_by_itself_costs_nothing_but_a_retry() {
    let passing = [
        ("TransactWriteItems", 3, Fault::cancelled(&["None", CONFLICT, "None", "None"])),
        ("TransactWriteItems", 1, Fault::error("TransactionInProgressException")),
        ("TransactWriteItems", 2, Fault::error("ProvisionedThroughputExceededException")),
        ("TransactWriteItems", 2, Fault::Unreachable),
        // A rival's commit seen in the middle: its journal row is there, its deal not yet.
        (
            "TransactWriteItems",
            3,
            Fault::cancelled(&["None", "None", "ConditionalCheckFailed", "None"]),
        ),
        ("BatchGetItem", 2, Fault::error("ThrottlingException")),
        ("BatchGetItem", 2, Fault::Unreachable),
        ("GetSecretValue", 1, Fault::Unreachable),
    ];
    for (operation, count, fault) in passing {
        let bed = awaiting().await;
        let network = first(operation, count, fault.clone());
        let answer = on(network.clients(&bed), &bed).invoke(event(), in_a_minute()).await;
        assert_eq!(answer.expect("it is done")["applied"], 1, "{operation} {fault:?}");
        let deal = bed.sound_deal(DEAL).await;
        assert_eq!((deal.status, deal.deposits.len()), (Status::Funded, 1));
    }
}

#[tokio::test]
async fn an_outage_parks_nothing_spends_nothing_and_passes() {
    let storms = [
        ("BatchGetItem", Fault::error("ProvisionedThroughputExceededException"), "cannot read"),
        ("BatchGetItem", Fault::Unreachable, "cannot read"),
        ("TransactWriteItems", Fault::error("RequestLimitExceeded"), "cannot write"),
        (
            "TransactWriteItems",
            Fault::cancelled(&["None", "ThrottlingError", "None", "None"]),
            "ThrottlingError",
        ),
        (
            "TransactWriteItems",
            Fault::cancelled(&["None", CONFLICT, "None", "None"]),
            "keep conflicting",
        ),
        ("GetSecretValue", Fault::Unreachable, "cannot be read"),
    ];
    for (operation, fault, told) in storms {
        let bed = awaiting().await;
        let network = first(operation, u32::MAX, fault.clone());
        let function = on(network.clients(&bed), &bed);
        let error = function.invoke(event(), in_a_minute()).await.expect_err(told).to_string();
        assert!(error.contains("1 of 1 records are not done"), "{error}");
        assert!(error.contains(told), "{error}");
        nothing_happened(&bed).await;
        // The weather clears.
        let answer = on(bed.clients.clone(), &bed).invoke(event(), in_a_minute()).await;
        assert_eq!(answer.expect("it is done")["applied"], 1);
    }
}

#[tokio::test]
async fn unprocessed_keys_are_asked_for_again_and_never_taken_for_unknown() {
    let bed = awaiting().await;
    on(bed.clients.clone(), &bed).invoke(event(), in_a_minute()).await.expect("it is done");
    let before = bed.sound_deal(DEAL).await;
    let tables = &bed.config.tables;
    let key = |table: &str, name: &str, value: String| json!({"Keys": [{name: {"S": value}}], "ConsistentRead": true, "table": table});
    let hash = Deposit::new(DEAL, 1).body()["payload"]["tx_hash"].as_str().unwrap().to_owned();
    let mut unprocessed = serde_json::Map::new();
    for (table, name, value) in [
        (&tables.deals, "deal_id", DEAL.to_string()),
        (&tables.processed, "idempotency_key", format!("deposit:{hash}")),
    ] {
        let mut entry = key(table, name, value);
        entry.as_object_mut().unwrap().remove("table");
        unprocessed.insert(table.clone(), entry);
    }
    let throttled = Fault::Answer(200, json!({"Responses": {}, "UnprocessedKeys": unprocessed}));
    let network = first("BatchGetItem", 2, throttled.clone());
    let answer = on(network.clients(&bed), &bed).invoke(event(), in_a_minute()).await;
    assert_eq!(answer.expect("it is done")["duplicate"], 1);
    assert_eq!(network.calls().iter().filter(|call| *call == "BatchGetItem").count(), 3);
    // For ever: systemic, and nobody concludes that the deal does not exist.
    let network = first("BatchGetItem", u32::MAX, throttled);
    let function = on(network.clients(&bed), &bed);
    let error = function.invoke(event(), in_a_minute()).await.expect_err("throttled").to_string();
    assert!(error.contains("keys stay unprocessed"), "{error}");
    assert_eq!((bed.sound_deal(DEAL).await, bed.letters().await.len()), (before, 0));
}

#[tokio::test]
async fn a_lost_reply_after_the_commit_is_no_second_effect() {
    for (lost, told) in [(1, "in one call"), (3, "in all tries of a call")] {
        let bed = awaiting().await;
        let network = first("TransactWriteItems", lost, Fault::LostReply);
        let function = on(network.clients(&bed), &bed);
        let first_answer = function.invoke(event(), in_a_minute()).await;
        if lost == 3 {
            let error = first_answer.expect_err("the reply never came").to_string();
            assert!(error.contains("cannot write"), "{told}: {error}");
        } else {
            first_answer.expect("the SDK asked again");
        }
        let answer = function.invoke(event(), in_a_minute()).await.expect("it is done");
        assert_eq!(answer["duplicate"], 1, "{told}");
        let deal = bed.sound_deal(DEAL).await;
        assert_eq!(
            (deal.status, deal.deposits.len(), deal.escrow),
            (Status::Funded, 1, deals::PRICE)
        );
        assert_eq!(bed.letters().await, Vec::<Value>::new());
    }
}

/// A journal row that no commit of ours left would stop its deal for ever.
#[tokio::test]
async fn a_row_ahead_of_its_deal_parks_what_meets_it() {
    let bed = awaiting().await;
    let before = bed.sound_deal(DEAL).await;
    let put = bed.clients.dynamodb.put_item().table_name(&bed.config.tables.journal);
    put.item("aggregate_id", AttributeValue::S(DEAL.to_string()))
        .item("seq", AttributeValue::N((before.version + 1).to_string()))
        .send()
        .await
        .expect("it is put");
    let answer = on(bed.clients.clone(), &bed).invoke(event(), in_a_minute()).await;
    assert_eq!(answer.expect("an answer")["parked"], 1);
    let letter = bed.letters().await.remove(0);
    assert_eq!((&letter["class"], &letter["critical"]), (&json!("CORRUPT_ROW"), &json!(true)));
    assert_eq!(bed.deal(DEAL).await.expect("it is there").deal, before);
}

#[tokio::test]
async fn a_refused_write_is_our_own_bug_and_parks_its_record_alone() {
    let bed = awaiting().await;
    let second = DealId::from_u128(2);
    deals::open(&bed.store, second, Status::AwaitingPayment).await;
    for fault in [
        Fault::error("ValidationException"),
        Fault::cancelled(&["None", "ValidationError", "None", "None"]),
    ] {
        let network = first("TransactWriteItems", 1, fault);
        let records = [Deposit::new(DEAL, 1).record(), Deposit::new(second, 2).record()];
        let function = on(network.clients(&bed), &bed);
        let answer = function.invoke(kafka_event(&records), in_a_minute()).await;
        let answer = answer.expect("it is done");
        assert_eq!(answer["parked"], 1, "{answer}");
        let letter = bed.letters().await.remove(0);
        assert_eq!(
            (&letter["class"], &letter["critical"]),
            (&json!("INVALID_WRITE"), &json!(true))
        );
    }
}

/// The figures of the design: a duplicate is one call and no write, a forgery reads nothing, a fresh
/// result is two calls.
#[tokio::test]
async fn a_record_makes_as_many_calls_as_the_design_says() {
    let bed = awaiting().await;
    let network = Network::new(|_| Fault::None);
    let function = on(network.clients(&bed), &bed);
    let mut seen = 0;
    let mut calls_of = async |record: Record| {
        function.invoke(kafka_event(&[record]), in_a_minute()).await.expect("it is done");
        let calls = network.calls();
        let new: Vec<String> =
            calls[seen..].iter().filter(|call| *call != "GetSecretValue").cloned().collect();
        seen = calls.len();
        new
    };
    let good = Deposit::new(DEAL, 1).record();
    assert_eq!(
        calls_of(good.clone()).await,
        ["BatchGetItem", "TransactWriteItems", "SendMessageBatch"]
    );
    assert_eq!(calls_of(good.clone()).await, ["BatchGetItem"]);
    let forged =
        good.signed_by(records::WATCHER, &"00".repeat(32), records::RECORDED_AT_MS).offset(77);
    assert_eq!(calls_of(forged).await, ["PutItem", "SendMessage", "UpdateItem"]);
}

/// The process dies before or after each of its calls; then the records are delivered again.
#[tokio::test]
async fn a_process_that_dies_at_any_step_leaves_one_effect_and_one_letter() {
    let mut deaths: BTreeMap<String, u32> = BTreeMap::new();
    for after in [false, true] {
        for step in 0.. {
            let bed = awaiting().await;
            let mut left = step;
            let network = Network::new(move |_| {
                let fault = match (left, after) {
                    (0, false) => Fault::DiesBefore,
                    (0, true) => Fault::DiesAfter,
                    _ => Fault::None,
                };
                left -= 1;
                fault
            });
            let unknown = Deposit::new(DealId::from_u128(9), 9).record().offset(90);
            let poison = Record::new(b"poison".to_vec()).offset(91);
            let batch = kafka_event(&[Deposit::new(DEAL, 1).record(), unknown, poison]);
            let doomed = on(network.clients(&bed), &bed);
            let died = tokio::select! {
                answer = doomed.invoke(batch.clone(), in_a_minute()) => {
                    answer.expect("it is done");
                    None
                }
                call = network.death() => Some(call),
            };
            drop(doomed);
            let redelivered = on(bed.clients.clone(), &bed).invoke(batch, in_a_minute()).await;
            let answer = redelivered.expect("it is done");
            let place = format!("call {step}, {}", if after { "after" } else { "before" });
            assert_eq!(
                answer["applied"].as_u64().unwrap() + answer["duplicate"].as_u64().unwrap(),
                1
            );
            let deal = bed.sound_deal(DEAL).await;
            assert_eq!((deal.status, deal.deposits.len()), (Status::Funded, 1), "{place}");
            let letters = bed.letters().await;
            assert_eq!(letters.len(), 2, "{place}");
            assert!(letters.iter().all(|letter| letter["generation"] == 1), "{place}");
            assert!(letters.iter().all(|letter| letter["sent"] == 1), "{place}");
            // At least one message for the dead letter; a second one may have left before the death.
            let dead = bed.take(&bed.config.queues.letters.dlq_url).await;
            assert!((1..=2).contains(&dead.len()), "{place}: {} messages", dead.len());
            let Some(call) = died else {
                let word = if after { "after" } else { "before" };
                println!("a batch of three records dies {word} each of its {step} calls");
                break;
            };
            *deaths.entry(call).or_default() += 1;
        }
    }
    println!("deaths by call: {deaths:?}");
    for call in ["BatchGetItem", "TransactWriteItems", "PutItem", "SendMessage", "UpdateItem"] {
        assert!(deaths.contains_key(call), "no death in {call}: {deaths:?}");
    }
}

/// Every function at once on a network that loses, throttles and conflicts at random: what is not
/// done comes again, and in the end each deal was paid, released and paid out once.
#[tokio::test]
async fn a_bad_network_delays_and_changes_nothing() {
    let bed = Bed::new("weather").await;
    let mut weather = 7_u64;
    let network = Network::new(move |_| {
        weather =
            weather.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (weather >> 33) % 10 {
            0 => Fault::Unreachable,
            1 => Fault::LostReply,
            2 => Fault::error("ProvisionedThroughputExceededException"),
            _ => Fault::None,
        }
    });
    let mut foul = Bed::new("weather-functions").await;
    foul.clients = network.clients(&bed);
    foul.config = bed.config.clone();
    let ids: Vec<DealId> = (1..=6).map(DealId::from_u128).collect();
    for id in &ids {
        deals::open(&bed.store, *id, Status::Scheduled).await;
    }
    let mut again = 0;
    for (tx, id) in (1_u8..).zip(&ids) {
        let story = [
            ("publication-result", records::publication(*id)),
            ("verification-result", records::check(*id, 1, true)),
            ("verification-result", records::final_verification(*id)),
            ("payout-completed", records::payout(*id, tx)),
            ("payout-completed", records::payout(*id, tx)),
        ];
        for (function, record) in story {
            let event = kafka_event(&[record]);
            while functions::invoke(&foul, function, event.clone()).await.is_err() {
                again += 1;
            }
        }
    }
    for id in ids {
        let deal = bed.sound_deal(id).await;
        assert_eq!(deal.status, Status::CompletedReleased);
        assert_eq!(
            (deal.escrow, deal.payable),
            (domain::money::Nano::ZERO, domain::money::Nano::ZERO)
        );
    }
    println!(
        "30 results on a bad network: {again} invocations came again, no letter, no second effect"
    );
    assert_eq!(bed.letters().await, Vec::<Value>::new());
}

/// What a deposit costs, as the engine counts the very transaction that the function sends: two units
/// for each of four items and one for the journal's index. The relay's delete will be the tenth.
#[tokio::test]
async fn a_deposit_costs_nine_write_units_and_one_for_the_relay() {
    let bed = awaiting().await;
    let network = first("TransactWriteItems", u32::MAX, Fault::Unreachable);
    let refused = on(network.clients(&bed), &bed).invoke(event(), in_a_minute()).await;
    refused.expect_err("nothing was written");
    let mut body = network.last_body("TransactWriteItems").expect("it was sent");
    body["ReturnConsumedCapacity"] = json!("INDEXES");
    let spent = call(&bed, "TransactWriteItems", body).await;
    let units = |value: &Value| -> u64 {
        value.to_string().trim_end_matches(".0").parse().expect("whole units")
    };
    let spent: Vec<(String, u64)> = spent["ConsumedCapacity"]
        .as_array()
        .expect("one entry for each table")
        .iter()
        .map(|each| (each["TableName"].as_str().unwrap().to_owned(), units(&each["CapacityUnits"])))
        .collect();
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::Funded);
    let row = bed.rows(&bed.config.tables.outbox).await.into_iter().find(|row| row["seq"] == 5);
    let row = row.expect("the deposit's row");
    let delete = json!({
        "TableName": bed.config.tables.outbox,
        "Key": {"bucket": {"S": row["bucket"]}, "position": {"S": row["position"]}},
        "ReturnConsumedCapacity": "TOTAL",
    });
    let deleted = call(&bed, "DeleteItem", delete).await;
    let deleted = units(&deleted["ConsumedCapacity"]["CapacityUnits"]);
    let written: u64 = spent.iter().map(|(_, units)| units).sum();
    println!("write units of a deposit: {spent:?}, the relay's delete {deleted}");
    assert_eq!((written, deleted), (9, 1));
}

/// A call to the engine as it stands on the wire.
async fn call(bed: &Bed, operation: &str, body: Value) -> Value {
    let (url, target) = (bed.dynamodb_url.clone(), format!("DynamoDB_20120810.{operation}"));
    let call = move || -> Result<String, ureq::Error> {
        let request = ureq::post(&url)
            .header("X-Amz-Target", &target)
            .header("Content-Type", "application/x-amz-json-1.0")
            .header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20250101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=00")
            .header("X-Amz-Date", "20250101T000000Z");
        request.send(body.to_string())?.body_mut().read_to_string()
    };
    let answer =
        tokio::task::spawn_blocking(call).await.expect("it ran").expect("the engine answers");
    serde_json::from_str(&answer).expect("JSON")
}

/// A read of deal and key is no snapshot: the key may be read before, and the deal after, this very
/// report took effect. Then the refusal would be about our own footprints.
#[tokio::test]
async fn a_refusal_looks_at_the_key_once_more() {
    let bed = Bed::new("footprints").await;
    deals::open_paid_out(&bed.store, DEAL).await;
    let before = bed.sound_deal(DEAL).await;
    let blind = Fault::Blind(bed.config.tables.processed.clone());
    let network = first("BatchGetItem", 1, blind);
    let mut foul = Bed::new("footprints-function").await;
    foul.clients = network.clients(&bed);
    foul.config = bed.config.clone();
    let event = kafka_event(&[records::payout(DEAL, 0xa1)]);
    let answer = functions::invoke(&foul, "payout-completed", event).await.expect("it is done");
    assert_eq!(answer["duplicate"], 1, "{answer}");
    assert_eq!(network.calls().iter().filter(|call| *call == "GetItem").count(), 1);
    assert_eq!((bed.sound_deal(DEAL).await, bed.letters().await.len()), (before, 0));
}

/// The same, where the decision is a plan that cannot hold: the deposit is on the deal already, and
/// would go back a second time.
#[tokio::test]
async fn a_plan_that_does_not_hold_looks_at_the_key_once_more() {
    let bed = Bed::new("footprints").await;
    deals::open(&bed.store, DEAL, Status::Funded).await;
    on(bed.clients.clone(), &bed).invoke(event(), in_a_minute()).await.expect("it goes back");
    let before = bed.sound_deal(DEAL).await;
    assert_eq!(before.refunds.len(), 1);
    let blind = Fault::Blind(bed.config.tables.processed.clone());
    let network = first("BatchGetItem", 1, blind);
    let answer = on(network.clients(&bed), &bed).invoke(event(), in_a_minute()).await;
    assert_eq!(answer.expect("it is done")["duplicate"], 1);
    assert_eq!((bed.sound_deal(DEAL).await, bed.letters().await.len()), (before, 0));
}

/// The row of a letter is written, the reply is lost, and the SDK's own second try finds the row
/// changed, by nobody but itself.
#[tokio::test]
async fn a_lost_reply_while_a_letter_is_held_on_does_not_lose_its_message() {
    let bed = Bed::new("letters").await;
    let unknown = kafka_event(&[Deposit::new(DEAL, 1).record()]);
    on(bed.clients.clone(), &bed).invoke(unknown, in_a_minute()).await.expect("it waits");
    for attempt in 2..=5 {
        let letter = bed.letters().await.remove(0);
        bed.make_due(&letter).await;
        bed.take(&bed.config.queues.letters.retry_url).await;
        let body = json!({"letter_id": letter["letter_id"], "generation": letter["generation"]});
        let event = records::sqs_event("escrow-deposit-confirmed-retry", &[body.to_string()]);
        let network = first("PutItem", 1, Fault::LostReply);
        let answer = on(network.clients(&bed), &bed).invoke(event, in_a_minute()).await;
        assert_eq!(answer.expect("it is done"), json!({"batchItemFailures": []}));
        let letter = bed.letters().await.remove(0);
        assert_eq!(
            (&letter["attempts"], &letter["generation"]),
            (&json!(attempt), &json!(attempt))
        );
        assert_eq!(letter["sent"], letter["generation"], "its message is in the queue");
    }
}
