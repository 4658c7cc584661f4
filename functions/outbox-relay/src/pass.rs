//! One pass over a bucket, from its beginning to its end: what may be published is published, what is
//! acknowledged is deleted, and what failed waits for its time, its topic, its broker or an operator.

mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::time::Timestamp;
use futures::future::join_all;
use platform::clock;
use platform::outbox::{Failures, Message, Row};
use platform::store::messages::{ESCROW_COMMANDS, TOPICS};
use platform::store::rows::Corrupt;
use platform::telemetry::CRITICAL;

use crate::envelope::{self, Signer};
use crate::order::Order;
use crate::producer::{Failure, Record};
use crate::relay::{Error, Left, Relay, span};

/// So many records without an answer in a row silence their topic for the rest of a pass. It ends once
/// all topics are silent. What one topic does not take must not hold up the others.
const STRIKES: u32 = 10;
/// How long a topic is waited for that left a record of this pass without an answer.
const IMPATIENCE: Duration = Duration::from_secs(2);

/// What a pass came to.
#[derive(Debug)]
pub struct Done {
    pub left: Left,
    pub acknowledged: usize,
    /// Rows that were there and not shown: what comes after them was left alone.
    pub missing: Vec<String>,
    /// The pass came to the bucket's end.
    pub is_whole: bool,
    /// Somebody was asked, and nobody answered.
    pub is_out: bool,
}

pub(crate) struct Pass<'a> {
    relay: &'a Relay,
    bucket: &'a str,
    /// Rows up to here are not read, but for those on which a later one depends.
    began_after: Option<String>,
    until: Timestamp,
    signer: Signer,
    order: Order<String, String, String>,
    /// Rows that were left alone: nothing after them in their aggregate is worked on.
    blocked: BTreeSet<String>,
    /// Of each topic: records without an answer, in a row.
    strikes: Mutex<BTreeMap<String, u32>>,
    /// The dead-letter topic took nothing in this pass.
    dead_letters_fail: bool,
    done: Done,
}

/// A message by its row's place in the page and its own place in the row.
type Place = (usize, usize);

/// What became of a message.
#[derive(Debug)]
enum Outcome {
    Acknowledged,
    /// Its turn has not come.
    NotTried {
        until: Option<Timestamp>,
    },
    OutOfTime,
    Failed(Failure),
}

impl<'a> Pass<'a> {
    /// From the row after `after`, or from the beginning, to the bucket's end.
    pub async fn run(
        relay: &'a Relay,
        bucket: &'a str,
        mut after: Option<String>,
        until: Timestamp,
    ) -> Result<Done, Error> {
        let mut pass: Option<Self> = None;
        loop {
            let limit = relay.config.batch_size;
            let page = relay.outbox.page(bucket, after.as_deref(), limit).await?;
            let Some(last) = page.last else {
                let Some(pass) = &mut pass else { return Ok(Done::default()) };
                pass.done.is_whole = true;
                return Ok(pass.end());
            };
            // Nothing is asked for the sake of an empty bucket.
            let pass = match &mut pass {
                Some(pass) => pass,
                none => none.insert(Self::begin(relay, bucket, after.clone(), until).await?),
            };
            for (position, why) in page.damaged {
                pass.block(position, &why);
            }
            pass.obey_hold().await?;
            let rows = pass.workable(page.rows).await?;
            let outcomes = pass.publish(&rows).await;
            pass.settle(&rows, outcomes).await?;
            if clock::now() >= until {
                pass.leave(Left::MoreToDo(after));
                return Ok(pass.end());
            }
            if pass.nobody_answers() {
                return Ok(pass.end());
            }
            after = Some(last);
        }
    }

    async fn begin(
        relay: &'a Relay,
        bucket: &'a str,
        began_after: Option<String>,
        until: Timestamp,
    ) -> Result<Self, Error> {
        relay.producer.prepare().await?;
        let signer = Signer { key: relay.key().await?, is_v2: relay.config.signs_v2 };
        Ok(Self {
            relay,
            bucket,
            began_after,
            until,
            signer,
            order: Order::default(),
            blocked: BTreeSet::new(),
            strikes: Mutex::default(),
            dead_letters_fail: false,
            done: Done::default(),
        })
    }

