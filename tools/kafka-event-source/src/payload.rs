//! The event that a function receives: the bytes that AWS would send for the same records.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

use crate::mapping::Source;

/// Lambda takes no larger request.
pub const MAX_BYTES: usize = 6 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub timestamp_ms: i64,
    pub timestamp_type: &'static str,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    pub fn place(&self) -> (String, i32) {
        (self.topic.clone(), self.partition)
    }

    /// How much it adds to an event; never less than it really does.
    pub fn bytes(&self) -> usize {
        let encoded =
            |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(4, |b| b.len().div_ceil(3) * 4 + 2);
        // A signed byte and its comma: at most five characters.
        let headers = self.headers.iter().map(|(name, value)| {
            name.len() * 6 + value.as_ref().map_or(4, |value| value.len() * 5) + 8
        });
        let fixed = 220 + 2 * self.topic.len();
        fixed + encoded(&self.key) + encoded(&self.value) + headers.sum::<usize>()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    event_source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_source_arn: Option<&'a str>,
    bootstrap_servers: &'a str,
    records: Partitions<'a>,
}

/// Keyed by topic and partition, each partition's records in order.
struct Partitions<'a>(Vec<(String, Vec<&'a Record>)>);

impl Serialize for Partitions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, records) in &self.0 {
            map.serialize_entry(name, records)?;
        }
        map.end()
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("topic", &self.topic)?;
        map.serialize_entry("partition", &self.partition)?;
        map.serialize_entry("offset", &self.offset)?;
        map.serialize_entry("timestamp", &self.timestamp_ms)?;
        map.serialize_entry("timestampType", self.timestamp_type)?;
        // A record without a key has no such field.
        if let Some(key) = &self.key {
            map.serialize_entry("key", &STANDARD.encode(key))?;
        }
        if let Some(value) = &self.value {
            map.serialize_entry("value", &STANDARD.encode(value))?;
        }
        map.serialize_entry("headers", &Headers(&self.headers))?;
        map.end()
    }
}

struct Headers<'a>(&'a [(String, Option<Vec<u8>>)]);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for (name, value) in self.0 {
            // Java's bytes are signed.
            let signed = |bytes: &Vec<u8>| -> Vec<i8> {
                bytes.iter().map(|byte| i8::from_ne_bytes([*byte])).collect()
            };
            // A header without a value loses its name too.
            let header = value.as_ref().map(|value| (name, signed(value)));
            let header = std::collections::BTreeMap::from_iter(header);
            list.serialize_element(&header)?;
        }
        list.end()
    }
}

pub fn event(source: &Source, bootstrap_servers: &str, records: &[Record]) -> Vec<u8> {
    let mut partitions: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records {
        let name = format!("{}-{}", record.topic, record.partition);
        match partitions.iter_mut().find(|(known, _)| *known == name) {
            Some((_, list)) => list.push(record),
            None => partitions.push((name, vec![record])),
        }
    }
    let (event_source, event_source_arn) = match source {
        Source::Msk { cluster_arn } => ("aws:kafka", Some(cluster_arn.as_str())),
        Source::SelfManaged => ("SelfManagedKafka", None),
    };
    let records = Partitions(partitions);
    let event = Event { event_source, event_source_arn, bootstrap_servers, records };
    serde_json::to_vec(&event).expect("an event is plain JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            topic: "mytopic".to_owned(),
            partition: 0,
            offset: 15,
            timestamp_ms: 1_545_084_650_987,
            timestamp_type: "CREATE_TIME",
            key: Some(b"k1".to_vec()),
            value: Some(b"Hello, this is a test.".to_vec()),
            headers: vec![("headerKey".to_owned(), Some(b"headerValue".to_vec()))],
        }
    }

    #[test]
    fn an_event_has_the_bytes_of_the_documented_one() {
        let arn = "arn:aws:kafka:sa-east-1:123456789012:cluster/vpc-2priv-2pub/751d2973-a626-431c-9d4e-d7975eb44dd7-2";
        let servers = "b-2.demo-cluster-1.a1bcde.c1.kafka.us-east-1.amazonaws.com:9092";
        let found = event(&Source::Msk { cluster_arn: arn.to_owned() }, servers, &[record()]);
        let wanted = format!(
            concat!(
                r#"{{"eventSource":"aws:kafka","eventSourceArn":"{arn}","bootstrapServers":"{servers}","#,
                r#""records":{{"mytopic-0":[{{"topic":"mytopic","partition":0,"offset":15,"#,
                r#""timestamp":1545084650987,"timestampType":"CREATE_TIME","key":"azE=","#,
                r#""value":"SGVsbG8sIHRoaXMgaXMgYSB0ZXN0Lg==","headers":[{{"headerKey":"#,
                r#"[104,101,97,100,101,114,86,97,108,117,101]}}]}}]}}}}"#
            ),
            arn = arn,
            servers = servers
        );
        assert_eq!(String::from_utf8(found).unwrap(), wanted);
    }

    #[test]
    fn strange_parts_keep_their_form() {
        let mut strange = record();
        strange.key = None;
        strange.value = None;
        strange.headers = vec![
            ("b".to_owned(), Some(vec![0xff, 0x80, 0])),
            ("a".to_owned(), None),
            ("b".to_owned(), Some(vec![])),
        ];
        let other = Record { partition: 7, ..record() };
        let found = event(&Source::SelfManaged, "localhost:9092", &[strange, other, record()]);
        let found: serde_json::Value = serde_json::from_slice(&found).unwrap();
        assert_eq!(found["eventSource"], "SelfManagedKafka");
        assert!(found.get("eventSourceArn").is_none());
        let first = &found["records"]["mytopic-0"][0];
        assert!(first.get("key").is_none() && first.get("value").is_none());
        assert_eq!(first["headers"], serde_json::json!([{"b": [-1, -128, 0]}, {}, {"b": []}]));
        assert_eq!(found["records"]["mytopic-0"].as_array().unwrap().len(), 2);
        assert_eq!(found["records"]["mytopic-7"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn the_size_of_a_record_is_never_underestimated() {
        let mut large = record();
        large.headers.push(("\u{1}".repeat(50), Some(vec![0x80; 1000])));
        for record in [record(), large] {
            let one = event(&Source::SelfManaged, "x", std::slice::from_ref(&record)).len();
            let two = event(&Source::SelfManaged, "x", &[record.clone(), record.clone()]).len();
            assert!(record.bytes() >= two - one, "{} < {}", record.bytes(), two - one);
        }
    }
}
