//! record → verify → parse → key → load → decide → check → commit → outcome.
//!
//! A Kafka batch is all or error: what is permanent or not ready is parked or queued, which is
//! success; what is systemic or was not reached makes the invocation fail, and the batch comes again.
//! An SQS batch reports single messages. Records of one deal run in order, deals side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;

use domain::deal::Deal;
use domain::decision::{Decision, NotReady, Refusal, Wait};
use domain::ids::DealId;
use domain::key::{Fingerprint, Key};
use domain::plan::Plan;
use domain::policy::Moment;
use domain::time::Timestamp;
use futures::{FutureExt as _, StreamExt as _};
use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::{Value, json};

use crate::aws::Clients;
use crate::catalog::{self, Function};
use crate::clock;
use crate::config::Config;
use crate::doorbell::Doorbell;
use crate::letter::{Failure, Held, Letter, Letters, Place, envelope, row};
use crate::secrets::Secrets;
use crate::signature::{self, Refused, Verified};
use crate::store::{self, Committed, Processed, Store, messages};
use crate::telemetry::{self, Metrics};
use crate::wire::report::{DealResult, Report};
use crate::wire::{Event, Incoming, Origin, kafka, sqs};

/// Deals in work at once within one invocation.
const LANES: usize = 16;
/// With less time than this left, what was not begun is left to the next invocation.
const MARGIN_MS: i64 = 5_000;
/// How often a record whose deal moved on is decided again before it is left to the next delivery.
const DECISIONS: u32 = 6;

pub type Decide<R> = fn(&Deal, &R, &Moment<'_>) -> Decision;

/// Runs a function: set up once, then one invocation after another.
pub async fn run<R: DealResult>(
    function: &'static Function,
    decide: Decide<R>,
) -> Result<(), lambda_runtime::Error> {
    telemetry::init(function.name);
    let config = Config::from_env()?;
    let pipeline = Pipeline::new(function, decide, config, Clients::from_env().await);
    let pipeline = &pipeline;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        let deadline_ms = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
        pipeline.invoke(event.payload, Timestamp::from_millis(deadline_ms)).await
    }))
    .await
}

pub struct Pipeline<R> {
    function: &'static Function,
    decide: Decide<R>,
    config: Config,
    store: Store,
    letters: Letters,
    secrets: Secrets,
    doorbell: Doorbell,
    metrics: Metrics,
}

/// How a record ended, for the summary and the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Applied,
    Duplicate,
    Parked,
    Retrying,
    /// A sibling's record.
    Skipped,
    /// A message about a letter that is closed, early, or already taken care of.
    Dropped,
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Applied,
        Self::Duplicate,
        Self::Parked,
        Self::Retrying,
        Self::Skipped,
        Self::Dropped,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Parked => "parked",
            Self::Retrying => "retrying",
            Self::Skipped => "skipped",
            Self::Dropped => "dropped",
        }
    }
}

/// Why a record is not done: the world's fault, never the record's.
#[derive(Debug)]
struct NotDone(String);

/// Why an invocation failed, for the log and for AWS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Event(#[from] crate::wire::UnknownEvent),
    #[error("{not_done} of {total} records are not done and must come again: {reasons}")]
    NotDone { not_done: usize, total: usize, reasons: String },
    #[error("{0}")]
    Response(&'static str),
}

impl From<Error> for lambda_runtime::Diagnostic {
    fn from(error: Error) -> Self {
        let error_type = match error {
            Error::Event(_) => "UnknownEvent",
            Error::NotDone { .. } => "NotDone",
            Error::Response(_) => "Response",
        };
        Self { error_type: error_type.to_owned(), error_message: error.to_string() }
    }
}

/// What trying a record came to.
enum Tried {
    Done(Outcome),
    Failed { failure: Failure, key: Option<Key>, deal: Option<DealId>, verified: bool },
}

impl Tried {
    fn failed(failure: Failure) -> Self {
        Self::Failed { failure, key: None, deal: None, verified: false }
    }
}

/// A record to work on, and the letter it came from, if any.
struct Work {
    id: String,
    record: Incoming,
    damage: Option<String>,
    letter: Option<Letter>,
}

