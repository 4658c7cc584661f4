//! Reads a worker's report from a verified body. Unknown fields are ignored (workers grow); a missing,
//! mistyped or impossible one is refused with its name.

use domain::deal::Publication;
use domain::ids::{ChannelId, DealId};
use domain::key::{Fingerprint, Key};
use domain::money::Nano;
use domain::result::{
    DepositConfirmed, PayoutCompleted, PublicationOutcome, PublicationResult, ReconciliationCheck,
    ReconciliationResult, RefundCompleted, VerificationResult,
};
use domain::time::Timestamp;
use domain::ton::{Address, TxHash};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::clock;

/// What was wrong with a body, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// The envelope that all six results share.
#[derive(Debug)]
pub struct Report {
    pub event_type: String,
    deal_id: Value,
    payload: Payload,
    body_hash: String,
}

/// What a body says about itself, while nobody vouches for it: good for deciding whose business it
/// is and which records to keep in order, and for nothing else.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Peek {
    #[serde(default, deserialize_with = "text_or_none")]
    pub event_type: Option<String>,
    #[serde(default, deserialize_with = "text_or_none")]
    pub deal_id: Option<String>,
}

/// As strict as the reading itself: what one of us takes for JSON, all of us do. A field that is there
/// twice says nothing.
pub fn peek(body: &[u8]) -> Peek {
    if serde_json::from_slice::<Value>(body).is_err() {
        return Peek::default();
    }
    let mut seen: Peek = serde_json::from_slice(body).unwrap_or_default();
    seen.deal_id = seen.deal_id.map(|id| id.to_lowercase());
    seen
}

fn text_or_none<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let value = <Value as serde::Deserialize>::deserialize(value)?;
    Ok(value.as_str().map(str::to_owned))
}

impl Report {
    pub fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut value: Value = serde_json::from_slice(body)
            .map_err(|error| Malformed(format!("the body is not JSON: {error}")))?;
        if !value.is_object() {
            return Err(Malformed("the body is no JSON object".to_owned()));
        }
        let event_type = value["event_type"].as_str().map(str::to_owned);
        Ok(Self {
            event_type: event_type.ok_or_else(|| Malformed("event_type is not text".to_owned()))?,
            deal_id: value["deal_id"].take(),
            payload: Payload(value["payload"].take()),
            body_hash: hex::encode(Sha256::digest(body)),
        })
    }

    pub fn deal(&self) -> Result<DealId, Malformed> {
        let id = self.deal_id.as_str().and_then(DealId::parse);
        id.ok_or_else(|| Malformed("deal_id is not a UUID".to_owned()))
    }
}

/// The part of a body that differs by type, read field by field.
#[derive(Debug)]
pub struct Payload(Value);

impl Payload {
    pub fn new(value: Value) -> Self {
        Self(value)
    }

    pub fn text(&self, name: &str) -> Result<&str, Malformed> {
        self.0[name].as_str().ok_or_else(|| Malformed(format!("payload.{name} is not text")))
    }

    pub fn address(&self, name: &str) -> Result<Address, Malformed> {
        Address::parse(self.text(name)?)
            .map_err(|error| Malformed(format!("payload.{name}: {error}")))
    }

    pub fn hash(&self, name: &str) -> Result<TxHash, Malformed> {
        TxHash::parse(self.text(name)?)
            .ok_or_else(|| Malformed(format!("payload.{name} is no 256-bit hash in hex or base64")))
    }

    /// A whole positive number that fits 63 bits: 1.0, 1e9 and "1" are refused, not guessed at.
    pub fn amount(&self, name: &str) -> Result<Nano, Malformed> {
        let amount = self.0[name].as_i64().map(Nano::new).filter(|amount| amount.is_positive());
        amount.ok_or_else(|| {
            Malformed(format!("payload.{name} is no whole number from 1 to {}", i64::MAX))
        })
    }

    pub fn amount_or_zero(&self, name: &str) -> Result<Nano, Malformed> {
        let amount = self.0[name].as_i64().map(Nano::new);
        amount.filter(|amount| *amount >= Nano::ZERO).ok_or_else(|| {
            Malformed(format!("payload.{name} is no whole number from 0 to {}", i64::MAX))
        })
    }

