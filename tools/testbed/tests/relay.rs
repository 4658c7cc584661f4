//! The relay against a real outbox and a real broker: what it publishes, in which order, and what
//! becomes of a message that cannot be published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::ids::DealId;
use domain::state::Status;
use outbox_relay::bell;
use outbox_relay::relay::{Left, Start};
use platform::clock;
use platform::signature::{self, sign_v1, sign_v2};
use platform::store::messages::{ESCROW_COMMANDS, TOPICS, bucket};
use serde_json::{Value, json};
use testbed::broker::Broker;
use testbed::deals;
use testbed::faults::{Fault, Network};
use testbed::published::{DEAD_LETTERS, Expected, Record};
use testbed::records::{SECRET, sqs_event};
use testbed::stage::{Stage, made_up, neighbours, new_deal, new_topic};
use tokio::sync::Notify;

async fn open(stage: &Stage, status: Status) -> DealId {
    let deal = new_deal();
    deals::open(&stage.bed.store, deal, status).await;
    deal
}

fn only(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn ids(records: &[Record]) -> Vec<String> {
    records.iter().map(Record::event_id).collect()
}

#[tokio::test]
async fn what_was_committed_is_published_in_order_and_gone() {
    let stage = Stage::new("publishes").await;
    for status in [Status::CompletedReleased, Status::Refunded, Status::Cancelled] {
        open(&stage, status).await;
    }
    let answer = stage.ring_all(&stage.relay()).await;
    assert_eq!(answer, json!({"batchItemFailures": []}));
    assert_eq!(stage.rows().await.len(), 0);
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!((verdict.duplicates, records.len()), (0, expected.count()));
    let used: BTreeSet<&str> = records.iter().map(|record| record.topic.as_str()).collect();
    assert_eq!(used.len(), TOPICS.len(), "{used:?}");
    let commands = records.iter().filter(|record| record.topic.ends_with(".commands"));
    let types = commands.map(|record| record.json()["event_type"].as_str().map(str::to_owned));
    let types: BTreeSet<String> = types.flatten().collect();
    let wanted = [
        "EXECUTE_PAYOUT",
        "EXECUTE_REFUND",
        "GENERATE_DEPOSIT_ADDRESS",
        "PUBLISH_POST",
        "START_VERIFICATION",
    ];
    assert_eq!(types, only(&wanted));
}

#[tokio::test]
async fn a_record_says_what_it_is_and_who_vouches_for_it() {
    let mut stage = Stage::new("envelope").await;
    for is_v2 in [false, true] {
        let deal = open(&stage, Status::Accepted).await.to_string();
        stage.set("REQUIRE_SIGNATURE_V2", is_v2);
        stage.ring_all(&stage.relay()).await;
        let records = stage.published_on(TOPICS, &only(&[&deal]));
        assert!(!records.is_empty());
        for record in &records {
            let body = record.json();
            assert_eq!(
                body["event_id"].as_str(),
                record.headers.get("event_id").map(String::as_str)
            );
            assert_eq!(
                (&body["aggregate_type"], body["aggregate_id"].as_str()),
                (&json!("Deal"), Some(deal.as_str()))
            );
            assert_eq!(body["event_id"].as_str().map(str::len), Some(26), "a ULID");
            assert!(body["payload"].is_object() && body["timestamp"].is_string());
            assert_eq!(record.headers[signature::WORKER_HEADER], "outbox-relay");
            let at = &record.headers[signature::TIMESTAMP_HEADER];
            let wanted = if is_v2 {
                sign_v2(SECRET.as_bytes(), "outbox-relay", at.parse().unwrap(), &record.body)
            } else {
                sign_v1(SECRET.as_bytes(), &record.body)
            };
            assert_eq!(record.headers[signature::SIGNATURE_HEADER], wanted);
        }
        let seqs =
            records.iter().map(|record| (record.topic.clone(), record.headers["seq"].clone()));
        let events: Vec<String> =
            seqs.filter(|(topic, _)| topic == "deal.events").map(|(_, seq)| seq).collect();
        assert_eq!(events, ["1", "2", "3"]);
    }
}

#[tokio::test]
async fn a_command_keeps_its_id_however_often_it_is_published() {
    let stage = Stage::new("stable").await;
    let deal = open(&stage, Status::CompletedReleased).await.to_string();
    let rows = stage.rows().await;
    stage.ring_all(&stage.relay()).await;
    // A relay died before its deletions.
    stage.put_all(rows).await;
    stage.ring_all(&stage.relay()).await;
    let records = stage.published_on(&[ESCROW_COMMANDS], &only(&[&deal]));
    let mut commands: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for record in records {
        let body = record.json();
        let id = body["payload"]["command_id"].as_str().unwrap().to_owned();
        commands.entry(id).or_default().push(body);
    }
    let names: Vec<String> = commands.keys().cloned().collect();
    assert_eq!(names, [format!("deposit-address:{deal}"), format!("payout:{deal}")]);
    for (id, bodies) in commands {
        assert_eq!(bodies.len(), 2, "{id}");
        assert_eq!(bodies[0], bodies[1]);
    }
}

#[tokio::test]
async fn a_row_waits_until_the_one_before_it_is_seen() {
    let stage = Stage::new("hidden").await;
    let deal = new_deal();
    deals::keep_busy(&stage.bed.store, deal, 4, |_| clock::now()).await;
    let hidden = stage.rows().await[1]["position"].as_str().unwrap().to_owned();
    // The first query misses the second row, as one does that was committed behind its back.
    let mut queries = 0;
    let network = Network::new(move |operation| {
        queries += u32::from(operation == "Query");
        if operation == "Query" && queries == 1 {
            Fault::Hides(hidden.clone())
        } else {
            Fault::None
        }
    });
    let relay = stage.relay_with(network.clients(&stage.bed));
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0, "another look found it");
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0);
}

