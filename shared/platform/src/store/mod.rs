//! The only code that reads and writes deals, journal, processed keys and outbox. One event is one
//! `TransactWriteItems`: everything it changes, or nothing.

pub mod item;
pub mod messages;
pub mod rows;

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, KeysAndAttributes, Put,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use domain::deal::Deal;
use domain::filing::Filing;
use domain::ids::DealId;
use domain::key::{Fingerprint, Key};
use domain::plan::Checked;
use domain::time::Timestamp;

use crate::config::Tables;
use item::{Item, text};

/// Thirty days, as document 1 wants; keys that move money never expire.
const KEY_LIFETIME_SECS: u32 = 30 * 24 * 3600;
const UNPROCESSED_TRIES: u32 = 5;
const CONFLICT_TRIES: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// DynamoDB is throttled, unreachable or misconfigured: nobody's record is at fault.
    #[error("DynamoDB {what}: {reason}")]
    Systemic { what: &'static str, reason: String },
    /// DynamoDB says that the request itself is invalid: our own bug, and trying again is no use.
    #[error("DynamoDB refused to {what}: {reason}")]
    Invalid { what: &'static str, reason: String },
    /// A row that does not read back as what we write.
    #[error("{0}")]
    Corrupt(#[from] rows::Corrupt),
}

/// A deal, and what its row says about the sweep, which is no part of the fold.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub deal: Deal,
    pub next_look_at: Option<Timestamp>,
}

/// What is known about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processed {
    pub key: String,
    pub fingerprint: String,
    pub deal_id: Option<String>,
    pub result: String,
}

impl Processed {
    pub fn is_same(&self, fingerprint: &Fingerprint) -> bool {
        self.fingerprint == fingerprint.to_string()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Committed {
    Applied,
    /// The key was recorded as SKIPPED, and nothing else was to be done.
    Filed,
    /// The key was there already. Whether that is a duplicate or a conflict, its fingerprint says.
    Known(Processed),
    /// The deal moved on between the read and the write: read again and decide again.
    Stale,
    /// A journal or outbox row of this version exists, and nothing was said against the deal: somebody
    /// is committing just now, or the row is an orphan. Only reading again tells them apart.
    Ahead,
}

#[derive(Clone)]
pub struct Store {
    client: Client,
    tables: Tables,
}

impl Store {
    pub fn new(client: Client, tables: Tables) -> Self {
        Self { client, tables }
    }

    /// The deal and the key in one consistent call. A missing answer is never taken for "unknown".
    pub async fn load(
        &self,
        deal: Option<DealId>,
        key: Option<&Key>,
    ) -> Result<(Option<Loaded>, Option<Processed>), Error> {
        let mut wanted = HashMap::new();
        if let Some(deal) = deal {
            wanted.insert(self.tables.deals.clone(), one_key("deal_id", &deal.to_string()));
        }
        if let Some(key) = key {
            let key = one_key("idempotency_key", key.as_str());
            wanted.insert(self.tables.processed.clone(), key);
        }
        let mut found: HashMap<String, Item> = HashMap::new();
        for attempt in 0.. {
            let answer = self.client.batch_get_item().set_request_items(Some(wanted)).send().await;
            let answer = answer.map_err(|error| failed("cannot read", error))?;
            for (table, items) in answer.responses.unwrap_or_default() {
                found.extend(items.into_iter().map(|item| (table.clone(), item)));
            }
            wanted = answer.unprocessed_keys.unwrap_or_default();
            if wanted.is_empty() {
                break;
            }
            if attempt == UNPROCESSED_TRIES {
                let reason = "keys stay unprocessed".to_owned();
                return Err(Error::Systemic { what: "is throttled", reason });
            }
            pause(attempt).await;
        }
        let loaded = found.remove(&self.tables.deals).map(rows::deal_from_item).transpose()?;
        let processed = found.remove(&self.tables.processed).map(rows::processed_from_item);
        Ok((loaded, processed.transpose()?))
    }

    /// One consistent look at a key alone: what a refusal needs before it is final.
    pub async fn processed(&self, key: &Key) -> Result<Option<Processed>, Error> {
        let request = self.client.get_item().table_name(&self.tables.processed);
        let request = request.key("idempotency_key", text(key.as_str())).consistent_read(true);
        let answer = request.send().await.map_err(|error| failed("cannot read", error))?;
        Ok(answer.item.map(rows::processed_from_item).transpose()?)
    }

    /// Writes a checked plan. A cancelled transaction is read in this order: the key first, then the
    /// deal, then mere conflicts, which are tried again here.
    pub async fn commit(
        &self,
        checked: &Checked,
        next_look_at: Option<Timestamp>,
    ) -> Result<Committed, Error> {
        self.write(self.transaction(checked, next_look_at)).await
    }

    /// Writes what changes no deal: its key, and perhaps a result and messages.
    pub async fn file(&self, filing: &Filing, now: Timestamp) -> Result<Committed, Error> {
        let expires_at = now.plus_secs(KEY_LIFETIME_SECS).as_millis() / 1000;
        let key = rows::filing_to_item(filing, now, expires_at);
        let mut writes = vec![put_new(&self.tables.processed, key, "idempotency_key")];
        if let Some(result) = &filing.record {
            // The key decides; a result that is reported again after its key expired is stored again.
            let item = rows::reconciliation_to_item(result, now);
            let put = Put::builder().table_name(&self.tables.operations).set_item(Some(item));
            let put = put.build().expect("table and item are set");
            writes.push(TransactWriteItem::builder().put(put).build());
        }
        if !filing.messages.is_empty() {
            let item = messages::filing_item(filing, now);
            writes.push(put_new(&self.tables.outbox, item, "position"));
        }
        let committed = self.write(writes).await?;
        Ok(match committed {
            Committed::Applied if !filing.took_effect => Committed::Filed,
            other => other,
        })
    }

    /// The key's row comes first, always: what a cancelled transaction says about it decides.
    async fn write(&self, writes: Vec<TransactWriteItem>) -> Result<Committed, Error> {
        for attempt in 0.. {
            let request = self.client.transact_write_items();
            let request = request.set_transact_items(Some(writes.clone()));
            let error = match request.send().await {
                Ok(_) => return Ok(Committed::Applied),
                Err(error) => error,
            };
            let reasons = match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    cancelled.cancellation_reasons().to_vec()
                }
                _ => return Err(failed("cannot write", error)),
            };
            match read_reasons(&reasons)? {
                Cancelled::Known(processed) => return Ok(Committed::Known(processed)),
                Cancelled::Stale => return Ok(Committed::Stale),
                Cancelled::Ahead => return Ok(Committed::Ahead),
                Cancelled::Conflict if attempt < CONFLICT_TRIES => pause(attempt).await,
                Cancelled::Conflict => {
                    let reason = "transactions keep conflicting".to_owned();
                    return Err(Error::Systemic { what: "is busy", reason });
                }
            }
        }
        unreachable!("the loop only ends by returning")
    }

