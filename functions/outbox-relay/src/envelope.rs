//! What goes over the wire: document 3's envelope around a message, and the headers of every record.

use domain::time::Timestamp;
use platform::clock;
use platform::outbox::{Message, Row};
use platform::signature::{self, SIGNATURE_HEADER, TIMESTAMP_HEADER, WORKER_HEADER};
use serde_json::{Value, json};

/// As whom the relay signs.
pub const WORKER: &str = "outbox-relay";

/// Vouches for records as they leave.
pub struct Signer {
    pub key: Vec<u8>,
    pub is_v2: bool,
}

impl Signer {
    /// Who vouches for a record, and which one it is: a consumer can tell a repeated or late one by its
    /// headers alone.
    pub fn headers(
        &self,
        row: &Row,
        message: &Message,
        body: &[u8],
    ) -> Vec<(&'static str, String)> {
        let now_ms = clock::now().as_millis();
        let signature = if self.is_v2 {
            signature::sign_v2(&self.key, WORKER, now_ms, body)
        } else {
            signature::sign_v1(&self.key, body)
        };
        vec![
            ("event_id", message.id.clone()),
            ("seq", row.seq.to_string()),
            (SIGNATURE_HEADER, signature),
            (WORKER_HEADER, WORKER.to_owned()),
            (TIMESTAMP_HEADER, now_ms.to_string()),
        ]
    }
}

/// A message in document 3's envelope.
pub fn envelope(row: &Row, message: &Message) -> Value {
    json!({
        "event_id": message.id,
        "aggregate_type": row.aggregate_type,
        "aggregate_id": row.aggregate_id,
        "event_type": message.event_type,
        "payload": payload(message),
        "timestamp": clock::to_text(row.created_at),
    })
}

/// What could not be published, as document 3 has it. Too large for the broker, it names where the
/// payload is instead.
pub fn dead_letter(
    row: &Row,
    message: &Message,
    error: &str,
    letter: &str,
    now: Timestamp,
    is_oversized: bool,
) -> Value {
    let mut event = envelope(row, message);
    if is_oversized {
        event["payload"] = json!({"letter_id": letter, "payload_bytes": message.payload.len()});
    }
    event["retry_count"] = message.failures.count.into();
    event["failed_at"] = clock::to_text(now).into();
    event["error"] = error.into();
    event
}

fn payload(message: &Message) -> Value {
    serde_json::from_str(&message.payload).expect("a row whose payload is no JSON is damaged")
}
