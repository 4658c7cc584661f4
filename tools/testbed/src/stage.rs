//! A relay's surroundings: a bed with an outbox, a broker, and bells.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};

use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use domain::ids::DealId;
use domain::plan::outbox_position;
use domain::state::Status;
use domain::time::Timestamp;
use outbox_relay::bell;
use outbox_relay::config::Config;
use outbox_relay::relay::Relay;
use platform::aws::Clients;
use platform::clock;
use platform::store::item;
use platform::store::messages::{TOPICS, bucket};
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::broker::Broker;
use crate::deals;
use crate::deployed::fresh_deal;
use crate::published::{self, Expected, Record, read_back};
use crate::records::sqs_event;

const DOORBELL: &str = "escrow-outbox-doorbell.fifo";

static DEALS: AtomicU32 = AtomicU32::new(0);

pub struct Stage {
    pub bed: Bed,
    pub broker: Broker,
    /// Settings beside the bed's.
    pub settings: HashMap<String, String>,
}

/// A message of a row that a test makes up: its topic and its size in bytes.
pub type MadeUp<'a> = (&'a str, usize);

impl Stage {
    pub async fn new(name: &str) -> Self {
        Self::on(name, Broker::from_env()).await
    }

    pub async fn on(name: &str, broker: Broker) -> Self {
        Self::with(Bed::new(name).await, broker).await
    }

    /// With an embedded broker of its own, which may be slowed, taken down or told what to say.
    pub async fn embedded(name: &str) -> Self {
        Self::on(name, Broker::embedded()).await
    }

    pub async fn with(bed: Bed, broker: Broker) -> Self {
        published::create_topics(&broker).await;
        // Tests do not wait a minute for what is to fail in the end.
        let settings =
            [("OUTBOX_BASE_DELAY_SECONDS", "0.02"), ("OUTBOX_POLL_INTERVAL_SECONDS", "0.1")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { bed, broker, settings }
    }

    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.settings.insert(name.to_owned(), value.to_string());
    }

    /// The relay's settings here.
    pub fn env(&self) -> HashMap<String, String> {
        let mut env = self.bed.env.clone();
        env.insert("KAFKA_BROKERS".to_owned(), self.broker.brokers.clone());
        env.extend(self.settings.clone());
        env
    }

    pub fn relay(&self) -> Relay {
        self.relay_with(self.bed.clients.clone())
    }

    pub fn relay_with(&self, clients: Clients) -> Relay {
        Relay::new(Config::read(&self.env()).expect("the settings are complete"), clients)
    }

    /// A topic of a test's own.
    pub async fn topic(&self, name: &str, partitions: i32) -> String {
        let topic = new_topic(name);
        self.broker.create_topic(&topic, partitions).await;
        topic
    }

    /// Rings for all of some buckets: one invocation, which has so many seconds.
    pub async fn ring(&self, relay: &Relay, buckets: &BTreeSet<String>, secs: u32) -> Value {
        let bells = buckets.iter().map(|bucket| json!({"bucket": bucket, "whole": true}));
        self.send(relay, bells.collect(), secs).await
    }

    /// One invocation with some bells.
    pub async fn send(&self, relay: &Relay, bells: Vec<Value>, secs: u32) -> Value {
        let bells: Vec<String> = bells.iter().map(Value::to_string).collect();
        let until = clock::now().plus_secs(secs);
        bell::invoke(relay, sqs_event(DOORBELL, &bells), until).await.expect("it is an event")
    }

    /// Rings for every bucket that has a row.
    pub async fn ring_all(&self, relay: &Relay) -> Value {
        self.ring(relay, &self.buckets().await, 60).await
    }

    /// What the schedule sends, and then the bells that the relay rang.
    pub async fn by_schedule(&self, relay: &Relay) -> Value {
        let at = clock::to_text(clock::now());
        self.send(relay, vec![json!({"ring_all": at})], 60).await;
        self.send(relay, self.bells().await, 60).await
    }

    /// The bells that were rung and that nobody answered.
    pub async fn bells(&self) -> Vec<Value> {
        self.bed.take(&self.bed.config.queues.doorbell_url).await
    }

    /// A new deal, brought so far.
    pub async fn open(&self, status: Status) -> DealId {
        let deal = new_deal();
        deals::open(&self.bed.store, deal, status).await;
        deal
    }

    pub async fn rows(&self) -> Vec<Value> {
        let mut rows = self.bed.rows(&self.bed.config.tables.outbox).await;
        rows.sort_by_key(|row| row["position"].as_str().map(str::to_owned));
        rows
    }

    async fn buckets(&self) -> BTreeSet<String> {
        let rows = self.rows().await.into_iter();
        rows.filter_map(|row| row["bucket"].as_str().map(str::to_owned)).collect()
    }

