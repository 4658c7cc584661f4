//! The outbox as the relay reads it: rows in the order of their positions, what of each row is done, and
//! how often a message failed. A row is changed only while it exists, and goes when all of it is done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata as _;
use aws_sdk_dynamodb::types::{
    AttributeValue, DeleteRequest, KeysAndAttributes, Select, WriteRequest,
};
use domain::time::Timestamp;
use futures::future::join_all;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::clock;
use crate::store::item::{Item, number, text, to_json};
use crate::store::{Error, failed, pause, rows::Corrupt};

/// DynamoDB takes this many deletions in one call.
const DELETIONS: usize = 25;
/// And so many reads.
const READS: usize = 100;
/// What DynamoDB left out is asked for again, this often.
const TRIES: u32 = 6;
/// So many writes are under way at most.
const WRITES: usize = 32;
/// How many of a bucket's oldest rows are looked at for what failed, and how many pages of 1 MB are
/// counted beyond them.
const LOOK: u32 = 100;
const COUNTED_PAGES: u32 = 10;

/// What one commit has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub position: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub seq: u64,
    /// The aggregate's row before this one.
    pub previous: Option<String>,
    pub created_at: Timestamp,
    pub messages: Vec<Message>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub id: String,
    pub topic: String,
    pub event_type: String,
    /// JSON, as it was committed.
    pub payload: String,
    /// Published, or given up.
    pub is_done: bool,
    pub failures: Failures,
}

/// What went wrong with a message by its own fault.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failures {
    pub count: u32,
    /// Not to be tried before.
    pub not_before: Option<Timestamp>,
    /// Given up, and held: an operator must act.
    pub is_stuck: bool,
}

/// Some rows of a bucket, in order.
#[derive(Debug, Default)]
pub struct Page {
    pub rows: Vec<Row>,
    /// Rows that do not read back, with the reason. What comes after them in their aggregate waits.
    pub damaged: Vec<(String, Corrupt)>,
    /// The last position that was read; None at the end.
    pub last: Option<String>,
    /// There are rows behind it, or were a moment ago.
    pub has_more: bool,
}

#[derive(Clone)]
pub struct Outbox {
    client: Client,
    table: String,
    /// Where an operator's hold is.
    operations: String,
    /// Each write under way has a connection, and a sandbox not so many.
    writes: Arc<Semaphore>,
}

/// What waits in a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Depth {
    /// At least: a very long queue is not counted to its end.
    pub rows: u64,
    pub oldest: Option<Timestamp>,
    /// Messages of the oldest rows by how often they were tried again.
    pub by_retries: BTreeMap<u32, u64>,
}

impl Outbox {
    pub fn new(client: Client, table: String, operations: String) -> Self {
        Self { client, table, operations, writes: Arc::new(Semaphore::new(WRITES)) }
    }

    /// The rows after a position. Strongly consistent, and no snapshot.
    pub async fn page(&self, bucket: &str, after: Option<&str>, limit: u32) -> Result<Page, Error> {
        let request = self.client.query().table_name(&self.table).consistent_read(true);
        let request = request.key_condition_expression(match after {
            Some(_) => "#b = :bucket AND #p > :after",
            None => "#b = :bucket",
        });
        let request = match after {
            Some(after) => request
                .expression_attribute_names("#p", "position")
                .expression_attribute_values(":after", text(after)),
            None => request,
        };
        let answer = request
            .expression_attribute_names("#b", "bucket")
            .expression_attribute_values(":bucket", text(bucket))
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .send()
            .await
            .map_err(|error| failed("cannot read the outbox", error))?;
        let mut page = Page { has_more: answer.last_evaluated_key.is_some(), ..Page::default() };
        for item in answer.items.unwrap_or_default() {
            let position = position_of(&item).unwrap_or_default();
            page.last = Some(position.clone());
            match read(item) {
                Ok(row) => page.rows.push(row),
                Err(why) => page.damaged.push((position, why)),
            }
        }
        Ok(page)
    }

