//! Rings for the outbox relay after a commit: one FIFO message per bucket. Best effort: what a lost
//! ring leaves behind, the relay's own schedule finds.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;

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

    /// Every ring has a deduplication id of its own: an equal one within five minutes would be
    /// swallowed, and with it the news.
    async fn ring(&self, buckets: &BTreeSet<String>) {
        let buckets: Vec<&String> = buckets.iter().collect();
        for chunk in buckets.chunks(10) {
            let entries = chunk.iter().enumerate().map(|(index, bucket)| {
                let ring = self.rings.fetch_add(1, Ordering::Relaxed);
                let now = crate::clock::now().as_millis();
                SendMessageBatchRequestEntry::builder()
                    .id(index.to_string())
                    .message_group_id(bucket.as_str())
                    .message_deduplication_id(format!("{now}-{ring}-{:016x}", fastrand::u64(..)))
                    .message_body(format!(r#"{{"bucket":"{bucket}"}}"#))
                    .build()
                    .expect("id and body are set")
            });
            let request = self.client.send_message_batch().queue_url(&self.queue_url);
            let answer = request.set_entries(Some(entries.collect())).send().await;
            if let Err(error) = answer {
                let reason = aws_smithy_types::error::display::DisplayErrorContext(&error);
                tracing::warn!(error = %reason, "the doorbell did not ring; the schedule will");
            }
        }
    }
}