    pub fn count(&self, name: &str) -> Result<u32, Malformed> {
        let count = self.0[name].as_u64().and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| Malformed(format!("payload.{name} is no whole number from 0 on")))
    }

    /// Text of 1 to `longest` characters.
    pub fn short_text(&self, name: &str, longest: usize) -> Result<String, Malformed> {
        let text = self.text(name)?.trim();
        if text.is_empty() || text.chars().count() > longest {
            return Err(Malformed(format!("payload.{name} is not 1 to {longest} characters long")));
        }
        Ok(text.to_owned())
    }

    /// Words for a person: cut where they are too long, absent where there are none.
    pub fn words(&self, name: &str, longest: usize) -> Option<String> {
        let text = self.0[name].as_str()?.trim();
        (!text.is_empty()).then(|| text.chars().take(longest).collect())
    }

    pub fn time(&self, name: &str) -> Result<Timestamp, Malformed> {
        clock::from_text(self.text(name)?).ok_or_else(|| {
            Malformed(format!("payload.{name} is no time such as 2025-01-15T14:00:00Z"))
        })
    }

    pub fn flag(&self, name: &str) -> Result<bool, Malformed> {
        self.0[name]
            .as_bool()
            .ok_or_else(|| Malformed(format!("payload.{name} is not true or false")))
    }

    pub fn id(&self, name: &str) -> Result<i64, Malformed> {
        self.0[name].as_i64().ok_or_else(|| Malformed(format!("payload.{name} is no whole number")))
    }

    /// A list; absent is no list.
    pub fn ids(&self, name: &str) -> Result<Vec<i64>, Malformed> {
        let ids = self.0[name].as_array().and_then(|list| list.iter().map(Value::as_i64).collect());
        ids.ok_or_else(|| Malformed(format!("payload.{name} is no list of whole numbers")))
    }

    /// Reads a field only if it is there.
    pub fn optional<T>(
        &self,
        name: &str,
        read: impl Fn(&Self, &str) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.0[name].is_null() { Ok(None) } else { read(self, name).map(Some) }
    }
}

/// One of the six results.
pub trait WorkerResult: Sized + 'static {
    fn read(report: &Report) -> Result<Self, Malformed>;
    /// None for what is about no deal.
    fn deal(&self) -> Option<DealId>;
    /// None where the deal decides which effect a report is about (refunds).
    fn key(&self) -> Option<Key>;
    fn fingerprint(&self) -> Fingerprint;
    /// The transaction that a payment reports.
    fn tx(&self) -> Option<TxHash> {
        None
    }
}

impl WorkerResult for DepositConfirmed {
    fn read(report: &Report) -> Result<Self, Malformed> {
        Ok(Self {
            deal: report.deal()?,
            tx: report.payload.hash("tx_hash")?,
            amount: report.payload.amount("amount_nano")?,
            confirmations: report.payload.count("confirmations")?,
            from: report.payload.address("from_address")?,
            deposit_address: report.payload.address("deposit_address")?,
        })
    }

    fn deal(&self) -> Option<DealId> {
        Some(self.deal)
    }

    fn key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }

    fn tx(&self) -> Option<TxHash> {
        Some(self.tx)
    }
}

impl WorkerResult for PayoutCompleted {
    fn read(report: &Report) -> Result<Self, Malformed> {
        Ok(Self {
            deal: report.deal()?,
            tx: report.payload.hash("tx_hash")?,
            amount: report.payload.amount("amount_nano")?,
            commission: report.payload.amount_or_zero("commission_nano")?,
            to: report.payload.address("to_address")?,
            confirmations: report.payload.count("confirmations")?,
        })
    }

    fn deal(&self) -> Option<DealId> {
        Some(self.deal)
    }

    fn key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }

    fn tx(&self) -> Option<TxHash> {
        Some(self.tx)
    }
}

impl WorkerResult for RefundCompleted {
    fn read(report: &Report) -> Result<Self, Malformed> {
        Ok(Self {
            deal: report.deal()?,
            tx: report.payload.hash("tx_hash")?,
            amount: report.payload.amount("amount_nano")?,
            to: report.payload.address("to_address")?,
            confirmations: report.payload.count("confirmations")?,
        })
    }