#[tokio::test]
async fn a_commit_between_two_pages_of_a_query_is_published_in_its_turn() {
    let mut stage = Stage::new("between").await;
    stage.set("OUTBOX_BATCH_SIZE", 2);
    let topic = new_topic("between");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(2);
    let (busy, other) = (names[0].as_str(), names[1].as_str());
    let now = clock::now();
    let at = |secs: u32| now.plus_secs(secs);
    let message = [(topic.as_str(), 10)];
    stage.put(other, 1, None, at(1), &message).await;
    let before = stage.put(other, 2, Some(&made_position(other, 1, at(1))), at(2), &message).await;
    // The second page is asked for, and does not leave before the commit is made.
    let (go, asked) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (signal, told) = (go.clone(), asked.clone());
    let mut queries = 0;
    let network = Network::new(move |operation| {
        queries += u32::from(operation == "Query");
        if operation == "Query" && queries == 2 {
            told.notify_one();
            return Fault::Waits(signal.clone());
        }
        Fault::None
    });
    let relay = stage.relay_with(network.clients(&stage.bed));
    let buckets = only(&[&bucket(busy)]);
    let commits = async {
        asked.notified().await;
        // One lands behind the query, its successor before it: by a machine whose clock is ahead.
        let first = stage.put(busy, 1, None, at(0), &message).await;
        stage.put(busy, 2, Some(&first), at(3), &message).await;
        stage.put(other, 3, Some(&before), at(4), &message).await;
        go.notify_one();
    };
    tokio::join!(stage.ring(&relay, &buckets, 60), commits);
    let records = stage.published_on(&[&topic], &only(&[busy, other]));
    let of = |name: &str| -> Vec<String> {
        records.iter().filter(|record| record.key == name).map(Record::event_id).collect()
    };
    assert_eq!(of(busy), [format!("{busy}-1-0"), format!("{busy}-2-0")]);
    assert_eq!(of(other), [1, 2, 3].map(|seq| format!("{other}-{seq}-0")));
    assert_eq!(stage.rows().await.len(), 0);
}

fn made_position(aggregate: &str, seq: u64, at: domain::time::Timestamp) -> String {
    domain::plan::outbox_position(at, aggregate, seq)
}

#[tokio::test]
async fn clocks_that_are_an_hour_apart_change_no_order() {
    let stage = Stage::new("clocks").await;
    for start in 0..6 {
        let deal = new_deal();
        // Every other fact is committed by the machine that is ahead.
        deals::keep_busy(&stage.bed.store, deal, 12, |number| {
            let ahead = (number + start) % 2 == 0;
            if ahead { clock::now().plus_secs(3600) } else { clock::now() }
        })
        .await;
    }
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0);
}

