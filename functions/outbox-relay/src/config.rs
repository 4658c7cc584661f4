//! The relay's settings: document 3's names and defaults, and how to reach the brokers.

use std::collections::HashMap;
use std::time::Duration;

use platform::config::{Error, QUEUE, TABLE, bad, flag, number, required, text};

/// Every variable that the relay reads: the template must set exactly these.
pub const VARIABLES: &[&str] = &[
    "DLQ_URL",
    "DOORBELL_QUEUE_URL",
    "KAFKA_AUTH",
    "KAFKA_BROKERS",
    "KAFKA_SECRET_ID",
    "KAFKA_TOPIC_PREFIX",
    "LOG_LEVEL",
    "METRICS_NAMESPACE",
    "OPERATIONS_TABLE",
    "OUTBOX_BASE_DELAY_SECONDS",
    "OUTBOX_BATCH_SIZE",
    "OUTBOX_MAX_DELAY_SECONDS",
    "OUTBOX_MAX_MESSAGE_BYTES",
    "OUTBOX_MAX_RETRIES",
    "OUTBOX_POLL_INTERVAL_SECONDS",
    "OUTBOX_TABLE",
    "REQUIRE_SIGNATURE_V2",
    "WORKER_SECRET_ID",
];

#[derive(Debug, Clone)]
pub struct Config {
    pub outbox_table: String,
    pub operations_table: String,
    pub dlq_url: String,
    pub doorbell_url: String,
    /// What the relay signs with, as the worker `outbox-relay`.
    pub secret_id: String,
    pub signs_v2: bool,
    pub kafka: Kafka,
    /// Of the one dead-letter topic.
    pub topic_prefix: String,
    /// Rows of a page.
    pub batch_size: u32,
    /// How long the relay waits before it looks again within an invocation.
    pub poll_interval: Duration,
    pub retries: Retries,
    pub max_message_bytes: usize,
}

#[derive(Debug, Clone)]
pub struct Kafka {
    pub brokers: String,
    pub auth: Auth,
}

/// How to log in to the brokers. All but `None` is over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// No encryption and no login: for a broker on this machine.
    None,
    /// With the function's own role, as MSK has it.
    Iam { region: String },
    /// SCRAM-SHA-512, with user name and password from this secret.
    Scram { secret_id: String },
    /// The same with SASL/PLAIN, for brokers that know nothing better.
    Plain { secret_id: String },
}

/// Of messages that fail by their own fault.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    pub max: u32,
    pub base: Duration,
    pub longest: Duration,
}

impl Config {
    pub fn from_env() -> Result<Self, Error> {
        Self::read(&std::env::vars().collect())
    }

    pub fn read(env: &HashMap<String, String>) -> Result<Self, Error> {
        let secret = "set it to the name or ARN of the workers' secret";
        // Document 3's name for the same.
        let brokers = text(env, "KAFKA_BROKERS").or_else(|| text(env, "REDPANDA_BROKERS"));
        Ok(Self {
            outbox_table: required(env, "OUTBOX_TABLE", TABLE)?,
            operations_table: required(env, "OPERATIONS_TABLE", TABLE)?,
            dlq_url: required(env, "DLQ_URL", QUEUE)?,
            doorbell_url: required(env, "DOORBELL_QUEUE_URL", QUEUE)?,
            secret_id: required(env, "WORKER_SECRET_ID", secret)?,
            signs_v2: flag(env, "REQUIRE_SIGNATURE_V2")?,
            kafka: Kafka {
                brokers: brokers.unwrap_or("localhost:19092").to_owned(),
                auth: auth(env)?,
            },
            topic_prefix: text(env, "KAFKA_TOPIC_PREFIX").unwrap_or("payments").to_owned(),
            batch_size: batch_size(env)?,
            poll_interval: seconds(env, "OUTBOX_POLL_INTERVAL_SECONDS", 1000)?,
            retries: Retries {
                max: number(env, "OUTBOX_MAX_RETRIES", 5)?,
                base: seconds(env, "OUTBOX_BASE_DELAY_SECONDS", 1000)?,
                longest: seconds(env, "OUTBOX_MAX_DELAY_SECONDS", 60_000)?,
            },
            max_message_bytes: number(env, "OUTBOX_MAX_MESSAGE_BYTES", 1_000_000)?,
        })
    }

    pub fn dead_letter_topic(&self) -> String {
        format!("{}.dlq", self.topic_prefix)
    }
}

