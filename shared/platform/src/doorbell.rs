//! Rings for the outbox relay after a commit: one FIFO message per bucket. Best effort: what a lost
//! ring leaves behind, the relay's own schedule finds.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use serde_json::{Value, json};

pub struct Doorbell {
    client: Client,
    queue_url: String,
    rings: AtomicU64,
    noted: Mutex<BTreeSet<String>>,
}

impl Doorbell {
    pub fn new(client: Client, queue_url: String) -> Self {
        Self { client, queue_url, rings: AtomicU64::new(0), noted: Mutex::default() }
    }

    /// A bucket has news; the bell is rung once for all of an invocation's.
    pub fn note(&self, bucket: String) {
        self.noted.lock().expect("no panic under it").insert(bucket);
    }

    pub async fn ring_noted(&self) {
        let noted = std::mem::take(&mut *self.noted.lock().expect("no panic under it"));
        self.ring(&noted).await;
    }

    async fn ring(&self, buckets: &BTreeSet<String>) {
        let news = |bucket: &String| (bucket.clone(), json!({"bucket": bucket}));
        self.send(&buckets.iter().map(news).collect::<Vec<_>>()).await;
    }

    /// Sends some bells, each to its bucket. Every one has a deduplication id of its own: an equal one
    /// within five minutes would be swallowed, and with it the news.
    pub async fn send(&self, bells: &[(String, Value)]) {
        for chunk in bells.chunks(10) {
            let entries = chunk.iter().enumerate().map(|(index, (bucket, bell))| {
                let ring = self.rings.fetch_add(1, Ordering::Relaxed);
                let now = crate::clock::now().as_millis();
                SendMessageBatchRequestEntry::builder()
                    .id(index.to_string())
                    .message_group_id(bucket.as_str())
                    .message_deduplication_id(format!("{now}-{ring}-{:016x}", fastrand::u64(..)))
                    .message_body(bell.to_string())
                    .build()
                    .expect("id and body are set")
            });
            let request = self.client.send_message_batch().queue_url(&self.queue_url);
            let answer = request.set_entries(Some(entries.collect())).send().await;
            match answer {
                Ok(answer) if answer.failed.is_empty() => {}
                Ok(answer) => {
                    let failed = answer.failed;
                    tracing::warn!(?failed, "some bells did not ring; the schedule will");
                }
                Err(error) => {
                    let reason = aws_smithy_types::error::display::DisplayErrorContext(&error);
                    tracing::warn!(error = %reason, "the doorbell did not ring; the schedule will");
                }
            }
        }
    }
}
