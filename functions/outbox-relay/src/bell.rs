//! The doorbell: which buckets have news. A bell is a hint; each minute the schedule has them all rung.

use std::collections::BTreeMap;

use domain::time::Timestamp;
use futures::future::join_all;
use lambda_runtime::{LambdaEvent, service_fn};
use platform::aws::Clients;
use platform::catalog::OUTBOX_RELAY;
use platform::clock;
use platform::store::messages::BUCKETS;
use platform::telemetry;
use platform::wire::{Event, UnknownEvent, sqs};
use serde_json::{Value, json};

use crate::config::Config;
use crate::relay::{self, Left, Relay, Start};

/// Kept for what must be written down after the last record.
const RESERVE_SECS: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Event(#[from] UnknownEvent),
    #[error("this is no event of a queue")]
    NoQueue,
    #[error("{0}")]
    Response(&'static str),
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

/// One invocation: the answer that SQS wants. A bell is done once its bucket was worked on, whatever is
/// left there; only what kept us from looking brings it again.
pub async fn invoke(relay: &Relay, payload: Value, deadline: Timestamp) -> Result<Value, Error> {
    let Event::Sqs(messages) = Event::read(payload)? else { return Err(Error::NoQueue) };
    let mut failed = Vec::new();
    let mut buckets: BTreeMap<String, (Start, Vec<String>)> = BTreeMap::new();
    let mut for_all = Vec::new();
    for message in messages {
        match bell(&message.body) {
            Some(Bell::Bucket(bucket, start)) => {
                let (earliest, ids) = buckets.entry(bucket).or_insert((Start::News, Vec::new()));
                *earliest = start.min(earliest.clone());
                ids.push(message.id);
            }
            Some(Bell::All) => for_all.push(message.id),
            None => tracing::warn!(message_id = message.id, "this is no bell; it is dropped"),
        }
    }
    if !for_all.is_empty()
        && let Err(error) = ring_all(relay).await
    {
        tracing::error!(%error, "not all buckets could be looked at");
        failed.extend(for_all);
    }
    let until = deadline.minus_secs(RESERVE_SECS);
    let starts = buckets.iter().map(|(bucket, (start, _))| (bucket.clone(), start.clone()));
    let mut again = BTreeMap::new();
    for (bucket, done) in relay.work_on(&starts.collect(), until).await {
        match done {
            Ok(Left::Nothing) => tracing::info!(bucket, "drained"),
            Ok(left) => {
                tracing::info!(bucket, ?left, "something is left");
                if let Left::MoreToDo(after) = left {
                    let bell = match after {
                        Some(after) => json!({"bucket": bucket, "after": after}),
                        None => json!({"bucket": bucket, "whole": true}),
                    };
                    again.insert(bucket, bell);
                }
            }
            Err(error) => {
                tracing::error!(bucket, %error, "the bucket was not worked on");
                failed.extend(buckets.remove(&bucket).into_iter().flat_map(|(_, ids)| ids));
            }
        }
    }
    relay.doorbell.send(&again).await;
    relay.forget().await;
    relay.metrics.flush(OUTBOX_RELAY.name);
    let response = sqs::response(failed).map_err(Error::Response)?;
    Ok(serde_json::to_value(response).expect("the response is plain JSON"))
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
pub async fn ring_all(relay: &Relay) -> Result<(), relay::Error> {
    let depths = all_buckets().map(|bucket| async {
        let depth = relay.outbox.depth(&bucket).await;
        (bucket, depth)
    });
    let now = clock::now();
    let (mut pending, mut oldest_ms) = (0, 0);
    let mut bells = BTreeMap::new();
    let mut by_retries: BTreeMap<u32, u64> = BTreeMap::new();
    let mut unknown = None;
    for (bucket, depth) in join_all(depths).await {
        match depth {
            Ok(depth) if depth.rows > 0 => {
                pending += depth.rows;
                oldest_ms = oldest_ms.max(depth.oldest.map_or(0, |at| now.distance_ms(at)));
                for (retries, messages) in depth.by_retries {
                    *by_retries.entry(retries).or_default() += messages;
                }
            }
            Ok(_) => continue,
            // It may have something.
            Err(error) => unknown = Some(error),
        }
        let bell = json!({"bucket": bucket, "whole": true});
        bells.insert(bucket, bell);
    }
    relay.doorbell.send(&bells).await;
    relay.metrics.observe("outbox.pending", "Count", pending, "");
    for (retries, messages) in by_retries {
        let dimension = format!("retry_count={retries}");
        relay.metrics.observe("outbox.waiting", "Count", messages, &dimension);
    }
    relay.metrics.observe("outbox.oldest_age_seconds", "Seconds", oldest_ms / 1000, "");
    match unknown {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
