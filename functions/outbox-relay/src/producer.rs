//! The Kafka side: one record at a time, acknowledged by all in-sync replicas, and whose fault it is when
//! it is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use platform::secrets::{Secret, Unavailable};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _, PurgeConfig};
use rdkafka::{ClientConfig, util::Timeout};

use crate::config::{Auth, Kafka};
use crate::login::{self, Login};

/// A record that has no answer by then has none: well within a function's time.
const DELIVERY: Duration = Duration::from_secs(10);
/// What Kafka adds to a record on its way, at most.
const OVERHEAD_BYTES: usize = 1024;

/// Whose fault it is that a record was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The record's: no try will ever succeed unless something about it changes.
    Record { error: String, is_oversized: bool },
    /// The topic's: it is unknown, or not ours to write.
    Topic(String),
    /// Nobody's: there was no answer.
    Transport(String),
}

/// A record on its way.
#[derive(Debug, Clone)]
pub struct Record<'a> {
    pub topic: &'a str,
    pub key: &'a str,
    pub headers: Vec<(&'static str, String)>,
    pub body: &'a [u8],
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Secret(#[from] Unavailable),
    #[error("{0}")]
    Login(String),
    #[error("Kafka's settings are wrong: {0}")]
    Settings(#[from] KafkaError),
}

pub struct Producer {
    kafka: Kafka,
    max_bytes: usize,
    login: Option<Secret<Login>>,
    clients: Mutex<Option<Clients>>,
    /// Passes run side by side; one of them makes the clients for all.
    preparing: tokio::sync::Mutex<()>,
}

type Client = FutureProducer<Told>;

#[derive(Clone)]
struct Clients {
    /// Many records to a batch.
    many: Client,
    /// Each record in a batch of its own: brokers refuse a whole batch for one of its records. Made when
    /// that first happens.
    alone: Arc<OnceLock<Client>>,
    settings: ClientConfig,
    told: Told,
    login: Option<Arc<Login>>,
}

/// What librdkafka has to tell beside answers: a wrong password shows nowhere else.
#[derive(Clone)]
struct Told {
    auth: Auth,
    last_error: Arc<Mutex<Option<String>>>,
    /// The brokers did not let us in: whatever was told after that.
    refused: Arc<AtomicBool>,
}

impl ClientContext for Told {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::warn!(facility, "kafka: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::error!(%error, "kafka: {reason}");
        let code = error.rdkafka_error_code();
        if matches!(code, Some(Code::Authentication | Code::SaslAuthenticationFailed)) {
            self.refused.store(true, Ordering::Relaxed);
        }
        *self.last_error() = Some(reason.to_owned());
    }

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        match &self.auth {
            Auth::Iam { region } => Ok(login::msk_token(region)?),
            Auth::None | Auth::Scram { .. } | Auth::Plain { .. } => Err("no token is used".into()),
        }
    }
}

impl Told {
    fn last_error(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused_login(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn explain(&self, error: String) -> String {
        match &*self.last_error() {
            Some(reason) => format!("{error}; Kafka's client told: {reason}"),
            None => error,
        }
    }
}

impl Producer {
    /// `secrets` is where the brokers' user name and password are, if they want one.
    pub fn new(kafka: Kafka, max_bytes: usize, secrets: &aws_sdk_secretsmanager::Client) -> Self {
        let login = match &kafka.auth {
            Auth::None | Auth::Iam { .. } => None,
            Auth::Scram { secret_id } | Auth::Plain { secret_id } => {
                Some(Secret::new(secrets.clone(), secret_id.clone()))
            }
        };
        Self {
            kafka,
            max_bytes,
            login,
            clients: Mutex::default(),
            preparing: tokio::sync::Mutex::default(),
        }
    }

    /// Makes sure that there is a client which the brokers may let in, before records are sent. One
    /// whose login was refused, or who lost his place for good, is replaced.
    pub async fn prepare(&self) -> Result<(), Error> {
        let _alone = self.preparing.lock().await;
        let current = self.current();
        let login = match &self.login {
            None => None,
            Some(secret)
                if current.as_ref().is_some_and(|clients| clients.told.refused_login()) =>
            {
                Some(secret.get_again().await?)
            }
            Some(secret) => Some(secret.get().await?),
        };
        if let Some(clients) = current {
            let dead = clients.all().find_map(|client| client.client().fatal_error());
            let is_same = clients.login.as_deref() == login.as_deref();
            if dead.is_none() && is_same {
                return Ok(());
            }
            tracing::warn!(?dead, new_login = !is_same, "the producer is replaced");
        }
        let made = self.make(login)?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = clients.replace(made);
        drop(clients);
        // It says farewell to the brokers, which takes its time.
        drop(replaced);
        Ok(())
    }

    fn current(&self) -> Option<Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn make(&self, login: Option<Arc<Login>>) -> Result<Clients, Error> {
        let mut settings = ClientConfig::new();
        settings
            .set("bootstrap.servers", &self.kafka.brokers)
            .set("client.id", "outbox-relay")
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // The partition that Java's clients choose for the same key.
            .set("partitioner", "murmur2_random")
            // A lane waits for each answer: all lanes send at once, so there is little to wait for.
            .set("linger.ms", "1")
            .set("message.timeout.ms", DELIVERY.as_millis().to_string())
            .set("request.timeout.ms", "5000")
            .set("socket.timeout.ms", "10000")
            .set("reconnect.backoff.max.ms", "1000")
            .set("allow.auto.create.topics", "false")
            // A missing topic is told soon, and one that was made is found soon.
            .set("topic.metadata.propagation.max.ms", "2000")
            .set("topic.metadata.refresh.interval.ms", "10000")
            .set("message.max.bytes", (self.max_bytes + OVERHEAD_BYTES).to_string())
            .set_log_level(RDKafkaLogLevel::Warning);
        login::settings(&mut settings, &self.kafka.auth, login.as_deref()).map_err(Error::Login)?;
        let auth = self.kafka.auth.clone();
        let told = Told { auth, last_error: Arc::default(), refused: Arc::default() };
        let many = settings.create_with_context(told.clone())?;
        settings.set("batch.num.messages", "1");
        Ok(Clients { many, alone: Arc::default(), settings, told, login })
    }

    /// Returns once the broker has it, or once it surely will not by this call.
    pub async fn send(&self, record: &Record<'_>, within: Duration) -> Result<(), Failure> {
        let headers: usize =
            record.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let bytes = record.body.len() + record.key.len() + headers;
        if bytes > self.max_bytes {
            let error = format!("{bytes} bytes are more than {}", self.max_bytes);
            return Err(Failure::Record { error, is_oversized: true });
        }
        let Some(clients) = self.current() else {
            return Err(Failure::Transport("there is no producer".to_owned()));
        };
        let begun = Instant::now();
        let done = match deliver(&clients.many, record, within).await {
            // It may have been another record of its batch.
            Err(Failure::Record { .. }) => match clients.alone() {
                Ok(alone) => deliver(alone, record, within.saturating_sub(begun.elapsed())).await,
                Err(error) => Err(Failure::Transport(error.to_string())),
            },
            done => done,
        };
        match done {
            Ok(()) => {
                clients.told.last_error().take();
                clients.told.refused.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(Failure::Transport(error)) => Err(Failure::Transport(clients.told.explain(error))),
            Err(failure) => Err(failure),
        }
    }

    /// Forgets what is on its way: a sandbox that is frozen now must not send it when it thaws.
    pub async fn forget(&self) {
        let records = self.on_their_way();
        if records == 0 {
            return;
        }
        tracing::warn!(records, "forgotten on their way");
        for client in self.current().iter().flat_map(Clients::all) {
            client.purge(PurgeConfig::default().queue().inflight());
        }
        // Each is answered by another thread that it was forgotten.
        for _ in 0..200 {
            if self.on_their_way() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tracing::error!("some records could not be forgotten");
    }

    pub fn on_their_way(&self) -> i32 {
        self.current().iter().flat_map(Clients::all).map(|client| client.in_flight_count()).sum()
    }
}

impl Clients {
    fn all(&self) -> impl Iterator<Item = &Client> {
        std::iter::once(&self.many).chain(self.alone.get())
    }

    fn alone(&self) -> Result<&Client, KafkaError> {
        if let Some(alone) = self.alone.get() {
            return Ok(alone);
        }
        let made = self.settings.create_with_context(self.told.clone())?;
        Ok(self.alone.get_or_init(|| made))
    }
}

async fn deliver(client: &Client, record: &Record<'_>, within: Duration) -> Result<(), Failure> {
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for (name, value) in &record.headers {
        headers = headers.insert(Header { key: name, value: Some(value) });
    }
    let message =
        FutureRecord::to(record.topic).key(record.key).payload(record.body).headers(headers);
    let sent = tokio::time::timeout(within, client.send(message, Timeout::After(within)));
    match sent.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err((error, _))) => Err(judge(&error)),
        Err(_) => Err(Failure::Transport("no answer in the time that was left".to_owned())),
    }
}

fn judge(error: &KafkaError) -> Failure {
    let told = error.to_string();
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge) => Failure::Record { error: told, is_oversized: true },
        Some(
            Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord
            | Code::InvalidTimestamp
            | Code::InvalidArgument
            | Code::PolicyViolation,
        ) => Failure::Record { error: told, is_oversized: false },
        Some(
            Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::TopicAuthorizationFailed,
        ) => Failure::Topic(told),
        _ => Failure::Transport(told),
    }
}
