//! Secrets, from Secrets Manager: AWSCURRENT and, while a rotation lasts, AWSPREVIOUS. Cached; what
//! does not match may ask again, but not more often than the cool-down allows, so that forged
//! records cannot turn into a flood of calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_secretsmanager::Client;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::Mutex;

const FRESH: Duration = Duration::from_secs(300);
const COOL_DOWN: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
#[error("the secret {id} cannot be read: {reason}")]
pub struct Unavailable {
    id: String,
    reason: String,
}

/// The keys that are valid now: one shared key, or one per worker with `*` for all others.
#[derive(Clone, Default)]
pub struct Keyring {
    versions: Vec<HashMap<String, Vec<u8>>>,
}

impl Keyring {
    /// A secret is either the shared key itself or a JSON object of worker name to key.
    pub fn from_secrets<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let versions = secrets.into_iter().map(|secret| {
            let per_worker = serde_json::from_str::<HashMap<String, String>>(secret);
            per_worker.map_or_else(
                |_| HashMap::from([("*".to_owned(), secret.as_bytes().to_vec())]),
                |keys| keys.into_iter().map(|(name, key)| (name, key.into_bytes())).collect(),
            )
        });
        Self { versions: versions.collect() }
    }

    pub fn keys_of<'a>(&'a self, worker: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let keys = self.versions.iter();
        let keys = keys.filter_map(move |version| version.get(worker).or_else(|| version.get("*")));
        // An empty key would let anybody sign.
        keys.map(Vec::as_slice).filter(|key| !key.is_empty())
    }
}

/// The keys that callers of `/internal/*` may send.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<Vec<u8>>);

impl ApiKeys {
    /// In constant time, whatever is sent.
    pub fn admit(&self, sent: &[u8]) -> bool {
        let sent = Sha256::digest(sent);
        self.0.iter().fold(false, |found, key| {
            found | bool::from(Sha256::digest(key).as_slice().ct_eq(sent.as_slice()))
        })
    }
}

/// What a secret means, read from its valid versions.
pub trait FromVersions {
    fn from_versions(versions: &[String]) -> Self;
}

impl FromVersions for Keyring {
    fn from_versions(versions: &[String]) -> Self {
        Self::from_secrets(versions.iter().map(String::as_str))
    }
}

impl FromVersions for ApiKeys {
    fn from_versions(versions: &[String]) -> Self {
        let keys = versions.iter().map(|key| key.trim().as_bytes().to_vec());
        Self(keys.filter(|key| !key.is_empty()).collect())
    }
}

struct Cached<T> {
    value: Arc<T>,
    read_at: Instant,
}

pub struct Secret<T> {
    client: Client,
    id: String,
    cached: Mutex<Option<Cached<T>>>,
}

impl<T: FromVersions> Secret<T> {
    pub fn new(client: Client, id: String) -> Self {
        Self { client, id, cached: Mutex::new(None) }
    }

    pub async fn get(&self) -> Result<Arc<T>, Unavailable> {
        self.no_older_than(FRESH).await
    }

    /// After something did not match: the secret as it is now, unless that was asked just before.
    pub async fn get_again(&self) -> Result<Arc<T>, Unavailable> {
        self.no_older_than(COOL_DOWN).await
    }

    async fn no_older_than(&self, age: Duration) -> Result<Arc<T>, Unavailable> {
        let mut cached = self.cached.lock().await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.read_at.elapsed() < age) {
            return Ok(cached.value.clone());
        }
        let current =
            self.read("AWSCURRENT").await?.ok_or_else(|| self.unavailable("not found"))?;
        let previous = self.read("AWSPREVIOUS").await?;
        let versions = [Some(current), previous].into_iter().flatten().collect::<Vec<_>>();
        let value = Arc::new(T::from_versions(&versions));
        *cached = Some(Cached { value: value.clone(), read_at: Instant::now() });
        Ok(value)
    }

    async fn read(&self, stage: &str) -> Result<Option<String>, Unavailable> {
        let answer = self.client.get_secret_value().secret_id(&self.id).version_stage(stage).send();
        match answer.await {
            Ok(answer) => Ok(answer.secret_string),
            Err(error) => {
                let error = error.into_service_error();
                if error.is_resource_not_found_exception() {
                    return Ok(None);
                }
                Err(self.unavailable(
                    &aws_smithy_types::error::display::DisplayErrorContext(&error).to_string(),
                ))
            }
        }
    }

    fn unavailable(&self, reason: &str) -> Unavailable {
        Unavailable { id: self.id.clone(), reason: reason.to_owned() }
    }
}