#[tokio::test]
async fn what_is_too_large_is_given_up_after_its_retries_and_alone() {
    let mut stage = Stage::new("large").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    let topic = new_topic("large");
    // On the reference broker the topic takes less than the relay would send, so the broker refuses.
    stage.broker.create_topic_with(&topic, 1, &[("max.message.bytes", "10000")]).await;
    let bytes = if stage.broker.is_embedded() { 30_000 } else { 15_000 };
    let names = neighbours(40);
    let now = clock::now();
    let mut rows = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let size = if index == 7 { bytes } else { 100 };
        rows.push(made_up(name, 1, None, now, &[(&topic, size)]));
        let previous = made_position(name, 1, now);
        rows.push(made_up(name, 2, Some(&previous), now, &[(&topic, 100)]));
    }
    stage.put_all(rows).await;
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
    let all: BTreeSet<String> = names.iter().cloned().collect();
    let published: BTreeSet<String> =
        ids(&stage.published_on(&[&topic], &all)).into_iter().collect();
    assert_eq!(published.len(), 79, "all but the one");
    let large = format!("{}-1-0", names[7]);
    assert!(!published.contains(&large));
    assert!(published.contains(&format!("{}-2-0", names[7])), "what came after it goes on");
    assert_eq!(relay.metrics.counted("outbox.retries"), 5);
    assert_eq!(relay.metrics.counted("outbox.dead_lettered"), 1);

    let dead = stage.published_on(&[DEAD_LETTERS], &all);
    assert_eq!(dead.len(), 1);
    let told = dead[0].json();
    assert_eq!((&told["event_id"], &told["retry_count"]), (&json!(large), &json!(5)));
    let letters = stage.bed.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((&letters[0]["place"], &letters[0]["critical"]), (&json!("DLQ"), &json!(false)));
    assert_eq!(told["payload"]["letter_id"], letters[0]["letter_id"], "a pointer, not the payload");
    assert!(told["error"].is_string() && told["failed_at"].is_string());
    let queued = stage.bed.take(&stage.bed.config.queues.letters.dlq_url).await;
    assert_eq!(queued.len(), 1);
}

#[tokio::test]
async fn a_command_about_money_that_fails_holds_those_after_it_until_an_operator_acts() {
    let mut stage = Stage::new("stuck").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 1);
    let topic = new_topic("stuck");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(2);
    let (stuck, other) = (names[0].as_str(), names[1].as_str());
    let now = clock::now();
    let first = stage.put(stuck, 1, None, now, &[(ESCROW_COMMANDS, 30_000), (&topic, 9)]).await;
    stage.put(stuck, 2, Some(&first), now, &[(ESCROW_COMMANDS, 10), (&topic, 9)]).await;
    stage.put(other, 1, None, now, &[(ESCROW_COMMANDS, 10)]).await;
    let relay = stage.relay();
    for _ in 0..3 {
        stage.ring_all(&relay).await;
    }
    let both = only(&[stuck, other]);
    let commands = stage.published_on(&[ESCROW_COMMANDS], &both);
    assert_eq!(ids(&commands), [format!("{other}-1-0")], "no later command of that deal");
    let others = stage.published_on(&[&topic], &both);
    assert_eq!(ids(&others), [format!("{stuck}-1-1"), format!("{stuck}-2-1")], "once each");
    assert_eq!(stage.rows().await.len(), 2);
    assert_eq!(stage.bed.letters().await.len(), 1, "one letter, however often it is met");

    // The operator sees to it that it fits, and lets it be tried again.
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 100_000);
    stage.unstick(&first).await;
    stage.ring_all(&stage.relay()).await;
    let letter = stage.bed.letters().await.remove(0);
    assert_eq!(letter["closed_as"], "RESOLVED");
    let commands = stage.published_on(&[ESCROW_COMMANDS], &only(&[stuck]));
    assert_eq!(ids(&commands), [format!("{stuck}-1-0"), format!("{stuck}-2-0")]);
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn a_hold_keeps_commands_about_money_back_and_nothing_else() {
    let stage = Stage::new("hold").await;
    stage.hold(true).await;
    let deal = open(&stage, Status::CompletedReleased).await.to_string();
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    let (expected, records) = stage.published().await;
    assert!(records.iter().all(|record| record.topic != ESCROW_COMMANDS));
    assert_eq!(expected.check(&records).lost.len(), 2, "the address and the payout wait");
    stage.hold(false).await;
    stage.ring_all(&relay).await;
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0, "what was published stays published");
    assert_eq!(stage.published_on(&[ESCROW_COMMANDS], &only(&[&deal])).len(), 2);
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn a_topic_that_is_missing_holds_up_its_own_messages_and_heals_when_it_is_made() {
    let stage = Stage::new("missing").await;
    if stage.broker.is_embedded() {
        // It makes topics by itself; here it is told to say otherwise.
        let missing = new_topic("missing");
        stage.broker.forget_topic(&missing);
        heals(&stage, &missing, async |_: &str| stage.broker.remember_topic(&missing)).await;
    } else {
        let missing = new_topic("missing");
        heals(&stage, &missing, async |topic: &str| stage.broker.create_topic(topic, 1).await)
            .await;
    }
}

