//! `deposit-confirmed` from the Lambda event to the rows, on a real engine and a real queue.

use std::sync::Arc;

use domain::ids::DealId;
use domain::money::{Account, Nano};
use domain::state::Status;
use platform::catalog::DEPOSIT_CONFIRMED;
use platform::clock;
use platform::config::Config;
use platform::pipeline::Pipeline;
use platform::results::{self, Results};
use platform::signature;
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::deals;
use testbed::functions::{self, in_a_minute};
use testbed::records::{self, Deposit, Record, kafka_event, sqs_event};

type Function = Pipeline<Results<domain::result::DepositConfirmed>>;

const DEAL: DealId = DealId::from_u128(1);

fn function(bed: &Bed) -> Function {
    with_config(bed, bed.config.clone())
}

fn with_config(bed: &Bed, config: Config) -> Function {
    results::pipeline(&DEPOSIT_CONFIRMED, deposit_confirmed::decide, config, bed.clients.clone())
}

async fn awaiting() -> (Bed, Function) {
    let bed = Bed::new("deposits").await;
    deals::open(&bed.store, DEAL, Status::AwaitingPayment).await;
    let function = function(&bed);
    (bed, function)
}

async fn deliver(function: &Function, records: &[Record]) -> Value {
    function.invoke(kafka_event(records), in_a_minute()).await.expect("the batch is done")
}