impl<R: DealResult> Pipeline<R> {
    pub fn new(
        function: &'static Function,
        decide: Decide<R>,
        config: Config,
        clients: Clients,
    ) -> Self {
        let Clients { dynamodb, sqs, secrets } = clients;
        Self {
            function,
            decide,
            store: Store::new(dynamodb.clone(), config.tables.clone()),
            letters: Letters::new(
                dynamodb,
                config.tables.operations.clone(),
                sqs.clone(),
                config.queues.clone(),
                function,
            ),
            secrets: Secrets::new(secrets, config.trust.secret_id.clone()),
            doorbell: Doorbell::new(sqs, config.queues.doorbell_url.clone()),
            metrics: Metrics::default(),
            config,
        }
    }

    /// One invocation: the answer that AWS wants, or an error that makes it deliver again.
    pub async fn invoke(&self, payload: Value, deadline: Timestamp) -> Result<Value, Error> {
        let answer = match Event::read(payload)? {
            Event::Kafka(records) => self.kafka(records, deadline).await,
            Event::Sqs(messages) => self.sqs(messages, deadline).await,
        };
        self.metrics.flush(self.function.name);
        if let Err(error) = &answer {
            tracing::error!(error = %error, "the invocation failed");
        }
        answer
    }

    async fn kafka(
        &self,
        records: Vec<kafka::Record>,
        deadline: Timestamp,
    ) -> Result<Value, Error> {
        let total = records.len();
        let work = records.into_iter().map(|record| Work {
            id: record.incoming.origin.to_string(),
            record: record.incoming,
            damage: record.damage,
            letter: None,
        });
        let (outcomes, not_done) = self.work_off(work.collect(), deadline).await;
        if !not_done.is_empty() {
            let told = not_done.iter().take(3).map(|(id, why)| format!("{id}: {}", why.0));
            let reasons = told.collect::<Vec<_>>().join("; ");
            return Err(Error::NotDone { not_done: not_done.len(), total, reasons });
        }
        Ok(summary(&outcomes))
    }

    async fn sqs(&self, messages: Vec<sqs::Message>, deadline: Timestamp) -> Result<Value, Error> {
        let mut work = Vec::new();
        let mut failed = Vec::new();
        for message in messages {
            match self.open(&message).await {
                Ok(Some(letter)) => work.push(Work {
                    id: message.id,
                    record: letter.record.clone(),
                    damage: None,
                    letter: Some(letter),
                }),
                Ok(None) => {}
                Err(NotDone(reason)) => {
                    tracing::error!(message_id = message.id, reason, "the message is not done");
                    failed.push(message.id);
                }
            }
        }
        let (_, not_done) = self.work_off(work, deadline).await;
        for (id, NotDone(reason)) in not_done {
            tracing::error!(message_id = id, reason, "the message is not done");
            failed.push(id);
        }
        let response = sqs::response(failed).map_err(Error::Response)?;
        Ok(serde_json::to_value(response).expect("the response is plain JSON"))
    }

    /// The letter that a message of the retry queue is about, if there is something to do for it.
    async fn open(&self, message: &sqs::Message) -> Result<Option<Letter>, NotDone> {
        let now = clock::now();
        let Some((id, generation)) = envelope::read(&message.body) else {
            return self.adopt(message, "the message names no letter").await;
        };
        let Some(letter) = self.letters.load(&id).await.map_err(not_done)? else {
            return self.adopt(message, "the message names a letter that does not exist").await;
        };
        let settled = letter.closed_as.is_some();
        if settled || generation != letter.generation {
            if !settled {
                self.letters.send_unless_sent(&letter, now).await.map_err(not_done)?;
            }
            self.metrics.count("worker.letters.dropped", "");
            return Ok(None);
        }
        if letter.place == Place::RetryQueue && letter.not_before > now {
            self.letters.send(&letter, now).await.map_err(not_done)?;
            return Ok(None);
        }
        Ok(Some(letter))
    }

    /// A message that is about no letter becomes one: nothing is dropped without.
    async fn adopt(&self, message: &sqs::Message, why: &str) -> Result<Option<Letter>, NotDone> {
        let record = Incoming {
            origin: Origin {
                topic: message.queue.clone(),
                partition: 0,
                offset: message.id.clone(),
            },
            key: None,
            body: message.body.clone().into_bytes(),
            headers: Vec::new(),
            recorded_at: Timestamp::from_millis(message.sent_at_ms),
        };
        let held = Held { record: &record, verified: false, key: None, deal: None };
        self.hold(&held, None, &Failure::permanent("NO_LETTER", why)).await?;
        Ok(None)
    }

