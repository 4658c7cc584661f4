//! The relay while its broker is away, hangs, or comes back: a broker of this test's own, which it can
//! take down. Apache Kafka where the environment names one, else the embedded one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use outbox_relay::relay::Relay;
use platform::clock;
use serde_json::json;
use testbed::apache_kafka::{ApacheKafka, BROKERS_VARIABLE};
use testbed::broker::Broker;
use testbed::deals;
use testbed::stage::{Stage, new_deal};

/// A broker to take down.
enum Victim {
    Apache(Box<ApacheKafka>),
    Embedded,
}

async fn prepare(name: &str) -> (Stage, Victim) {
    if std::env::var(BROKERS_VARIABLE).is_err() {
        return (Stage::on(name, Broker::embedded()).await, Victim::Embedded);
    }
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let kafka = ApacheKafka::start(&root).await.expect("it starts");
    let stage = Stage::on(name, Broker::at(kafka.brokers.clone())).await;
    (stage, Victim::Apache(Box::new(kafka)))
}

impl Victim {
    fn take_down(&mut self, stage: &Stage) {
        match self {
            Self::Apache(kafka) => kafka.kill(),
            Self::Embedded => stage.broker.set_up(false),
        }
    }

    async fn bring_back(&mut self, stage: &Stage) {
        match self {
            Self::Apache(kafka) => kafka.resume().await.expect("it comes back"),
            Self::Embedded => stage.broker.set_up(true),
        }
    }

    /// It listens, and answers nothing.
    fn hang(&self, stage: &Stage, hangs: bool) {
        match self {
            Self::Apache(kafka) => kafka.hang(hangs),
            Self::Embedded => {
                let delay = if hangs { 3600 } else { 0 };
                stage.broker.answer_after(Duration::from_secs(delay));
            }
        }
    }
}

async fn commit_some(stage: &Stage, count: usize) {
    for _ in 0..count {
        deals::keep_busy(&stage.bed.store, new_deal(), 8, |_| clock::now()).await;
    }
}

/// The schedule alone brings all of it out, in order.
async fn heals(stage: &Stage, relay: &Relay, told: &str) {
    let begun = Instant::now();
    while !stage.rows().await.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(90), "it does not heal");
        stage.by_schedule(relay).await;
    }
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    println!("{}, {told}: {verdict}", stage.broker.kind());
    verdict.must_hold();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_spends_no_retry_and_heals_by_itself() {
    let (stage, mut broker) = prepare("outage").await;
    let relay = stage.relay();
    commit_some(&stage, 3).await;
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);

    broker.take_down(&stage);
    commit_some(&stage, 20).await;
    for _ in 0..2 {
        let begun = Instant::now();
        let answer = stage.ring_all(&relay).await;
        assert_eq!(
            answer,
            json!({"batchItemFailures": []}),
            "an outage is no reason to ring again"
        );
        assert!(begun.elapsed() < Duration::from_secs(50), "it gives up within its time");
    }
    let rows = stage.rows().await;
    assert_eq!(rows.len(), 160, "all of it waits");
    for row in &rows {
        let noted = row.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let noted: Vec<&str> = noted.filter(|name| name.starts_with("failed_")).collect();
        assert!(noted.is_empty(), "a retry is spent: {row}");
    }
    assert!(relay.metrics.counted("outbox.unanswered") >= 10);
    assert_eq!(stage.bed.letters().await.len(), 0);

    broker.bring_back(&stage).await;
    heals(&stage, &relay, "an outage").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_an_invocation_ends_nothing_of_it_is_on_its_way() {
    let (stage, broker) = prepare("hangs").await;
    let relay = stage.relay();
    commit_some(&stage, 1).await;
    stage.ring_all(&relay).await;

    broker.hang(&stage, true);
    commit_some(&stage, 5).await;
    let begun = Instant::now();
    let buckets = (0..16).map(|number| format!("{number:02}")).collect();
    // Three seconds to publish in: less than a record may take.
    stage.ring(&relay, &buckets, 11).await;
    assert!(begun.elapsed() < Duration::from_secs(11), "it ends before its time does");
    assert_eq!(relay.on_their_way(), 0);
    assert_eq!(stage.rows().await.len(), 40);

    broker.hang(&stage, false);
    heals(&stage, &relay, "hung").await;
}