/// The counts that are not zero.
fn told(answer: &Value) -> Value {
    let counts = answer.as_object().expect("a summary");
    counts
        .iter()
        .filter(|(name, count)| *name != "records" && **count != json!(0))
        .map(|(n, c)| (n.clone(), c.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test]
async fn a_deposit_takes_effect_once_however_often_it_is_delivered() {
    let (bed, function) = awaiting().await;
    let record = Deposit::new(DEAL, 1).record();
    assert_eq!(
        told(&deliver(&function, std::slice::from_ref(&record)).await),
        json!({"applied": 1})
    );
    let after = bed.sound_deal(DEAL).await;
    assert_eq!((after.status, after.escrow), (Status::Funded, deals::PRICE));
    for _ in 0..3 {
        assert_eq!(
            told(&deliver(&function, std::slice::from_ref(&record)).await),
            json!({"duplicate": 1})
        );
    }
    assert_eq!(bed.sound_deal(DEAL).await, after);
    assert_eq!(bed.take(&bed.config.queues.doorbell_url).await.len(), 1);
    assert_eq!(bed.letters().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_deposit_redelivered_after_its_deal_moved_on_is_a_duplicate() {
    let (bed, function) = awaiting().await;
    deliver(&function, &[Deposit::new(DEAL, 1).amount(300_000_000).record()]).await;
    deliver(&function, &[Deposit::new(DEAL, 2).record()]).await;
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::Funded);
    let again = deliver(&function, &[Deposit::new(DEAL, 1).amount(300_000_000).record()]).await;
    assert_eq!(told(&again), json!({"duplicate": 1}));
}

#[tokio::test]
async fn the_same_key_with_other_content_is_parked() {
    let (bed, function) = awaiting().await;
    let other = DealId::from_u128(2);
    deals::open(&bed.store, other, Status::AwaitingPayment).await;
    deliver(&function, &[Deposit::new(DEAL, 1).record()]).await;
    let before = bed.sound_deal(DEAL).await;
    let conflicts =
        [Deposit::new(DEAL, 1).amount(5_000_000_000).record(), Deposit::new(other, 1).record()];
    assert_eq!(told(&deliver(&function, &conflicts).await), json!({"parked": 2}));
    assert_eq!(bed.sound_deal(DEAL).await, before);
    assert_eq!(bed.sound_deal(other).await.escrow, Nano::ZERO);
    for letter in bed.letters().await {
        assert_eq!(letter["class"], "CONFLICT");
        assert_eq!(letter["critical"], true);
    }
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 2);
}

#[tokio::test]
async fn a_redelivered_batch_neither_repeats_letters_nor_messages() {
    let (bed, function) = awaiting().await;
    let unknown = Deposit::new(DealId::from_u128(99), 9).record();
    let forged =
        Deposit::new(DEAL, 1).record().signed_by(records::WATCHER, "00", records::RECORDED_AT_MS);
    for _ in 0..3 {
        let answer = deliver(&function, &[unknown.clone(), forged.clone()]).await;
        assert_eq!(told(&answer), json!({"parked": 1, "retrying": 1}));
    }
    let letters = bed.letters().await;
    assert_eq!(letters.len(), 2);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 1);
    assert!(letters.iter().all(|letter| letter["generation"] == 1 && letter["sent"] == 1));
}

#[tokio::test]
async fn what_nobody_vouches_for_is_parked_unread() {
    let (bed, function) = awaiting().await;
    let body = Deposit::new(DEAL, 1).record().body;
    let good = signature::sign_v1(records::SECRET.as_bytes(), &body);
    let at = records::RECORDED_AT_MS;
    let signed = |worker: &str, signature: &str, at| {
        Record::new(body.clone()).signed_by(worker, signature, at)
    };
    let headers = |headers: Value| Record { headers, ..Record::new(body.clone()) };
    let v2_elsewhere = signature::sign_v2(records::SECRET.as_bytes(), records::WATCHER, at, &body);
    let cases = [
        (signed(records::WATCHER, &"00".repeat(32), at), "BAD_SIGNATURE"),
        (signed(records::WATCHER, &good[..60], at), "BAD_SIGNATURE"),
        (signed(records::WATCHER, "no hex", at), "BAD_SIGNATURE"),
        (signed(records::WATCHER, &signature::sign_v1(b"other", &body), at), "BAD_SIGNATURE"),
        (signed(records::WATCHER, &v2_elsewhere, at + 1), "BAD_SIGNATURE"),
        (signed("somebody", &good, at), "UNKNOWN_WORKER"),
        (signed("ton-deposit-watcher-x", &good, at), "UNKNOWN_WORKER"),
        (signed(records::WATCHER, &good, at - 300_001), "STALE"),
        (signed(records::WATCHER, &good, at + 300_001), "STALE"),
        (signed("payout-executor", &good, at), "NOT_ALLOWED"),
        (headers(json!(null)), "MISSING_HEADER"),
        (headers(json!([])), "MISSING_HEADER"),
        (headers(json!([{"X-Worker-Signature": null}, {"X-Worker-Id": [97]}])), "MISSING_HEADER"),
        (headers(json!([{"X-Worker-Id": vec![97; 100_000]}])), "MISSING_HEADER"),
    ];
    let codes: Vec<&str> = cases.iter().map(|(_, code)| *code).collect();
    let batch: Vec<Record> = cases.into_iter().map(|(record, _)| record).collect();
    assert_eq!(told(&deliver(&function, &batch).await), json!({"parked": batch.len()}));
    let letters = bed.letters().await;
    let classes: Vec<&str> = letters.iter().map(|row| row["class"].as_str().unwrap()).collect();
    assert_eq!(classes, codes);
    for letter in letters.iter().filter(|letter| letter["class"] != "NOT_ALLOWED") {
        assert_eq!(letter["verified"], false);
        assert_eq!(letter["idempotency_key"], Value::Null, "a forgery must not name a key");
        assert_eq!(letter["deal_id"], Value::Null, "a forgery must not name a deal");
    }
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::AwaitingPayment);
}

