//! Two relays as real processes and a broker, all of them killed with -9 again and again, while deals
//! are being made. `make soak` has fifty thousand facts; without it there are a few thousand.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use platform::clock;
use serde_json::json;
use testbed::apache_kafka::ApacheKafka;
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::emulator::Emulator;
use testbed::engine::Engine;
use testbed::records::sqs_event;
use testbed::stage::{Stage, new_deal};
use testbed::{deals, ministack, programs};
use tokio::sync::Mutex;

/// How many facts to commit.
const FACTS_VARIABLE: &str = "ESCROW_SOAK_FACTS";
const FACTS_A_DEAL: usize = 25;
const COMMITTERS: usize = 8;
const BUCKETS: usize = 16;
const KILL_EVERY: Duration = Duration::from_millis(700);
/// One killing in so many is the broker's.
const BROKER_EVERY: usize = 12;
const BROKER_AWAY: Duration = Duration::from_secs(2);

struct Soak {
    stage: Stage,
    relays: Vec<Emulator>,
    kafka: Mutex<ApacheKafka>,
    committed: AtomicUsize,
    all_committed: AtomicBool,
    drained: AtomicBool,
    kills: AtomicUsize,
    restarts: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_all_is_published_in_order() {
    let wanted = std::env::var(FACTS_VARIABLE).ok();
    let facts: usize = wanted.map_or(3000, |facts| facts.parse().expect("a number of facts"));
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let engine = Engine::start().await;
    let soak = prepare(&root, &engine).await;
    let begun = Instant::now();
    tokio::join!(
        soak.commit(facts / FACTS_A_DEAL),
        soak.ring(0),
        soak.ring(1),
        soak.kill(),
        soak.tell(facts, begun),
    );
    let secs = begun.elapsed().as_secs();
    let (expected, records) = soak.stage.published().await;
    let verdict = expected.check(&records);
    let committed = soak.committed.load(Ordering::Relaxed);
    let (kills, restarts) =
        (soak.kills.load(Ordering::Relaxed), soak.restarts.load(Ordering::Relaxed));
    println!(
        "a soak on Apache Kafka: {committed} facts of {} deals, {kills} kills of relays, \
         {restarts} of the broker, {secs} s: {verdict}",
        expected.0.len()
    );
    verdict.must_hold();
    assert_eq!(committed, facts / FACTS_A_DEAL * FACTS_A_DEAL);
    assert!(kills >= 3 && restarts >= 1, "{kills} kills, {restarts} restarts");
}

async fn prepare(root: &Path, engine: &Engine) -> Soak {
    let bootstrap = programs::build(root, "outbox-relay").await.expect("it builds");
    let aws = ministack::shared_endpoint();
    let kafka = ApacheKafka::start(root).await.expect("it starts");
    let bed = Bed::on(&engine.url(), &aws, "soak").await;
    let stage = Stage::with(bed, Broker::at(kafka.brokers.clone())).await;
    let mut env = stage.bed.function_env(&aws);
    env.extend(stage.env());
    let mut relays = Vec::new();
    for _ in 0..2 {
        let relay = Emulator::start(root, &bootstrap, &env, Stdio::null()).await;
        relays.push(relay.expect("it starts"));
    }
    Soak {
        stage,
        relays,
        kafka: Mutex::new(kafka),
        committed: AtomicUsize::new(0),
        all_committed: AtomicBool::new(false),
        drained: AtomicBool::new(false),
        kills: AtomicUsize::new(0),
        restarts: AtomicUsize::new(0),
    }
}

impl Soak {
    async fn commit(&self, deals: usize) {
        let commits = stream::iter(0..deals).map(async |_| {
            let store = &self.stage.bed.store;
            deals::keep_busy(store, new_deal(), FACTS_A_DEAL, |_| clock::now()).await;
            self.committed.fetch_add(FACTS_A_DEAL, Ordering::Relaxed);
        });
        commits.buffer_unordered(COMMITTERS).collect::<()>().await;
        self.all_committed.store(true, Ordering::Relaxed);
    }

    /// A relay gets the bells of its half of the buckets; now and then of all, as when the queue hands
    /// out again what somebody did not finish in time.
    async fn ring(&self, number: usize) {
        for round in 0.. {
            if self.drained.load(Ordering::Relaxed) {
                return;
            }
            let buckets = (0..BUCKETS).filter(|bucket| round % 8 == 7 || bucket % 2 == number);
            let bells: Vec<String> = buckets
                .map(|bucket| json!({"bucket": format!("{bucket:02}"), "whole": true}).to_string())
                .collect();
            let event = sqs_event("escrow-outbox-doorbell.fifo", &bells);
            // One that was killed has no answer; its bells come again.
            let _ = self.relays[number].invoke(&event).await;
            let is_last = self.all_committed.load(Ordering::Relaxed);
            if is_last && self.stage.bed.count(&self.stage.bed.config.tables.outbox).await == 0 {
                self.drained.store(true, Ordering::Relaxed);
            }
        }
    }

    async fn kill(&self) {
        for turn in 1.. {
            tokio::time::sleep(KILL_EVERY).await;
            if self.drained.load(Ordering::Relaxed) {
                return;
            }
            if turn % BROKER_EVERY == 0 {
                let mut kafka = self.kafka.lock().await;
                kafka.kill();
                tokio::time::sleep(BROKER_AWAY).await;
                kafka.resume().await.expect("it comes back");
                self.restarts.fetch_add(1, Ordering::Relaxed);
            } else if self.relays[turn % 2].kill_function() {
                self.kills.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Progress, also where a test's output is kept back.
    async fn tell(&self, facts: usize, begun: Instant) {
        while !self.drained.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let secs = begun.elapsed().as_secs();
            if secs.is_multiple_of(10) {
                let waiting = self.stage.bed.count(&self.stage.bed.config.tables.outbox).await;
                let committed = self.committed.load(Ordering::Relaxed);
                let kills = self.kills.load(Ordering::Relaxed);
                let restarts = self.restarts.load(Ordering::Relaxed);
                let _ = writeln!(
                    std::io::stderr(),
                    "{secs:>4} s: {committed} of {facts} facts committed, {waiting} rows wait, \
                     {kills} kills, {restarts} of the broker"
                );
            }
        }
    }
}