    fn end(&mut self) -> Done {
        let is_out = self.done.acknowledged == 0 && !self.strikes().is_empty();
        Done { is_out, ..std::mem::take(&mut self.done) }
    }

    fn leave(&mut self, left: Left) {
        self.done.left = std::mem::take(&mut self.done.left).or(left);
    }

    /// The brokers are away, for all that we can tell.
    fn nobody_answers(&self) -> bool {
        let strikes = self.strikes();
        let is_silent = |topic: &&str| strikes.get(*topic).is_some_and(|count| *count >= STRIKES);
        TOPICS.iter().all(is_silent)
    }

    /// How long a message may take: not long where others got no answer.
    fn patience(&self, topic: &str, now: Timestamp) -> Duration {
        let left = span(now, self.until);
        let strikes = self.strikes();
        let is_out = strikes.values().any(|count| *count >= STRIKES);
        if strikes.contains_key(topic) || (is_out && self.done.acknowledged == 0) {
            left.min(IMPATIENCE)
        } else {
            left
        }
    }

    fn strikes(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.strikes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operator's word counts from the next page on.
    async fn obey_hold(&mut self) -> Result<(), Error> {
        if let Some(reason) = self.relay.outbox.hold().await? {
            tracing::warn!(reason, "{ESCROW_COMMANDS} is held by an operator");
            self.order.silence(&ESCROW_COMMANDS.to_owned());
        }
        Ok(())
    }

    /// A row does not read back.
    fn block(&mut self, position: String, why: &Corrupt) {
        self.relay.metrics.count(CRITICAL, "");
        tracing::error!(self.bucket, position, severity = "CRITICAL", "{why}");
        self.blocked.insert(position);
        self.leave(Left::NextBell);
    }

    /// The rows whose predecessors are gone, or were worked on in this pass.
    async fn workable(&mut self, rows: Vec<Row>) -> Result<Vec<Row>, Error> {
        let (earlier, present) = self.look_back(&rows).await?;
        let mut workable = Vec::with_capacity(earlier.len() + rows.len());
        for row in earlier.into_values().chain(rows) {
            match self.order.must_be_gone(&row.aggregate_id, row.previous.as_ref()) {
                Some(previous) if self.blocked.contains(previous) => {
                    self.blocked.insert(row.position);
                }
                // It was committed behind the query's back.
                Some(previous) if present.contains(previous) => {
                    self.done.missing.push(previous.clone());
                    self.blocked.insert(row.position);
                    self.leave(Left::Until(clock::now().plus(self.relay.config.poll_interval)));
                }
                Some(_) | None => {
                    self.order.work_on(&row.aggregate_id, row.position.clone());
                    workable.push(row);
                }
            }
        }
        Ok(workable)
    }

    /// The predecessors of some rows that are there now. Those from before where the pass began are read,
    /// back to each aggregate's first, and worked on with the rows that depend on them.
    async fn look_back(
        &mut self,
        rows: &[Row],
    ) -> Result<(BTreeMap<String, Row>, BTreeSet<String>), Error> {
        let (mut earlier, mut present) = (BTreeMap::new(), BTreeSet::new());
        let mut asked = self.in_question(rows);
        while !asked.is_empty() {
            let found = self.relay.outbox.find(self.bucket, &asked).await?;
            asked.clear();
            for (position, row) in found {
                present.insert(position.clone());
                let is_read = self.began_after.as_ref().is_none_or(|began| position > *began);
                if is_read || self.blocked.contains(&position) {
                    continue;
                }
                match row {
                    Ok(row) => {
                        let previous = row.previous.as_ref();
                        asked.extend(self.order.must_be_gone(&row.aggregate_id, previous).cloned());
                        earlier.insert(position, row);
                    }
                    Err(why) => self.block(position, &why),
                }
            }
        }
        Ok((earlier, present))
    }

    /// What the order will want to be gone, if each of these rows is worked on in its turn.
    fn in_question(&self, rows: &[Row]) -> BTreeSet<String> {
        let mut last_on_page: BTreeMap<&str, &String> = BTreeMap::new();
        let mut asked = BTreeSet::new();
        for row in rows {
            let missing = match last_on_page.insert(&row.aggregate_id, &row.position) {
                Some(last) => row.previous.as_ref().filter(|previous| *previous != last),
                None => self.order.must_be_gone(&row.aggregate_id, row.previous.as_ref()),
            };
            asked.extend(missing.cloned());
        }
        asked
    }

    /// Publishes what may be published of some rows: an aggregate's messages on a topic one after the
    /// other, all others at once.
    async fn publish(&self, rows: &[Row]) -> Vec<(Place, Outcome)> {
        let mut lanes: BTreeMap<(&String, &String), Vec<Place>> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let open = row.messages.iter().enumerate().filter(|(_, message)| !message.is_done);
            for (number, message) in open {
                let lane = lanes.entry((&row.aggregate_id, &message.topic)).or_default();
                lane.push((index, number));
            }
        }
        let lanes = lanes.into_iter().map(|((aggregate, topic), places)| {
            self.lane(rows, places, self.order.may_publish(aggregate, topic))
        });
        join_all(lanes).await.into_iter().flatten().collect()
    }

