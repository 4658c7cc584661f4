//! Kafka records as Lambda delivers them: base64 keys and values, headers as lists of signed bytes.
//! Values, headers and header bytes may be null or missing; none of that may fail a batch.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::time::Timestamp;
use serde_json::{Map, Value};

use super::{Header, Incoming, Origin};

/// A record, or what could be saved of one that AWS would never send.
#[derive(Debug)]
pub struct Record {
    pub incoming: Incoming,
    pub damage: Option<String>,
}

/// In the order of their partitions.
pub fn read(partitions: Map<String, Value>) -> Vec<Record> {
    let mut records = Vec::new();
    for (partition, entries) in partitions {
        match entries {
            Value::Array(entries) => {
                records.extend(
                    entries
                        .into_iter()
                        .enumerate()
                        .map(|(index, entry)| read_one(&partition, index, &entry)),
                );
            }
            other => records.push(read_one(&partition, 0, &other)),
        }
    }
    records
}

fn read_one(partition_key: &str, index: usize, entry: &Value) -> Record {
    let mut damage = None;
    let mut note = |what: &str| {
        damage.get_or_insert_with(|| format!("the record in {partition_key}: {what}"));
    };
    let (key_topic, key_partition) = partition_key.rsplit_once('-').unwrap_or((partition_key, "0"));
    let topic = entry["topic"].as_str().unwrap_or(key_topic).to_owned();
    let partition = entry["partition"].as_i64().or_else(|| key_partition.parse().ok()).unwrap_or(0);
    let offset = entry["offset"].as_i64().map_or_else(
        || {
            note("offset is missing");
            format!("unknown-{index}")
        },
        |offset| offset.to_string(),
    );
    let recorded_at = entry["timestamp"].as_i64().unwrap_or_else(|| {
        note("timestamp is missing");
        0
    });
    let body = match &entry["value"] {
        Value::String(text) => STANDARD.decode(text).unwrap_or_else(|_| {
            note("value is not base64");
            text.clone().into_bytes()
        }),
        // A tombstone: no worker result, and no reason to stop.
        Value::Null => Vec::new(),
        other => {
            note("value is not a string");
            other.to_string().into_bytes()
        }
    };
    let key = entry["key"].as_str().and_then(|key| STANDARD.decode(key).ok());
    let headers = entry["headers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let headers = headers
        .iter()
        .filter_map(Value::as_object)
        .flatten()
        .map(|(name, value)| Header { name: name.clone(), value: header_bytes(value) });
    let incoming = Incoming {
        origin: Origin { topic, partition, offset },
        key,
        body,
        headers: headers.collect(),
        recorded_at: Timestamp::from_millis(recorded_at),
    };
    Record { incoming, damage }
}

/// Java bytes are signed: -1 is 0xff. Anything that is no list of bytes is as good as absent.
fn header_bytes(value: &Value) -> Option<Vec<u8>> {
    let bytes = value.as_array()?.iter().map(|byte| match byte.as_i64()? {
        byte @ -128..=255 => Some(byte as u8),
        _ => None,
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn records(value: Value) -> Vec<Record> {
        let Value::Object(map) = value else { panic!("an object is needed") };
        read(map)
    }

    #[test]
    fn a_record_is_read_as_aws_sends_it() {
        let record = records(json!({"escrow.confirmations-3": [{
            "topic": "escrow.confirmations", "partition": 3, "offset": 15,
            "timestamp": 1_545_084_650_987_i64, "timestampType": "CREATE_TIME",
            "key": "ZGVhbA==", "value": "eyJhIjoxfQ==",
            "headers": [{"h1": [97, -1]}, {"h2": null}]
        }]}))
        .remove(0);
        assert_eq!(record.damage, None);
        let incoming = record.incoming;
        assert_eq!(incoming.origin.to_string(), "escrow.confirmations-3-15");
        assert_eq!(incoming.key.as_deref(), Some(b"deal".as_slice()));
        assert_eq!(incoming.body, b"{\"a\":1}");
        assert_eq!(incoming.recorded_at, Timestamp::from_millis(1_545_084_650_987));
        assert_eq!(
            incoming.headers,
            [
                Header { name: "h1".to_owned(), value: Some(vec![97, 0xff]) },
                Header { name: "h2".to_owned(), value: None },
            ]
        );
    }

    #[test]
    fn strange_records_stay_their_own_problem() {
        let strange = [
            (json!({"offset": 1, "timestamp": 1}), None),
            (json!({"offset": 1, "timestamp": 1, "value": null, "headers": null}), None),
            (json!({"offset": 1, "timestamp": 1, "headers": [null, {"h": "text"}, 7]}), None),
            (json!({"offset": 1, "timestamp": 1, "headers": [{"h": [900]}]}), None),
            (json!({"offset": 1, "timestamp": 1, "value": "%%%"}), Some("value is not base64")),
            (json!({"offset": 1, "timestamp": 1, "value": 7}), Some("value is not a string")),
            (json!({"timestamp": 1}), Some("offset is missing")),
            (json!({"offset": 1}), Some("timestamp is missing")),
            (json!(null), Some("offset is missing")),
        ];
        for (entry, expected) in strange {
            let read = records(json!({"t-0": [entry]})).remove(0);
            assert_eq!(read.incoming.origin.topic, "t");
            match expected {
                None => assert_eq!(read.damage, None, "{entry}"),
                Some(what) => assert!(read.damage.unwrap().contains(what), "{entry}"),
            }
        }
        assert_eq!(records(json!({"t-0": "no list"})).len(), 1);
    }
}
