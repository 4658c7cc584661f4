//! Document 2's dead-letter envelope, as it stands in the queue for a person to read, with what the
//! function needs to find the letter again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Letter, LetterId, Place};
use crate::clock;

/// Larger values are shown by their beginning only; the row has the bytes.
const SHOWN_BYTES: usize = 64 * 1024;
const SHOWN_KEY: usize = 1024;
/// Below the smallest limit that a queue has (256 KB); control characters grow sixfold in JSON.
const LONGEST: usize = 200 * 1024;

pub fn write(letter: &Letter) -> String {
    let whole = envelope(letter, shown(&letter.record.body)).to_string();
    let text =
        if whole.len() <= LONGEST { whole } else { envelope(letter, Value::Null).to_string() };
    // SQS takes no message with these two; a person misses nothing.
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

fn envelope(letter: &Letter, value: Value) -> Value {
    let record = &letter.record;
    let offset = &record.origin.offset;
    json!({
        "letter_id": letter.id.to_string(),
        "generation": letter.generation,
        "state": match letter.place {
            Place::RetryQueue => "RETRY",
            Place::DeadLetterQueue => "DEAD",
        },
        "original_topic": record.origin.topic,
        "original_partition": record.origin.partition,
        "original_offset": offset.parse::<i64>().map_or_else(|_| json!(offset), Value::from),
        "original_key": record.key.as_deref().map(|key| readable(&key[..key.len().min(SHOWN_KEY)])),
        "original_value": value,
        "error_details": {
            "exception_class": letter.code,
            "message": letter.error,
            "stack_trace": letter.history.join("\n").chars().take(500).collect::<String>(),
        },
        "retry_count": letter.attempts,
        "worker_instance": letter.function,
        "first_failure_at": clock::to_text(letter.first_failure_at),
        "last_failure_at": clock::to_text(letter.last_failure_at),
    })
}

/// The letter that a message is about, if it is about one.
pub fn read(body: &str) -> Option<(LetterId, u64)> {
    let value: Value = serde_json::from_str(body).ok()?;
    let id = LetterId::parse(value["letter_id"].as_str()?)?;
    Some((id, value["generation"].as_u64()?))
}

fn shown(body: &[u8]) -> Value {
    if body.len() <= SHOWN_BYTES {
        return serde_json::from_slice(body).unwrap_or_else(|_| readable(body).into());
    }
    readable(&body[..SHOWN_BYTES / 16]).into()
}

fn readable(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| STANDARD.encode(bytes), str::to_owned)
}
