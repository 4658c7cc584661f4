//! When the relay looks, at what, and what it tells of it.

use std::collections::{BTreeMap, BTreeSet};

use domain::plan::outbox_position;
use domain::state::Status;
use outbox_relay::bell;
use outbox_relay::relay::Start;
use platform::clock;
use platform::store::messages::{ESCROW_COMMANDS, bucket};
use serde_json::json;
use testbed::faults::{Fault, Network};
use testbed::records::sqs_event;
use testbed::stage::{Stage, ids, neighbours, new_deal, only};

#[tokio::test]
async fn when_all_bells_are_lost_the_schedule_finds_what_waits() {
    let stage = Stage::new("lost-bells").await;
    for _ in 0..5 {
        stage.open(Status::Funded).await;
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
    let deal = stage.open(Status::Funded).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_while_a_message_waits_for_its_retry_does_not_wait_with_it() {
    let mut stage = Stage::new("waits").await;
    // Longer than the invocation has: a relay that only slept would publish nothing else.
    stage.set("OUTBOX_BASE_DELAY_SECONDS", 20);
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    let topic = stage.topic("waits", 1).await;
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
async fn when_time_runs_out_the_bucket_is_rung_again() {
    let stage = Stage::new("time").await;
    let deal = stage.open(Status::Funded).await;
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
async fn what_an_invocation_had_no_time_for_goes_on_where_it_ended() {
    let mut stage = Stage::embedded("cursor").await;
    stage.set("OUTBOX_BATCH_SIZE", 5);
    stage.hold(true).await;
    let topic = stage.topic("cursor", 1).await;
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

#[tokio::test]
async fn what_waits_is_not_looked_at_for_every_bell() {
    let mut stage = Stage::new("news").await;
    stage.set("OUTBOX_BATCH_SIZE", 10);
    stage.hold(true).await;
    let topic = stage.topic("news", 1).await;
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
    let (busy, first) = (&names[7], outbox_position(long_ago, &names[7], 1));
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
async fn it_tells_how_much_waits_since_when_and_how_long_publishing_took() {
    let mut stage = Stage::new("metrics").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_BASE_DELAY_SECONDS", 600);
    let topic = stage.topic("metrics", 1).await;
    let names = neighbours(3);
    let (large, others) = names.split_first().unwrap();
    let long_ago = clock::now().minus_secs(90);
    stage.put(large, 1, None, long_ago, &[(&topic, 30_000)]).await;
    for name in others {
        stage.put(name, 1, None, clock::now(), &[(&topic, 10), (&topic, 10)]).await;
    }
    let relay = stage.relay();
    bell::ring_all(&relay).await;
    assert_eq!(relay.metrics.observed("outbox.pending"), [3]);
    assert_eq!(relay.metrics.observed("outbox.waiting"), [5], "none was tried again");
    let age = relay.metrics.observed("outbox.oldest_age_seconds");
    assert!(age.len() == 1 && (90..150).contains(&age[0]), "{age:?}");

    let all = BTreeMap::from([(bucket(large), Start::Beginning)]);
    relay.work_on(&all, clock::now().plus_secs(30)).await;
    assert_eq!(relay.metrics.observed("outbox.publish_latency").len(), 4);
    assert_eq!(relay.metrics.counted("outbox.published"), 4);
    assert_eq!(relay.metrics.counted("outbox.retries"), 1);
    bell::ring_all(&relay).await;
    assert_eq!(relay.metrics.observed("outbox.pending"), [3, 1]);
    assert_eq!(relay.metrics.observed("outbox.waiting"), [5, 1], "the one that was tried once");
}
