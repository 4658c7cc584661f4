//! Letters: records that we hold because they did not take effect yet. The row is the truth; the SQS
//! message that goes with it wakes the function up, shows a person what happened, and makes redrive
//! work. The row is always written first.
//!
//! Each change of a row raises its generation, and a message carries the generation it was sent for.
//! `sent` says which generation's message is known to be in its queue. So a redelivered record or a
//! stale message neither loses the letter (its message is sent again if nobody saw it leave) nor
//! floods the queue (it is not sent again if somebody did).

pub mod envelope;
pub mod row;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use domain::decision::{NotReady, Refusal, Wait};
use domain::ids::DealId;
use domain::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::catalog::Function;
use crate::config::LetterQueues;
use crate::store;
use crate::wire::Incoming;

/// SQS delays a message by at most this; longer waits take several hops.
const MAX_DELAY_SECS: i64 = 900;
/// A retry that is this much overdue is dead: nobody is working on it.
const SLACK_SECS: u32 = 900;
/// How long a report may wait for another one that confirms it.
const CONFIRMATION_WAIT_SECS: u32 = 3600;
/// SQS delivers a little late; until then the letter is not dead.
const CONFIRMATION_SLACK_SECS: u32 = 60;
const LONGEST_ERROR: usize = 1000;

/// Why a record did not take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Permanent { code: &'static str, detail: String, critical: bool },
    NotReady { code: &'static str, detail: String, wait: Wait },
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, detail, critical } = refusal;
        Self::Permanent { code, detail, critical }
    }
}

impl From<NotReady> for Failure {
    fn from(not_ready: NotReady) -> Self {
        let NotReady { code, detail, wait } = not_ready;
        Self::NotReady { code, detail, wait }
    }
}

impl Failure {
    pub fn permanent(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Permanent { code, detail: detail.into(), critical: false }
    }

    pub fn critical(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Permanent { code, detail: detail.into(), critical: true }
    }

    /// Somebody must look at this at once.
    pub fn is_critical(&self) -> bool {
        matches!(self, Self::Permanent { critical: true, .. })
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Permanent { code, .. } | Self::NotReady { code, .. } => code,
        }
    }

    pub fn detail(&self) -> &str {
        match self {
            Self::Permanent { detail, .. } | Self::NotReady { detail, .. } => detail,
        }
    }
}

/// Names a letter by its record and function, so that a redelivered record finds its letter again.
/// The content is part of the name: a topic that is made anew counts its offsets from zero.
/// Letters of verified reports are kept under their deal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LetterId {
    deal: Option<DealId>,
    hash: String,
}

impl LetterId {
    pub fn new(function: &str, record: &Incoming, deal: Option<DealId>) -> Self {
        let (origin, at) = (&record.origin, record.recorded_at.as_millis());
        let mut hasher = Sha256::new();
        hasher.update(format!("{function}\n{origin}\n{at}\n").as_bytes());
        hasher.update(&record.body);
        Self { deal, hash: hex::encode(&hasher.finalize()[..16]) }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (deal, hash) = match text.split_once('.') {
            Some((deal, hash)) => (Some(DealId::parse(deal)?), hash),
            None => (None, text),
        };
        let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| Self { deal, hash: hash.to_owned() })
    }

    fn partition_key(&self) -> String {
        match self.deal {
            Some(deal) => format!("letters#{deal}"),
            None => format!("letters#{}", &self.hash[..2]),
        }
    }

    fn sort_key(&self) -> String {
        format!("letter#{}", self.hash)
    }
}

impl std::fmt::Display for LetterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.deal {
            Some(deal) => write!(f, "{deal}.{}", self.hash),
            None => f.write_str(&self.hash),
        }
    }
}

