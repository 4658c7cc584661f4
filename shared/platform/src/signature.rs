//! Whether a record comes from a worker that may say so. Checked over the raw bytes before anything
//! reads them; only a `Verified` body can be parsed.

use std::collections::HashMap;

use domain::time::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::Trust;
use crate::secrets::{Keyring, Secret, Unavailable};
use crate::wire::Incoming;

pub const SIGNATURE_HEADER: &str = "X-Worker-Signature";
pub const WORKER_HEADER: &str = "X-Worker-Id";
pub const TIMESTAMP_HEADER: &str = "X-Worker-Timestamp";

/// Document 1: a message is not older than five minutes; ours: nor newer, measured from the record.
const FRESHNESS_MS: u64 = 5 * 60 * 1000;
const V2_PREFIX: &str = "v2=";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the header {0} is missing, repeated or not text")]
    Header(&'static str),
    #[error("the signature does not match the body")]
    Signature,
    #[error("the signature is v1, and this deployment demands v2")]
    Version,
    #[error("X-Worker-Timestamp is {0} s away from the record's own time; 300 s are allowed")]
    Stale(u64),
    #[error("the worker is not on the allow-list")]
    UnknownWorker,
}

impl Refused {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Header(_) => "MISSING_HEADER",
            Self::Signature => "BAD_SIGNATURE",
            Self::Version => "SIGNATURE_VERSION",
            Self::Stale(_) => "STALE",
            Self::UnknownWorker => "UNKNOWN_WORKER",
        }
    }
}

/// A body whose signature was checked, and who signed it.
#[derive(Debug)]
pub struct Verified<'a> {
    body: &'a [u8],
    worker: &'a str,
}

impl<'a> Verified<'a> {
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    pub fn worker(&self) -> &'a str {
        self.worker
    }
}

/// Which worker may report what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowList(HashMap<String, Vec<String>>);

const DEFAULT_WORKERS: &str = "ton-deposit-watcher=DEPOSIT_CONFIRMED+DEPOSIT_ADDRESS_READY,\
    payout-executor=PAYOUT_COMPLETED,refund-executor=REFUND_COMPLETED,\
    auto-publisher=PUBLICATION_RESULT,delivery-verifier=VERIFICATION_RESULT,\
    reconciliation=RECONCILIATION_RESULT,deal-timeout=DEADLINE_REACHED,dlq-replay=*";

impl Default for AllowList {
    fn default() -> Self {
        Self::parse(DEFAULT_WORKERS).expect("the default is well formed")
    }
}

impl AllowList {
    /// `worker=TYPE+TYPE,worker=*`
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut workers = HashMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (worker, types) = entry
                .split_once('=')
                .filter(|(worker, types)| !worker.is_empty() && !types.is_empty())
                .ok_or_else(|| format!("{entry:?} is not worker=TYPE or worker=TYPE+TYPE"))?;
            let types = types.split('+').map(str::to_owned).collect();
            workers.insert(worker.to_owned(), types);
        }
        Ok(Self(workers))
    }

    /// The listed name of a worker: an instance suffix (`payout-executor-1`) is the same worker.
    pub fn worker(&self, id: &str) -> Option<&str> {
        let name = match id.rsplit_once('-') {
            Some((name, instance))
                if !instance.is_empty() && instance.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                name
            }
            Some(_) | None => id,
        };
        [id, name]
            .iter()
            .find_map(|name| self.0.get_key_value(*name))
            .map(|(name, _)| name.as_str())
    }

    pub fn may_report(&self, worker: &str, event_type: &str) -> bool {
        let types = self.worker(worker).and_then(|name| self.0.get(name));
        types.is_some_and(|types| types.iter().any(|each| each == "*" || each == event_type))
    }
}

/// Checks a record against the keys. Freshness is measured from the record's own timestamp, so that
/// an hour of backlog is not thrown away as too old.
pub fn verify<'a>(
    record: &'a Incoming,
    keyring: &Keyring,
    allow_list: &AllowList,
    require_v2: bool,
) -> Result<Verified<'a>, Refused> {
    let worker = header(record, WORKER_HEADER)?;
    let signature = header(record, SIGNATURE_HEADER)?;
    let timestamp = header(record, TIMESTAMP_HEADER)?;
    let name = allow_list.worker(worker).ok_or(Refused::UnknownWorker)?;
    let (hex_digest, is_v2) = match signature.strip_prefix(V2_PREFIX) {
        Some(rest) => (rest, true),
        None => (signature, false),
    };
    if require_v2 && !is_v2 {
        return Err(Refused::Version);
    }
    let digest = hex::decode(hex_digest).map_err(|_| Refused::Signature)?;
    let signed = if is_v2 { v2_prefix(worker, timestamp) } else { Vec::new() };
    let genuine = keyring.keys_of(name).any(|key| {
        let mut mac = hmac(key);
        mac.update(&signed);
        mac.update(&record.body);
        mac.verify_slice(&digest).is_ok()
    });
    if !genuine {
        return Err(Refused::Signature);
    }
    let sent_at = timestamp.parse().map_err(|_| Refused::Header(TIMESTAMP_HEADER))?;
    let distance = Timestamp::from_millis(sent_at).distance_ms(record.recorded_at);
    if distance > FRESHNESS_MS {
        return Err(Refused::Stale(distance / 1000));
    }
    Ok(Verified { body: &record.body, worker })
}

/// Checks a record against the keys as they are: they may have been rotated since they were read.
pub async fn verify_fresh<'a>(
    record: &'a Incoming,
    workers: &Secret<Keyring>,
    trust: &Trust,
) -> Result<Result<Verified<'a>, Refused>, Unavailable> {
    let with = |keys: &Keyring| verify(record, keys, &trust.allow_list, trust.require_v2);
    let first = with(&*workers.get().await?);
    if first.as_ref().err() != Some(&Refused::Signature) {
        return Ok(first);
    }
    Ok(with(&*workers.get_again().await?))
}

/// Document 1's signature.
pub fn sign_v1(key: &[u8], body: &[u8]) -> String {
    let mut mac = hmac(key);
    mac.update(body);
    hex::encode(mac.finalize().into_bytes())
}

/// Ours: the worker and its timestamp are signed too.
pub fn sign_v2(key: &[u8], worker: &str, timestamp_ms: i64, body: &[u8]) -> String {
    let mut mac = hmac(key);
    mac.update(&v2_prefix(worker, &timestamp_ms.to_string()));
    mac.update(body);
    format!("{V2_PREFIX}{}", hex::encode(mac.finalize().into_bytes()))
}

fn v2_prefix(worker: &str, timestamp: &str) -> Vec<u8> {
    format!("{worker}.{timestamp}.").into_bytes()
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn header<'a>(record: &'a Incoming, name: &'static str) -> Result<&'a str, Refused> {
    let mut found = record.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    let value = found.next().and_then(|header| header.value.as_deref());
    // Two values for one header: whoever verifies one and obeys the other has been fooled.
    if found.next().is_some() {
        return Err(Refused::Header(name));
    }
    let text = value.and_then(|value| std::str::from_utf8(value).ok()).map(str::trim);
    text.filter(|text| !text.is_empty() && text.len() <= 256).ok_or(Refused::Header(name))
}
