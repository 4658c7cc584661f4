//! What the relay published, read back from the topics, and held against what was committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use platform::store::messages::TOPICS;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::Value;

use crate::bed::Bed;
use crate::broker::Broker;

/// Where the relay puts what it gives up.
pub const DEAD_LETTERS: &str = "payments.dlq";
/// An embedded broker forgets what a partition has beyond some megabytes.
const PARTITIONS: i32 = 6;

const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Record {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("what is published is JSON")
    }

    pub fn event_id(&self) -> String {
        self.headers.get("event_id").cloned().unwrap_or_default()
    }
}

/// Every topic that the relay writes to.
pub fn topics() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().copied().chain([DEAD_LETTERS])
}

pub async fn create_topics(broker: &Broker) {
    for topic in topics() {
        broker.create_topic(topic, PARTITIONS).await;
    }
}

/// All that some topics hold now, each partition in its order. A topic that is not there holds nothing.
pub fn read_back(brokers: &str, topics: &[&str]) -> Vec<Record> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "read-back");
    config.set("enable.auto.commit", "false").set("allow.auto.create.topics", "false");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut left: BTreeMap<(String, i32), i64> = BTreeMap::new();
    let mut list = TopicPartitionList::new();
    for topic in topics {
        let metadata = consumer.fetch_metadata(Some(topic), ANSWER_WITHIN).expect("an answer");
        let found = metadata.topics().iter().filter(|found| found.error().is_none());
        for partition in found.flat_map(|topic| topic.partitions()) {
            let marks = consumer.fetch_watermarks(topic, partition.id(), ANSWER_WITHIN);
            let (low, high) = marks.expect("an answer");
            if high > low {
                left.insert(((*topic).to_owned(), partition.id()), high);
                list.add_partition_offset(topic, partition.id(), Offset::Offset(low))
                    .expect("an offset");
            }
        }
    }
    consumer.assign(&list).expect("partitions are taken");
    let mut records = Vec::new();
    let begun = Instant::now();
    while !left.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "not all is read back: {left:?}");
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else { continue };
        let place = (message.topic().to_owned(), message.partition());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        let headers = headers
            .map(|header| (header.key.to_owned(), header.value.map(text).unwrap_or_default()));
        records.push(Record {
            topic: place.0.clone(),
            partition: place.1,
            offset: message.offset(),
            key: message.key().map(text).unwrap_or_default(),
            headers: headers.collect(),
            body: message.payload().unwrap_or_default().to_vec(),
        });
        if left.get(&place).is_some_and(|end| message.offset() + 1 >= *end) {
            left.remove(&place);
        }
    }
    records
}

/// The messages that must have been published: of each aggregate, in their order.
#[derive(Debug, Clone, Default)]
pub struct Expected(pub BTreeMap<String, Vec<String>>);

impl Expected {
    /// What the journal says was committed.
    pub async fn of_journal(bed: &Bed) -> Self {
        let mut rows = bed.rows(&bed.config.tables.journal).await;
        rows.sort_by_key(|row| row["seq"].as_u64());
        let mut expected = Self::default();
        for row in rows {
            let aggregate = row["aggregate_id"].as_str().unwrap_or_default().to_owned();
            let ids = row["messages"].as_array().into_iter().flatten();
            let ids = ids.filter_map(|id| id.as_str().map(str::to_owned));
            expected.0.entry(aggregate).or_default().extend(ids);
        }
        expected
    }

    /// Of some aggregates alone.
    pub fn only(mut self, is_wanted: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|aggregate, _| is_wanted(aggregate));
        self
    }

    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub fn is_none_lost(&self, records: &[Record]) -> bool {
        self.check(records).lost.is_empty()
    }

    pub fn check(&self, records: &[Record]) -> Verdict {
        let places = self.0.values().flat_map(|ids| ids.iter().enumerate());
        let places: BTreeMap<&str, usize> =
            places.map(|(place, id)| (id.as_str(), place)).collect();
        let mut verdict = Verdict { expected: self.count(), ..Verdict::default() };
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut last: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let ids: Vec<String> = records.iter().map(Record::event_id).collect();
        for (record, id) in records.iter().zip(&ids) {
            let Some((id, place)) = places.get_key_value(id.as_str()) else { continue };
            verdict.records += 1;
            if !seen.insert(id) {
                verdict.duplicates += 1;
                continue;
            }
            let last = last.entry((record.topic.as_str(), record.key.as_str())).or_default();
            if place < last {
                verdict.out_of_order.push(format!("{} of {}", id, record.key));
            }
            *last = *place;
        }
        let lost = places.keys().filter(|id| !seen.contains(**id));
        verdict.lost = lost.map(|id| (*id).to_owned()).collect();
        verdict
    }
}

#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub expected: usize,
    /// Of those that were expected.
    pub records: usize,
    pub lost: Vec<String>,
    pub out_of_order: Vec<String>,
    pub duplicates: usize,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { expected, records, lost, out_of_order, duplicates } = self;
        let (lost, out_of_order) = (lost.len(), out_of_order.len());
        write!(
            f,
            "{expected} messages, {records} records: lost {lost}, out of order {out_of_order}, \
             duplicates {duplicates}"
        )
    }
}

impl Verdict {
    /// Panics unless everything is there and in order.
    pub fn must_hold(&self) {
        assert!(self.lost.is_empty(), "{self}: {:?}", self.lost);
        assert!(self.out_of_order.is_empty(), "{self}: {:?}", self.out_of_order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        Record {
            topic: "t".to_owned(),
            partition: 0,
            offset: 0,
            key: "a".to_owned(),
            headers: BTreeMap::from([("event_id".to_owned(), id.to_owned())]),
            body: Vec::new(),
        }
    }

    #[test]
    fn the_checker_finds_what_is_wrong() {
        let ids = ["1", "2", "3"].map(str::to_owned).to_vec();
        let expected = Expected(BTreeMap::from([("a".to_owned(), ids)]));
        let check = |ids: &[&str]| {
            let records: Vec<Record> = ids.iter().map(|id| record(id)).collect();
            let verdict = expected.check(&records);
            (verdict.lost.len(), verdict.out_of_order.len(), verdict.duplicates)
        };
        assert_eq!(check(&["1", "2", "3"]), (0, 0, 0));
        assert_eq!(check(&["1", "2", "1", "2", "3"]), (0, 0, 2), "repeated, and never too early");
        assert_eq!(check(&["1", "3", "2"]), (0, 1, 0));
        assert_eq!(check(&["2", "1", "3"]), (0, 1, 0));
        assert_eq!(check(&["1", "3"]), (1, 0, 0));
    }
}