    /// Those of some rows that are there now, by position.
    pub async fn find(
        &self,
        bucket: &str,
        positions: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Result<Row, Corrupt>>, Error> {
        let mut rows = BTreeMap::new();
        let keys: Vec<Item> = positions.iter().map(|position| key(bucket, position)).collect();
        for chunk in keys.chunks(READS) {
            let wanted = KeysAndAttributes::builder()
                .set_keys(Some(chunk.to_vec()))
                .consistent_read(true)
                .build()
                .expect("keys are set");
            let mut wanted = HashMap::from([(self.table.clone(), wanted)]);
            for attempt in 0.. {
                let request = self.client.batch_get_item().set_request_items(Some(wanted));
                let answer = request.send().await;
                let answer = answer.map_err(|error| failed("cannot read the outbox", error))?;
                let found = answer.responses.unwrap_or_default().remove(&self.table);
                let found = found.into_iter().flatten();
                rows.extend(found.map(|item| (position_of(&item).unwrap_or_default(), read(item))));
                wanted = answer.unprocessed_keys.unwrap_or_default();
                if wanted.is_empty() {
                    break;
                }
                give_way(attempt, wanted.len()).await?;
            }
        }
        Ok(rows)
    }

    /// Removes rows of which everything is done. One that is gone already stays gone.
    pub async fn delete(&self, bucket: &str, positions: &[String]) -> Result<(), Error> {
        let chunks = positions
            .chunks(DELETIONS)
            .map(|chunk| self.delete_some(chunk.iter().map(|row| deletion(bucket, row)).collect()));
        join_all(chunks).await.into_iter().collect()
    }

    async fn delete_some(&self, mut left: Vec<WriteRequest>) -> Result<(), Error> {
        let _permit = self.writes.acquire().await;
        for attempt in 0.. {
            let request = self.client.batch_write_item().request_items(&self.table, left);
            let answer = request.send().await;
            let answer = answer.map_err(|error| failed("cannot delete from the outbox", error))?;
            let mut unprocessed = answer.unprocessed_items.unwrap_or_default();
            left = unprocessed.remove(&self.table).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            give_way(attempt, left.len()).await?;
        }
        Ok(())
    }

    /// Notes which of a row's messages are done, beside those that are noted already.
    pub async fn note_done(
        &self,
        bucket: &str,
        position: &str,
        messages: &[usize],
    ) -> Result<(), Error> {
        let done = messages.iter().map(ToString::to_string).collect();
        self.update(
            bucket,
            position,
            "ADD done :done",
            HashMap::new(),
            HashMap::from([(":done".to_owned(), AttributeValue::Ns(done))]),
        )
        .await
    }

    pub async fn note_failures(
        &self,
        bucket: &str,
        position: &str,
        message: usize,
        failures: &Failures,
    ) -> Result<(), Error> {
        let mut noted = Item::from([("count".to_owned(), number(failures.count))]);
        if let Some(at) = failures.not_before {
            noted.insert("not_before".to_owned(), text(clock::to_text(at)));
        }
        if failures.is_stuck {
            noted.insert("stuck".to_owned(), AttributeValue::Bool(true));
        }
        let names = HashMap::from([("#failed".to_owned(), failed_attribute(message))]);
        let values = HashMap::from([(":failed".to_owned(), AttributeValue::M(noted))]);
        self.update(bucket, position, "SET #failed = :failed", names, values).await
    }

    /// Changes a row that exists. One that is gone was finished by somebody else, and stays gone.
    async fn update(
        &self,
        bucket: &str,
        position: &str,
        expression: &str,
        mut names: HashMap<String, String>,
        values: HashMap<String, AttributeValue>,
    ) -> Result<(), Error> {
        let _permit = self.writes.acquire().await;
        names.insert("#p".to_owned(), "position".to_owned());
        let request = self.client.update_item().table_name(&self.table);
        let answer = request
            .set_key(Some(key(bucket, position)))
            .update_expression(expression)
            .condition_expression("attribute_exists(#p)")
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .send()
            .await;
        match answer {
            Ok(_) => Ok(()),
            Err(error) => {
                let code = error.as_service_error().and_then(|error| error.code());
                if code == Some("ConditionalCheckFailedException") {
                    return Ok(());
                }
                Err(failed("cannot change the outbox", error))
            }
        }
    }

    /// Why no money may go out, if an operator said so. Any such row holds, whatever it says.
    pub async fn hold(&self) -> Result<Option<String>, Error> {
        let request = self.client.get_item().table_name(&self.operations).consistent_read(true);
        let request = request.key("pk", text("flags")).key("sk", text("hold"));
        let answer = request.send().await.map_err(|error| failed("cannot read the hold", error))?;
        let reason = |flag: Item| flag.get("reason").and_then(|reason| reason.as_s().ok()).cloned();
        Ok(answer.item.map(|flag| reason(flag).unwrap_or_else(|| "no reason given".to_owned())))
    }

    /// How much waits in a bucket, and since when.
    pub async fn depth(&self, bucket: &str) -> Result<Depth, Error> {
        let first = self.page(bucket, None, LOOK).await?;
        let mut depth = Depth {
            rows: (first.rows.len() + first.damaged.len()) as u64,
            oldest: first.rows.first().map(|row| row.created_at),
            ..Depth::default()
        };
        let messages = first.rows.iter().flat_map(|row| &row.messages);
        for message in messages.filter(|message| !message.is_done) {
            *depth.by_retries.entry(message.failures.count).or_default() += 1;
        }
        let mut after = first.last.filter(|_| first.has_more);
        for _ in 0..COUNTED_PAGES {
            let Some(last) = after else { break };
            let request = self.client.query().table_name(&self.table).select(Select::Count);
            let answer = request
                .key_condition_expression("#b = :bucket AND #p > :after")
                .expression_attribute_names("#b", "bucket")
                .expression_attribute_names("#p", "position")
                .expression_attribute_values(":bucket", text(bucket))
                .expression_attribute_values(":after", text(last))
                .send()
                .await;
            // What is known is at least that much.
            let Ok(answer) = answer else { break };
            depth.rows += u64::try_from(answer.count).unwrap_or_default();
            after = answer.last_evaluated_key.as_ref().and_then(position_of);
        }
        Ok(depth)
    }
}

/// DynamoDB leaves out what it is too busy for.
async fn give_way(attempt: u32, left_out: usize) -> Result<(), Error> {
    if attempt == TRIES {
        let reason = format!("{left_out} requests for the outbox are left out again and again");
        return Err(Error::Systemic { what: "is throttled", reason });
    }
    pause(attempt).await;
    Ok(())
}

fn position_of(item: &Item) -> Option<String> {
    item.get("position").and_then(|value| value.as_s().ok()).cloned()
}

fn key(bucket: &str, position: &str) -> Item {
    Item::from([("bucket".to_owned(), text(bucket)), ("position".to_owned(), text(position))])
}

fn deletion(bucket: &str, position: &str) -> WriteRequest {
    let request = DeleteRequest::builder().set_key(Some(key(bucket, position))).build();
    let request = request.expect("a deletion has a key");
    WriteRequest::builder().delete_request(request).build()
}

fn failed_attribute(message: usize) -> String {
    format!("failed_{message}")
}

fn read(mut item: Item) -> Result<Row, Corrupt> {
    let done = match item.remove("done") {
        Some(AttributeValue::Ns(numbers)) => numbers,
        _ => Vec::new(),
    };
    let row = to_json(item);
    let corrupt = |field| Corrupt::new("outbox row", field);
    let own = |value: &Value| value.as_str().map(str::to_owned);
    let field = |name: &'static str| own(&row[name]).ok_or_else(|| corrupt(name));
    let created_at = field("created_at")?;
    let messages = row["messages"].as_array().ok_or_else(|| corrupt("messages"))?;
    let messages = messages.iter().enumerate().map(|(index, message)| {
        let field = |name: &'static str| own(&message[name]).ok_or_else(|| corrupt(name));
        let payload = field("payload")?;
        serde_json::from_str::<Value>(&payload).map_err(|_| corrupt("payload"))?;
        Ok(Message {
            id: field("id")?,
            topic: field("topic")?,
            event_type: field("type")?,
            payload,
            is_done: done.contains(&index.to_string()),
            failures: failures(&row[failed_attribute(index)]),
        })
    });
    Ok(Row {
        position: field("position")?,
        aggregate_type: field("aggregate_type")?,
        aggregate_id: field("aggregate_id")?,
        seq: row["seq"].as_u64().ok_or_else(|| corrupt("seq"))?,
        previous: own(&row["previous"]),
        created_at: clock::from_text(&created_at).ok_or_else(|| corrupt("created_at"))?,
        messages: messages.collect::<Result<_, Corrupt>>()?,
    })
}

fn failures(noted: &Value) -> Failures {
    Failures {
        count: noted["count"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        not_before: noted["not_before"].as_str().and_then(clock::from_text),
        is_stuck: noted["stuck"].as_bool().unwrap_or(false),
    }
}
