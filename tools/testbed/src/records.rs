//! Worker reports as they come out of Kafka, signed with the documented development secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::ids::DealId;
use domain::ton::{Address, TxHash};
use platform::signature;
use serde_json::{Value, json};

use crate::deals;

/// The development secret of the samples. Never deploy it.
pub const SECRET: &str = "development-secret-of-the-samples";
pub const TOPIC: &str = "escrow.confirmations";
pub const WATCHER: &str = "ton-deposit-watcher";
/// When the samples were recorded. Freshness is measured from here, so samples never go stale.
pub const RECORDED_AT_MS: i64 = 1_736_949_600_000;

/// A deposit report; change its fields before it is signed.
pub struct Deposit {
    pub deal: DealId,
    pub tx: u8,
    pub amount: Value,
    pub confirmations: Value,
    pub from: Address,
    pub to: Address,
}

impl Deposit {
    pub fn new(deal: DealId, tx: u8) -> Self {
        Self {
            deal,
            tx,
            amount: deals::PRICE.get().into(),
            confirmations: 3.into(),
            from: deals::address(0x51),
            to: deals::deposit_address(),
        }
    }

    pub fn amount(mut self, nano: i64) -> Self {
        self.amount = nano.into();
        self
    }

    pub fn body(&self) -> Value {
        json!({
            "event_type": "DEPOSIT_CONFIRMED",
            "deal_id": self.deal.to_string(),
            "payload": {
                "tx_hash": TxHash::from_bytes([self.tx; 32]).to_string(),
                "amount_nano": self.amount,
                "confirmations": self.confirmations,
                "from_address": self.from.to_friendly(true),
                "deposit_address": self.to.to_friendly(false),
            }
        })
    }

    pub fn record(&self) -> Record {
        Record::new(self.body().to_string().into_bytes()).key(&self.deal.to_string())
    }
}

/// A Kafka record in the making.
#[derive(Clone)]
pub struct Record {
    pub body: Vec<u8>,
    pub key: Option<String>,
    pub headers: Value,
    pub offset: i64,
    pub recorded_at_ms: i64,
}

impl Record {
    /// Signed as document 1 says, by the deposit watcher.
    pub fn new(body: Vec<u8>) -> Self {
        let signature = signature::sign_v1(SECRET.as_bytes(), &body);
        let record =
            Self { body, key: None, headers: json!([]), offset: 0, recorded_at_ms: RECORDED_AT_MS };
        record.signed_by(WATCHER, &signature, RECORDED_AT_MS)
    }

    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    pub fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    pub fn signed_by(mut self, worker: &str, signature: &str, timestamp_ms: i64) -> Self {
        self.headers = json!([
            {"X-Worker-Signature": signed_bytes(signature.as_bytes())},
            {"X-Worker-Id": signed_bytes(worker.as_bytes())},
            {"X-Worker-Timestamp": signed_bytes(timestamp_ms.to_string().as_bytes())},
        ]);
        self
    }

    pub fn to_json(&self) -> Value {
        json!({
            "topic": TOPIC,
            "partition": 0,
            "offset": self.offset,
            "timestamp": self.recorded_at_ms,
            "timestampType": "LOG_APPEND_TIME",
            "key": self.key.as_ref().map(|key| STANDARD.encode(key)),
            "value": STANDARD.encode(&self.body),
            "headers": self.headers,
        })
    }
}

/// Lambda writes header bytes as Java does: signed.
fn signed_bytes(bytes: &[u8]) -> Vec<i8> {
    bytes.iter().map(|byte| i8::from_ne_bytes([*byte])).collect()
}

/// The Lambda event of an MSK mapping; offsets are given in order where a record has none.
pub fn kafka_event(records: &[Record]) -> Value {
    let records = records.iter().enumerate().map(|(index, record)| {
        let offset = if record.offset == 0 { 15 + index as i64 } else { record.offset };
        record.clone().offset(offset).to_json()
    });
    json!({
        "eventSource": "aws:kafka",
        "eventSourceArn": "arn:aws:kafka:us-east-1:123456789012:cluster/escrow/11111111-2222-3333-4444-555555555555-1",
        "bootstrapServers": "b-1.escrow.example.com:9098,b-2.escrow.example.com:9098",
        "records": {format!("{TOPIC}-0"): records.collect::<Vec<_>>()},
    })
}

/// The Lambda event of an SQS mapping.
pub fn sqs_event(queue: &str, bodies: &[String]) -> Value {
    let messages = bodies.iter().enumerate().map(|(index, body)| {
        json!({
            "messageId": format!("00000000-0000-4000-8000-{index:012}"),
            "receiptHandle": "AQEB-sample",
            "body": body,
            "attributes": {
                "ApproximateReceiveCount": "1",
                "SentTimestamp": RECORDED_AT_MS.to_string(),
                "SenderId": "AROA-sample",
                "ApproximateFirstReceiveTimestamp": RECORDED_AT_MS.to_string(),
            },
            "messageAttributes": {},
            "md5OfBody": "sample",
            "eventSource": "aws:sqs",
            "eventSourceARN": format!("arn:aws:sqs:us-east-1:123456789012:{queue}"),
            "awsRegion": "us-east-1",
        })
    });
    json!({"Records": messages.collect::<Vec<_>>()})
}
