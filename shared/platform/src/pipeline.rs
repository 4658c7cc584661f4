//! Batches in, answers out. A `Handler` says what comes of one record; everything around it is here:
//! letters and their queues, lanes, time, panics, counters and the answers that AWS wants.
//!
//! A Kafka batch is all or error: what is permanent or not ready is parked or queued, which is
//! success; what is systemic or was not reached makes the invocation fail, and the batch comes again.
//! An SQS batch reports single messages. Records of one deal run in order, deals side by side.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};

use domain::time::Timestamp;
use futures::{FutureExt as _, StreamExt as _};
use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::apply::Fault;
use crate::catalog::{self, Function};
use crate::clock;
use crate::letter::{self, Failure, Held, Letter, Letters, Place, Understood, envelope, row};
use crate::store;
use crate::telemetry::{CRITICAL, Metrics};
use crate::wire::{Event, Incoming, kafka, report, sqs};

/// Deals in work at once within one invocation.
const LANES: usize = 16;
/// With less time than this left, what was not begun is left to the next invocation.
const MARGIN_MS: i64 = 5_000;

/// What comes of one record.
pub trait Handler {
    fn handle(&self, work: &Work) -> impl Future<Output = Result<Handled, NotDone>>;

    /// After a batch: whatever is done once for all its records.
    fn finish(&self) -> impl Future<Output = ()>;
}

/// A record to work on, and the letter it came from, if any.
pub struct Work {
    pub id: String,
    pub record: Incoming,
    pub damage: Option<String>,
    pub letter: Option<Letter>,
    understood: Mutex<Understood>,
}

impl Work {
    fn new(id: String, record: Incoming, damage: Option<String>, letter: Option<Letter>) -> Self {
        Self { id, record, damage, letter, understood: Mutex::default() }
    }

    /// Notes how far a record was understood. It outlives a panic, so that its letter is found.
    pub fn note(&self, understood: Understood) {
        *self.understood.lock().unwrap_or_else(PoisonError::into_inner) = understood;
    }

    fn understood(&self) -> Understood {
        self.understood.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
pub enum Handled {
    Done(Outcome),
    Failed(Failure),
}

/// How a record ended, for the summary and the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Applied,
    Duplicate,
    Parked,
    Retrying,
    /// Somebody else's record, or one that there was nothing to do for.
    Skipped,
    /// A command that was answered with a refusal.
    Refused,
    /// A letter that was handed to the function that claims it by now.
    Forwarded,
}

impl Outcome {
    pub const ALL: [Self; 7] = [
        Self::Applied,
        Self::Duplicate,
        Self::Parked,
        Self::Retrying,
        Self::Skipped,
        Self::Refused,
        Self::Forwarded,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Parked => "parked",
            Self::Retrying => "retrying",
            Self::Skipped => "skipped",
            Self::Refused => "refused",
            Self::Forwarded => "forwarded",
        }
    }

    /// Whether the letter of such a record has nothing left to wait for, and what became of it.
    const fn closes_letter(self) -> Option<&'static str> {
        match self {
            Self::Applied | Self::Duplicate | Self::Skipped | Self::Refused => Some("RESOLVED"),
            Self::Forwarded => Some("REPLAYED"),
            Self::Parked | Self::Retrying => None,
        }
    }
}

/// Why a record is not done: the world's fault, never the record's.
#[derive(Debug)]
pub struct NotDone(pub String);

