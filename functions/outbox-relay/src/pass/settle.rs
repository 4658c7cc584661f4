//! What becomes of messages after a page was sent: what was acknowledged goes, and what failed waits, is
//! tried again or is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use platform::clock;
use platform::outbox::{Failures, Row};
use platform::store::messages::ESCROW_COMMANDS;
use platform::telemetry::CRITICAL;

use super::{Outcome, Pass, Place, STRIKES};
use crate::backoff;
use crate::dead_letter::{self, GivenUp, Reason};
use crate::producer::Failure;
use crate::relay::{Error, Left, span};

impl Pass<'_> {
    /// Writes down what became of some rows, and learns from it for the rest of the pass. What was
    /// acknowledged is written down first: nothing that a failure brings about may lose it.
    pub(super) async fn settle(
        &mut self,
        rows: &[Row],
        outcomes: Vec<(Place, Outcome)>,
    ) -> Result<(), Error> {
        let mut acknowledged: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let (mut failures, mut resolved) = (Vec::new(), Vec::new());
        for (place, outcome) in outcomes {
            let (row, message) = (&rows[place.0], &rows[place.0].messages[place.1]);
            if !matches!(outcome, Outcome::Acknowledged) {
                self.order.hold(&row.aggregate_id, &message.topic);
            }
            match outcome {
                Outcome::Acknowledged => {
                    self.done.acknowledged += 1;
                    acknowledged.entry(place.0).or_default().push(place.1);
                    if self.was_given_up(&message.failures) {
                        resolved.push((row, message));
                    }
                }
                Outcome::NotTried { until } => {
                    self.leave(until.map_or(Left::NextBell, Left::Until));
                }
                // The rest of the page is looked at again; see `run`.
                Outcome::OutOfTime => self.leave(Left::NextBell),
                Outcome::Failed(failure) => failures.push((place, failure)),
            }
        }
        self.write_down(rows, &acknowledged).await?;
        for (row, message) in resolved {
            dead_letter::resolve(self.relay, row, message).await;
        }
        for (place, failure) in failures {
            if clock::now() >= self.until {
                // It fails again the next time.
                self.leave(Left::NextBell);
                break;
            }
            let row = &rows[place.0];
            match self.failed(row, place.1, failure).await {
                Ok(false) => {}
                Ok(true) => {
                    // The next pass finds all of it done, and what waited behind it may go.
                    let outbox = &self.relay.outbox;
                    outbox.note_done(self.bucket, &row.position, &[place.1]).await?;
                    self.leave(Left::Until(clock::now()));
                }
                Err(error) => {
                    // The rest goes on; this fails again the next time.
                    self.relay.metrics.count("outbox.troubles", "");
                    tracing::error!(self.bucket, %error, "a failure is not written down");
                    self.leave(Left::NextBell);
                }
            }
        }
        let strikes = self.strikes().clone();
        for (topic, _) in strikes.into_iter().filter(|(_, strikes)| *strikes >= STRIKES) {
            self.order.silence(&topic);
        }
        Ok(())
    }

    fn was_given_up(&self, failures: &Failures) -> bool {
        let Failures { count, not_before, .. } = failures;
        *count > 0 && (not_before.is_none() || *count >= self.relay.config.retries.max)
    }

    async fn write_down(
        &mut self,
        rows: &[Row],
        newly_done: &BTreeMap<usize, Vec<usize>>,
    ) -> Result<(), Error> {
        let (mut deletable, mut notes) = (Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            let now_done = newly_done.get(&index).map(Vec::as_slice).unwrap_or_default();
            let before = row.messages.iter().filter(|message| message.is_done).count();
            let is_done = before + now_done.len() == row.messages.len();
            if self.order.may_delete(&row.aggregate_id, is_done) {
                deletable.push(row.position.clone());
            } else if !now_done.is_empty() {
                notes.push(self.relay.outbox.note_done(self.bucket, &row.position, now_done));
            }
        }
        let notes = async { join_all(notes).await.into_iter().collect::<Result<(), _>>() };
        let deleted = self.relay.outbox.delete(self.bucket, &deletable);
        let (noted, deleted) = futures::join!(notes, deleted);
        noted?;
        Ok(deleted?)
    }

    /// A message was refused, or nobody answered. True where it is given up and out of the way.
    async fn failed(&mut self, row: &Row, number: usize, failure: Failure) -> Result<bool, Error> {
        let metrics = &self.relay.metrics;
        let topic = &row.messages[number].topic;
        match failure {
            Failure::Transport(error) => {
                tracing::warn!(topic, error, "no answer");
                metrics.count("outbox.unanswered", "");
                self.leave(Left::NextBell);
                Ok(false)
            }
            Failure::Topic(error) => {
                tracing::error!(topic, error, "the topic takes nothing");
                metrics.count("outbox.topic_refused", "");
                self.order.silence(topic);
                self.leave(Left::NextBell);
                Ok(false)
            }
            Failure::Record { error, is_oversized } => {
                self.refused(row, number, &error, is_oversized).await
            }
        }
    }

    /// A message failed by its own fault: it is tried again later, or given up.
    async fn refused(
        &mut self,
        row: &Row,
        number: usize,
        error: &str,
        is_oversized: bool,
    ) -> Result<bool, Error> {
        let (relay, message) = (self.relay, &row.messages[number]);
        let retries = message.failures.count;
        let (event_id, topic) = (&message.id, &message.topic);
        let note = async |failures: Failures| {
            relay.outbox.note_failures(self.bucket, &row.position, number, &failures).await
        };
        if retries < relay.config.retries.max {
            let at = clock::now().plus(backoff::delay(&relay.config.retries, retries));
            note(Failures { count: retries + 1, not_before: Some(at), is_stuck: false }).await?;
            relay.metrics.count("outbox.retries", "");
            tracing::warn!(event_id, topic, retries, error, "not published, and tried again");
            self.leave(Left::Until(at));
            return Ok(false);
        }
        let left = span(clock::now(), self.until);
        let patience = if self.dead_letters_fail { Duration::ZERO } else { left };
        let reason = Reason { error, is_oversized };
        let GivenUp { letter_id, is_kept, is_told } =
            dead_letter::give_up(relay, &self.signer, row, message, reason, patience).await?;
        self.dead_letters_fail |= !is_told;
        relay.metrics.count("outbox.dead_lettered", "");
        let is_critical = topic == ESCROW_COMMANDS || !is_kept;
        if is_critical {
            relay.metrics.count(CRITICAL, "");
        }
        let severity = if is_critical { "CRITICAL" } else { "WARNING" };
        // What an operator needs to have it tried again.
        let (bucket, position) = (self.bucket, &row.position);
        tracing::error!(
            event_id, topic, letter_id, error, severity, bucket, position, number, "given up"
        );
        if is_critical {
            // No later command about this money until an operator has acted; and no message is deleted
            // that its letter does not have.
            note(Failures { count: retries + 1, not_before: None, is_stuck: true }).await?;
            self.leave(Left::NextBell);
            return Ok(false);
        }
        Ok(true)
    }
}
