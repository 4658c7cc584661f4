//! `make bench-relay`: what the relay's guarantees cost, as ratios measured in one run. Absolute figures
//! are this machine's alone.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use outbox_relay::envelope::{self, Signer};
use outbox_relay::relay::{Relay, Start};
use platform::clock;
use platform::outbox::{Outbox, Row};
use platform::store::messages::BUCKETS;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use testbed::apache_kafka::ApacheKafka;
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::engine::Engine;
use testbed::java::Missing;
use testbed::ministack::Ministack;
use testbed::stage::{Stage, made_up, new_deal};

/// Set it to publish fewer before the idle passes are measured.
const FACTS_VARIABLE: &str = "FACTS";
const TOPIC: &str = "deal.events";
const AGGREGATES: usize = 1000;
const EACH: u64 = 20;
const PAYLOAD_BYTES: usize = 300;
const ROUNDS: usize = 5;
const IDLE_PASSES: usize = 300;

/// Each round measures all of these, one after the other, on the same records.
#[derive(Clone, Copy)]
enum Way {
    /// As fast as rdkafka takes them, from memory.
    Bare,
    /// The next after the answer to the one before.
    OneByOne,
    /// As `Bare`, of the outbox: read page by page, and deleted.
    FromOutbox,
    Relay,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Bare, "rdkafka, from memory, all at once"),
    (Way::OneByOne, "rdkafka, from memory, one by one"),
    (Way::FromOutbox, "rdkafka, reading and deleting rows"),
    (Way::Relay, "the relay"),
];

pub async fn relay(root: &Path) -> Result<(), String> {
    let wanted = std::env::var(FACTS_VARIABLE).unwrap_or_else(|_| "1000000".to_owned());
    let facts: usize =
        wanted.parse().map_err(|_| format!("{FACTS_VARIABLE}={wanted} is no number of facts"))?;
    let ministack = Ministack::start(root).await?;
    let kafka = match ApacheKafka::start(root).await {
        Ok(kafka) => Some(kafka),
        Err(Missing::Tools(reason)) => {
            println!("on the embedded broker, because {reason}");
            None
        }
        Err(Missing::Broken(reason)) => return Err(reason),
    };
    let broker = || match &kafka {
        Some(kafka) => Broker::at(kafka.brokers.clone()),
        None => Broker::embedded(),
    };
    let engine = Engine::start().await;
    let stage = Stage::with(Bed::on(&engine.url(), &ministack.url, "bench").await, broker()).await;
    throughput(&stage).await;
    // An engine of its own: nothing was ever in its tables.
    let untouched = Engine::start().await;
    let bed = Bed::on(&untouched.url(), &ministack.url, "bench-empty").await;
    idle(&stage, &Stage::with(bed, broker()).await, facts).await;
    Ok(())
}

async fn throughput(stage: &Stage) {
    let relay = stage.relay();
    let count = AGGREGATES as u64 * EACH;
    println!("\n{count} messages of {AGGREGATES} deals on {}, acks=all", stage.broker.kind());
    let mut spans: [Vec<Duration>; WAYS.len()] = Default::default();
    // The first round warms up.
    for round in 0..=ROUNDS {
        for ((way, _), measured) in WAYS.iter().zip(&mut spans) {
            fill(stage, AGGREGATES).await;
            let elapsed = match way {
                Way::Relay => by_relay(stage, &relay).await,
                way => bare(stage, *way).await,
            };
            if round > 0 {
                measured.push(elapsed);
            }
            clear(stage).await;
        }
        println!("  round {round} of {ROUNDS}");
    }
    let medians = spans.map(median);
    let relay = medians[WAYS.len() - 1];
    for ((_, name), median) in WAYS.iter().zip(medians) {
        let rate = u128::from(count) * 1_000_000 / median.as_micros().max(1);
        let ratio = ratio(median, relay);
        println!("  {name:<36} {rate:>9} a second; the relay against it {ratio}");
    }
}

async fn fill(stage: &Stage, aggregates: usize) {
    let now = clock::now();
    let mut rows = Vec::new();
    for _ in 0..aggregates {
        let name = new_deal().to_string();
        let mut previous: Option<String> = None;
        for seq in 1..=EACH {
            // As deals have them: time passes between two facts, and others' come in between.
            let at = now.minus_secs(u32::try_from(EACH - seq).unwrap_or_default());
            let row = made_up(&name, seq, previous.as_deref(), at, &[(TOPIC, PAYLOAD_BYTES)]);
            previous = row["position"].as_str().map(str::to_owned);
            rows.push(row);
        }
    }
    stage.put_all(rows).await;
}

fn buckets() -> impl Iterator<Item = String> {
    (0..BUCKETS).map(|bucket| format!("{bucket:02}"))
}

fn outbox(stage: &Stage) -> Outbox {
    let tables = &stage.bed.config.tables;
    let client = stage.bed.clients.dynamodb.clone();
    Outbox::new(client, tables.outbox.clone(), tables.operations.clone())
}

