//! Typed settings from the environment. What is missing or bad is named together with what it
//! should look like, and stops the function before it takes a single record.

use std::collections::HashMap;
use std::str::FromStr;

use domain::money::{BasisPoints, Nano};
use domain::policy::Policy;
use domain::state::Status;
use ipnet::IpNet;

use crate::catalog::RESULT_FUNCTIONS;
use crate::signature::AllowList;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the environment variable {name} is not set: {hint}")]
    Missing { name: &'static str, hint: &'static str },
    #[error("the environment variable {name} is {value:?}: {hint}")]
    Bad { name: &'static str, value: String, hint: String },
}

/// The tables that the money path writes.
#[derive(Debug, Clone)]
pub struct Tables {
    pub deals: String,
    pub journal: String,
    pub processed: String,
    pub outbox: String,
    pub operations: String,
}

/// Where records go that are not done with.
#[derive(Debug, Clone)]
pub struct LetterQueues {
    pub retry_url: String,
    pub dlq_url: String,
}

#[derive(Debug, Clone)]
pub struct Queues {
    pub letters: LetterQueues,
    pub doorbell_url: String,
}

#[derive(Debug, Clone)]
pub struct Trust {
    pub secret_id: String,
    pub allow_list: AllowList,
    pub require_v2: bool,
}

#[derive(Debug, Clone)]
pub struct Config {
    pub tables: Tables,
    pub queues: Queues,
    pub trust: Trust,
    pub policy: Policy,
    /// `topic-partition-offset` of records to park unread.
    pub skip_records: Vec<String>,
}

/// What `deal-transition` needs besides.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    pub api_key_secret_id: String,
    pub allowed_networks: Vec<IpNet>,
}

/// What `unclaimed-results` needs: no money, no keys.
#[derive(Debug, Clone)]
pub struct UnclaimedConfig {
    pub operations_table: String,
    pub letters: LetterQueues,
    /// Function name to retry queue.
    pub forward_queues: HashMap<String, String>,
    pub skip_records: Vec<String>,
}

pub const HTTP_VARIABLES: &[&str] = &["INTERNAL_ALLOWED_NETWORKS", "INTERNAL_API_KEY_SECRET_ID"];

pub const UNCLAIMED_VARIABLES: &[&str] = &[
    "DLQ_URL",
    "FORWARD_QUEUES",
    "LOG_LEVEL",
    "METRICS_NAMESPACE",
    "OPERATIONS_TABLE",
    "RETRY_QUEUE_URL",
    "SKIP_RECORDS",
];

pub const TABLE: &str = "set it to a table's name, as template.yaml does";
pub const QUEUE: &str = "set it to a queue's URL, as template.yaml does";

/// Every variable that `Config` reads: the template must set exactly these.
pub const VARIABLES: &[&str] = &[
    "ALLOWED_WORKERS",
    "COMMISSION_BPS",
    "DEALS_TABLE",
    "DEAL_TIMEOUTS",
    "DLQ_URL",
    "DOORBELL_QUEUE_URL",
    "JOURNAL_TABLE",
    "LOG_LEVEL",
    "METRICS_NAMESPACE",
    "MIN_REFUND_NANO",
    "OPERATIONS_TABLE",
    "OUTBOX_TABLE",
    "PROCESSED_TABLE",
    "REQUIRED_CONFIRMATIONS",
    "REQUIRE_SIGNATURE_V2",
    "RETRY_QUEUE_URL",
    "SETTLEMENT_DUE_SECS",
    "SKIP_RECORDS",
    "VERIFICATION_GRACE_SECS",
    "WORKER_SECRET_ID",
];

impl Config {
    pub fn from_env() -> Result<Self, Error> {
        Self::read(&std::env::vars().collect())
    }

