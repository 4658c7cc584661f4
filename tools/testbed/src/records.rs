//! Worker reports as they come out of Kafka, signed with the documented development secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::ids::DealId;
use domain::key::Fingerprint;
use domain::time::Timestamp;
use domain::ton::{Address, TxHash};
use platform::signature;
use serde_json::{Value, json};

use crate::deals;

/// The development secret of the samples. Never deploy it.
pub const SECRET: &str = "development-secret-of-the-samples";
/// The internal API key of local runs. Never deploy it.
pub const API_KEY: &str = "development-key-of-the-samples";
pub const TOPIC: &str = "escrow.confirmations";
pub const WATCHER: &str = "ton-deposit-watcher";
/// When the samples were recorded. Freshness is measured from here, so samples never go stale.
pub const RECORDED_AT_MS: i64 = 1_736_949_600_000;

/// A deposit report; change its fields before it is signed.
pub struct Deposit {
    pub deal: DealId,
    pub tx: TxHash,
    pub amount: Value,
    pub confirmations: Value,
    pub from: Address,
    pub to: Address,
}

impl Deposit {
    pub fn new(deal: DealId, tx: u8) -> Self {
        Self {
            deal,
            tx: TxHash::from_bytes([tx; 32]),
            amount: deals::PRICE.get().into(),
            confirmations: 3.into(),
            from: deals::sender(),
            to: deals::deposit_address(),
        }
    }