/// Where a letter's message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    RetryQueue,
    DeadLetterQueue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub id: LetterId,
    pub function: String,
    pub record: Incoming,
    /// Set where the record was too large to keep: its size. Only its beginning is here.
    pub cut_from: Option<usize>,
    pub understood: Understood,
    pub place: Place,
    pub generation: u64,
    pub sent: u64,
    /// Retries since the letter was written or last redriven.
    pub attempts: usize,
    pub code: String,
    pub error: String,
    pub critical: bool,
    pub history: Vec<String>,
    pub first_failure_at: Timestamp,
    pub last_failure_at: Timestamp,
    pub not_before: Timestamp,
    /// An open letter is dead once this has passed.
    pub due_at: Timestamp,
    pub closed_as: Option<String>,
}

/// How far a record was understood. What nobody vouches for names neither deal nor key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Understood {
    pub verified: bool,
    pub deal: Option<DealId>,
    pub key: Option<String>,
    /// The transaction that a payment reports.
    pub tx: Option<String>,
}

/// A record that failed.
#[derive(Debug, Clone)]
pub struct Held<'a> {
    pub record: &'a Incoming,
    pub understood: Understood,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("SQS cannot take the message: {0}")]
    Queue(String),
}

#[derive(Clone)]
pub struct Letters {
    dynamodb: aws_sdk_dynamodb::Client,
    table: String,
    sqs: aws_sdk_sqs::Client,
    queues: LetterQueues,
    function: &'static Function,
}

impl Letters {
    pub fn new(
        dynamodb: aws_sdk_dynamodb::Client,
        table: String,
        sqs: aws_sdk_sqs::Client,
        queues: LetterQueues,
        function: &'static Function,
    ) -> Self {
        Self { dynamodb, table, sqs, queues, function }
    }

    /// Holds a record that came from its source. Met again, it keeps the letter it has.
    pub async fn hold(
        &self,
        held: &Held<'_>,
        failure: &Failure,
        now: Timestamp,
    ) -> Result<Place, Error> {
        let letter = self.first(held, failure, now);
        let letter = self.put(&letter, None).await?.unwrap_or(letter);
        if letter.closed_as.is_none() {
            self.send_unless_sent(&letter, now).await?;
        }
        Ok(letter.place)
    }

    /// Holds a record on that came from its letter.
    pub async fn hold_again(
        &self,
        letter: &Letter,
        held: &Held<'_>,
        failure: &Failure,
        now: Timestamp,
    ) -> Result<Place, Error> {
        let mut next = self.next(letter, failure, now);
        next.understood = held.understood.clone();
        if letter.id.deal.is_none() && held.understood.deal.is_some() {
            return self.move_to_deal(letter, next, now).await;
        }
        // Not ours to write: either somebody else moved the letter on, or it was us and the reply
        // was lost. Whatever is there, its message must be in its queue.
        let there = self.put(&next, Some(letter.generation)).await?.unwrap_or(next);
        if there.closed_as.is_none() {
            self.send_unless_sent(&there, now).await?;
        }
        Ok(there.place)
    }

    /// A letter whose deal came to be known is kept under it, where whoever asks about the deal
    /// looks.
    async fn move_to_deal(
        &self,
        letter: &Letter,
        mut next: Letter,
        now: Timestamp,
    ) -> Result<Place, Error> {
        next.id = LetterId { deal: next.understood.deal, hash: letter.id.hash.clone() };
        next.generation = 1;
        next.sent = 0;
        let there = self.put(&next, None).await?.unwrap_or(next);
        if there.closed_as.is_none() {
            self.send_unless_sent(&there, now).await?;
        }
        self.close(letter, "REPLAYED", now).await;
        Ok(there.place)
    }

    pub async fn load(&self, id: &LetterId) -> Result<Option<Letter>, Error> {
        let request = self.dynamodb.get_item().table_name(&self.table).consistent_read(true);
        let request = request.key("pk", AttributeValue::S(id.partition_key()));
        let answer = request.key("sk", AttributeValue::S(id.sort_key())).send().await;
        let answer = answer.map_err(|error| store::failed("cannot read a letter", error))?;
        Ok(answer.item.map(row::from_item).transpose().map_err(store::Error::from)?)
    }