fn auth(env: &HashMap<String, String>) -> Result<Auth, Error> {
    const NAME: &str = "KAFKA_AUTH";
    let hint = "set it to the secret with the brokers' user name and password";
    let secret_id = || required(env, "KAFKA_SECRET_ID", hint);
    Ok(match text(env, NAME) {
        None | Some("none") => Auth::None,
        Some("iam") => {
            let region = required(env, "AWS_REGION", "Lambda sets it; it is the cluster's region")?;
            Auth::Iam { region }
        }
        Some("scram") => Auth::Scram { secret_id: secret_id()? },
        Some("plain") => Auth::Plain { secret_id: secret_id()? },
        Some(_) => return Err(bad(env, NAME, "iam, scram, plain or none is needed")),
    })
}

fn batch_size(env: &HashMap<String, String>) -> Result<u32, Error> {
    const NAME: &str = "OUTBOX_BATCH_SIZE";
    match number(env, NAME, 100)? {
        size @ 1..=1000 => Ok(size),
        _ => Err(bad(env, NAME, "a whole number from 1 to 1000 is needed")),
    }
}

/// Seconds with a fraction, as document 3 has them.
fn seconds(
    env: &HashMap<String, String>,
    name: &'static str,
    default_ms: u64,
) -> Result<Duration, Error> {
    let Some(value) = text(env, name) else { return Ok(Duration::from_millis(default_ms)) };
    let parsed = value.parse().ok().and_then(|secs| Duration::try_from_secs_f64(secs).ok());
    parsed.ok_or_else(|| bad(env, name, "a number of seconds such as 1.0 is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(more: &[(&str, &str)]) -> HashMap<String, String> {
        let needed = [
            "OUTBOX_TABLE",
            "OPERATIONS_TABLE",
            "DLQ_URL",
            "DOORBELL_QUEUE_URL",
            "WORKER_SECRET_ID",
        ];
        let needed = needed.map(|name| (name.to_owned(), format!("the-{name}")));
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        needed.into_iter().chain(more).collect()
    }

    #[test]
    fn the_defaults_are_document_3s() {
        let config = Config::read(&env(&[])).unwrap();
        assert_eq!(config.kafka.brokers, "localhost:19092");
        assert_eq!(config.kafka.auth, Auth::None);
        assert_eq!(config.dead_letter_topic(), "payments.dlq");
        assert_eq!((config.batch_size, config.retries.max), (100, 5));
        let times = (config.poll_interval, config.retries.base, config.retries.longest);
        assert_eq!(
            times,
            (Duration::from_secs(1), Duration::from_secs(1), Duration::from_secs(60))
        );
    }

    #[test]
    fn the_brokers_go_by_either_name() {
        let config = Config::read(&env(&[("REDPANDA_BROKERS", "one:9092")])).unwrap();
        assert_eq!(config.kafka.brokers, "one:9092");
        let both = [("REDPANDA_BROKERS", "one:9092"), ("KAFKA_BROKERS", "two:9092")];
        assert_eq!(Config::read(&env(&both)).unwrap().kafka.brokers, "two:9092");
    }

    #[test]
    fn a_login_needs_what_it_logs_in_with() {
        let scram = env(&[("KAFKA_AUTH", "scram"), ("KAFKA_SECRET_ID", "login")]);
        let auth = Config::read(&scram).unwrap().kafka.auth;
        assert_eq!(auth, Auth::Scram { secret_id: "login".to_owned() });
        let iam = env(&[("KAFKA_AUTH", "iam"), ("AWS_REGION", "eu-west-1")]);
        let auth = Config::read(&iam).unwrap().kafka.auth;
        assert_eq!(auth, Auth::Iam { region: "eu-west-1".to_owned() });
        for (mechanism, missing) in
            [("scram", "KAFKA_SECRET_ID"), ("plain", "KAFKA_SECRET_ID"), ("iam", "AWS_REGION")]
        {
            let error = Config::read(&env(&[("KAFKA_AUTH", mechanism)])).unwrap_err().to_string();
            assert!(error.contains(missing) && error.contains("set"), "{error}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_needed() {
        let cases = [
            ("KAFKA_AUTH", "kerberos", "iam, scram, plain or none"),
            ("OUTBOX_BATCH_SIZE", "0", "from 1 to 1000"),
            ("OUTBOX_BATCH_SIZE", "1001", "from 1 to 1000"),
            ("OUTBOX_MAX_RETRIES", "-1", "positive whole number"),
            ("OUTBOX_POLL_INTERVAL_SECONDS", "soon", "seconds such as 1.0"),
            ("OUTBOX_BASE_DELAY_SECONDS", "-1", "seconds such as 1.0"),
            ("OUTBOX_MAX_DELAY_SECONDS", "inf", "seconds such as 1.0"),
            ("REQUIRE_SIGNATURE_V2", "yes", "true or false"),
        ];
        for (name, value, hint) in cases {
            let error = Config::read(&env(&[(name, value)])).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(hint), "{error}");
        }
    }
}