    fn deal(&self) -> Option<DealId> {
        Some(self.deal)
    }

    fn key(&self) -> Option<Key> {
        None
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }

    fn tx(&self) -> Option<TxHash> {
        Some(self.tx)
    }
}

impl WorkerResult for PublicationResult {
    fn read(report: &Report) -> Result<Self, Malformed> {
        let payload = &report.payload;
        let outcome = if payload.flag("success")? {
            PublicationOutcome::Succeeded {
                publication: Publication {
                    message_id: payload.id("message_id")?,
                    content_hash: payload.short_text("content_hash", 200)?,
                    published_at: payload.time("published_at")?,
                },
                channel: ChannelId(payload.id("channel_id")?),
            }
        } else {
            let attempt = payload.optional("attempt", Payload::count)?;
            PublicationOutcome::Failed {
                error: payload.words("error", 200).unwrap_or_else(|| "UNKNOWN".to_owned()),
                details: payload.words("details", 1000).unwrap_or_default(),
                which: attempt
                    .map_or_else(|| report.body_hash[..32].to_owned(), |number| number.to_string()),
            }
        };
        Ok(Self { deal: report.deal()?, outcome })
    }

    fn deal(&self) -> Option<DealId> {
        Some(self.deal)
    }

    fn key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }
}

impl WorkerResult for VerificationResult {
    fn read(report: &Report) -> Result<Self, Malformed> {
        let payload = &report.payload;
        let verified = payload.flag("verified")?;
        let check = payload.optional("check_number", Payload::count)?;
        let hash = |payload: &Payload, name: &str| payload.short_text(name, 200);
        let reason = payload.words("reason", 200);
        // Bad news is not refused for its form: what matters is that it is bad.
        if !verified {
            return Ok(Self {
                deal: report.deal()?,
                check,
                verified,
                channel: payload.id("channel_id").ok().map(ChannelId),
                message_id: payload.id("message_id").ok(),
                checks_failed: payload.count("checks_failed").ok(),
                final_content_hash: payload.words("final_content_hash", 200),
                reason,
            });
        }
        let mut result = Self {
            deal: report.deal()?,
            check,
            verified,
            channel: payload.optional("channel_id", Payload::id)?.map(ChannelId),
            message_id: payload.optional("message_id", Payload::id)?,
            checks_failed: payload.optional("checks_failed", Payload::count)?,
            final_content_hash: payload.optional("final_content_hash", hash)?,
            reason,
        };
        // Nothing is released on the word of a report that leaves out what it is held against.
        if check.is_none() {
            result.message_id = Some(payload.id("message_id")?);
            result.checks_failed = Some(payload.count("checks_failed")?);
            result.final_content_hash = Some(hash(payload, "final_content_hash")?);
        }
        Ok(result)
    }

    fn deal(&self) -> Option<DealId> {
        Some(self.deal)
    }

    fn key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }
}

impl WorkerResult for ReconciliationResult {
    fn read(report: &Report) -> Result<Self, Malformed> {
        let trigger_id = report.payload.short_text("trigger_id", 100)?;
        let checks = report.payload.0["checks"].as_object().filter(|checks| !checks.is_empty());
        let checks = checks.ok_or_else(|| Malformed("payload.checks is no object".to_owned()))?;
        let mut read: Vec<ReconciliationCheck> = Vec::new();
        for (name, check) in checks {
            let passed = match check["status"].as_str() {
                Some("PASS") => true,
                Some("FAIL") => false,
                _ => {
                    let name: String = name.chars().take(100).collect();
                    let what = format!("payload.checks.{name}.status is neither PASS nor FAIL");
                    return Err(Malformed(what));
                }
            };
            let details = check["details"].to_string();
            read.push(ReconciliationCheck { name: name.clone(), passed, details });
        }
        read.sort_by(|one, other| one.name.cmp(&other.name));
        let completed_at = report.payload.time("completed_at")?;
        Ok(Self { trigger_id, checks: read, completed_at })
    }

    fn deal(&self) -> Option<DealId> {
        None
    }

    fn key(&self) -> Option<Key> {
        Some(self.key())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }
}
