//! The workers' keys, from Secrets Manager: AWSCURRENT and, while a rotation lasts, AWSPREVIOUS.
//! Cached; a failed verification may ask again, but not more often than the cool-down allows, so
//! that forged records cannot turn into a flood of calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_secretsmanager::Client;
use tokio::sync::Mutex;

const FRESH: Duration = Duration::from_secs(300);
const COOL_DOWN: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
#[error("the workers' secret {id} cannot be read: {reason}")]
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

struct Cached {
    keyring: Arc<Keyring>,
    read_at: Instant,
}

pub struct Secrets {
    client: Client,
    id: String,
    cached: Mutex<Option<Cached>>,
}

impl Secrets {
    pub fn new(client: Client, id: String) -> Self {
        Self { client, id, cached: Mutex::new(None) }
    }

    pub async fn keyring(&self) -> Result<Arc<Keyring>, Unavailable> {
        self.no_older_than(FRESH).await
    }

    /// After a signature did not match: the keys as they are now, unless that was asked just before.
    pub async fn keyring_again(&self) -> Result<Arc<Keyring>, Unavailable> {
        self.no_older_than(COOL_DOWN).await
    }

    async fn no_older_than(&self, age: Duration) -> Result<Arc<Keyring>, Unavailable> {
        let mut cached = self.cached.lock().await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.read_at.elapsed() < age) {
            return Ok(cached.keyring.clone());
        }
        let current =
            self.read("AWSCURRENT").await?.ok_or_else(|| self.unavailable("not found"))?;
        let previous = self.read("AWSPREVIOUS").await?;
        let secrets = [Some(current), previous].into_iter().flatten().collect::<Vec<_>>();
        let keyring = Arc::new(Keyring::from_secrets(secrets.iter().map(String::as_str)));
        *cached = Some(Cached { keyring: keyring.clone(), read_at: Instant::now() });
        Ok(keyring)
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