async fn heals(stage: &Stage, missing: &str, make: impl AsyncFn(&str)) {
    let there = new_topic("there");
    stage.broker.create_topic(&there, 1).await;
    let names = neighbours(3);
    let now = clock::now();
    for name in &names {
        let first = stage.put(name, 1, None, now, &[(missing, 10), (&there, 10)]).await;
        stage.put(name, 2, Some(&first), now, &[(&there, 10), (missing, 10)]).await;
    }
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    let all: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(stage.published_on(&[&there], &all).len(), 6, "the other topic goes on");
    assert_eq!(stage.rows().await.len(), 6);
    assert!(relay.metrics.counted("outbox.topic_refused") > 0);
    assert_eq!(relay.metrics.counted("outbox.retries"), 0, "no retry is spent");
    make(missing).await;
    for _ in 0..60 {
        stage.ring_all(&relay).await;
        if stage.rows().await.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let records = stage.published_on(&[missing], &all);
    for name in &names {
        let own: Vec<String> =
            records.iter().filter(|record| record.key == *name).map(Record::event_id).collect();
        assert_eq!(own, [format!("{name}-1-0"), format!("{name}-2-1")]);
    }
    assert_eq!(stage.published_on(&[&there], &all).len(), 6, "and nothing twice");
}

#[tokio::test]
async fn two_relays_at_once_lose_nothing_and_keep_the_order() {
    let stage = Stage::new("rivals").await;
    for _ in 0..12 {
        deals::keep_busy(&stage.bed.store, new_deal(), 20, |_| clock::now()).await;
    }
    let (one, other) = (stage.relay(), stage.relay());
    tokio::join!(stage.ring_all(&one), stage.ring_all(&other));
    assert_eq!(stage.rows().await.len(), 0);
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    println!("two relays at once: {verdict}");
    verdict.must_hold();
}

#[tokio::test]
async fn when_all_bells_are_lost_the_schedule_finds_what_waits() {
    let stage = Stage::new("lost-bells").await;
    for _ in 0..5 {
        open(&stage, Status::Funded).await;
    }
    let relay = stage.relay();
    let pending = stage.rows().await.len() as u64;
    let answer = stage.by_schedule(&relay).await;
    assert_eq!(answer, json!({"batchItemFailures": []}));
    assert_eq!(stage.rows().await.len(), 0);
    let (expected, records) = stage.published().await;
    expected.check(&records).must_hold();
    assert_eq!(pending, 25);
}

#[tokio::test]
async fn a_storm_of_bells_costs_a_look_each_and_repeats_nothing() {
    let stage = Stage::new("storm").await;
    let deal = open(&stage, Status::Funded).await;
    let network = Network::new(|_| Fault::None);
    let relay = stage.relay_with(network.clients(&stage.bed));
    let bells = vec![json!({"bucket": bucket(&deal.to_string())}).to_string(); 10];
    for _ in 0..100 {
        let event = sqs_event("escrow-outbox-doorbell.fifo", &bells);
        let until = clock::now().plus_secs(60);
        let answer = bell::invoke(&relay, event, until).await.expect("it is an event");
        assert_eq!(answer, json!({"batchItemFailures": []}));
    }
    let calls = network.calls();
    let looks = calls.iter().filter(|operation| *operation == "Query").count();
    assert_eq!(looks, 101, "one look for ten bells, and one more at the end of the only work");
    let others = calls.iter().filter(|operation| *operation != "Query").count();
    assert!(others < 10, "{calls:?}");
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0);
}