    /// Works the records off: lanes by deal, side by side; within a lane in order, and nothing after a
    /// record that is not done.
    async fn work_off(
        &self,
        work: Vec<Work>,
        deadline: Timestamp,
    ) -> (Vec<Outcome>, Vec<(String, NotDone)>) {
        let mut lanes: BTreeMap<String, Vec<Work>> = BTreeMap::new();
        for item in work {
            lanes.entry(lane(&item)).or_default().push(item);
        }
        let outcomes = Mutex::new(Vec::new());
        let not_done = Mutex::new(Vec::new());
        let rung = Mutex::new(BTreeSet::new());
        let (all, rest, buckets) = (&outcomes, &not_done, &rung);
        futures::stream::iter(lanes.into_values())
            .for_each_concurrent(LANES, |lane| async move {
                let mut stopped = false;
                for item in lane {
                    let done = if stopped {
                        Err(NotDone("an earlier record of its deal is not done".to_owned()))
                    } else if clock::now().as_millis() > deadline.as_millis() - MARGIN_MS {
                        Err(NotDone("too little time was left".to_owned()))
                    } else {
                        self.work_on(&item, buckets).await
                    };
                    match done {
                        Ok(outcome) => all.lock().expect("no panic under it").push(outcome),
                        Err(why) => {
                            stopped = true;
                            rest.lock().expect("no panic under it").push((item.id, why));
                        }
                    }
                }
            })
            .await;
        self.doorbell.ring(&rung.into_inner().expect("no panic under it")).await;
        let outcomes = outcomes.into_inner().expect("no panic under it");
        (outcomes, not_done.into_inner().expect("no panic under it"))
    }

    /// Brings one record to its end: an outcome, or not done.
    async fn work_on(
        &self,
        work: &Work,
        buckets: &Mutex<BTreeSet<String>>,
    ) -> Result<Outcome, NotDone> {
        let tried = AssertUnwindSafe(self.try_record(work, buckets)).catch_unwind().await;
        let tried = match tried {
            Ok(tried) => tried?,
            // Our own bug. Its record must not stop the partition for ever.
            Err(panic) => Tried::failed(Failure::critical("PANIC", panic_text(panic.as_ref()))),
        };
        let outcome = match tried {
            Tried::Done(outcome) => outcome,
            Tried::Failed { failure, key, deal, verified } => {
                let key = key.map(|key| key.to_string());
                let held = Held { record: &work.record, verified, key, deal };
                self.hold(&held, work.letter.as_ref(), &failure).await?
            }
        };
        if let Some(letter) = &work.letter
            && matches!(outcome, Outcome::Applied | Outcome::Duplicate)
        {
            self.letters.resolve(letter, clock::now()).await;
        }
        if outcome == Outcome::Duplicate {
            self.metrics.count("worker.events.duplicate", "");
        }
        tracing::info!(record = work.id, outcome = outcome.name(), "done");
        Ok(outcome)
    }

    async fn hold(
        &self,
        held: &Held<'_>,
        letter: Option<&Letter>,
        failure: &Failure,
    ) -> Result<Outcome, NotDone> {
        let now = clock::now();
        let place = match letter {
            None => self.letters.hold(held, failure, now).await,
            Some(letter) => self.letters.hold_again(letter, failure, now).await,
        };
        let topic = &held.record.origin.topic;
        let (level, outcome) = match place.map_err(not_done)? {
            Place::RetryQueue => {
                self.metrics.count("worker.retry.count", &format!("error={}", failure.code()));
                ("WARNING", Outcome::Retrying)
            }
            Place::DeadLetterQueue => {
                self.metrics.count("worker.dlq.messages", &format!("topic={topic}.dlq"));
                let money = catalog::is_money_topic(topic);
                (if money { "CRITICAL" } else { "WARNING" }, Outcome::Parked)
            }
        };
        let record = held.record.origin.to_string();
        tracing::warn!(record, code = failure.code(), severity = level, "{}", outcome.name());
        Ok(outcome)
    }

    async fn try_record(
        &self,
        work: &Work,
        buckets: &Mutex<BTreeSet<String>>,
    ) -> Result<Tried, NotDone> {
        let record = &work.record;
        if let Some(failure) = self.unreadable(work) {
            return Ok(Tried::failed(failure));
        }
        let refused = match self.verify(record).await? {
            Ok(verified) => return self.try_verified(record, &verified, buckets).await,
            Err(refused) => refused,
        };
        // Whoever claims the type parks it; once is enough.
        let event_type = Report::peek_event_type(&record.body);
        if work.letter.is_none() && event_type.is_some_and(|name| self.is_siblings(record, &name)) {
            return Ok(Tried::Done(Outcome::Skipped));
        }
        Ok(Tried::failed(Failure::permanent(refused.code(), refused.to_string())))
    }