impl NotDone {
    pub fn because(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// A fault of our own is its record's failure; the world's is nobody's.
pub fn own_fault(fault: Fault) -> Result<Failure, NotDone> {
    match fault {
        Fault::NotDone(reason) => Err(NotDone(reason)),
        Fault::Own { code, detail } => Ok(Failure::critical(code, detail)),
    }
}

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

pub struct Pipeline<H> {
    function: &'static Function,
    letters: Letters,
    skip_records: Vec<String>,
    pub metrics: Metrics,
    pub handler: H,
}

impl<H: Handler> Pipeline<H> {
    pub fn new(
        function: &'static Function,
        letters: Letters,
        skip_records: Vec<String>,
        metrics: Metrics,
        handler: H,
    ) -> Self {
        Self { function, letters, skip_records, metrics, handler }
    }

    /// One invocation after another.
    pub async fn run(&self) -> Result<(), lambda_runtime::Error> {
        lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
            let deadline_ms = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
            Box::pin(self.invoke(event.payload, Timestamp::from_millis(deadline_ms))).await
        }))
        .await
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
        let work = records.into_iter().map(|record| {
            let id = record.incoming.origin.to_string();
            Work::new(id, record.incoming, record.damage, None)
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
            if self.function.queue.is_some_and(|name| message.queue.ends_with(name)) {
                let record = message.incoming();
                work.push(Work::new(message.id, record, None, None));
                continue;
            }
            match self.open(&message).await {
                Ok(Some(letter)) => {
                    let record = letter.record.clone();
                    work.push(Work::new(message.id, record, None, Some(letter)));
                }
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
        let letter = match self.letters.load(&id).await {
            Ok(Some(letter)) => letter,
            Ok(None) => {
                return self.adopt(message, "the message names a letter that does not exist").await;
            }
            // The row stays as the evidence that it is.
            Err(letter::Error::Store(store::Error::Corrupt(why))) => {
                let why = format!("the letter that the message names is damaged: {why}");
                return self.adopt(message, &why).await;
            }
            Err(error) => return Err(NotDone::because(error)),
        };
        // Redriven to the wrong queue: back where an operator sees it, and nothing is closed.
        if letter.function != self.function.name && letter.closed_as.is_none() {
            let detail =
                format!("this letter is of {}: redrive it to its retry queue", letter.function);
            let understood = letter.understood.clone();
            let held = Held { record: &letter.record, understood };
            self.hold(&held, Some(&letter), &Failure::permanent("WRONG_QUEUE", detail)).await?;
            return Ok(None);
        }
        let settled = letter.closed_as.is_some();
        if settled || generation != letter.generation {
            if !settled {
                self.letters.send_unless_sent(&letter, now).await.map_err(NotDone::because)?;
            }
            self.metrics.count("worker.letters.dropped", "");
            return Ok(None);
        }
        if letter.place == Place::RetryQueue && letter.not_before > now {
            self.letters.send(&letter, now).await.map_err(NotDone::because)?;
            return Ok(None);
        }
        Ok(Some(letter))
    }

    /// A message that is about no letter becomes one: nothing is dropped without.
    async fn adopt(&self, message: &sqs::Message, why: &str) -> Result<Option<Letter>, NotDone> {
        let record = message.incoming();
        let held = Held { record: &record, understood: Understood::default() };
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
        let (all, rest) = (&outcomes, &not_done);
        futures::stream::iter(lanes.into_values())
            .for_each_concurrent(LANES, |lane| async move {
                let mut stopped = false;
                for item in lane {
                    let done = if stopped {
                        Err(NotDone("an earlier record of its deal is not done".to_owned()))
                    } else if clock::now().as_millis() > deadline.as_millis() - MARGIN_MS {
                        Err(NotDone("too little time was left".to_owned()))
                    } else {
                        Box::pin(self.work_on(&item)).await
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
        self.handler.finish().await;
        let outcomes = outcomes.into_inner().expect("no panic under it");
        (outcomes, not_done.into_inner().expect("no panic under it"))
    }

    /// Brings one record to its end: an outcome, or not done.
    async fn work_on(&self, work: &Work) -> Result<Outcome, NotDone> {
        let handled = match self.unreadable(work) {
            Some(failure) => Handled::Failed(failure),
            None => match AssertUnwindSafe(self.handler.handle(work)).catch_unwind().await {
                Ok(handled) => handled?,
                // Our own bug. Its record must not stop the partition for ever.
                Err(panic) => {
                    Handled::Failed(Failure::critical("PANIC", panic_text(panic.as_ref())))
                }
            },
        };
        let outcome = match handled {
            Handled::Done(outcome) => outcome,
            Handled::Failed(failure) => {
                let held = Held { record: &work.record, understood: work.understood() };
                self.hold(&held, work.letter.as_ref(), &failure).await?
            }
        };
        if let (Some(letter), Some(closed_as)) = (&work.letter, outcome.closes_letter()) {
            self.letters.close(letter, closed_as, clock::now()).await;
        }
        if outcome == Outcome::Duplicate {
            self.metrics.count("worker.events.duplicate", "");
        }
        let Understood { deal, key, .. } = work.understood();
        tracing::info!(
            record = work.id,
            deal_id = deal.map(|deal| deal.to_string()),
            idempotency_key = key,
            letter_id = work.letter.as_ref().map(|letter| letter.id.to_string()),
            outcome = outcome.name(),
            "done"
        );
        Ok(outcome)
    }

    /// What is parked without a look inside.
    fn unreadable(&self, work: &Work) -> Option<Failure> {
        let record = &work.record;
        let letter_cut = work.letter.as_ref().and_then(|letter| letter.cut_from);
        if self.skip_records.contains(&record.origin.to_string()) && work.letter.is_none() {
            return Some(Failure::permanent(
                "SKIPPED_BY_OPERATOR",
                "SKIP_RECORDS names this record",
            ));
        }
        if row::is_oversized(record) || letter_cut.is_some() {
            let size = letter_cut.unwrap_or(record.body.len());
            let hash = hex::encode(Sha256::digest(&record.body));
            let detail = match letter_cut {
                None => {
                    format!("{size} bytes (SHA-256 {hash}) are too many; their beginning is kept")
                }
                Some(_) => format!("{size} bytes were too many; only their beginning was kept"),
            };
            return Some(Failure::permanent("OVERSIZED", detail));
        }
        let damage = work.damage.as_ref()?;
        Some(Failure::permanent("DAMAGED_RECORD", damage.clone()))
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
            Some(letter) => self.letters.hold_again(letter, held, failure, now).await,
        };
        let topic = &held.record.origin.topic;
        let (level, outcome) = match place.map_err(NotDone::because)? {
            Place::RetryQueue => {
                self.metrics.count("worker.retry.count", &format!("error={}", failure.code()));
                ("WARNING", Outcome::Retrying)
            }
            Place::DeadLetterQueue => {
                self.metrics.count("worker.dlq.messages", &format!("topic={topic}.dlq"));
                if catalog::is_money_topic(topic) || failure.is_critical() {
                    self.metrics.count(CRITICAL, "");
                    ("CRITICAL", Outcome::Parked)
                } else {
                    ("WARNING", Outcome::Parked)
                }
            }
        };
        let record = held.record.origin.to_string();
        let deal_id = held.understood.deal.map(|deal| deal.to_string());
        let code = failure.code();
        tracing::warn!(record, deal_id, code, severity = level, "{}", outcome.name());
        Ok(outcome)
    }
}

/// Unverified, and good enough to keep the records of a deal in order.
fn lane(work: &Work) -> String {
    report::peek(&work.record.body).deal_id.unwrap_or_else(|| work.id.clone())
}

fn summary(outcomes: &[Outcome]) -> Value {
    let count = |outcome| outcomes.iter().filter(|each| **each == outcome).count();
    let counts = Outcome::ALL.map(|outcome| (outcome.name().to_owned(), json!(count(outcome))));
    let mut summary = serde_json::Map::from_iter(counts);
    summary.insert("records".to_owned(), outcomes.len().into());
    Value::Object(summary)
}

pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}