    /// Hands a letter's record to another function, as a letter of that one. Done again, it finds the
    /// letter it made.
    pub async fn forward(
        &self,
        letter: &Letter,
        to: &'static Function,
        retry_url: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        let queues = LetterQueues { retry_url: retry_url.to_owned(), dlq_url: String::new() };
        let theirs = Self { function: to, queues, ..self.clone() };
        let held = Held { record: &letter.record, understood: Understood::default() };
        let failure = Failure::NotReady {
            code: "FORWARDED",
            detail: format!("{} forwarded it", self.function.name),
            wait: Wait::Backoff,
        };
        theirs.hold(&held, &failure, now).await.map(drop)
    }

    /// Nothing is left to do for the record. A courtesy to whoever lists letters; nothing depends on
    /// it.
    pub async fn close(&self, letter: &Letter, closed_as: &str, now: Timestamp) {
        let request = self.dynamodb.update_item().table_name(&self.table);
        let answer = request
            .key("pk", AttributeValue::S(letter.id.partition_key()))
            .key("sk", AttributeValue::S(letter.id.sort_key()))
            .update_expression("SET closed_as = :as, closed_at = :now REMOVE list_pk, list_sk")
            .condition_expression("attribute_exists(pk) AND attribute_not_exists(closed_as)")
            .expression_attribute_values(":as", AttributeValue::S(closed_as.to_owned()))
            .expression_attribute_values(":now", AttributeValue::S(crate::clock::to_text(now)))
            .return_values(ReturnValue::None)
            .send()
            .await;
        if let Err(error) = answer {
            let reason = aws_sdk_dynamodb::error::DisplayErrorContext(&error);
            tracing::warn!(letter_id = %letter.id, error = %reason, "the letter stays open");
        }
    }

    /// Sends a letter's message, delayed until its time (or the longest delay SQS knows), and notes
    /// that it left.
    pub async fn send_unless_sent(&self, letter: &Letter, now: Timestamp) -> Result<(), Error> {
        if letter.sent == letter.generation {
            return Ok(());
        }
        self.send(letter, now).await?;
        let request = self.dynamodb.update_item().table_name(&self.table);
        let answer = request
            .key("pk", AttributeValue::S(letter.id.partition_key()))
            .key("sk", AttributeValue::S(letter.id.sort_key()))
            .update_expression("SET sent = :generation")
            .condition_expression("generation = :generation")
            .expression_attribute_values(
                ":generation",
                AttributeValue::N(letter.generation.to_string()),
            )
            .send()
            .await;
        if let Err(error) = answer {
            // At worst the message is sent twice.
            let reason = aws_sdk_dynamodb::error::DisplayErrorContext(&error);
            tracing::warn!(letter_id = %letter.id, error = %reason, "the sending is not noted");
        }
        Ok(())
    }

    /// Sends the letter's message whatever is known about earlier ones: the next hop of a long wait.
    pub async fn send(&self, letter: &Letter, now: Timestamp) -> Result<(), Error> {
        let wait_ms = letter.not_before.as_millis() - now.as_millis();
        let (url, delay_secs) = match letter.place {
            Place::RetryQueue => {
                let secs = wait_ms.div_euclid(1000) + i64::from(wait_ms.rem_euclid(1000) > 0);
                (&self.queues.retry_url, secs.clamp(0, MAX_DELAY_SECS))
            }
            Place::DeadLetterQueue => (&self.queues.dlq_url, 0),
        };
        let request = self.sqs.send_message().queue_url(url).message_body(envelope::write(letter));
        let request = request.delay_seconds(i32::try_from(delay_secs).unwrap_or_default());
        let answer = request.send().await;
        answer.map(drop).map_err(|error| {
            Error::Queue(aws_sdk_sqs::error::DisplayErrorContext(&error).to_string())
        })
    }