#[tokio::test]
async fn a_message_that_is_no_bell_is_dropped() {
    let stage = Stage::new("no-bell").await;
    let relay = stage.relay();
    let bodies = ["", "{", "{}", r#"{"bucket":"16"}"#, r#"{"bucket":7}"#, r#"{"ring_all":true}"#];
    let bodies = bodies.map(str::to_owned);
    let event = sqs_event("escrow-outbox-doorbell.fifo", &bodies);
    let answer = bell::invoke(&relay, event, clock::now().plus_secs(60)).await.expect("an event");
    assert_eq!(answer, json!({"batchItemFailures": []}));
    let error = bell::invoke(&relay, json!({"bucket": "01"}), clock::now()).await.unwrap_err();
    assert!(error.to_string().contains("neither a Kafka nor an SQS event"), "{error}");
}

#[tokio::test]
async fn what_keeps_the_relay_from_working_brings_the_bell_again() {
    for (operation, fault) in [
        ("Query", Fault::Unreachable),
        ("BatchGetItem", Fault::error("ProvisionedThroughputExceededException")),
        ("GetItem", Fault::Unreachable),
        ("GetSecretValue", Fault::Unreachable),
        ("BatchWriteItem", Fault::Unreachable),
    ] {
        let stage = Stage::new("away").await;
        // Of one deal, and the first row is gone: so that a predecessor is looked for.
        let deal = open(&stage, Status::Funded).await;
        let first = stage.rows().await.remove(0);
        let position = first["position"].as_str().unwrap().to_owned();
        let outbox = stage.relay().outbox;
        outbox.delete(&bucket(&deal.to_string()), &[position]).await.expect("it goes");
        let network = Network::new(
            move |called| {
                if called == operation { fault.clone() } else { Fault::None }
            },
        );
        let relay = stage.relay_with(network.clients(&stage.bed));
        let answer = stage.ring_all(&relay).await;
        let failed = answer["batchItemFailures"].as_array().map(Vec::len);
        assert_eq!(failed, Some(1), "{operation}: {answer}");
        // The weather clears.
        stage.ring_all(&stage.relay()).await;
        assert_eq!(stage.rows().await.len(), 0, "{operation}");
        let (expected, records) = stage.published().await;
        let verdict = expected.check(&records);
        assert!(
            verdict.out_of_order.is_empty() && verdict.lost.len() <= 1,
            "{operation}: {verdict}"
        );
    }
}

#[tokio::test]
async fn a_relay_that_dies_at_any_call_loses_nothing_and_keeps_the_order() {
    let stage = Stage::new("dies").await;
    let (mut step, mut died_in) = (0, BTreeSet::new());
    let duplicates = loop {
        step += 1;
        deals::keep_busy(&stage.bed.store, new_deal(), 6, |_| clock::now()).await;
        let mut call = 0;
        let network = Network::new(move |_| {
            call += 1;
            match call {
                call if call != step / 2 + 1 => Fault::None,
                _ if step % 2 == 0 => Fault::DiesBefore,
                _ => Fault::DiesAfter,
            }
        });
        let relay = stage.relay_with(network.clients(&stage.bed));
        let died = tokio::select! {
            died = network.death() => Some(died),
            _ = stage.ring_all(&relay) => None,
        };
        drop(relay);
        stage.ring_all(&stage.relay()).await;
        assert_eq!(stage.rows().await.len(), 0);
        let (expected, records) = stage.published().await;
        let verdict = expected.check(&records);
        verdict.must_hold();
        match died {
            Some(operation) => died_in.insert(operation),
            None => break verdict.duplicates,
        };
    };
    println!("died {} times, in {died_in:?}; {duplicates} messages came twice", step - 1);
    for operation in ["Query", "GetItem", "GetSecretValue", "BatchWriteItem"] {
        assert!(died_in.contains(operation), "{died_in:?}");
    }
    assert!(duplicates > 0, "a death between publishing and deleting must show");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_rows_are_worked_off() {
    let stage = Stage::new("backlog").await;
    let topic = new_topic("backlog");
    stage.broker.create_topic(&topic, 3).await;
    let (rows, expected) = backlog(&topic, 1000, 10, None);
    stage.put_all(rows).await;
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
    let records = stage.published_on(&[&topic], &expected.0.keys().cloned().collect());
    let verdict = expected.check(&records);
    println!("a backlog: {verdict}");
    verdict.must_hold();
    assert_eq!((verdict.expected, verdict.duplicates), (10_000, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_aggregate_is_stuck_while_999_go_on() {
    let mut stage = Stage::new("one-stuck").await;
    stage.set("OUTBOX_BASE_DELAY_SECONDS", 600);
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    let topic = new_topic("one-stuck");
    stage.broker.create_topic(&topic, 3).await;
    let (rows, expected) = backlog(&topic, 1000, 3, Some(500));
    stage.put_all(rows).await;
    stage.ring_all(&stage.relay()).await;
    assert_eq!(stage.rows().await.len(), 3, "those of the one");
    let records = stage.published_on(&[&topic], &expected.0.keys().cloned().collect());
    let verdict = expected.check(&records);
    assert_eq!((verdict.lost.len(), verdict.out_of_order.len(), verdict.duplicates), (3, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_while_a_message_waits_for_its_retry_does_not_wait_with_it() {
    let mut stage = Stage::new("waits").await;
    // Longer than the invocation has: a relay that only slept would publish nothing else.
    stage.set("OUTBOX_BASE_DELAY_SECONDS", 20);
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    let topic = new_topic("waits");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(2);
    let (waits, neighbour) = (names[0].as_str(), names[1].as_str());
    let other = new_deal().to_string();
    let now = clock::now();
    stage.put(waits, 1, None, now, &[(&topic, 30_000)]).await;
    stage.put(&other, 1, None, now, &[(&topic, 10)]).await;
    let relay = stage.relay();
    let buckets = only(&[&bucket(waits), &bucket(&other)]);
    let invocation = stage.ring(&relay, &buckets, 40);
    let commits = async {
        while relay.metrics.counted("outbox.retries") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let next = stage.put(neighbour, 1, None, clock::now(), &[(&topic, 10)]).await;
        stage.put(neighbour, 2, Some(&next), clock::now(), &[(&topic, 10)]).await;
        let wanted = [(&other, 1), (&names[1], 1), (&names[1], 2)];
        let wanted = wanted.map(|(name, seq)| format!("{name}-{seq}-0"));
        loop {
            let published = ids(&stage.published_on(&[&topic], &only(&[&other, neighbour])));
            if wanted.iter().all(|id| published.contains(id)) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        _ = invocation => panic!("the invocation ended, and what was committed meanwhile waits"),
        () = commits => {}
    }
}

#[tokio::test]
async fn a_message_that_its_letter_cannot_hold_whole_stays_in_the_outbox() {
    let mut stage = Stage::new("whole").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 0);
    let topic = new_topic("whole");
    stage.broker.create_topic(&topic, 1).await;
    let name = new_deal().to_string();
    stage.put(&name, 1, None, clock::now(), &[(&topic, 250_000)]).await;
    stage.ring_all(&stage.relay()).await;
    let letters = stage.bed.letters().await;
    assert_eq!((letters.len(), letters[0]["cut_from"].is_number()), (1, true));
    assert_eq!(stage.rows().await.len(), 1, "the only whole copy");
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 1_000_000);
    let row = stage.rows().await.remove(0);
    stage.unstick(row["position"].as_str().unwrap()).await;
    stage.ring_all(&stage.relay()).await;
    assert_eq!(ids(&stage.published_on(&[&topic], &only(&[&name]))), [format!("{name}-1-0")]);
    assert_eq!(stage.bed.letters().await.remove(0)["closed_as"], "RESOLVED");
}

/// Rows of so many aggregates, one of them with a first message that is too large.
fn backlog(
    topic: &str,
    aggregates: usize,
    each: u64,
    large: Option<usize>,
) -> (Vec<Value>, Expected) {
    let now = clock::now();
    let (mut rows, mut expected) = (Vec::new(), Expected::default());
    for number in 0..aggregates {
        let name = new_deal().to_string();
        let mut previous: Option<String> = None;
        for seq in 1..=each {
            let size = if large == Some(number) && seq == 1 { 30_000 } else { 200 };
            let row = made_up(&name, seq, previous.as_deref(), now, &[(topic, size)]);
            previous = row["position"].as_str().map(str::to_owned);
            rows.push(row);
            expected.0.entry(name.clone()).or_default().push(format!("{name}-{seq}-0"));
        }
    }
    (rows, expected)
}

#[tokio::test]
async fn a_damaged_row_blocks_its_aggregate_alone_and_is_told() {
    let stage = Stage::new("damaged").await;
    let topic = new_topic("damaged");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(2);
    let (damaged, other) = (names[0].as_str(), names[1].as_str());
    let now = clock::now();
    let mut row = made_up(damaged, 1, None, now, &[(&topic, 10)]);
    let position = row["position"].as_str().unwrap().to_owned();
    row.as_object_mut().unwrap().remove("messages");
    stage.put_all(vec![row]).await;
    stage.put(damaged, 2, Some(&position), now, &[(&topic, 10)]).await;
    stage.put(other, 1, None, now, &[(&topic, 10)]).await;
    let relay = stage.relay();
    let buckets = BTreeMap::from([(bucket(other), Start::Beginning)]);
    let lefts = relay.work_on(&buckets, clock::now().plus_secs(60)).await;
    let lefts: Vec<Left> = lefts.into_values().map(|left| left.expect("it works")).collect();
    assert_eq!(lefts, [Left::NextBell], "no siege of a row that does not heal");
    let records = stage.published_on(&[&topic], &only(&[damaged, other]));
    assert_eq!(ids(&records), [format!("{other}-1-0")]);
    assert_eq!(stage.rows().await.len(), 2);
    assert!(relay.metrics.counted("worker.critical") > 0);
}

#[tokio::test]
async fn when_time_runs_out_the_bucket_is_rung_again() {
    let stage = Stage::new("time").await;
    let deal = open(&stage, Status::Funded).await;
    let relay = stage.relay();
    // The time of this invocation is over before it begins to publish.
    stage.ring(&relay, &only(&[&bucket(&deal.to_string())]), 5).await;
    let bells = stage.bells().await;
    assert_eq!(bells, [json!({"bucket": bucket(&deal.to_string()), "whole": true})]);
    assert_eq!(stage.rows().await.len(), 5);
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn what_waits_is_not_looked_at_for_every_bell() {
    let mut stage = Stage::new("news").await;
    stage.set("OUTBOX_BATCH_SIZE", 10);
    stage.hold(true).await;
    let topic = new_topic("news");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(52);
    let now = clock::now();
    let long_ago = now.minus_secs(600);
    for name in &names[..50] {
        stage.put(name, 1, None, long_ago, &[(ESCROW_COMMANDS, 10)]).await;
    }
    let network = Network::new(|_| Fault::None);
    let relay = stage.relay_with(network.clients(&stage.bed));
    let bucket = bucket(&names[0]);
    stage.ring(&relay, &only(&[&bucket]), 60).await;
    assert!(network.calls().iter().filter(|call| *call == "Query").count() >= 5);

    let news = json!({"bucket": bucket});
    for name in &names[50..] {
        let before = network.calls().len();
        stage.put(name, 1, None, now, &[(&topic, 10)]).await;
        stage.send(&relay, vec![news.clone()], 60).await;
        let calls = network.calls();
        let looks = calls[before..].iter().filter(|call| *call == "Query").count();
        assert_eq!(looks, 2, "one for the news, and one that finds no more");
    }
    // Of a deal whose command is held, the rest goes on; and its own past is all that is read.
    let (busy, first) = (&names[7], made_position(&names[7], 1, long_ago));
    let before = network.calls().len();
    stage.put(busy, 2, Some(&first), now, &[(&topic, 10), (ESCROW_COMMANDS, 10)]).await;
    stage.send(&relay, vec![news], 60).await;
    let calls = network.calls();
    let looks = calls[before..].iter().filter(|call| *call == "Query").count();
    assert_eq!(looks, 2);
    let wanted: BTreeSet<String> = [(&names[50], 1), (&names[51], 1), (busy, 2)]
        .map(|(name, seq)| format!("{name}-{seq}-0"))
        .into();
    let told = ids(&stage.published_on(&[&topic], &names.iter().cloned().collect()));
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), wanted);
    stage.hold(false).await;
    stage.by_schedule(&relay).await;
    assert_eq!(stage.rows().await.len(), 0, "the schedule has all of it looked at");
    let commands = ids(&stage.published_on(&[ESCROW_COMMANDS], &only(&[busy])));
    assert_eq!(commands, [format!("{busy}-1-0"), format!("{busy}-2-1")]);
}

#[tokio::test]
async fn a_failure_that_cannot_be_written_down_costs_nobody_else_anything() {
    let mut stage = Stage::new("trouble").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 0);
    let topic = new_topic("trouble");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(6);
    let now = clock::now();
    for (index, name) in names.iter().enumerate() {
        let size = if index == 2 { 30_000 } else { 10 };
        stage.put(name, 1, None, now, &[(&topic, size)]).await;
    }
    let network = Network::new(|called| match called {
        "SendMessage" => Fault::Unreachable,
        _ => Fault::None,
    });
    let relay = stage.relay_with(network.clients(&stage.bed));
    for _ in 0..3 {
        let answer = stage.ring_all(&relay).await;
        assert_eq!(answer["batchItemFailures"].as_array().map(Vec::len), Some(1), "{answer}");
        assert_eq!(stage.rows().await.len(), 1, "all others went");
    }
    stage.ring_all(&stage.relay()).await;
    assert_eq!(stage.rows().await.len(), 0);
    let all: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(stage.published_on(&[&topic], &all).len(), 5, "once each");
    assert_eq!(stage.bed.letters().await.len(), 1);
}

/// The tests below take a broker down or slow it: each has one of its own, embedded.
async fn on_its_own(name: &str) -> Stage {
    Stage::on(name, Broker::embedded()).await
}

#[tokio::test]
async fn a_slow_broker_is_waited_for() {
    let stage = on_its_own("slow").await;
    for _ in 0..3 {
        open(&stage, Status::Funded).await;
    }
    stage.broker.answer_after(std::time::Duration::from_millis(700));
    stage.ring_all(&stage.relay()).await;
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0);
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn a_topic_that_does_not_answer_holds_up_no_other() {
    let mut stage = on_its_own("sick").await;
    stage.set("OUTBOX_BATCH_SIZE", 12);
    let sick = new_topic("sick");
    stage.broker.create_topic(&sick, 1).await;
    stage.broker.lacks_replicas(&sick, true);
    let names = neighbours(13);
    let (payee, others) = names.split_last().unwrap();
    let now = clock::now();
    for name in others {
        stage.put(name, 1, None, now.minus_secs(60), &[(&sick, 10)]).await;
    }
    stage.put(payee, 1, None, now, &[(ESCROW_COMMANDS, 10), (&sick, 10)]).await;
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    let commands = stage.published_on(&[ESCROW_COMMANDS], &only(&[payee]));
    assert_eq!(ids(&commands), [format!("{payee}-1-0")], "money is not held up by a sick topic");
    assert_eq!(stage.rows().await.len(), 13);
    assert_eq!(relay.metrics.counted("outbox.retries"), 0);
    stage.broker.lacks_replicas(&sick, false);
    stage.by_schedule(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn what_an_invocation_had_no_time_for_goes_on_where_it_ended() {
    let mut stage = on_its_own("cursor").await;
    stage.set("OUTBOX_BATCH_SIZE", 5);
    stage.hold(true).await;
    let topic = new_topic("cursor");
    stage.broker.create_topic(&topic, 1).await;
    let names = neighbours(60);
    let now = clock::now();
    // Half of them stay where they are: whoever began anew each time would never get past them.
    for (index, name) in names.iter().enumerate() {
        let topic = if index < 30 { ESCROW_COMMANDS } else { &topic };
        stage.put(name, 1, None, now.minus_secs(60 - index as u32), &[(topic, 10)]).await;
    }
    stage.broker.answer_after(std::time::Duration::from_millis(400));
    let relay = stage.relay();
    let mut bells = vec![json!({"bucket": bucket(&names[0]), "whole": true})];
    let mut invocations = 0;
    while !bells.is_empty() {
        invocations += 1;
        assert!(invocations < 30, "it does not get on");
        stage.send(&relay, bells, 9).await;
        bells = stage.bells().await;
        if invocations == 1 {
            assert!(bells[0]["after"].is_string(), "{bells:?}");
        }
    }
    assert_eq!(stage.rows().await.len(), 30, "those that are held");
    let all: BTreeSet<String> = names.iter().cloned().collect();
    let published: BTreeSet<String> =
        ids(&stage.published_on(&[&topic], &all)).into_iter().collect();
    assert_eq!(published.len(), 30);
}
