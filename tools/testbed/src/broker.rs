//! A Kafka broker for tests and local runs: librdkafka's own, inside this process, or the one that the
//! environment names. And workers' reports on their way into it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use serde_json::Value;

use crate::apache_kafka::BROKERS_VARIABLE;
use crate::records::Record;

const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub struct Broker {
    pub brokers: String,
    embedded: Option<MockCluster<'static, DefaultProducerContext>>,
    producer: FutureProducer,
    /// Looks at a group's offsets without joining it.
    observers: Mutex<BTreeMap<String, Arc<BaseConsumer>>>,
}

impl Broker {
    /// The broker that the environment names, or an embedded one.
    pub fn from_env() -> Self {
        match std::env::var(BROKERS_VARIABLE) {
            Ok(brokers) => Self::at(brokers),
            Err(_) => Self::embedded(),
        }
    }

    pub fn embedded() -> Self {
        let embedded = MockCluster::new(1).expect("an embedded broker starts");
        Self::new(embedded.bootstrap_servers(), Some(embedded))
    }

    /// One that runs elsewhere.
    pub fn at(brokers: String) -> Self {
        Self::new(brokers, None)
    }

    fn new(
        brokers: String,
        embedded: Option<MockCluster<'static, DefaultProducerContext>>,
    ) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers).set("acks", "all").set("linger.ms", "5");
        let producer = config.create().expect("a producer");
        Self { brokers, embedded, producer, observers: Mutex::default() }
    }

    pub fn kind(&self) -> &'static str {
        if self.embedded.is_some() { "embedded broker" } else { "Apache Kafka" }
    }

    /// Takes the embedded broker down, and up again.
    pub fn set_up(&self, up: bool) {
        let embedded = self.embedded.as_ref().expect("it is embedded");
        if up { embedded.broker_up(1) } else { embedded.broker_down(1) }.expect("it obeys");
    }

    /// How long the embedded broker takes over every answer from now on.
    pub fn answer_after(&self, delay: Duration) {
        let embedded = self.embedded.as_ref().expect("it is embedded");
        embedded.broker_round_trip_time(1, delay).expect("it obeys");
    }

    /// The embedded broker says that it does not know a topic, until it remembers.
    pub fn forget_topic(&self, topic: &str) {
        self.say_of(topic, RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    }

    pub fn remember_topic(&self, topic: &str) {
        self.say_of(topic, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    }

    /// The embedded broker says that too few replicas of a topic are in sync.
    pub fn lacks_replicas(&self, topic: &str, lacks: bool) {
        self.say_of(
            topic,
            if lacks {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS
            } else {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
            },
        );
    }

    fn say_of(&self, topic: &str, error: RDKafkaRespErr) {
        let embedded = self.embedded.as_ref().expect("it is embedded");
        embedded.topic_error(topic, error).expect("it obeys");
    }

    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    pub async fn create_topic(&self, topic: &str, partitions: i32) {
        let settings = [("message.timestamp.type", "LogAppendTime")];
        self.create_topic_with(topic, partitions, &settings).await;
    }

    /// One that is there already stays as it is. The embedded broker knows no settings.
    pub async fn create_topic_with(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        if let Some(embedded) = &self.embedded {
            return embedded.create_topic(topic, partitions, 1).expect("a topic");
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        let admin: AdminClient<DefaultClientContext> = config.create().expect("an admin");
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
        let made = admin.create_topics([&topic], &AdminOptions::new()).await.expect("an answer");
        for topic in made {
            match topic {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, error)) => panic!("{topic} cannot be made: {error}"),
            }
        }
    }

    /// Sends a report as its worker would, with its headers.
    pub async fn send(&self, topic: &str, partition: i32, record: &Record) {
        let mut headers = OwnedHeaders::new();
        for (name, value) in record.headers.as_array().into_iter().flatten().flat_map(fields) {
            headers = headers.insert(Header { key: &name, value: Some(&value) });
        }
        let message = FutureRecord::to(topic)
            .partition(partition)
            .key(record.key.as_deref().unwrap_or_default())
            .payload(&record.body)
            .timestamp(record.recorded_at_ms)
            .headers(headers);
        self.producer.send(message, PATIENCE).await.expect("the broker takes it");
    }

    /// How far a group has committed, over all partitions, out of how much there is.
    pub fn progress(&self, group: &str, topic: &str, partitions: i32) -> (i64, i64) {
        let consumer = self.observer(group);
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition(topic, partition);
        }
        let Ok(found) = consumer.committed_offsets(list, ANSWER_WITHIN) else {
            return (0, i64::MAX);
        };
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        let done = found.elements().iter().map(|each| offset(each.offset())).sum();
        (done, end_of(&consumer, topic, partitions))
    }

    /// How many records a topic ever got.
    pub fn end_of(&self, topic: &str, partitions: i32) -> i64 {
        end_of(&self.observer("observer"), topic, partitions)
    }

    fn observer(&self, group: &str) -> Arc<BaseConsumer> {
        let mut observers = self.observers.lock().expect("no panic under it");
        let observer = observers.entry(group.to_owned()).or_insert_with(|| {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", &self.brokers).set("group.id", group);
            Arc::new(config.create().expect("a consumer"))
        });
        observer.clone()
    }
}

fn end_of(consumer: &BaseConsumer, topic: &str, partitions: i32) -> i64 {
    let end = |partition| {
        let marks = consumer.fetch_watermarks(topic, partition, ANSWER_WITHIN);
        marks.map_or(i64::MAX / 64, |(_, end)| end)
    };
    (0..partitions).map(end).sum()
}

/// The name and bytes of a header in the form that Lambda gives it.
fn fields(header: &Value) -> Vec<(String, Vec<u8>)> {
    let bytes = |value: &Value| {
        let bytes = value.as_array().into_iter().flatten().filter_map(Value::as_i64);
        bytes.map(|byte| byte as u8).collect()
    };
    header
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), bytes(value)))
        .collect()
}