async fn by_relay(stage: &Stage, relay: &Relay) -> Duration {
    let begun = Instant::now();
    let all = buckets().map(|bucket| (bucket, Start::Beginning)).collect();
    let lefts = relay.work_on(&all, clock::now().plus_secs(600)).await;
    let elapsed = begun.elapsed();
    assert!(lefts.values().all(Result::is_ok), "{lefts:?}");
    assert_eq!(stage.bed.count(&stage.bed.config.tables.outbox).await, 0);
    elapsed
}

/// Without any care for order or crashes.
async fn bare(stage: &Stage, way: Way) -> Duration {
    let outbox = outbox(stage);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &stage.broker.brokers)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", if matches!(way, Way::OneByOne) { "0" } else { "5" })
        .create()
        .expect("a producer");
    producer.client().fetch_metadata(Some(TOPIC), Duration::from_secs(10)).expect("an answer");
    let signer = Signer { key: b"a-key".to_vec(), is_v2: true };
    if matches!(way, Way::FromOutbox) {
        let begun = Instant::now();
        let passes = buckets().map(|bucket| bare_pass(&outbox, &producer, &signer, bucket));
        join_all(passes).await;
        return begun.elapsed();
    }
    let mut rows = Vec::new();
    for bucket in buckets() {
        let mut after = None;
        loop {
            let page = outbox.page(&bucket, after.as_deref(), 100).await.expect("a page");
            rows.extend(page.rows);
            after = page.last;
            if after.is_none() {
                break;
            }
        }
    }
    let begun = Instant::now();
    if matches!(way, Way::OneByOne) {
        for row in &rows {
            publish(&producer, &signer, row).await;
        }
    } else {
        join_all(rows.iter().map(|row| publish(&producer, &signer, row))).await;
    }
    begun.elapsed()
}

async fn bare_pass(outbox: &Outbox, producer: &FutureProducer, signer: &Signer, bucket: String) {
    loop {
        let page = outbox.page(&bucket, None, 100).await.expect("a page");
        if page.rows.is_empty() {
            return;
        }
        join_all(page.rows.iter().map(|row| publish(producer, signer, row))).await;
        let positions: Vec<String> = page.rows.into_iter().map(|row| row.position).collect();
        outbox.delete(&bucket, &positions).await.expect("they go");
    }
}

async fn publish(producer: &FutureProducer, signer: &Signer, row: &Row) {
    for message in &row.messages {
        let body = envelope::envelope(row, message).to_string();
        let mut headers = OwnedHeaders::new();
        for (key, value) in &signer.headers(row, message, body.as_bytes()) {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let record = FutureRecord::to(TOPIC).key(&row.aggregate_id).payload(&body).headers(headers);
        producer.send(record, Duration::from_secs(60)).await.expect("it is acknowledged");
    }
}

async fn clear(stage: &Stage) {
    let outbox = outbox(stage);
    for bucket in buckets() {
        while let page = outbox.page(&bucket, None, 100).await.expect("a page")
            && !page.rows.is_empty()
        {
            let positions: Vec<String> = page.rows.into_iter().map(|row| row.position).collect();
            outbox.delete(&bucket, &positions).await.expect("they go");
        }
    }
}

/// An idle pass where a great deal was published before, against one where nothing ever was.
async fn idle(busy: &Stage, empty: &Stage, facts: usize) {
    println!("\npublishing {facts} facts, for an idle pass after them");
    let (busy_relay, empty_relay) = (busy.relay(), empty.relay());
    let rounds = facts.div_ceil(AGGREGATES * EACH as usize);
    let begun = Instant::now();
    for round in 1..=rounds {
        fill(busy, AGGREGATES).await;
        by_relay(busy, &busy_relay).await;
        if round % 5 == 0 || round == rounds {
            let done = round * AGGREGATES * EACH as usize;
            println!("  {done} published, {} s", begun.elapsed().as_secs());
        }
    }
    by_relay(empty, &empty_relay).await;
    let (mut after_many, mut after_none) = (Vec::new(), Vec::new());
    for _ in 0..IDLE_PASSES {
        after_none.push(by_relay_alone(&empty_relay).await);
        after_many.push(by_relay_alone(&busy_relay).await);
    }
    let (many, none) = (median(after_many), median(after_none));
    let facts = rounds * AGGREGATES * EACH as usize;
    println!("an idle pass over all buckets, median of {IDLE_PASSES}");
    println!("  nothing was ever published  {:>8} µs", none.as_micros());
    println!("  after {facts:>8} facts        {:>8} µs  {}", many.as_micros(), ratio(many, none));
}

async fn by_relay_alone(relay: &Relay) -> Duration {
    let begun = Instant::now();
    let all = buckets().map(|bucket| (bucket, Start::Beginning)).collect();
    let lefts = relay.work_on(&all, clock::now().plus_secs(60)).await;
    assert!(lefts.values().all(Result::is_ok), "{lefts:?}");
    begun.elapsed()
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

/// `0.89×`.
fn ratio(one: Duration, other: Duration) -> String {
    let hundredths = one.as_micros() * 100 / other.as_micros().max(1);
    format!("{}.{:02}×", hundredths / 100, hundredths % 100)
}