#[tokio::test]
async fn an_instance_suffix_and_a_v2_signature_are_accepted() {
    let (bed, _) = awaiting().await;
    let mut config = bed.config.clone();
    config.trust.require_v2 = true;
    let function = with_config(&bed, config);
    let record = Deposit::new(DEAL, 1).record();
    let at = records::RECORDED_AT_MS + 299_999;
    let key = records::SECRET.as_bytes();
    let v2 = signature::sign_v2(key, "ton-deposit-watcher-3", at, &record.body);
    let v1 = signature::sign_v1(key, &record.body);
    let answer = deliver(
        &function,
        &[
            record.clone().signed_by("ton-deposit-watcher-3", &v1, at),
            record.clone().signed_by("ton-deposit-watcher-3", &v2, at),
        ],
    )
    .await;
    assert_eq!(told(&answer), json!({"applied": 1, "parked": 1}));
    assert_eq!(bed.letters().await[0]["class"], "SIGNATURE_VERSION");
}

#[tokio::test]
async fn a_rotated_secret_is_found_without_a_restart_and_the_old_one_still_counts() {
    let (bed, function) = awaiting().await;
    deliver(&function, &[Deposit::new(DEAL, 1).amount(100_000_000).record()]).await;
    let request = bed.clients.secrets.put_secret_value().secret_id(&bed.config.trust.secret_id);
    request.secret_string("the new secret").send().await.expect("the secret rotates");
    // A new instance of the function reads both versions.
    let function = with_config(&bed, bed.config.clone());
    let second = Deposit::new(DEAL, 2).amount(100_000_000).record();
    let signature = signature::sign_v1(b"the new secret", &second.body);
    let second = second.signed_by(records::WATCHER, &signature, records::RECORDED_AT_MS);
    let third = Deposit::new(DEAL, 3).amount(100_000_000).record();
    assert_eq!(told(&deliver(&function, &[second, third]).await), json!({"applied": 2}));
}

#[tokio::test]
async fn a_body_that_is_no_deposit_says_what_and_where() {
    let (bed, function) = awaiting().await;
    let body = Deposit::new(DEAL, 1).body();
    let with = |pointer: &str, value: Value| {
        let mut body = body.clone();
        *body.pointer_mut(pointer).expect("the field is there") = value;
        body.to_string().into_bytes()
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)).into_bytes();
    let valid = body.to_string().into_bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "not JSON"),
        (valid[..valid.len() - 3].to_vec(), "not JSON"),
        (b"\xff\xfe{}".to_vec(), "not JSON"),
        (deep, "not JSON"),
        (b"[]".to_vec(), "no JSON object"),
        (b"{}".to_vec(), "event_type"),
        (with("/event_type", json!(7)), "event_type"),
        (with("/event_type", json!("DEPOSIT_CONFIRMD")), "DEPOSIT_CONFIRMD"),
        (with("/deal_id", json!(null)), "deal_id"),
        (with("/deal_id", json!("not-a-uuid")), "deal_id"),
        (with("/payload", json!(null)), "payload.tx_hash"),
        (with("/payload/tx_hash", json!("abc123def456...")), "payload.tx_hash"),
        (with("/payload/amount_nano", json!(0)), "payload.amount_nano"),
        (with("/payload/amount_nano", json!(-1)), "payload.amount_nano"),
        (with("/payload/amount_nano", json!(1.0)), "payload.amount_nano"),
        (with("/payload/amount_nano", json!(1e9)), "payload.amount_nano"),
        (with("/payload/amount_nano", json!("1000000000")), "payload.amount_nano"),
        (with("/payload/amount_nano", json!(9_223_372_036_854_775_808_u64)), "payload.amount_nano"),
        (with("/payload/confirmations", json!(-1)), "payload.confirmations"),
        (with("/payload/from_address", json!("EQabc...")), "payload.from_address"),
        (with("/payload/deposit_address", json!("UQxyz...")), "payload.deposit_address"),
    ];
    let expected: Vec<&str> = cases.iter().map(|(_, words)| *words).collect();
    let batch: Vec<Record> = cases.into_iter().map(|(body, _)| Record::new(body)).collect();
    assert_eq!(told(&deliver(&function, &batch).await), json!({"parked": batch.len()}));
    let letters = bed.letters().await;
    for (letter, words) in letters.iter().zip(expected) {
        let error = letter["error"].as_str().unwrap();
        assert!(error.contains(words), "{words}: {error}");
    }
    assert_eq!(bed.sound_deal(DEAL).await.deposits, []);
}