    pub fn read(env: &HashMap<String, String>) -> Result<Self, Error> {
        let defaults = Policy::default();
        let mut policy = Policy {
            required_confirmations: number(
                env,
                "REQUIRED_CONFIRMATIONS",
                defaults.required_confirmations,
            )?,
            min_refund: Nano::new(number(env, "MIN_REFUND_NANO", defaults.min_refund.get())?),
            commission: BasisPoints::new(number(env, "COMMISSION_BPS", defaults.commission.get())?)
                .ok_or_else(|| bad(env, "COMMISSION_BPS", "at most 10000 basis points"))?,
            settlement_due_secs: number(env, "SETTLEMENT_DUE_SECS", defaults.settlement_due_secs)?,
            verification_grace_secs: number(
                env,
                "VERIFICATION_GRACE_SECS",
                defaults.verification_grace_secs,
            )?,
            timeouts: defaults.timeouts,
        };
        if policy.required_confirmations == 0 || policy.min_refund < Nano::ZERO {
            let name = if policy.required_confirmations == 0 {
                "REQUIRED_CONFIRMATIONS"
            } else {
                "MIN_REFUND_NANO"
            };
            return Err(bad(env, name, "a positive whole number is needed"));
        }
        read_timeouts(env, &mut policy)?;
        let allow_list = match text(env, "ALLOWED_WORKERS") {
            Some(list) => {
                AllowList::parse(list).map_err(|hint| bad(env, "ALLOWED_WORKERS", hint))?
            }
            None => AllowList::default(),
        };
        Ok(Self {
            tables: Tables {
                deals: required(env, "DEALS_TABLE", TABLE)?,
                journal: required(env, "JOURNAL_TABLE", TABLE)?,
                processed: required(env, "PROCESSED_TABLE", TABLE)?,
                outbox: required(env, "OUTBOX_TABLE", TABLE)?,
                operations: required(env, "OPERATIONS_TABLE", TABLE)?,
            },
            queues: Queues {
                letters: letter_queues(env)?,
                doorbell_url: required(env, "DOORBELL_QUEUE_URL", QUEUE)?,
            },
            trust: Trust {
                secret_id: required(
                    env,
                    "WORKER_SECRET_ID",
                    "set it to the name or ARN of the workers' secret",
                )?,
                allow_list,
                require_v2: flag(env, "REQUIRE_SIGNATURE_V2")?,
            },
            policy,
            skip_records: list(text(env, "SKIP_RECORDS").unwrap_or_default()),
        })
    }
}

impl HttpConfig {
    pub fn from_env() -> Result<Self, Error> {
        Self::read(&std::env::vars().collect())
    }

    pub fn read(env: &HashMap<String, String>) -> Result<Self, Error> {
        const NETWORKS: &str = "INTERNAL_ALLOWED_NETWORKS";
        let hint = "set it to networks such as 172.18.0.0/16, separated by commas";
        let mut allowed_networks = Vec::new();
        for entry in list(&required(env, NETWORKS, hint)?) {
            let network = entry.parse();
            let bad = |_| bad(env, NETWORKS, format!("{entry:?} is no network in CIDR form"));
            allowed_networks.push(network.map_err(bad)?);
        }
        let hint = "set it to the name or ARN of the secret with the internal API key";
        let api_key_secret_id = required(env, "INTERNAL_API_KEY_SECRET_ID", hint)?;
        Ok(Self { api_key_secret_id, allowed_networks })
    }
}

impl UnclaimedConfig {
    pub fn from_env() -> Result<Self, Error> {
        Self::read(&std::env::vars().collect())
    }

    pub fn read(env: &HashMap<String, String>) -> Result<Self, Error> {
        const QUEUES: &str = "FORWARD_QUEUES";
        let hint = "set it to function=queue URL for each result function, separated by commas";
        let mut forward_queues = HashMap::new();
        for entry in list(&required(env, QUEUES, hint)?) {
            let (function, url) = entry
                .split_once('=')
                .ok_or_else(|| bad(env, QUEUES, format!("{entry:?} is not function=URL")))?;
            forward_queues.insert(function.to_owned(), url.to_owned());
        }
        let missing = RESULT_FUNCTIONS.iter().find(|each| !forward_queues.contains_key(each.name));
        if let Some(function) = missing {
            return Err(bad(env, QUEUES, format!("the queue of {} is missing", function.name)));
        }
        Ok(Self {
            operations_table: required(env, "OPERATIONS_TABLE", TABLE)?,
            letters: letter_queues(env)?,
            forward_queues,
            skip_records: list(text(env, "SKIP_RECORDS").unwrap_or_default()),
        })
    }
}

fn letter_queues(env: &HashMap<String, String>) -> Result<LetterQueues, Error> {
    Ok(LetterQueues {
        retry_url: required(env, "RETRY_QUEUE_URL", QUEUE)?,
        dlq_url: required(env, "DLQ_URL", QUEUE)?,
    })
}