    /// What this stage's aggregates have on these topics.
    pub fn published_on(&self, topics: &[&str], aggregates: &BTreeSet<String>) -> Vec<Record> {
        let mut records = read_back(&self.broker.brokers, topics);
        records.retain(|record| aggregates.contains(&record.key));
        records
    }

    /// Everything that was committed here, and what of it was published.
    pub async fn published(&self) -> (Expected, Vec<Record>) {
        let expected = Expected::of_journal(&self.bed).await;
        let records = self.published_on(TOPICS, &expected.0.keys().cloned().collect());
        (expected, records)
    }

    /// Puts a row into the outbox that no commit made, for topics that are a test's own. Returns its
    /// position.
    pub async fn put(
        &self,
        aggregate: &str,
        seq: u64,
        previous: Option<&str>,
        at: Timestamp,
        messages: &[MadeUp<'_>],
    ) -> String {
        let row = made_up(aggregate, seq, previous, at, messages);
        let position = row["position"].as_str().expect("it has a position").to_owned();
        self.put_all(vec![row]).await;
        position
    }

    pub async fn put_all(&self, rows: Vec<Value>) {
        let table = &self.bed.config.tables.outbox;
        for chunk in rows.chunks(25) {
            let writes = chunk.iter().map(|row| {
                let put = PutRequest::builder().set_item(Some(item::from_json(row.clone())));
                WriteRequest::builder().put_request(put.build().expect("an item")).build()
            });
            let request = self.bed.clients.dynamodb.batch_write_item();
            let answer = request.request_items(table, writes.collect()).send().await;
            let left = answer.expect("the engine answers").unprocessed_items.unwrap_or_default();
            assert!(left.is_empty(), "the engine left something out");
        }
    }

    /// An operator has a row's first message tried again, as the runbook says.
    pub async fn unstick(&self, position: &str) {
        let row = self.rows().await.into_iter().find(|row| row["position"] == position);
        let bucket = row.expect("it is there")["bucket"].as_str().expect("a bucket").to_owned();
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let table = &self.bed.config.tables.outbox;
        let request = self.bed.clients.dynamodb.update_item().table_name(table);
        let request = request.key("bucket", text(&bucket)).key("position", text(position));
        let request = request.update_expression("REMOVE failed_0.stuck");
        let request = request
            .condition_expression("attribute_exists(#position)")
            .expression_attribute_names("#position", "position");
        request.send().await.expect("the engine answers");
    }

    /// An operator holds all commands about money, or lets them go.
    pub async fn hold(&self, held: bool) {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let (table, client) = (&self.bed.config.tables.operations, &self.bed.clients.dynamodb);
        if held {
            let request = client.put_item().table_name(table).item("pk", text("flags"));
            let request = request.item("sk", text("hold")).item("reason", text("a test"));
            request.send().await.expect("the engine answers");
        } else {
            let request = client.delete_item().table_name(table).key("pk", text("flags"));
            request.key("sk", text("hold")).send().await.expect("the engine answers");
        }
    }
}

/// A row as a commit would make it.
pub fn made_up(
    aggregate: &str,
    seq: u64,
    previous: Option<&str>,
    at: Timestamp,
    messages: &[MadeUp<'_>],
) -> Value {
    let messages = messages.iter().enumerate().map(|(index, (topic, bytes))| {
        json!({
            "id": format!("{aggregate}-{seq}-{index}"),
            "topic": topic,
            "type": "MADE_UP",
            "payload": json!({"filling": "x".repeat(*bytes)}).to_string(),
        })
    });
    json!({
        "bucket": bucket(aggregate),
        "position": outbox_position(at, aggregate, seq),
        "aggregate_type": "Deal",
        "aggregate_id": aggregate,
        "seq": seq,
        "previous": previous,
        "messages": messages.collect::<Vec<_>>(),
        "created_at": clock::to_text(at),
    })
}

/// A deal that nobody else uses.
pub fn new_deal() -> DealId {
    fresh_deal(DEALS.fetch_add(1, Ordering::Relaxed))
}

/// A topic of a test's own.
pub fn new_topic(name: &str) -> String {
    format!("{name}.{}", new_deal())
}

/// Made-up aggregates that share a bucket.
pub fn neighbours(count: usize) -> Vec<String> {
    let first = new_deal().to_string();
    let wanted = bucket(&first);
    let others = std::iter::repeat_with(|| new_deal().to_string());
    let others = others.filter(|aggregate| bucket(aggregate) == wanted);
    std::iter::once(first).chain(others).take(count).collect()
}

/// Rows of so many aggregates, one of them with a first message that is too large; and what is expected.
pub fn backlog(
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

pub fn only(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub fn ids(records: &[Record]) -> Vec<String> {
    records.iter().map(Record::event_id).collect()
}