#[tokio::test]
async fn unknown_fields_and_other_spellings_of_the_same_deposit_are_the_same_deposit() {
    let (bed, function) = awaiting().await;
    let mut body = Deposit::new(DEAL, 1).body();
    deliver(&function, &[Record::new(body.to_string().into_bytes())]).await;
    body["payload"]["lt"] = json!(47_000_000);
    body["payload"]["confirmations"] = json!(40);
    body["payload"]["tx_hash"] = json!("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=");
    body["payload"]["from_address"] = json!(deals::address(0x51).to_string());
    body["deal_id"] = json!(DEAL.to_string().to_uppercase());
    let again = deliver(&function, &[Record::new(body.to_string().into_bytes())]).await;
    assert_eq!(told(&again), json!({"duplicate": 1}));
    assert_eq!(bed.sound_deal(DEAL).await.deposits.len(), 1);
}

#[tokio::test]
async fn an_oversized_record_is_parked_by_its_beginning() {
    let (bed, function) = awaiting().await;
    let record = Record::new(vec![b'x'; 1_000_000]);
    assert_eq!(told(&deliver(&function, &[record]).await), json!({"parked": 1}));
    let letter = &bed.letters().await[0];
    assert_eq!(letter["class"], "OVERSIZED");
    assert!(letter["cut_from"].as_u64() > Some(1_000_000));
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 1);
}

#[tokio::test]
async fn a_named_record_is_skipped_unread_but_kept() {
    let (bed, _) = awaiting().await;
    let mut config = bed.config.clone();
    config.skip_records = vec!["escrow.confirmations-0-16".to_owned()];
    let function = with_config(&bed, config);
    let part = |tx| Deposit::new(DEAL, tx).amount(100_000_000).record();
    let answer = deliver(&function, &[part(1), part(2), part(3)]).await;
    assert_eq!(told(&answer), json!({"applied": 2, "parked": 1}));
    assert_eq!(bed.letters().await[0]["class"], "SKIPPED_BY_OPERATOR");
}

/// Feeds what is in the retry queue back to the function, as the SQS mapping does.
async fn redeliver(function: &Function, bodies: &[Value]) -> Value {
    let bodies: Vec<String> = bodies.iter().map(Value::to_string).collect();
    let answer =
        function.invoke(sqs_event("deposit-confirmed-retry", &bodies), in_a_minute()).await;
    answer.expect("an answer")
}

fn wake_up(letter: &Value) -> Value {
    json!({"letter_id": letter["letter_id"], "generation": letter["generation"]})
}

#[tokio::test]
async fn a_deposit_ahead_of_its_deal_waits_and_then_takes_effect() {
    let bed = Bed::new("ahead").await;
    let function = function(&bed);
    assert_eq!(
        told(&deliver(&function, &[Deposit::new(DEAL, 1).record()]).await),
        json!({"retrying": 1})
    );
    let letter = bed.letters().await.remove(0);
    assert_eq!((&letter["place"], &letter["attempts"]), (&json!("RETRY"), &json!(1)));

    // Too early: it hops on, and no attempt is spent.
    redeliver(&function, &[wake_up(&letter)]).await;
    assert_eq!(bed.letters().await[0]["attempts"], 1);

    deals::open(&bed.store, DEAL, Status::AwaitingPayment).await;
    bed.make_due(&letter).await;
    let answer = redeliver(&function, &[wake_up(&letter), wake_up(&letter)]).await;
    assert_eq!(answer, json!({"batchItemFailures": []}));
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::Funded);
    assert_eq!(bed.letters().await[0]["closed_as"], "RESOLVED");
}