fn read_timeouts(env: &HashMap<String, String>, policy: &mut Policy) -> Result<(), Error> {
    const NAME: &str = "DEAL_TIMEOUTS";
    for entry in list(text(env, NAME).unwrap_or_default()) {
        let parsed = entry.split_once('=').and_then(|(status, secs)| {
            let secs = secs.parse().ok().filter(|secs| *secs > 0)?;
            Some((Status::parse(status)?, secs))
        });
        let known = parsed.is_some_and(|(status, secs)| policy.timeouts.set(status, secs));
        if !known {
            let hint = format!("{entry:?} is not STATE=seconds of a state that has a timeout");
            return Err(bad(env, NAME, hint));
        }
    }
    Ok(())
}

fn list(text: &str) -> Vec<String> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(str::to_owned).collect()
}

pub fn text<'a>(env: &'a HashMap<String, String>, name: &'static str) -> Option<&'a str> {
    env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

pub fn required(
    env: &HashMap<String, String>,
    name: &'static str,
    hint: &'static str,
) -> Result<String, Error> {
    text(env, name).map(str::to_owned).ok_or(Error::Missing { name, hint })
}

pub fn number<N: FromStr>(
    env: &HashMap<String, String>,
    name: &'static str,
    default: N,
) -> Result<N, Error> {
    match text(env, name) {
        Some(value) => {
            value.parse().map_err(|_| bad(env, name, "a positive whole number is needed"))
        }
        None => Ok(default),
    }
}

pub fn flag(env: &HashMap<String, String>, name: &'static str) -> Result<bool, Error> {
    match text(env, name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(bad(env, name, "true or false is needed")),
    }
}

pub fn bad(env: &HashMap<String, String>, name: &'static str, hint: impl Into<String>) -> Error {
    let value = env.get(name).cloned().unwrap_or_default();
    Error::Bad { name, value, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> HashMap<String, String> {
        VARIABLES
            .iter()
            .filter(|name| {
                name.ends_with("_TABLE") || name.ends_with("_URL") || name.ends_with("_ID")
            })
            .map(|name| ((*name).to_owned(), format!("the-{name}")))
            .collect()
    }

    #[test]
    fn the_defaults_are_the_documents() {
        let config = Config::read(&complete()).unwrap();
        assert_eq!(config.policy, Policy::default());
        assert!(!config.trust.require_v2);
        assert_eq!(config.skip_records, Vec::<String>::new());
    }

    #[test]
    fn a_missing_variable_is_named() {
        for name in complete().into_keys() {
            let mut env = complete();
            env.insert(name.clone(), " ".to_owned());
            let error = Config::read(&env).unwrap_err().to_string();
            assert!(error.contains(&name) && error.contains("set it to"), "{error}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_needed() {
        let cases = [
            ("REQUIRED_CONFIRMATIONS", "three", "positive whole number"),
            ("REQUIRED_CONFIRMATIONS", "0", "positive whole number"),
            ("MIN_REFUND_NANO", "-1", "positive whole number"),
            ("COMMISSION_BPS", "10001", "at most 10000"),
            ("REQUIRE_SIGNATURE_V2", "yes", "true or false"),
            ("DEAL_TIMEOUTS", "FUNDED=0", "STATE=seconds"),
            ("DEAL_TIMEOUTS", "DRAFT=5", "STATE=seconds"),
            ("DEAL_TIMEOUTS", "FUNDED=60,LOST=5", "LOST=5"),
            ("ALLOWED_WORKERS", "payout-executor", "worker=TYPE"),
        ];
        for (name, value, hint) in cases {
            let mut env = complete();
            env.insert(name.to_owned(), value.to_owned());
            let error = Config::read(&env).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(hint), "{error}");
        }
    }

    #[test]
    fn a_timeout_can_be_set_per_state() {
        let mut env = complete();
        env.insert("DEAL_TIMEOUTS".to_owned(), "FUNDED=60, DISPUTED=90".to_owned());
        let timeouts = Config::read(&env).unwrap().policy.timeouts;
        assert_eq!(timeouts.secs(Status::Funded), Some(60));
        assert_eq!(timeouts.secs(Status::Disputed), Some(90));
        assert_eq!(timeouts.secs(Status::OfferPending), Some(172_800));
    }
}
