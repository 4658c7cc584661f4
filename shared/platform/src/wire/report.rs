//! Reads a worker's report from a verified body. Unknown fields are ignored (workers grow); a missing,
//! mistyped or impossible one is refused with its name.

use domain::ids::DealId;
use domain::key::{Fingerprint, Key};
use domain::money::Nano;
use domain::result::DepositConfirmed;
use domain::ton::{Address, TxHash};
use serde_json::Value;

/// What was wrong with a body, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// The envelope that all six results share.
#[derive(Debug)]
pub struct Report {
    pub event_type: String,
    deal_id: Value,
    payload: Value,
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
            payload: value["payload"].take(),
        })
    }

    /// The `event_type` of a body that nobody vouches for: good for deciding whose business it is,
    /// and for nothing else.
    pub fn peek_event_type(body: &[u8]) -> Option<String> {
        Self::read(body).ok().map(|report| report.event_type)
    }

    fn deal(&self) -> Result<DealId, Malformed> {
        let id = self.deal_id.as_str().and_then(DealId::parse);
        id.ok_or_else(|| Malformed("deal_id is not a UUID".to_owned()))
    }

    fn text(&self, name: &str) -> Result<&str, Malformed> {
        self.payload[name].as_str().ok_or_else(|| Malformed(format!("payload.{name} is not text")))
    }

    fn address(&self, name: &str) -> Result<Address, Malformed> {
        Address::parse(self.text(name)?)
            .map_err(|error| Malformed(format!("payload.{name}: {error}")))
    }

    fn hash(&self, name: &str) -> Result<TxHash, Malformed> {
        TxHash::parse(self.text(name)?)
            .ok_or_else(|| Malformed(format!("payload.{name} is no 256-bit hash in hex or base64")))
    }

    /// A whole positive number that fits 63 bits: 1.0, 1e9 and "1" are refused, not guessed at.
    fn amount(&self, name: &str) -> Result<Nano, Malformed> {
        let amount =
            self.payload[name].as_i64().map(Nano::new).filter(|amount| amount.is_positive());
        amount.ok_or_else(|| {
            Malformed(format!("payload.{name} is no whole number from 1 to {}", i64::MAX))
        })
    }

    fn count(&self, name: &str) -> Result<u32, Malformed> {
        let count = self.payload[name].as_u64().and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| Malformed(format!("payload.{name} is no whole number from 0 on")))
    }
}

/// A result that is about a deal.
pub trait DealResult: Sized {
    fn read(report: &Report) -> Result<Self, Malformed>;
    fn deal(&self) -> DealId;
    fn key(&self) -> Key;
    fn fingerprint(&self) -> Fingerprint;
}

impl DealResult for DepositConfirmed {
    fn read(report: &Report) -> Result<Self, Malformed> {
        Ok(Self {
            deal: report.deal()?,
            tx: report.hash("tx_hash")?,
            amount: report.amount("amount_nano")?,
            confirmations: report.count("confirmations")?,
            from: report.address("from_address")?,
            deposit_address: report.address("deposit_address")?,
        })
    }

    fn deal(&self) -> DealId {
        self.deal
    }

    fn key(&self) -> Key {
        self.key()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }
}