#[tokio::test]
async fn retries_end_in_the_dead_letter_queue_and_a_redriven_letter_starts_afresh() {
    let bed = Bed::new("retries").await;
    let function = function(&bed);
    deliver(&function, &[Deposit::new(DEAL, 1).record()]).await;
    for attempt in 1..=5 {
        let letter = bed.letters().await.remove(0);
        assert_eq!((&letter["place"], &letter["attempts"]), (&json!("RETRY"), &json!(attempt)));
        bed.make_due(&letter).await;
        redeliver(&function, &[wake_up(&letter)]).await;
    }
    let dead = bed.take(&bed.config.queues.letters.dlq_url).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0]["retry_count"], 5);
    assert_eq!(dead[0]["original_topic"], records::TOPIC);
    assert_eq!(dead[0]["error_details"]["exception_class"], "UNKNOWN_DEAL");
    assert_eq!(dead[0]["original_value"], Deposit::new(DEAL, 1).body());

    // Redriven too early it waits again, with fresh attempts; redriven in time it takes effect.
    redeliver(&function, &dead).await;
    let letter = bed.letters().await.remove(0);
    assert_eq!((&letter["place"], &letter["attempts"]), (&json!("RETRY"), &json!(1)));
    deals::open(&bed.store, DEAL, Status::AwaitingPayment).await;
    bed.make_due(&letter).await;
    redeliver(&function, &[wake_up(&letter), dead[0].clone()]).await;
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::Funded);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await, Vec::<Value>::new());
}

#[tokio::test]
async fn too_few_confirmations_burn_no_key() {
    let (bed, function) = awaiting().await;
    let mut young = Deposit::new(DEAL, 1);
    young.confirmations = json!(1);
    assert_eq!(told(&deliver(&function, &[young.record()]).await), json!({"retrying": 1}));
    let letter = bed.letters().await.remove(0);
    let confirmed = Deposit::new(DEAL, 1).record().offset(40);
    assert_eq!(told(&deliver(&function, &[confirmed]).await), json!({"applied": 1}));
    bed.make_due(&letter).await;
    redeliver(&function, &[wake_up(&letter)]).await;
    assert_eq!(bed.letters().await[0]["closed_as"], "RESOLVED");
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await, Vec::<Value>::new());
}

#[tokio::test]
async fn an_edited_letter_and_a_message_without_one_are_parked() {
    let bed = Bed::new("edited").await;
    let function = function(&bed);
    deliver(&function, &[Deposit::new(DEAL, 1).record()]).await;
    let letter = bed.letters().await.remove(0);
    bed.make_due(&letter).await;
    let edited = Deposit::new(DEAL, 1).amount(9_000_000_000).body().to_string();
    let key = |name: &str| {
        aws_sdk_dynamodb::types::AttributeValue::S(letter[name].as_str().unwrap().to_owned())
    };
    let request = bed.clients.dynamodb.update_item().table_name(&bed.config.tables.operations);
    let blob = aws_sdk_dynamodb::primitives::Blob::new(edited);
    request
        .key("pk", key("pk"))
        .key("sk", key("sk"))
        .update_expression("SET body = :body")
        .expression_attribute_values(":body", aws_sdk_dynamodb::types::AttributeValue::B(blob))
        .send()
        .await
        .unwrap();
    let stranger = json!({"letter_id": "0".repeat(32), "generation": 1});
    let answer = redeliver(&function, &[wake_up(&letter), stranger, json!("hello")]).await;
    assert_eq!(answer, json!({"batchItemFailures": []}));
    let mut classes: Vec<String> =
        bed.letters().await.iter().map(|row| row["class"].as_str().unwrap().to_owned()).collect();
    classes.sort();
    assert_eq!(classes, ["BAD_SIGNATURE", "NO_LETTER", "NO_LETTER"]);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 3);
}

