//! Works on buckets of the outbox, pass after pass, until nothing is left that can be done now.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::plan::outbox_position;
use domain::time::Timestamp;
use futures::future::join_all;
use platform::aws::Clients;
use platform::catalog::OUTBOX_RELAY;
use platform::clock;
use platform::config::LetterQueues;
use platform::doorbell::Doorbell;
use platform::letter::{self, Letters};
use platform::outbox::Outbox;
use platform::secrets::{Keyring, Secret};
use platform::store;
use platform::telemetry::Metrics;
use tokio::sync::Notify;

use crate::config::Config;
use crate::envelope::WORKER;
use crate::pass::{Done, Pass};
use crate::producer::{self, Producer};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Letter(#[from] letter::Error),
    #[error("{0}")]
    Secret(String),
    #[error(transparent)]
    Kafka(#[from] producer::Error),
}

/// What a pass leaves behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Left {
    #[default]
    Nothing,
    /// Something is worth another look then.
    Until(Timestamp),
    /// Time ran out; what is left after this position may be done at once.
    MoreToDo(Option<String>),
    /// Nothing that another look would change: it waits for a topic, a broker or an operator.
    NextBell,
}

impl Left {
    /// What of two is worth the sooner look.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (more @ Self::MoreToDo(_), _) | (_, more @ Self::MoreToDo(_)) => more,
            (Self::Until(one), Self::Until(other)) => Self::Until(one.min(other)),
            (until @ Self::Until(_), _) | (_, until @ Self::Until(_)) => until,
            (Self::NextBell, _) | (_, Self::NextBell) => Self::NextBell,
            (Self::Nothing, Self::Nothing) => Self::Nothing,
        }
    }
}

/// Where in a bucket to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Beginning,
    /// Time ran out here.
    After(String),
    /// Something was committed: what was looked at a moment ago, and waits, can be left alone.
    News,
}

/// How much of a bucket was looked at.
struct LookedAt {
    to: String,
    /// From then on it is looked at from its beginning.
    forget_at: Timestamp,
}

/// The schedule has each bucket looked at from its beginning once a minute; without it, we do.
const WHOLE_LOOK_EVERY_SECS: u32 = 60;
/// What is committed by a machine whose clock is behind ours has an earlier position. One that is further
/// behind waits for a look at the whole bucket.
const NEWS_SECS: u32 = 60;

pub struct Relay {
    pub config: Config,
    pub outbox: Outbox,
    pub doorbell: Doorbell,
    pub metrics: Metrics,
    pub(crate) producer: Producer,
    pub(crate) letters: Letters,
    signer: Secret<Keyring>,
    looked_at: Mutex<BTreeMap<String, LookedAt>>,
}

impl Relay {
    pub fn new(config: Config, clients: Clients) -> Self {
        // Nothing of the relay's is tried again by a queue: the outbox itself keeps it.
        let queues = LetterQueues { retry_url: String::new(), dlq_url: config.dlq_url.clone() };
        let operations = config.operations_table.clone();
        let letters = Letters::new(
            clients.dynamodb.clone(),
            operations,
            clients.sqs.clone(),
            queues,
            &OUTBOX_RELAY,
        );
        let (kafka, max_bytes) = (config.kafka.clone(), config.max_message_bytes);
        Self {
            outbox: Outbox::new(
                clients.dynamodb.clone(),
                config.outbox_table.clone(),
                config.operations_table.clone(),
            ),
            doorbell: Doorbell::new(clients.sqs.clone(), config.doorbell_url.clone()),
            metrics: Metrics::default(),
            producer: Producer::new(kafka, max_bytes, &clients.secrets),
            letters,
            signer: Secret::new(clients.secrets, config.secret_id.clone()),
            config,
            looked_at: Mutex::default(),
        }
    }

    /// Works on some buckets until nothing is left in them that can be done before `until`. As long as one
    /// is at work the others are looked at again and again: what is committed there meanwhile must not
    /// wait for it.
    pub async fn work_on(
        &self,
        buckets: &BTreeMap<String, Start>,
        until: Timestamp,
    ) -> BTreeMap<String, Result<Left, Error>> {
        let busy = Busy::new(buckets.len());
        let works = buckets.iter().map(|(bucket, start)| async {
            let left = self.work(bucket, start.clone(), &busy, until).await;
            busy.rest();
            (bucket.clone(), left)
        });
        join_all(works).await.into_iter().collect()
    }

