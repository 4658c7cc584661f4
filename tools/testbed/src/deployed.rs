//! The deployed template as its users meet it: commands on their queue and over HTTP, reports on
//! Kafka, and the tables to look into.

use std::time::{Duration, Instant};

use aws_sdk_sqs::types::{MessageAttributeValue, QueueAttributeName, SendMessageBatchRequestEntry};
use domain::ids::DealId;
use platform::{clock, signature};
use serde_json::{Value, json};

use crate::api::Api;
use crate::bed::Bed;
use crate::broker::Broker;
use crate::published;
use crate::records::{self, Record};
use crate::samples;

/// Endpoint and brokers of the deployed stack, for its tests, as `endpoint,brokers`.
pub const STACK_VARIABLE: &str = "ESCROW_TEST_STACK";
pub const PREFIX: &str = "escrow";
pub const TOPICS: &[&str] =
    &["escrow.confirmations", "delivery.results", "reconciliation.triggers"];
pub const PARTITIONS: i32 = 3;
/// Where the command queue takes what it is sent at once.
const AT_ONCE: usize = 10;
/// How long the stack may take over what it was given.
const PATIENCE: Duration = Duration::from_secs(120);
const RING_AGAIN: Duration = Duration::from_secs(5);

pub struct Deployed {
    pub bed: Bed,
    pub broker: Broker,
    api: Api,
}

/// A command on its way to the queue, signed where a worker sends it.
pub struct Queued {
    pub body: Value,
    pub worker: Option<&'static str>,
}

impl Queued {
    pub fn by_party(body: Value) -> Self {
        Self { body, worker: None }
    }

    pub fn by_worker(body: Value, worker: &'static str) -> Self {
        Self { body, worker: Some(worker) }
    }
}

impl Deployed {
    pub async fn at(endpoint: &str, brokers: &str) -> Result<Self, String> {
        let api = Api::find(endpoint, &format!("{PREFIX}-internal")).await?;
        let bed = Bed::deployed(endpoint, PREFIX);
        Ok(Self { bed, broker: Broker::at(brokers.to_owned()), api })
    }

    fn queue(&self, name: &str) -> String {
        let retry = &self.bed.config.queues.letters.retry_url;
        retry.replace("deal-transition-retry", name)
    }

    /// Puts commands on the queue, as the backend and the workers do.
    pub async fn queue_up(&self, commands: &[Queued]) -> Result<(), String> {
        let queue = self.queue("deal-commands");
        for batch in commands.chunks(AT_ONCE) {
            let entries = (0..).zip(batch).map(|(number, queued)| entry(number, queued));
            let request = self.bed.clients.sqs.send_message_batch().queue_url(&queue);
            let answer = request.set_entries(Some(entries.collect())).send().await;
            let answer = answer.map_err(|error| format!("the queue takes nothing: {error:?}"))?;
            if let Some(failed) = answer.failed.first() {
                return Err(format!("the queue refused a command: {failed:?}"));
            }
        }
        Ok(())
    }

    /// Sends a command to the HTTP API: the status and the body of its answer.
    pub async fn call(&self, operator: bool, body: &Value) -> Result<(u16, Value), String> {
        let deal = body["deal_id"].as_str().unwrap_or_default();
        let route = if operator { "operator/" } else { "" };
        self.api.post(&format!("/internal/v1/{route}deals/{deal}/commands"), body).await
    }

    pub async fn report(&self, partition: i32, record: &Record) {
        self.broker.send(&record.topic, partition, record).await;
    }

    /// Waits until every function has read all that is on Kafka and on the command queue.
    pub async fn until_read(&self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let unread = match self.unread_commands().await? {
                0 => self.unread_records(),
                commands => Some(format!("{commands} commands on the queue")),
            };
            let Some(unread) = unread else { return Ok(()) };
            if begun.elapsed() > PATIENCE {
                let secs = PATIENCE.as_secs();
                return Err(format!("{unread} unread after {secs} s; see .local/*.log"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Rings for all that waits, as the schedule does each minute, and waits until the relay has
    /// published it.
    pub async fn until_published(&self) -> Result<(), String> {
        let begun = Instant::now();
        let mut rung: Option<Instant> = None;
        loop {
            let waiting = self.bed.count(&self.bed.config.tables.outbox).await;
            if waiting == 0 {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let secs = PATIENCE.as_secs();
                return Err(format!("{waiting} rows unpublished after {secs} s; see .local/*.log"));
            }
            if rung.is_none_or(|at| at.elapsed() > RING_AGAIN) {
                self.ring_all().await?;
                rung = Some(Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ring_all(&self) -> Result<(), String> {
        let now = clock::to_text(clock::now());
        let request = self.bed.clients.sqs.send_message().message_group_id("all");
        let request = request.queue_url(self.queue("outbox-doorbell.fifo"));
        let request = request.message_body(json!({"ring_all": now}).to_string());
        let answer = request.message_deduplication_id(now).send().await;
        answer.map(drop).map_err(|error| format!("the doorbell does not ring: {error:?}"))
    }

    /// All that was published about some aggregates, topic by topic, each partition in its order.
    pub fn published(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<published::Record> {
        let topics: Vec<&str> = published::topics().collect();
        let mut records = published::read_back(&self.broker.brokers, &topics);
        records.retain(|record| is_wanted(&record.key));
        records.sort_by_key(|record| (record.topic.clone(), record.partition, record.offset));
        records
    }

    fn unread_records(&self) -> Option<String> {
        samples::functions().flat_map(|function| function.sources).find_map(|source| {
            let (done, all) = self.broker.progress(source.consumer_group, source.topic, PARTITIONS);
            let left = all - done;
            (left > 0)
                .then(|| format!("{left} records of {} by {}", source.topic, source.consumer_group))
        })
    }

    async fn unread_commands(&self) -> Result<u64, String> {
        self.waiting("deal-commands").await
    }

    /// How many messages a queue holds, seen by a function or not.
    pub async fn waiting(&self, queue: &str) -> Result<u64, String> {
        let request = self.bed.clients.sqs.get_queue_attributes().queue_url(self.queue(queue));
        let answer = request.attribute_names(QueueAttributeName::All).send().await;
        let answer = answer.map_err(|error| format!("{queue} does not answer: {error:?}"))?;
        let numbers = answer.attributes.unwrap_or_default();
        let number = |name| numbers.get(&name).and_then(|text| text.parse::<u64>().ok());
        let all = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        Ok(all.into_iter().filter_map(number).sum())
    }
}

fn entry(number: usize, queued: &Queued) -> SendMessageBatchRequestEntry {
    let body = queued.body.to_string();
    let mut entry = SendMessageBatchRequestEntry::builder().id(number.to_string());
    if let Some(worker) = queued.worker {
        let signature = signature::sign_v1(records::SECRET.as_bytes(), body.as_bytes());
        for (name, value) in [
            ("X-Worker-Signature", signature),
            ("X-Worker-Id", worker.to_owned()),
            ("X-Worker-Timestamp", clock::now().as_millis().to_string()),
        ] {
            let value = MessageAttributeValue::builder().data_type("String").string_value(value);
            entry = entry.message_attributes(name, value.build().expect("a type is set"));
        }
    }
    entry.message_body(body).build().expect("it has an id and a body")
}

/// A deal that no other run has used.
pub fn fresh_deal(number: u32) -> DealId {
    let millis = u128::try_from(clock::now().as_millis()).expect("after 1970");
    DealId::from_u128((millis << 32) + u128::from(number))
}