#[tokio::test]
async fn with_dynamodb_away_nothing_is_parked_and_the_batch_comes_again() {
    let (bed, _) = awaiting().await;
    let mut away = bed.clients.clone();
    away.dynamodb = testbed::engine::client("http://127.0.0.1:9");
    let function =
        results::pipeline(&DEPOSIT_CONFIRMED, deposit_confirmed::decide, bed.config.clone(), away);
    let records = [Deposit::new(DEAL, 1).record(), Deposit::new(DEAL, 2).record()];
    let error =
        function.invoke(kafka_event(&records), in_a_minute()).await.unwrap_err().to_string();
    assert!(error.starts_with("2 of 2 records are not done"), "{error}");
    assert!(error.contains("escrow.confirmations-0-15: DynamoDB cannot read"), "{error}");
    assert!(error.contains("an earlier record of its deal is not done"), "{error}");
    let bodies = [wake_up(&json!({"letter_id": "0".repeat(32), "generation": 1})).to_string()];
    let answer = function.invoke(sqs_event("q", &bodies), in_a_minute()).await.unwrap();
    assert_eq!(answer["batchItemFailures"].as_array().unwrap().len(), 1);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await, Vec::<Value>::new());
}

#[tokio::test]
async fn without_a_secret_or_a_queue_nothing_is_lost() {
    let (bed, _) = awaiting().await;
    let mut config = bed.config.clone();
    config.trust.secret_id = "no-such-secret".to_owned();
    let function = with_config(&bed, config);
    let event = kafka_event(&[Deposit::new(DEAL, 1).record()]);
    let error = function.invoke(event, in_a_minute()).await.unwrap_err().to_string();
    assert!(error.contains("no-such-secret cannot be read"), "{error}");

    let mut config = bed.config.clone();
    config.queues.letters.dlq_url = config.queues.letters.dlq_url.replace("-dlq", "-gone");
    let function = with_config(&bed, config);
    let event = kafka_event(&[Record::new(b"no deposit".to_vec())]);
    let error = function.invoke(event, in_a_minute()).await.unwrap_err().to_string();
    assert!(error.contains("SQS cannot take the message"), "{error}");
    assert_eq!(bed.letters().await.len(), 1, "the row is there");
    // With the queue back, the same letter gets its message.
    let function = with_config(&bed, bed.config.clone());
    assert_eq!(
        told(&deliver(&function, &[Record::new(b"no deposit".to_vec())]).await),
        json!({"parked": 1})
    );
    assert_eq!(bed.letters().await.len(), 1);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 1);
}

#[tokio::test]
async fn with_little_time_left_the_rest_comes_again() {
    let (bed, function) = awaiting().await;
    let event = kafka_event(&[Deposit::new(DEAL, 1).record()]);
    let error = function.invoke(event, clock::now().plus_secs(4)).await.unwrap_err().to_string();
    assert!(error.contains("too little time was left"), "{error}");
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::AwaitingPayment);
}

#[tokio::test]
async fn a_panic_in_one_record_is_that_records_own() {
    let bed = Bed::new("panic").await;
    let second = DealId::from_u128(2);
    for deal in [DEAL, second] {
        deals::open(&bed.store, deal, Status::AwaitingPayment).await;
    }
    let function: Function = results::pipeline(
        &DEPOSIT_CONFIRMED,
        |deal, deposit, moment| {
            assert_ne!(deal.id, DEAL, "a bug");
            deposit_confirmed::decide(deal, deposit, moment)
        },
        bed.config.clone(),
        bed.clients.clone(),
    );
    let answer =
        deliver(&function, &[Deposit::new(DEAL, 1).record(), Deposit::new(second, 2).record()])
            .await;
    assert_eq!(told(&answer), json!({"applied": 1, "parked": 1}));
    let letter = bed.letters().await.remove(0);
    assert_eq!((&letter["class"], &letter["critical"]), (&json!("PANIC"), &json!(true)));
}

