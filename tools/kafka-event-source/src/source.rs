//! The loop of one mapping: read, filter, batch, invoke, judge, commit. One batch is under way at a
//! time, so a partition's records reach the function in their order, and nothing is committed that the
//! function has not finished.
//!
//! While the function works, reading goes on into a buffer, so that the broker sees a live consumer.
//! A partition that goes to another member takes its records along: whatever of it was not committed
//! comes again there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_lambda::Client;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message, Timestamp};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::batch::{Answer, Ledger, Part, Place, Verdict};
use crate::filter::Mismatch;
use crate::mapping::{Mapping, Start};
use crate::payload::{self, Record};
use crate::{clock, lambda, log};

const FIRST_PAUSE_MS: u64 = 200;
const LONGEST_PAUSE_MS: u64 = 10_000;
/// Envelope and names around the records.
const OVERHEAD_BYTES: usize = 4096;

pub struct Settings {
    pub brokers: String,
    /// Settings of librdkafka, for security and the like.
    pub kafka: BTreeMap<String, String>,
    pub mismatch: Mismatch,
}

/// Partitions that were taken away since somebody last looked.
#[derive(Clone, Default)]
struct Context {
    name: String,
    revoked: Arc<Mutex<Vec<Place>>>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, message: &str) {
        if !matches!(
            level,
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice | RDKafkaLogLevel::Debug
        ) {
            log::line(&self.name, &format!("kafka: {message}"));
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log::line(&self.name, &format!("kafka: {error}: {reason}"));
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(partitions) = rebalance {
            let places = partitions.elements().into_iter();
            let places = places.map(|each| (each.topic().to_owned(), each.partition()));
            self.revoked.lock().unwrap_or_else(PoisonError::into_inner).extend(places);
        }
    }
}

pub struct EventSource {
    mapping: Mapping,
    brokers: String,
    mismatch: Mismatch,
    consumer: StreamConsumer<Context>,
    revoked: Arc<Mutex<Vec<Place>>>,
    client: Client,
    ledger: Ledger,
    /// Read while the function worked, and not looked at yet.
    ahead: VecDeque<Record>,
}

impl EventSource {
    pub fn new(mapping: Mapping, settings: &Settings, client: Client) -> Result<Self, KafkaError> {
        let context = Context { name: mapping.name.clone(), ..Context::default() };
        let revoked = context.revoked.clone();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &settings.brokers)
            .set("client.id", format!("kafka-event-source/{}", mapping.name))
            .set("group.id", &mapping.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("allow.auto.create.topics", "false")
            // A topic that is made later is found soon.
            .set("topic.metadata.refresh.interval.ms", "5000")
            .set("session.timeout.ms", "10000")
            .set("heartbeat.interval.ms", "1000")
            // Longer than any function runs.
            .set("max.poll.interval.ms", "1200000")
            .set("fetch.wait.max.ms", "100")
            .set("queued.max.messages.kbytes", "16384")
            .set(
                "auto.offset.reset",
                match mapping.start {
                    Start::TrimHorizon => "earliest",
                    Start::Latest => "latest",
                },
            )
            .set_log_level(RDKafkaLogLevel::Warning);
        for (name, value) in &settings.kafka {
            config.set(name, value);
        }
        let consumer: StreamConsumer<Context> = config.create_with_context(context)?;
        consumer.subscribe(&[&mapping.topic])?;
        Ok(Self {
            brokers: settings.brokers.clone(),
            mismatch: settings.mismatch,
            mapping,
            consumer,
            revoked,
            client,
            ledger: Ledger::default(),
            ahead: VecDeque::new(),
        })
    }