    fn transaction(
        &self,
        checked: &Checked,
        next_look_at: Option<Timestamp>,
    ) -> Vec<TransactWriteItem> {
        let expires_at = (!checked.moves_money())
            .then(|| checked.at.plus_secs(KEY_LIFETIME_SECS).as_millis() / 1000);
        let mut writes = vec![put_new(
            &self.tables.processed,
            rows::processed_to_item(checked, expires_at),
            "idempotency_key",
        )];
        writes.push(self.put_deal(checked, next_look_at));
        for (index, fact) in checked.facts.iter().enumerate() {
            let item = rows::fact_to_item(checked, fact, index);
            writes.push(put_new(&self.tables.journal, item, "aggregate_id"));
        }
        writes.push(put_new(&self.tables.outbox, messages::outbox_item(checked), "position"));
        writes
    }

    /// Status and version pin the row, and with it the balances.
    fn put_deal(&self, checked: &Checked, next_look_at: Option<Timestamp>) -> TransactWriteItem {
        // A commit only ever lowers the time of the next look; the sweep alone moves it on.
        let look = [next_look_at, checked.after.due_at()].into_iter().flatten().min();
        let item = rows::deal_to_item(&Loaded { deal: checked.after.clone(), next_look_at: look });
        let put = Put::builder().table_name(&self.tables.deals).set_item(Some(item));
        let put = match &checked.before {
            None => put.condition_expression("attribute_not_exists(deal_id)"),
            Some(before) => put
                .condition_expression("#status = :status AND #version = :version")
                .expression_attribute_names("#status", "status")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":status", text(before.status.name()))
                .expression_attribute_values(":version", item::number(before.version)),
        };
        TransactWriteItem::builder().put(put.build().expect("table and item are set")).build()
    }
}

enum Cancelled {
    Known(Processed),
    Stale,
    Ahead,
    Conflict,
}

fn read_reasons(reasons: &[CancellationReason]) -> Result<Cancelled, Error> {
    const CONDITION: &str = "ConditionalCheckFailed";
    let is = |reason: &CancellationReason, code: &str| reason.code() == Some(code);
    if let Some(first) = reasons.first().filter(|reason| is(reason, CONDITION)) {
        let item = first.item.clone().unwrap_or_default();
        return Ok(Cancelled::Known(rows::processed_from_item(item)?));
    }
    // The deal's row comes second.
    if reasons.get(1).is_some_and(|reason| is(reason, CONDITION)) {
        return Ok(Cancelled::Stale);
    }
    if reasons.iter().any(|reason| is(reason, CONDITION)) {
        return Ok(Cancelled::Ahead);
    }
    if reasons.iter().any(|reason| is(reason, "TransactionConflict")) {
        return Ok(Cancelled::Conflict);
    }
    let told = |reason: &CancellationReason| {
        let code = reason.code().filter(|code| *code != "None")?;
        Some(format!("{code}: {}", reason.message().unwrap_or_default()))
    };
    let reason = reasons.iter().filter_map(told).collect::<Vec<_>>().join("; ");
    let invalid = reasons.iter().any(|reason| {
        is(reason, "ValidationError") || is(reason, "ItemCollectionSizeLimitExceeded")
    });
    Err(if invalid {
        Error::Invalid { what: "write", reason }
    } else {
        Error::Systemic { what: "cancelled the write", reason }
    })
}

fn put_new(table: &str, item: Item, key: &str) -> TransactWriteItem {
    let put = Put::builder()
        .table_name(table)
        .set_item(Some(item))
        .condition_expression("attribute_not_exists(#key)")
        .expression_attribute_names("#key", key)
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .expect("table and item are set");
    TransactWriteItem::builder().put(put).build()
}

fn one_key(name: &str, value: &str) -> KeysAndAttributes {
    let key = HashMap::from([(name.to_owned(), AttributeValue::S(value.to_owned()))]);
    KeysAndAttributes::builder().keys(key).consistent_read(true).build().expect("a key is set")
}

/// Tells our own mistakes from the world's.
pub fn failed<E>(what: &'static str, error: SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code).map(str::to_owned);
    let reason = DisplayErrorContext(&error).to_string();
    match code.as_deref() {
        Some("ValidationException" | "SerializationException") => Error::Invalid { what, reason },
        Some(_) | None => Error::Systemic { what, reason },
    }
}

/// Full jitter: rivals that met once must not meet again in step.
pub async fn pause(attempt: u32) {
    let ceiling_ms = 25_u64 << attempt.min(6);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=ceiling_ms))).await;
}