#[tokio::test]
async fn an_event_of_another_source_is_refused_with_a_reason() {
    let (_, function) = awaiting().await;
    for event in [json!([]), json!({}), json!({"records": []}), json!({"Records": {}})] {
        let error = function.invoke(event, in_a_minute()).await.unwrap_err().to_string();
        assert!(error.contains("neither a Kafka nor an SQS event"), "{error}");
    }
}

/// 32 writers at once, on one deal and on many; every record delivered four times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thirty_two_writers_lose_nothing_and_repeat_nothing() {
    for deal_count in [1_u128, 40] {
        let bed = Arc::new(Bed::new("race").await);
        for number in 0..deal_count {
            let deal = DealId::from_u128(number + 1);
            deals::open(&bed.store, deal, Status::AwaitingPayment).await;
        }
        let deposits: Vec<Record> = (0..80_u8)
            .map(|tx| {
                let deal = DealId::from_u128(u128::from(tx) % deal_count + 1);
                Deposit::new(deal, tx + 1).amount(30_000_000).record()
            })
            .collect();
        let delivered: Vec<Record> = (0..4).flat_map(|_| deposits.clone()).collect();
        let writers = delivered.chunks(delivered.len() / 32).map(|records| {
            let (bed, records) = (bed.clone(), records.to_vec());
            tokio::spawn(async move {
                let function = function(&bed);
                let mut counts = (0, 0, 0);
                for record in records {
                    // What is not done comes again, as Kafka would have it.
                    loop {
                        let event = kafka_event(std::slice::from_ref(&record));
                        match function.invoke(event, in_a_minute()).await {
                            Ok(answer) => {
                                counts.0 += answer["applied"].as_u64().unwrap();
                                counts.1 += answer["duplicate"].as_u64().unwrap();
                                break;
                            }
                            Err(_) => counts.2 += 1,
                        }
                    }
                }
                counts
            })
        });
        let mut total = (0, 0, 0);
        for writer in futures::future::join_all(writers).await {
            let (applied, duplicates, again) = writer.expect("no writer panics");
            total = (total.0 + applied, total.1 + duplicates, total.2 + again);
        }
        let mut effects = 0;
        let mut external = 0_i128;
        for number in 0..deal_count {
            let deal = bed.sound_deal(DealId::from_u128(number + 1)).await;
            effects += deal.deposits.len() as u64;
            for fact in bed.journal(deal.id).await {
                for posting in fact.postings {
                    if posting.account == Account::ExternalTon {
                        external += i128::from(posting.amount.get());
                    }
                }
            }
        }
        let (events, deposits) = (delivered.len() as u64, deposits.len() as u64);
        println!(
            "32 writers, {deal_count} deals: {events} events in, {effects} effects, {} duplicates, \
             {} delivered again after conflicts, lost {}, double {}",
            total.1,
            total.2,
            deposits.saturating_sub(effects),
            effects.saturating_sub(deposits),
        );
        assert_eq!(effects, deposits);
        assert_eq!(total.0, deposits);
        let parked = bed.letters().await;
        assert_eq!(total.0 + total.1, events, "{parked:#?}");
        assert_eq!(external, -i128::from(deposits) * 30_000_000);
    }
}

/// The operator names a redrive's destination by hand, and hands err.
#[tokio::test]
async fn a_letter_in_the_wrong_retry_queue_stays_open_where_an_operator_sees_it() {
    let (bed, function) = awaiting().await;
    let payout = records::payout(DEAL, 0xa1);
    let answer = functions::invoke(&bed, "payout-completed", kafka_event(&[payout])).await;
    assert_eq!(told(&answer.expect("an answer")), json!({"parked": 1}));
    let dead = bed.take(&bed.config.queues.letters.dlq_url).await;
    redeliver(&function, &dead).await;
    let letter = bed.letters().await.remove(0);
    assert_eq!((&letter["class"], &letter["closed_as"]), (&json!("WRONG_QUEUE"), &Value::Null));
    assert_eq!(
        (&letter["function"], &letter["place"]),
        (&json!("payout-completed"), &json!("DLQ"))
    );
    let dead = bed.take(&bed.config.queues.letters.dlq_url).await;
    assert_eq!(dead.len(), 1, "its message is back in a dead-letter queue");
    let body = dead[0].to_string();
    let event = sqs_event("escrow-payout-completed-retry", &[body]);
    functions::invoke(&bed, "payout-completed", event).await.expect("an answer");
    assert_eq!(bed.letters().await[0]["class"], "PAYOUT_NOT_COMMANDED");
}