    async fn work(
        &self,
        bucket: &str,
        start: Start,
        busy: &Busy,
        until: Timestamp,
    ) -> Result<Left, Error> {
        let (mut start, mut missing) = (start, Vec::new());
        let mut left = Left::Nothing;
        loop {
            let begun = clock::now();
            let after = self.place(bucket, start);
            let is_whole = after.is_none();
            let done = Pass::run(self, bucket, after, until).await?;
            self.remember(bucket, &done, is_whole, begun);
            // A row that a query does not show is worth one more look, not a siege.
            let is_siege =
                done.acknowledged == 0 && done.missing.iter().any(|row| missing.contains(row));
            missing = done.missing;
            if done.is_out {
                // A probe is enough. What is left waits for the schedule, not for other buckets.
                return Ok(Left::NextBell);
            }
            let now_left = match done.left {
                Left::Until(at) if is_siege || at >= until => Left::NextBell,
                left => left,
            };
            left = if is_whole { now_left } else { left.or(now_left) };
            let next = match left {
                Left::MoreToDo(_) => return Ok(left),
                Left::Until(at) => Some(at),
                Left::Nothing | Left::NextBell => None,
            };
            let poll = self.config.poll_interval;
            if let Some(at) = next {
                tokio::time::sleep(span(clock::now(), at).min(poll)).await;
            } else if !busy.others_work_on(poll).await {
                return Ok(left);
            }
            if clock::now() >= until {
                return Ok(left);
            }
            start = match next {
                Some(at) if at <= clock::now() => Start::Beginning,
                Some(_) | None => Start::News,
            };
        }
    }

    /// Where a pass over a bucket begins.
    fn place(&self, bucket: &str, start: Start) -> Option<String> {
        let looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        match start {
            Start::Beginning => None,
            Start::After(position) => Some(position),
            Start::News => looked_at
                .get(bucket)
                .filter(|looked_at| clock::now() < looked_at.forget_at)
                .map(|looked_at| looked_at.to.clone()),
        }
    }

    /// What a pass saw of rows that wait for something needs no look at every bell.
    fn remember(&self, bucket: &str, done: &Done, from_beginning: bool, begun: Timestamp) {
        let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if from_beginning {
            looked_at.remove(bucket);
        }
        if done.left == Left::Nothing || !done.is_whole {
            return;
        }
        let to = outbox_position(begun.minus_secs(NEWS_SECS), "", 0);
        let forget_at = begun.plus_secs(WHOLE_LOOK_EVERY_SECS);
        let looked_at = looked_at.entry(bucket.to_owned());
        looked_at.or_insert(LookedAt { to: String::new(), forget_at }).to = to;
    }

    /// What records are signed with now.
    pub(crate) async fn key(&self) -> Result<Vec<u8>, Error> {
        let keyring = self.signer.get().await.map_err(|error| Error::Secret(error.to_string()))?;
        let key = keyring.keys_of(WORKER).next().map(<[u8]>::to_vec);
        key.ok_or_else(|| Error::Secret(format!("the workers' secret has no key for {WORKER}")))
    }

    /// Called before an invocation ends: then nothing is on its way any more.
    pub async fn forget(&self) {
        self.producer.forget().await;
    }

    /// Records that are neither acknowledged nor forgotten.
    pub fn on_their_way(&self) -> i32 {
        self.producer.on_their_way()
    }
}

/// How many buckets are at work, or wait for a moment that comes.
struct Busy {
    count: AtomicUsize,
    nobody: Notify,
}

impl Busy {
    fn new(count: usize) -> Self {
        Self { count: AtomicUsize::new(count), nobody: Notify::new() }
    }

    fn rest(&self) {
        if self.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.nobody.notify_waiters();
        }
    }

    /// Rests for a while. False once nobody is at work any more.
    async fn others_work_on(&self, pause: Duration) -> bool {
        let nobody = self.nobody.notified();
        self.rest();
        if self.count.load(Ordering::Relaxed) > 0 {
            let _ = tokio::time::timeout(pause, nobody).await;
        }
        // Counted again before the answer: whoever goes on is at work, and whoever ends rests once more.
        self.count.fetch_add(1, Ordering::Relaxed) > 0
    }
}

/// None at all where the second comes first.
pub(crate) fn span(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(to.as_millis() - from.as_millis()).unwrap_or_default())
}