    /// As transaction number `part` of the deal's own.
    pub fn part(mut self, part: u32) -> Self {
        self.tx = tx(self.deal, &format!("deposit {part}"));
        self
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
                "tx_hash": self.tx.to_string(),
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

/// A transaction that only this deal has.
pub fn tx(deal: DealId, what: &str) -> TxHash {
    let hash = Fingerprint::of(&[("deal", &deal.to_string()), ("what", what)]).to_string();
    TxHash::parse(&hash).expect("a fingerprint is a hash")
}

/// A worker's report of any type, signed by the worker that may report it.
pub fn report(event_type: &str, deal: Option<DealId>, payload: &Value) -> Record {
    let (topic, worker) = match event_type {
        "PAYOUT_COMPLETED" => (TOPIC, "payout-executor"),
        "REFUND_COMPLETED" => (TOPIC, "refund-executor"),
        "PUBLICATION_RESULT" => ("delivery.results", "auto-publisher"),
        "VERIFICATION_RESULT" => ("delivery.results", "delivery-verifier"),
        "RECONCILIATION_RESULT" => ("reconciliation.triggers", "reconciliation"),
        _ => (TOPIC, WATCHER),
    };
    let deal = deal.map(|deal| deal.to_string());
    let body = json!({"event_type": event_type, "deal_id": deal, "payload": payload});
    let mut record = Record::new(body.to_string().into_bytes());
    record.topic = topic.to_owned();
    record.key = deal;
    let signature = signature::sign_v1(SECRET.as_bytes(), &record.body);
    record.signed_by(worker, &signature, RECORDED_AT_MS)
}

pub fn payout(deal: DealId, tx: u8) -> Record {
    payout_by(deal, TxHash::from_bytes([tx; 32]))
}

pub fn payout_by(deal: DealId, tx: TxHash) -> Record {
    let payload = json!({
        "tx_hash": tx.to_string(),
        "amount_nano": deals::SHARE.get(),
        "commission_nano": deals::COMMISSION.get(),
        "to_address": deals::payout_address().to_friendly(true),
        "confirmations": 3,
    });
    report("PAYOUT_COMPLETED", Some(deal), &payload)
}

pub fn refund(deal: DealId, tx: u8, amount: i64) -> Record {
    refund_by(deal, TxHash::from_bytes([tx; 32]), amount)
}

pub fn refund_by(deal: DealId, tx: TxHash, amount: i64) -> Record {
    let payload = json!({
        "tx_hash": tx.to_string(),
        "amount_nano": amount,
        "to_address": deals::sender().to_friendly(true),
        "confirmations": 3,
    });
    report("REFUND_COMPLETED", Some(deal), &payload)
}

pub fn publication(deal: DealId) -> Record {
    published(deal, deals::published_at())
}

pub fn published(deal: DealId, published_at: Timestamp) -> Record {
    let payload = json!({
        "success": true,
        "message_id": deals::MESSAGE_ID,
        "channel_id": deals::CHANNEL.0,
        "content_hash": deals::CONTENT_HASH,
        "published_at": platform::clock::to_text(published_at),
    });
    report("PUBLICATION_RESULT", Some(deal), &payload)
}

pub fn failed_publication(deal: DealId, attempt: Option<u32>) -> Record {
    let payload = json!({
        "success": false,
        "error": "CHANNEL_NOT_ACCESSIBLE",
        "details": "Bot removed from channel",
        "attempt": attempt,
    });
    report("PUBLICATION_RESULT", Some(deal), &payload)
}

pub fn final_verification(deal: DealId) -> Record {
    verdict(deal, deals::CONTENT_HASH)
}

/// The final check of a post that is another by now.
pub fn edited_verification(deal: DealId) -> Record {
    verdict(deal, &deals::CONTENT_HASH.replace("2c", "ed"))
}

fn verdict(deal: DealId, content_hash: &str) -> Record {
    let payload = json!({
        "verified": true,
        "message_id": deals::MESSAGE_ID,
        "checks_passed": 5,
        "checks_failed": 0,
        "final_content_hash": content_hash,
    });
    report("VERIFICATION_RESULT", Some(deal), &payload)
}

/// One check on the way, passed or not.
pub fn check(deal: DealId, number: u32, passed: bool) -> Record {
    let mut payload = json!({"verified": passed, "check_number": number});
    if !passed {
        payload["reason"] = "POST_DELETED".into();
        payload["detected_at"] = "2025-01-15T13:00:00Z".into();
    }
    report("VERIFICATION_RESULT", Some(deal), &payload)
}

pub fn reconciliation(trigger_id: &str, ton_passes: bool) -> Record {
    let status = if ton_passes { "PASS" } else { "FAIL" };
    let details = if ton_passes { json!({}) } else { json!({"diff_nano": 5_000_000}) };
    let payload = json!({
        "trigger_id": trigger_id,
        "checks": {
            "LEDGER_BALANCE": {"status": "PASS", "details": {}},
            "LEDGER_VS_TON": {"status": status, "details": details},
            "LEDGER_VS_DEALS": {"status": "PASS", "details": {}},
            "CQRS_PROJECTION": {"status": "PASS", "details": {}},
        },
        "completed_at": "2025-01-15T01:00:00Z",
    });
    report("RECONCILIATION_RESULT", None, &payload)
}

/// A command as the backend sends it.
pub fn command(
    id: &str,
    name: &str,
    deal: DealId,
    actor: i64,
    version: u64,
    payload: Value,
) -> Value {
    let mut body = json!({
        "command_id": id,
        "command": name,
        "deal_id": deal.to_string(),
        "actor_id": actor,
        "expected_version": version,
        "payload": payload,
    });
    // Accepting names the terms too.
    if let Some(terms) = body["payload"].as_object_mut().and_then(|map| map.remove("terms_version"))
    {
        body["terms_version"] = terms;
    }
    body
}

/// The Lambda event of a call to the internal API.
pub fn http_event(operator: bool, deal: DealId, body: &Value) -> Value {
    let route = if operator { "operator/" } else { "" };
    json!({
        "resource": format!("/internal/v1/{route}deals/{{id}}/commands"),
        "path": format!("/internal/v1/{route}deals/{deal}/commands"),
        "httpMethod": "POST",
        "headers": {"Content-Type": "application/json", "X-Internal-Api-Key": API_KEY},
        "multiValueHeaders": {
            "Content-Type": ["application/json"],
            "X-Internal-Api-Key": [API_KEY],
        },
        "queryStringParameters": null,
        "pathParameters": {"id": deal.to_string()},
        "requestContext": {
            "requestId": "c6af9ac6-7b61-11e6-9a41-93e8deadbeef",
            "identity": {"sourceIp": "172.18.0.7"},
            "stage": "live",
        },
        "body": body.to_string(),
        "isBase64Encoded": false,
    })
}

/// A Kafka record in the making.
#[derive(Clone)]
pub struct Record {
    pub topic: String,
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
        let record = Self {
            topic: TOPIC.to_owned(),
            body,
            key: None,
            headers: json!([]),
            offset: 0,
            recorded_at_ms: RECORDED_AT_MS,
        };
        record.signed_by(WATCHER, &signature, RECORDED_AT_MS)
    }

    /// The records of a Lambda event.
    pub fn of_event(event: &Value) -> Vec<Self> {
        let partitions = event["records"].as_object().into_iter().flatten();
        let entries = partitions.flat_map(|(_, records)| records.as_array().into_iter().flatten());
        let decoded = |value: &Value| STANDARD.decode(value.as_str()?).ok();
        let read = |entry: &Value| Self {
            topic: entry["topic"].as_str().unwrap_or_default().to_owned(),
            body: decoded(&entry["value"]).unwrap_or_default(),
            key: decoded(&entry["key"]).and_then(|key| String::from_utf8(key).ok()),
            headers: entry["headers"].clone(),
            offset: entry["offset"].as_i64().unwrap_or_default(),
            recorded_at_ms: entry["timestamp"].as_i64().unwrap_or_default(),
        };
        entries.map(read).collect()
    }

    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    pub fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// The same record at another time, signed anew.
    pub fn at(mut self, recorded_at: Timestamp) -> Self {
        self.recorded_at_ms = recorded_at.as_millis();
        let timestamp = self.recorded_at_ms.to_string();
        let headers = self.headers.as_array_mut().expect("a record has headers");
        for header in headers.iter_mut().filter(|header| !header["X-Worker-Timestamp"].is_null()) {
            header["X-Worker-Timestamp"] = json!(signed_bytes(timestamp.as_bytes()));
        }
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
            "topic": self.topic,
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
    let mut partitions = serde_json::Map::new();
    for (index, record) in records.iter().enumerate() {
        let offset = if record.offset == 0 { 15 + index as i64 } else { record.offset };
        let partition =
            partitions.entry(format!("{}-0", record.topic)).or_insert_with(|| json!([]));
        let partition = partition.as_array_mut().expect("a partition is a list");
        partition.push(record.clone().offset(offset).to_json());
    }
    json!({
        "eventSource": "aws:kafka",
        "eventSourceArn": "arn:aws:kafka:us-east-1:123456789012:cluster/escrow/11111111-2222-3333-4444-555555555555-1",
        "bootstrapServers": "b-1.escrow.example.com:9098,b-2.escrow.example.com:9098",
        "records": partitions,
    })
}

/// The Lambda event of an SQS mapping.
pub fn sqs_event(queue: &str, bodies: &[String]) -> Value {
    let messages = bodies.iter().map(|body| (body.clone(), json!({})));
    sqs_event_with(queue, &messages.collect::<Vec<_>>())
}

/// A worker's signature as message attributes.
pub fn signed_attributes(worker: &str, body: &str) -> Value {
    let text = |value: &str| json!({"stringValue": value, "dataType": "String"});
    json!({
        "X-Worker-Signature": text(&signature::sign_v1(SECRET.as_bytes(), body.as_bytes())),
        "X-Worker-Id": text(worker),
        "X-Worker-Timestamp": text(&RECORDED_AT_MS.to_string()),
    })
}

pub fn sqs_event_with(queue: &str, messages: &[(String, Value)]) -> Value {
    let messages = messages.iter().enumerate().map(|(index, (body, attributes))| {
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
            "messageAttributes": attributes,
            "md5OfBody": "sample",
            "eventSource": "aws:sqs",
            "eventSourceARN": format!("arn:aws:sqs:us-east-1:123456789012:{queue}"),
            "awsRegion": "us-east-1",
        })
    });
    json!({"Records": messages.collect::<Vec<_>>()})
}