    /// An aggregate's messages on one topic. The first that is not acknowledged holds back the rest.
    async fn lane(&self, rows: &[Row], places: Vec<Place>, open: bool) -> Vec<(Place, Outcome)> {
        let mut outcomes = Vec::with_capacity(places.len());
        let mut open = open;
        for place in places {
            let (row, message) = (&rows[place.0], &rows[place.0].messages[place.1]);
            let outcome = if open {
                self.try_to_send(row, message).await
            } else {
                Outcome::NotTried { until: None }
            };
            open &= matches!(outcome, Outcome::Acknowledged);
            outcomes.push((place, outcome));
        }
        outcomes
    }

    async fn try_to_send(&self, row: &Row, message: &Message) -> Outcome {
        let now = clock::now();
        let Failures { is_stuck, not_before, .. } = message.failures;
        if is_stuck || not_before.is_some_and(|at| at > now) {
            return Outcome::NotTried { until: not_before.filter(|_| !is_stuck) };
        }
        if now >= self.until {
            return Outcome::OutOfTime;
        }
        if self.strikes().get(&message.topic).is_some_and(|count| *count >= STRIKES) {
            return Outcome::NotTried { until: None };
        }
        let body = envelope::envelope(row, message).to_string().into_bytes();
        let record = Record {
            topic: &message.topic,
            key: &row.aggregate_id,
            headers: self.signer.headers(row, message, &body),
            body: &body,
        };
        match self.relay.producer.send(&record, self.patience(&message.topic, now)).await {
            Ok(()) => {
                self.strikes().remove(&message.topic);
                let latency_ms = clock::now().distance_ms(row.created_at);
                let metrics = &self.relay.metrics;
                metrics.observe("outbox.publish_latency", "Milliseconds", latency_ms, "");
                metrics.count("outbox.published", "");
                Outcome::Acknowledged
            }
            Err(failure) => {
                if matches!(failure, Failure::Transport(_)) {
                    if clock::now() >= self.until {
                        // It was not given the time for an answer.
                        return Outcome::OutOfTime;
                    }
                    *self.strikes().entry(message.topic.clone()).or_default() += 1;
                }
                Outcome::Failed(failure)
            }
        }
    }
}

impl Default for Done {
    fn default() -> Self {
        Self {
            left: Left::Nothing,
            acknowledged: 0,
            missing: Vec::new(),
            is_whole: false,
            is_out: false,
        }
    }
}
