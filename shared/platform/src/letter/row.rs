//! How a letter is written down. Access patterns: one letter by its id (primary key); the letters of
//! a deal, consistently (partition `letters#<deal>`); the open letters of a topic by time (index
//! `lists`, which a closed letter leaves).

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use domain::ids::DealId;
use domain::time::Timestamp;
use serde_json::{Value, json};

use super::{Letter, LetterId, Place, Understood};
use crate::clock;
use crate::store::item::{self, Item};
use crate::store::rows::Corrupt;
use crate::wire::{Header, Incoming, Origin};

/// More than a worker result can be; a row holds 400 KB.
const MAX_RECORD_BYTES: usize = 200 * 1024;
const KEPT_BYTES: usize = 4 * 1024;
const KEPT_HEADERS: usize = 32;

pub fn is_oversized(record: &Incoming) -> bool {
    size(record) > MAX_RECORD_BYTES
}

fn size(record: &Incoming) -> usize {
    let headers = record.headers.iter();
    let headers =
        headers.map(|header| header.name.len() + header.value.as_ref().map_or(0, Vec::len) + 16);
    record.body.len() + record.key.as_ref().map_or(0, Vec::len) + headers.sum::<usize>()
}

/// What of a record fits a row, and its size if that is not all.
pub fn fit(record: &Incoming) -> (Incoming, Option<usize>) {
    if !is_oversized(record) {
        return (record.clone(), None);
    }
    let cut = |bytes: &Vec<u8>| bytes[..bytes.len().min(KEPT_BYTES)].to_vec();
    let headers = record.headers.iter().take(KEPT_HEADERS).map(|header| Header {
        name: header.name.chars().take(256).collect(),
        value: header.value.as_ref().map(cut),
    });
    let kept = Incoming {
        origin: record.origin.clone(),
        key: record.key.as_ref().map(cut),
        body: cut(&record.body),
        headers: headers.collect(),
        recorded_at: record.recorded_at,
    };
    (kept, Some(size(record)))
}

pub fn to_item(letter: &Letter) -> Item {
    let origin = &letter.record.origin;
    let (list_pk, list_sk) = match letter.closed_as {
        None => (
            Some(format!("letters#{}.dlq", origin.topic)),
            Some(format!("{}#{}", clock::to_text(letter.first_failure_at), letter.id)),
        ),
        Some(_) => (None, None),
    };
    let mut item = item::from_json(json!({
        "pk": letter.id.partition_key(),
        "sk": letter.id.sort_key(),
        "letter_id": letter.id.to_string(),
        "list_pk": list_pk,
        "list_sk": list_sk,
        "function": letter.function,
        "deal_id": letter.id.deal.map(|deal| deal.to_string()),
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "recorded_at": letter.record.recorded_at.as_millis(),
        "cut_from": letter.cut_from,
        "verified": letter.understood.verified,
        "idempotency_key": letter.understood.key,
        "tx_hash": letter.understood.tx,
        "place": place_name(letter.place),
        "generation": letter.generation,
        "sent": letter.sent,
        "attempts": letter.attempts,
        "class": letter.code,
        "error": letter.error,
        "critical": letter.critical,
        "history": letter.history,
        "first_failure_at": clock::to_text(letter.first_failure_at),
        "last_failure_at": clock::to_text(letter.last_failure_at),
        "not_before": clock::to_text(letter.not_before),
        "due_at": clock::to_text(letter.due_at),
        "closed_as": letter.closed_as,
    }));
    let headers = letter.record.headers.iter().map(|header| {
        let mut entry = Item::from([("name".to_owned(), item::text(&header.name))]);
        if let Some(value) = &header.value {
            entry.insert("value".to_owned(), AttributeValue::B(Blob::new(value.clone())));
        }
        AttributeValue::M(entry)
    });
    item.insert("headers".to_owned(), AttributeValue::L(headers.collect()));
    item.insert("body".to_owned(), AttributeValue::B(Blob::new(letter.record.body.clone())));
    if let Some(key) = &letter.record.key {
        item.insert("record_key".to_owned(), AttributeValue::B(Blob::new(key.clone())));
    }
    item
}

pub fn from_item(mut item: Item) -> Result<Letter, Corrupt> {
    let body = item.remove("body").and_then(bytes);
    let key = item.remove("record_key").and_then(bytes);
    let headers = match item.remove("headers") {
        Some(AttributeValue::L(entries)) => entries.into_iter().filter_map(header).collect(),
        _ => Vec::new(),
    };
    let row = item::to_json(item);
    read(&row, body.unwrap_or_default(), key, headers)
        .map_err(|field| Corrupt::new("letter", field))
}

fn read(
    row: &Value,
    body: Vec<u8>,
    key: Option<Vec<u8>>,
    headers: Vec<Header>,
) -> Result<Letter, &'static str> {
    let text = |name: &'static str| row[name].as_str().ok_or(name);
    let time = |name: &'static str| clock::from_text(text(name)?).ok_or(name);
    let number = |name: &'static str| row[name].as_u64().ok_or(name);
    let history = row["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(Letter {
        id: LetterId::parse(text("letter_id")?).ok_or("letter_id")?,
        function: text("function")?.to_owned(),
        record: Incoming {
            origin: Origin {
                topic: text("topic")?.to_owned(),
                partition: row["partition"].as_i64().ok_or("partition")?,
                offset: text("offset")?.to_owned(),
            },
            key,
            body,
            headers,
            recorded_at: Timestamp::from_millis(row["recorded_at"].as_i64().ok_or("recorded_at")?),
        },
        cut_from: row["cut_from"].as_u64().and_then(|size| usize::try_from(size).ok()),
        understood: Understood {
            verified: row["verified"].as_bool().ok_or("verified")?,
            deal: row["deal_id"].as_str().and_then(DealId::parse),
            key: row["idempotency_key"].as_str().map(str::to_owned),
            tx: row["tx_hash"].as_str().map(str::to_owned),
        },
        place: [Place::RetryQueue, Place::DeadLetterQueue]
            .into_iter()
            .find(|place| row["place"] == place_name(*place))
            .ok_or("place")?,
        generation: number("generation")?,
        sent: number("sent")?,
        attempts: usize::try_from(number("attempts")?).map_err(|_| "attempts")?,
        code: text("class")?.to_owned(),
        error: text("error")?.to_owned(),
        critical: row["critical"].as_bool().ok_or("critical")?,
        history: history.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        first_failure_at: time("first_failure_at")?,
        last_failure_at: time("last_failure_at")?,
        not_before: time("not_before")?,
        due_at: time("due_at")?,
        closed_as: row["closed_as"].as_str().map(str::to_owned),
    })
}

fn place_name(place: Place) -> &'static str {
    match place {
        Place::RetryQueue => "RETRY",
        Place::DeadLetterQueue => "DLQ",
    }
}

fn bytes(value: AttributeValue) -> Option<Vec<u8>> {
    match value {
        AttributeValue::B(blob) => Some(blob.into_inner()),
        _ => None,
    }
}

fn header(entry: AttributeValue) -> Option<Header> {
    let AttributeValue::M(mut fields) = entry else { return None };
    let name = match fields.remove("name") {
        Some(AttributeValue::S(name)) => name,
        _ => return None,
    };
    Some(Header { name, value: fields.remove("value").and_then(bytes) })
}