    /// What is parked without a look inside.
    fn unreadable(&self, work: &Work) -> Option<Failure> {
        let record = &work.record;
        let letter_cut = work.letter.as_ref().and_then(|letter| letter.cut_from);
        if self.config.skip_records.contains(&record.origin.to_string()) && work.letter.is_none() {
            return Some(Failure::permanent(
                "SKIPPED_BY_OPERATOR",
                "SKIP_RECORDS names this record",
            ));
        }
        if row::is_oversized(record) || letter_cut.is_some() {
            let size = letter_cut.unwrap_or(record.body.len());
            let detail = format!("{size} bytes cannot be a worker result; they stay in the topic");
            return Some(Failure::permanent("OVERSIZED", detail));
        }
        let damage = work.damage.as_ref()?;
        Some(Failure::permanent("DAMAGED_RECORD", damage.clone()))
    }

    fn is_siblings(&self, record: &Incoming, event_type: &str) -> bool {
        event_type != self.function.event_type
            && catalog::is_claimed(&record.origin.topic, event_type)
    }

    async fn verify<'a>(
        &self,
        record: &'a Incoming,
    ) -> Result<Result<Verified<'a>, Refused>, NotDone> {
        let trust = &self.config.trust;
        let keyring = self.secrets.keyring().await.map_err(not_done)?;
        let first = signature::verify(record, &keyring, &trust.allow_list, trust.require_v2);
        if first.as_ref().err() != Some(&Refused::Signature) {
            return Ok(first);
        }
        // The key may have been rotated since it was read.
        let keyring = self.secrets.keyring_again().await.map_err(not_done)?;
        Ok(signature::verify(record, &keyring, &trust.allow_list, trust.require_v2))
    }

    async fn try_verified(
        &self,
        record: &Incoming,
        verified: &Verified<'_>,
        buckets: &Mutex<BTreeSet<String>>,
    ) -> Result<Tried, NotDone> {
        let malformed =
            |error: crate::wire::report::Malformed| Failure::permanent("MALFORMED", error.0);
        let failed = |failure| Tried::Failed { failure, key: None, deal: None, verified: true };
        let report = match Report::read(verified.body()) {
            Ok(report) => report,
            Err(error) => return Ok(failed(malformed(error))),
        };
        if self.is_siblings(record, &report.event_type) {
            return Ok(Tried::Done(Outcome::Skipped));
        }
        if report.event_type != self.function.event_type {
            let detail = format!("event_type {:?} is nobody's on this topic", report.event_type);
            return Ok(failed(Failure::permanent("UNKNOWN_TYPE", detail)));
        }
        if !self.config.trust.allow_list.may_report(verified.worker(), &report.event_type) {
            let detail = format!("{} may not report {}", verified.worker(), report.event_type);
            return Ok(failed(Failure::permanent("NOT_ALLOWED", detail)));
        }
        let result = match R::read(&report) {
            Ok(result) => result,
            Err(error) => return Ok(failed(malformed(error))),
        };
        match self.apply(&result, record.recorded_at, buckets).await? {
            Ok(outcome) => Ok(Tried::Done(outcome)),
            Err(failure) => Ok(Tried::Failed {
                failure,
                key: Some(result.key()),
                deal: Some(result.deal()),
                verified: true,
            }),
        }
    }

    /// Load, decide, commit; again while others move the deal in between.
    async fn apply(
        &self,
        result: &R,
        recorded_at: Timestamp,
        buckets: &Mutex<BTreeSet<String>>,
    ) -> Result<Result<Outcome, Failure>, NotDone> {
        let (key, fingerprint) = (result.key(), result.fingerprint());
        for attempt in 0..DECISIONS {
            let loaded = match self.store.load(result.deal(), &key).await {
                Ok((_, Some(known))) => return Ok(judge(&known, &key, &fingerprint)),
                Ok((loaded, None)) => loaded,
                Err(error) => return own_fault(error).map(Err),
            };
            let moment = Moment { now: clock::now(), recorded_at, policy: &self.config.policy };
            let decision = match &loaded {
                Some(loaded) => (self.decide)(&loaded.deal, result, &moment),
                None => Decision::not_ready("UNKNOWN_DEAL", "no such deal yet", Wait::Backoff),
            };
            let plan = match decision {
                Decision::Apply(plan) => plan,
                Decision::Refuse(Refusal { code, detail, critical }) => {
                    let failure = Failure::Permanent { code, detail, critical };
                    return self.refuse(failure, &key, &fingerprint).await;
                }
                Decision::NotReady(NotReady { code, detail, wait }) => {
                    let failure = Failure::NotReady { code, detail, wait };
                    return self.refuse(failure, &key, &fingerprint).await;
                }
            };
            match self.commit(plan, loaded, moment.now, buckets).await {
                Ok(Committed::Applied) => return Ok(Ok(Outcome::Applied)),
                Ok(Committed::Known(known)) => return Ok(judge(&known, &key, &fingerprint)),
                Ok(Committed::Stale) => store::pause(attempt).await,
                Err(error) => return own_fault(error).map(Err),
            }
        }
        Err(NotDone("the deal kept moving".to_owned()))
    }

    async fn commit(
        &self,
        plan: Plan,
        loaded: Option<store::Loaded>,
        now: Timestamp,
        buckets: &Mutex<BTreeSet<String>>,
    ) -> Result<Committed, store::Error> {
        let before = loaded.as_ref().map(|loaded| &loaded.deal);
        // An unsound plan is a bug of `decide`: caught as this record's panic, never written.
        let checked = plan.check(before, now).unwrap_or_else(|why| panic!("unsound plan: {why:?}"));
        let next_look_at = loaded.as_ref().and_then(|loaded| loaded.next_look_at);
        let committed = self.store.commit(&checked, next_look_at).await?;
        if committed == Committed::Applied {
            let bucket = messages::bucket(&checked.after.id.to_string());
            buckets.lock().expect("no panic under it").insert(bucket);
        }
        Ok(committed)
    }

    /// A refusal is final only if the key is unknown after the deal was read: else this very report
    /// may have taken effect in between, and the refusal would be about our own footprints.
    async fn refuse(
        &self,
        failure: Failure,
        key: &Key,
        fingerprint: &Fingerprint,
    ) -> Result<Result<Outcome, Failure>, NotDone> {
        match self.store.processed(key).await {
            Ok(Some(known)) => Ok(judge(&known, key, fingerprint)),
            Ok(None) => Ok(Err(failure)),
            Err(error) => own_fault(error).map(Err),
        }
    }
}

