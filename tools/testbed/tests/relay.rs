//! The relay against a real outbox and a real broker: what it publishes, in which order, whoever else
//! works on the outbox and whenever it dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::plan::outbox_position;
use domain::state::Status;
use platform::clock;
use platform::signature::{self, sign_v1, sign_v2};
use platform::store::messages::{ESCROW_COMMANDS, TOPICS, bucket};
use serde_json::{Value, json};
use testbed::deals;
use testbed::faults::{Fault, Network};
use testbed::published::Record;
use testbed::records::SECRET;
use testbed::stage::{Stage, backlog, neighbours, new_deal, only};
use tokio::sync::Notify;

#[tokio::test]
async fn what_was_committed_is_published_in_order_and_gone() {
    let stage = Stage::new("publishes").await;
    for status in [Status::CompletedReleased, Status::Refunded, Status::Cancelled] {
        stage.open(status).await;
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
        let deal = stage.open(Status::Accepted).await.to_string();
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
    let deal = stage.open(Status::CompletedReleased).await.to_string();
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
    let topic = stage.topic("between", 1).await;
    let names = neighbours(2);
    let (busy, other) = (names[0].as_str(), names[1].as_str());
    let now = clock::now();
    let at = |secs: u32| now.plus_secs(secs);
    let message = [(topic.as_str(), 10)];
    stage.put(other, 1, None, at(1), &message).await;
    let before =
        stage.put(other, 2, Some(&outbox_position(at(1), other, 1)), at(2), &message).await;
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
    let topic = stage.topic("backlog", 3).await;
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

#[tokio::test]
async fn a_slow_broker_is_waited_for() {
    let stage = Stage::embedded("slow").await;
    for _ in 0..3 {
        stage.open(Status::Funded).await;
    }
    stage.broker.answer_after(std::time::Duration::from_millis(700));
    stage.ring_all(&stage.relay()).await;
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0);
    assert_eq!(stage.rows().await.len(), 0);
}