    fn first(&self, held: &Held<'_>, failure: &Failure, now: Timestamp) -> Letter {
        let (record, cut_from) = row::fit(held.record);
        let letter = Letter {
            id: LetterId::new(self.function.name, held.record, held.understood.deal),
            function: self.function.name.to_owned(),
            record,
            cut_from,
            understood: held.understood.clone(),
            place: Place::RetryQueue,
            generation: 0,
            sent: 0,
            attempts: 0,
            code: String::new(),
            error: String::new(),
            critical: false,
            history: Vec::new(),
            first_failure_at: now,
            last_failure_at: now,
            not_before: now,
            due_at: now,
            closed_as: None,
        };
        self.next(&letter, failure, now)
    }

    /// The letter after one more failure.
    fn next(&self, letter: &Letter, failure: &Failure, now: Timestamp) -> Letter {
        let mut next = letter.clone();
        next.generation += 1;
        next.last_failure_at = now;
        next.code = failure.code().to_owned();
        next.error = failure.detail().chars().take(LONGEST_ERROR).collect();
        // A dead letter that comes again was redriven, and starts with fresh attempts. One that is
        // merely late was not.
        let redriven = letter.place == Place::DeadLetterQueue;
        let attempts = if redriven { 0 } else { letter.attempts };
        let wait = match failure {
            Failure::Permanent { critical, .. } => {
                next.critical = *critical;
                None
            }
            Failure::NotReady { wait: Wait::Backoff, .. } => {
                self.function.backoff_secs.get(attempts).map(|secs| (*secs, SLACK_SECS))
            }
            Failure::NotReady { wait: Wait::AnotherReport, .. } => {
                let waited = letter.code == failure.code() && attempts > 0;
                (!waited).then_some((CONFIRMATION_WAIT_SECS, CONFIRMATION_SLACK_SECS))
            }
        };
        match wait {
            Some((secs, slack)) => {
                next.place = Place::RetryQueue;
                next.attempts = attempts + 1;
                next.not_before = now.plus_secs(secs);
                next.due_at = next.not_before.plus_secs(slack);
            }
            None => {
                next.place = Place::DeadLetterQueue;
                next.attempts = attempts;
                next.not_before = now;
                next.due_at = now;
            }
        }
        next.history.push(format!("{} {}", crate::clock::to_text(now), next.code));
        let surplus = next.history.len().saturating_sub(20);
        next.history.drain(..surplus);
        next
    }

    /// Writes the row if it is new, or still of that generation and open. Gives back what is there
    /// instead, if not.
    async fn put(&self, letter: &Letter, after: Option<u64>) -> Result<Option<Letter>, Error> {
        let request = self.dynamodb.put_item().table_name(&self.table);
        let request = request
            .set_item(Some(row::to_item(letter)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let request = match after {
            None => request.condition_expression("attribute_not_exists(pk)"),
            Some(generation) => request
                .condition_expression("generation = :before AND attribute_not_exists(closed_as)")
                .expression_attribute_values(":before", AttributeValue::N(generation.to_string())),
        };
        let Err(error) = request.send().await else { return Ok(None) };
        let existing = match error.as_service_error() {
            Some(
                aws_sdk_dynamodb::operation::put_item::PutItemError::ConditionalCheckFailedException(
                    failed,
                ),
            ) => failed.item.clone(),
            _ => return Err(store::failed("cannot write a letter", error).into()),
        };
        Ok(Some(match existing.map(row::from_item) {
            Some(Ok(existing)) => existing,
            // Its message is sent all the same, so that somebody sees it: a damaged row must not stop
            // a partition.
            Some(Err(damage)) => {
                tracing::error!(letter_id = %letter.id, severity = "CRITICAL", "{damage}");
                letter.clone()
            }
            None => letter.clone(),
        }))
    }
}