/// The key is known: the same report again, or another one under its name.
fn judge(known: &Processed, key: &Key, fingerprint: &Fingerprint) -> Result<Outcome, Failure> {
    if known.is_same(fingerprint) {
        return Ok(Outcome::Duplicate);
    }
    let of = known.deal_id.as_deref().unwrap_or("no deal");
    let detail = format!("{key} was already applied with other content, to {of}");
    Err(Failure::Permanent { code: "CONFLICT", detail, critical: key.moves_money() })
}

/// Tells a record's permanent failure by our own fault from the world's failure.
fn own_fault(error: store::Error) -> Result<Failure, NotDone> {
    match error {
        store::Error::Systemic { .. } => Err(not_done(error)),
        store::Error::Invalid { .. } => Ok(Failure::critical("INVALID_WRITE", error.to_string())),
        store::Error::Corrupt(_) => Ok(Failure::critical("CORRUPT_ROW", error.to_string())),
    }
}

fn not_done(error: impl std::fmt::Display) -> NotDone {
    NotDone(error.to_string())
}

/// Unverified, and good enough to keep the records of a deal in order.
fn lane(work: &Work) -> String {
    let value = serde_json::from_slice::<Value>(&work.record.body).unwrap_or_default();
    let deal = value["deal_id"].as_str().map(str::to_lowercase);
    deal.unwrap_or_else(|| work.id.clone())
}

fn summary(outcomes: &[Outcome]) -> Value {
    let count = |outcome| outcomes.iter().filter(|each| **each == outcome).count();
    let counts = Outcome::ALL.map(|outcome| (outcome.name().to_owned(), json!(count(outcome))));
    let mut summary = serde_json::Map::from_iter(counts);
    summary.insert("records".to_owned(), outcomes.len().into());
    Value::Object(summary)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}