/// A report that waited for its deal first still gets its hour to be confirmed; and a letter that was
/// parked unverified is kept under its deal once it is verified.
#[tokio::test]
async fn a_letter_gets_its_hour_and_its_deal_when_they_are_known() {
    let bed = Bed::new("hour").await;
    let function = function(&bed);
    let mut young = Deposit::new(DEAL, 1);
    young.confirmations = json!(1);
    deliver(&function, &[young.record()]).await;
    let letter = bed.letters().await.remove(0);
    assert_eq!(letter["class"], "UNKNOWN_DEAL");
    deals::open(&bed.store, DEAL, Status::AwaitingPayment).await;
    bed.make_due(&letter).await;
    redeliver(&function, &[wake_up(&letter)]).await;
    let letter = bed.letters().await.remove(0);
    assert_eq!(
        (&letter["class"], &letter["place"]),
        (&json!("TOO_FEW_CONFIRMATIONS"), &json!("RETRY"))
    );
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await, Vec::<Value>::new());

    let mut config = bed.config.clone();
    config.trust.secret_id = format!("{}-wrong", config.trust.secret_id);
    let request = bed.clients.secrets.create_secret().name(&config.trust.secret_id);
    request.secret_string("not the workers' key").send().await.expect("it is created");
    let misled = with_config(&bed, config);
    let mut second = Deposit::new(DEAL, 2);
    second.confirmations = json!(1);
    deliver(&misled, &[second.record().offset(50)]).await;
    let dead = bed.take(&bed.config.queues.letters.dlq_url).await;
    assert_eq!(dead[0]["error_details"]["exception_class"], "BAD_SIGNATURE");
    redeliver(&function, &dead).await;
    let letters = bed.letters().await;
    let open: Vec<&Value> = letters.iter().filter(|letter| letter["closed_as"].is_null()).collect();
    assert_eq!(open.len(), 2);
    assert!(open.iter().all(|letter| letter["pk"] == format!("letters#{DEAL}")), "{open:?}");
    assert!(open.iter().all(|letter| letter["sent"] == letter["generation"]));
}

/// Whatever a record holds, its message fits a queue and has no character that SQS refuses.
#[tokio::test]
async fn a_hostile_record_still_gets_its_message() {
    let (bed, function) = awaiting().await;
    let noncharacters =
        Record::new("{\"event_type\":\"DEPOSIT_CONFIRMED\",\"x\":\"\u{ffff}\"}".into());
    let mut long_key = Record::new(vec![1; 60_000]);
    long_key.key = Some("\u{1}".repeat(100_000));
    let mut named = Deposit::new(DEAL, 1).body();
    named["event_type"] = json!("\u{1}".repeat(100_000));
    let named = Record::new(named.to_string().into_bytes());
    let batch = [noncharacters, long_key, named];
    assert_eq!(told(&deliver(&function, &batch).await), json!({"parked": 3}));
    let dead = bed.take(&bed.config.queues.letters.dlq_url).await;
    assert_eq!(dead.len(), 3);
    for message in dead {
        let text = message.to_string();
        assert!(text.len() < 256 * 1024, "{} bytes", text.len());
        assert!(!text.contains(['\u{fffe}', '\u{ffff}']));
    }
}
