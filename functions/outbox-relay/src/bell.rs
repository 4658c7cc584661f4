//! The doorbell: which buckets have news. A bell is a hint; each minute the schedule has them all rung.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::time::Timestamp;
use futures::future::join_all;
use lambda_runtime::{LambdaEvent, service_fn};
use platform::aws::Clients;
use platform::catalog::OUTBOX_RELAY;
use platform::clock;
use platform::store::messages::BUCKETS;
use platform::telemetry;
use platform::wire::{Event, UnknownEvent};
use serde_json::{Value, json};

use crate::config::Config;
use crate::relay::{Left, Relay, Start, span};

/// Kept for what must be written down after the last record.
const RESERVE_SECS: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Event(#[from] UnknownEvent),
    #[error("this is no event of a queue")]
    NoQueue,
}

pub async fn run() -> Result<(), lambda_runtime::Error> {
    telemetry::init(OUTBOX_RELAY.name);
    let relay = Relay::new(Config::from_env()?, Clients::from_env().await);
    let relay = &relay;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        let deadline_ms = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
        let deadline = Timestamp::from_millis(deadline_ms);
        Box::pin(invoke(relay, event.payload, deadline)).await.map_err(lambda_runtime::Error::from)
    }))
    .await
}

/// One invocation: the answer that SQS wants. Every bell is done, whatever is left in its bucket and
/// whatever kept us from looking: the schedule rings again within a minute, while a bell that is
/// given back closes its bucket until it comes again.
pub async fn invoke(relay: &Relay, payload: Value, deadline: Timestamp) -> Result<Value, Error> {
    let Event::Sqs(messages) = Event::read(payload)? else { return Err(Error::NoQueue) };
    let mut starts: BTreeMap<String, Start> = BTreeMap::new();
    let (mut whole_after, mut for_all) = (BTreeSet::new(), false);
    for message in messages {
        match bell(&message.body) {
            Some(Bell::Bucket(bucket, start)) => {
                let before = starts.remove(&bucket);
                let (first, has_whole_after) = merge(before, start);
                if has_whole_after {
                    whole_after.insert(bucket.clone());
                }
                starts.insert(bucket, first);
            }
            Some(Bell::All) => for_all = true,
            None => tracing::warn!(message_id = message.id, "this is no bell; it is dropped"),
        }
    }
    if for_all {
        ring_all(relay).await;
    }
    let until = deadline.minus_secs(RESERVE_SECS);
    let mut again: Vec<(String, Value)> = whole_after.into_iter().map(whole).collect();
    for (bucket, done) in relay.work_on(&starts, until).await {
        match done {
            Ok(Left::Nothing) => tracing::info!(bucket, "drained"),
            Ok(left) => {
                tracing::info!(bucket, ?left, "something is left");
                if let Left::MoreToDo(after) = left {
                    again.push(match after {
                        Some(after) => {
                            let bell = json!({"bucket": bucket, "after": after});
                            (bucket, bell)
                        }
                        None => whole(bucket),
                    });
                }
            }
            Err(error) => {
                relay.metrics.count("outbox.troubles", "");
                tracing::error!(bucket, %error, "the bucket was not worked on");
            }
        }
    }
    relay.doorbell.send(&again).await;
    relay.forget().await;
    relay.metrics.flush(OUTBOX_RELAY.name);
    Ok(json!({"batchItemFailures": []}))
}

/// The bell for all of a bucket.
fn whole(bucket: String) -> (String, Value) {
    let bell = json!({"bucket": bucket, "whole": true});
    (bucket, bell)
}

/// Where to begin for two bells, and whether the whole bucket is still to be looked at after that: what
/// an invocation had no time for comes first, or it would never come.
fn merge(one: Option<Start>, other: Start) -> (Start, bool) {
    match (one, other) {
        (None, start) | (Some(Start::News), start) | (Some(start), Start::News) => (start, false),
        (Some(Start::Beginning), Start::Beginning) => (Start::Beginning, false),
        (Some(Start::After(one)), Start::After(other)) => (Start::After(one.min(other)), false),
        (Some(Start::After(after)), Start::Beginning)
        | (Some(Start::Beginning), Start::After(after)) => (Start::After(after), true),
    }
}

enum Bell {
    /// A commit rings for news. The relay itself rings for all of a bucket each minute, and for what
    /// it had no time for.
    Bucket(String, Start),
    All,
}

fn bell(body: &str) -> Option<Bell> {
    let body: Value = serde_json::from_str(body).ok()?;
    if body["ring_all"].is_string() {
        return Some(Bell::All);
    }
    let bucket = body["bucket"].as_str()?;
    let start = match (&body["after"], &body["whole"]) {
        (Value::String(after), _) => Start::After(after.clone()),
        (_, Value::Bool(true)) => Start::Beginning,
        _ => Start::News,
    };
    all_buckets().any(|known| known == bucket).then(|| Bell::Bucket(bucket.to_owned(), start))
}

fn all_buckets() -> impl Iterator<Item = String> {
    (0..BUCKETS).map(|number| format!("{number:02}"))
}

/// Rings every bucket that has a row, and tells how much waits.
pub async fn ring_all(relay: &Relay) {
    let depths = all_buckets().map(|bucket| async {
        let depth = relay.outbox.depth(&bucket).await;
        (bucket, depth)
    });
    let now = clock::now();
    let (mut pending, mut oldest) = (0, Duration::ZERO);
    let mut bells = Vec::new();
    let mut by_retries: BTreeMap<u32, u64> = BTreeMap::new();
    for (bucket, depth) in join_all(depths).await {
        match depth {
            Ok(depth) if depth.rows > 0 => {
                pending += depth.rows;
                oldest = oldest.max(depth.oldest.map_or(Duration::ZERO, |at| span(at, now)));
                for (retries, messages) in depth.by_retries {
                    *by_retries.entry(retries).or_default() += messages;
                }
            }
            Ok(_) => continue,
            Err(error) => {
                relay.metrics.count("outbox.troubles", "");
                tracing::error!(bucket, %error, "not counted; it may have something");
            }
        }
        bells.push(whole(bucket));
    }
    relay.doorbell.send(&bells).await;
    relay.metrics.observe("outbox.pending", "Count", pending, "");
    for (retries, messages) in by_retries {
        let dimension = format!("retry_count={retries}");
        relay.metrics.observe("outbox.waiting", "Count", messages, &dimension);
    }
    relay.metrics.observe("outbox.oldest_age_seconds", "Seconds", oldest.as_secs(), "");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_no_time_comes_before_the_whole_and_news_before_nothing() {
        let after = |place: &str| Start::After(place.to_owned());
        for (one, other, wanted) in [
            (Start::News, Start::News, (Start::News, false)),
            (Start::News, Start::Beginning, (Start::Beginning, false)),
            (Start::News, after("5"), (after("5"), false)),
            (after("7"), after("5"), (after("5"), false)),
            (Start::Beginning, after("5"), (after("5"), true)),
            (Start::Beginning, Start::Beginning, (Start::Beginning, false)),
        ] {
            assert_eq!(merge(Some(one.clone()), other.clone()), wanted);
            assert_eq!(merge(Some(other), one), wanted);
        }
    }
}