    /// Runs until it is told to stop; the batch under way is finished first.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut failures = 0;
        while !*stop.borrow() {
            let part = match self.ledger.take() {
                Some(part) => part,
                None => match self.fill(&mut stop).await {
                    Some(part) => part,
                    None => {
                        self.commit();
                        continue;
                    }
                },
            };
            let verdict = self.deliver(part).await;
            self.drop_revoked();
            self.commit();
            match verdict {
                true => failures = 0,
                false => {
                    failures += 1;
                    self.pause(failures, &mut stop).await;
                }
            }
        }
    }

    /// Waits for a batch: until it is full, or its window ends. None where nothing passed the filter.
    async fn fill(&mut self, stop: &mut watch::Receiver<bool>) -> Option<Part> {
        let mut records = Vec::new();
        let mut bytes = OVERHEAD_BYTES;
        let mut window_ends: Option<Instant> = None;
        while records.len() < self.mapping.batch_size {
            let record = match self.ahead.pop_front() {
                Some(record) => record,
                None => {
                    // An empty window still ends now and then, for what the filter left to be committed.
                    let soon = Instant::now() + Duration::from_millis(1000);
                    let until = window_ends.unwrap_or(soon);
                    let read = tokio::select! {
                        biased;
                        _ = stop.changed() => None,
                        read = tokio::time::timeout_at(until, Self::read(&self.consumer)) => read.ok().flatten(),
                    };
                    let Some(record) = read else { break };
                    record
                }
            };
            let passes = self.mapping.criteria.passes(record.value.as_deref(), self.mismatch);
            let size = record.bytes();
            if passes && !records.is_empty() && bytes + size > payload::MAX_BYTES {
                self.ahead.push_front(record);
                break;
            }
            let window = Duration::from_millis(self.mapping.window_ms);
            window_ends.get_or_insert_with(|| Instant::now() + window);
            self.ledger.read(record.place(), record.offset);
            if passes {
                bytes += size;
                records.push(record);
            }
        }
        self.ledger.push(Part::new(records));
        self.drop_revoked();
        self.ledger.take()
    }

    /// Sends one part and files what becomes of it. Whether the function did its work.
    async fn deliver(&mut self, part: Part) -> bool {
        let event = payload::event(&self.mapping.source, &self.brokers, &part.records);
        let begun = Instant::now();
        let answer = self.invoke(event).await;
        let (count, ms) = (part.records.len(), begun.elapsed().as_millis());
        let name = &self.mapping.name;
        match part.judge(&answer, self.mapping.provisioned.as_ref(), clock::now_ms()) {
            Verdict::Done => {
                log::line(name, &format!("{count} records done in {ms} ms"));
                true
            }
            Verdict::GivenUp { why } => {
                log::line(name, &format!("{count} records LOST to the function: {why}"));
                true
            }
            Verdict::Again { parts, why } => {
                let left: usize = parts.iter().map(|part| part.records.len()).sum();
                log::line(name, &format!("{left} of {count} records come again: {why}"));
                self.ledger.put_back(parts);
                false
            }
        }
    }

    /// Invokes the function, and reads on meanwhile, as far as the buffer goes.
    async fn invoke(&mut self, event: Vec<u8>) -> Answer {
        let answer = lambda::invoke(&self.client, &self.mapping.function, event);
        tokio::pin!(answer);
        loop {
            if self.ahead.len() >= 2 * self.mapping.batch_size {
                return answer.await;
            }
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                record = Self::read(&self.consumer) => self.ahead.extend(record),
            }
        }
    }

    /// The next record; None after an error, which is told once it is more than a hiccup.
    async fn read(consumer: &StreamConsumer<Context>) -> Option<Record> {
        match consumer.recv().await {
            Ok(message) => Some(record(&message)),
            Err(error) => {
                let topic_missing = matches!(
                    error.rdkafka_error_code(),
                    Some(RDKafkaErrorCode::UnknownTopicOrPartition | Code::UnknownTopic)
                );
                let name = &consumer.context().name;
                if topic_missing {
                    log::seldom(name, "the topic does not exist yet: waiting for it");
                } else {
                    log::seldom(name, &format!("kafka: {error}"));
                }
                tokio::time::sleep(Duration::from_millis(FIRST_PAUSE_MS)).await;
                None
            }
        }
    }

    /// Forgets what belongs to others by now.
    fn drop_revoked(&mut self) {
        let revoked =
            std::mem::take(&mut *self.revoked.lock().unwrap_or_else(PoisonError::into_inner));
        for place in revoked {
            self.ledger.forget(&place);
            self.ahead.retain(|record| record.place() != place);
        }
    }

    fn commit(&mut self) {
        let commits = self.ledger.commits();
        if commits.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        for ((topic, partition), offset) in &commits {
            let added = list.add_partition_offset(topic, *partition, Offset::Offset(*offset));
            added.expect("an offset from the broker is valid");
        }
        let committed = tokio::task::block_in_place(|| {
            self.consumer.commit(&list, rdkafka::consumer::CommitMode::Sync)
        });
        match committed {
            Ok(()) => self.ledger.note_commits(commits),
            // It is tried again with the next batch; a crash before that brings duplicates, no loss.
            Err(error) => log::seldom(&self.mapping.name, &format!("cannot commit: {error}")),
        }
    }

    /// Backs off, longer with each failure, and keeps on reading for the broker's sake.
    async fn pause(&mut self, failures: u32, stop: &mut watch::Receiver<bool>) {
        let ceiling_ms = (FIRST_PAUSE_MS << failures.min(8)).min(LONGEST_PAUSE_MS);
        let until =
            Instant::now() + Duration::from_millis(fastrand::u64(ceiling_ms / 2..=ceiling_ms));
        while self.ahead.len() < 2 * self.mapping.batch_size {
            tokio::select! {
                biased;
                _ = stop.changed() => return,
                () = tokio::time::sleep_until(until) => return,
                record = Self::read(&self.consumer) => self.ahead.extend(record),
            }
        }
        tokio::select! {
            _ = stop.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let (timestamp_ms, timestamp_type) = match message.timestamp() {
        Timestamp::CreateTime(ms) => (ms, "CREATE_TIME"),
        Timestamp::LogAppendTime(ms) => (ms, "LOG_APPEND_TIME"),
        Timestamp::NotAvailable => (0, "NO_TIMESTAMP_TYPE"),
    };
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    Record {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms,
        timestamp_type,
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect(),
    }
}
