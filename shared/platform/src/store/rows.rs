//! How deals, facts and keys are written down and read back. What does not read back is a corrupted
//! row and stops everything that would build on it.

use domain::deal::{Deal, Deposit, Party, Publication, RefundOrder, Terms};
use domain::fact::{Change, Creation, Fact};
use domain::filing::Filing;
use domain::ids::{ActorId, ChannelId, DealId, EventId};
use domain::money::{Account, BasisPoints, Nano, Posting};
use domain::plan::Checked;
use domain::result::ReconciliationResult;
use domain::state::Status;
use domain::time::Timestamp;
use domain::ton::{Address, TxHash};
use serde_json::{Map, Value, json};

use super::item::{self, Item};
use super::{Loaded, Processed, messages};
use crate::clock;

/// What `processed` says of a key: it took effect, or there was nothing to do.
pub const SUCCESS: &str = "SUCCESS";
pub const SKIPPED: &str = "SKIPPED";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a stored {row} is damaged: {field}")]
pub struct Corrupt {
    row: &'static str,
    field: String,
}

impl Corrupt {
    pub fn new(row: &'static str, field: impl Into<String>) -> Self {
        Self { row, field: field.into() }
    }
}

pub fn deal_to_item(loaded: &Loaded) -> Item {
    let deal = &loaded.deal;
    let mut row = json!({
        "deal_id": deal.id.to_string(),
        "status": deal.status.name(),
        "version": deal.version,
        "advertiser": deal.advertiser.0,
        "owner": deal.owner.0,
        "channel": deal.channel.0,
        "commission_bps": deal.commission.get(),
        "terms": terms_json(&deal.terms),
        "deposit_address": deal.deposit_address.map(|address| address.to_string()),
        "payout_address": deal.payout_address.map(|address| address.to_string()),
        "escrow": deal.escrow.get(),
        "payable": deal.payable.get(),
        "refundable": deal.refundable.get(),
        "payout_tx": deal.payout_tx.map(|tx| tx.to_string()),
        "deadline_at": deal.deadline_at.map(clock::to_text),
        "settlement_due_at": deal.settlement_due_at.map(clock::to_text),
        "created_at": clock::to_text(deal.created_at),
        "updated_at": clock::to_text(deal.updated_at),
        "outbox_position": deal.outbox_position,
    });
    if !deal.deposits.is_empty() {
        row["deposits"] = deal.deposits.iter().map(deposit_json).collect();
    }
    if !deal.refunds.is_empty() {
        row["refunds"] = deal.refunds.iter().map(refund_json).collect();
    }
    if !deal.admins.is_empty() {
        row["admins"] = deal.admins.iter().map(|admin| admin.0).collect();
    }
    if let Some(party) = deal.cancel_agreed_by {
        row["cancel_agreed_by"] = party_name(party).into();
    }
    if let Some(creative) = &deal.creative {
        row["creative"] = creative.as_str().into();
    }
    if let Some(at) = deal.publish_at {
        row["publish_at"] = clock::to_text(at).into();
    }
    if let Some(publication) = &deal.publication {
        row["publication"] = publication_json(publication);
    }
    if deal.publication_failures > 0 {
        row["publication_failures"] = deal.publication_failures.into();
    }
    if let Some(at) = loaded.next_look_at {
        row["next_look_at"] = at.as_millis().into();
        row["look_bucket"] = messages::bucket(&deal.id.to_string()).into();
    }
    item::from_json(row)
}

pub fn deal_from_item(item: Item) -> Result<Loaded, Corrupt> {
    let row = Row::new("deal", item::to_json(item));
    let terms = row.child("terms");
    let deal = Deal {
        id: row.parse("deal_id", DealId::parse)?,
        status: row.parse("status", Status::parse)?,
        version: row.unsigned("version")?,
        advertiser: ActorId(row.number("advertiser")?),
        owner: ActorId(row.number("owner")?),
        channel: ChannelId(row.number("channel")?),
        commission: row.basis_points("commission_bps")?,
        terms: read_terms(&terms)?,
        deposit_address: row.optional("deposit_address", parse_address)?,
        payout_address: row.optional("payout_address", parse_address)?,
        escrow: row.nano("escrow")?,
        payable: row.nano("payable")?,
        refundable: row.nano("refundable")?,
        deposits: row.list("deposits", |row| read_deposit(&row))?,
        refunds: row.list("refunds", |row| read_refund(&row))?,
        payout_tx: row.optional("payout_tx", TxHash::parse)?,
        admins: row.list("admins", |row| row.actor())?,
        cancel_agreed_by: row.optional("cancel_agreed_by", parse_party)?,
        creative: row.optional("creative", owned)?,
        publish_at: row.optional("publish_at", clock::from_text)?,
        publication: if row.value["publication"].is_null() {
            None
        } else {
            Some(read_publication(&row.child("publication"))?)
        },
        publication_failures: match row.value["publication_failures"] {
            Value::Null => 0,
            _ => row.small("publication_failures")?,
        },
        deadline_at: row.optional("deadline_at", clock::from_text)?,
        settlement_due_at: row.optional("settlement_due_at", clock::from_text)?,
        created_at: row.parse("created_at", clock::from_text)?,
        updated_at: row.parse("updated_at", clock::from_text)?,
        outbox_position: row.parse("outbox_position", owned)?,
    };
    let next_look_at = row.value["next_look_at"].as_i64().map(Timestamp::from_millis);
    Ok(Loaded { deal, next_look_at })
}

/// One row of the journal: document 4's `deal_events` and its ledger in one.
pub fn fact_to_item(checked: &Checked, fact: &Fact, index: usize) -> Item {
    let aggregate = checked.after.id.to_string();
    let event_id = EventId::derive(fact.at, &aggregate, fact.seq, 0);
    let postings: Vec<Value> = fact
        .postings
        .iter()
        .map(|posting| json!([posting.account.to_string(), posting.amount.get()]))
        .collect();
    let date = clock::to_text(fact.at);
    let shard = messages::bucket(&aggregate);
    let message_ids = messages::ids_of_fact(checked, index);
    item::from_json(json!({
        "aggregate_id": aggregate,
        "seq": fact.seq,
        "event_id": event_id.to_string(),
        "event_type": fact.event_type,
        "from_status": fact.from.map(Status::name),
        "to_status": fact.to.name(),
        "actor_id": fact.actor.map(|actor| actor.0),
        "payload": fact.changes.iter().map(change_json).collect::<Vec<_>>(),
        "postings": postings,
        "messages": message_ids,
        "idempotency_key": checked.plan.key.as_str(),
        "outbox_position": fact.outbox_position,
        "day_shard": format!("{}#{shard}", &date[..10]),
        "created_at": date,
    }))
}

pub fn fact_from_item(item: Item) -> Result<Fact, Corrupt> {
    let row = Row::new("fact", item::to_json(item));
    Ok(Fact {
        seq: row.unsigned("seq")?,
        event_type: row.parse("event_type", domain::fact::event_type)?,
        from: row.optional("from_status", Status::parse)?,
        to: row.parse("to_status", Status::parse)?,
        actor: row.value["actor_id"].as_i64().map(ActorId),
        changes: row.list("payload", |row| read_change(&row))?,
        postings: row.list("postings", |row| {
            let account = row.value[0].as_str().and_then(Account::parse);
            let amount = row.value[1].as_i64().map(Nano::new);
            let both = account.zip(amount);
            both.map(|(account, amount)| Posting { account, amount })
                .ok_or_else(|| row.bad("posting"))
        })?,
        at: row.parse("created_at", clock::from_text)?,
        outbox_position: row.parse("outbox_position", owned)?,
    })
}

pub fn processed_to_item(checked: &Checked, expires_at: Option<i64>) -> Item {
    item::from_json(json!({
        "idempotency_key": checked.plan.key.as_str(),
        "event_type": checked.plan.event_type,
        "deal_id": checked.plan.deal.to_string(),
        "result": SUCCESS,
        "payload_hash": checked.plan.fingerprint.to_string(),
        "processed_at": clock::to_text(checked.at),
        "expires_at": expires_at,
    }))
}

/// The key of what changed no deal. It expires: nothing of money hangs on it.
pub fn filing_to_item(filing: &Filing, now: Timestamp, expires_at: i64) -> Item {
    item::from_json(json!({
        "idempotency_key": filing.key.as_str(),
        "event_type": filing.event_type,
        "deal_id": filing.deal.map(|deal| deal.to_string()),
        "result": if filing.took_effect { SUCCESS } else { SKIPPED },
        "payload_hash": filing.fingerprint.to_string(),
        "processed_at": clock::to_text(now),
        "expires_at": expires_at,
    }))
}

/// Access patterns: one result by its trigger; all results by time (index `lists`).
pub fn reconciliation_to_item(result: &ReconciliationResult, now: Timestamp) -> Item {
    let checks = result.checks.iter().map(
        |check| json!({"name": check.name, "status": check.status(), "details": check.details}),
    );
    let completed_at = clock::to_text(result.completed_at);
    item::from_json(json!({
        "pk": format!("recon#{}", result.trigger_id),
        "sk": "result",
        "list_pk": "recon",
        "list_sk": format!("{completed_at}#{}", result.trigger_id),
        "checks": checks.collect::<Vec<_>>(),
        "completed_at": completed_at,
        "stored_at": clock::to_text(now),
    }))
}

pub fn processed_from_item(item: Item) -> Result<Processed, Corrupt> {
    let row = Row::new("processed key", item::to_json(item));
    Ok(Processed {
        key: row.parse("idempotency_key", owned)?,
        fingerprint: row.parse("payload_hash", owned)?,
        deal_id: row.optional("deal_id", owned)?,
        result: row.parse("result", owned)?,
    })
}

fn deposit_json(deposit: &Deposit) -> Value {
    json!({
        "tx": deposit.tx.to_string(),
        "sender": deposit.sender.to_string(),
        "amount": deposit.amount.get(),
        "returned": deposit.returned.get(),
    })
}

fn read_deposit(row: &Row) -> Result<Deposit, Corrupt> {
    Ok(Deposit {
        tx: row.parse("tx", TxHash::parse)?,
        sender: row.parse("sender", parse_address)?,
        amount: row.nano("amount")?,
        returned: row.nano("returned")?,
    })
}

fn refund_json(order: &RefundOrder) -> Value {
    json!({
        "number": order.number,
        "amount": order.amount.get(),
        "to": order.to.to_string(),
        "deposit": order.deposit.to_string(),
        "settled": order.settled.map(|tx| tx.to_string()),
    })
}

fn read_refund(row: &Row) -> Result<RefundOrder, Corrupt> {
    Ok(RefundOrder {
        number: row.small("number")?,
        amount: row.nano("amount")?,
        to: row.parse("to", parse_address)?,
        deposit: row.parse("deposit", TxHash::parse)?,
        settled: row.optional("settled", TxHash::parse)?,
    })
}

fn publication_json(publication: &Publication) -> Value {
    json!({
        "message_id": publication.message_id,
        "content_hash": publication.content_hash,
        "published_at": clock::to_text(publication.published_at),
    })
}

fn read_publication(row: &Row) -> Result<Publication, Corrupt> {
    Ok(Publication {
        message_id: row.number("message_id")?,
        content_hash: row.parse("content_hash", owned)?,
        published_at: row.parse("published_at", clock::from_text)?,
    })
}

fn owned(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn terms_json(terms: &Terms) -> Value {
    json!({
        "version": terms.version,
        "price": terms.price.get(),
        "by": party_name(terms.proposed_by),
    })
}

fn read_terms(row: &Row) -> Result<Terms, Corrupt> {
    Ok(Terms {
        version: row.small("version")?,
        price: row.nano("price")?,
        proposed_by: row.parse("by", parse_party)?,
    })
}

/// A change is an object with one field: its name.
fn change_json(change: &Change) -> Value {
    match change {
        Change::Created(creation) => json!({"created": {
            "deal_id": creation.deal.to_string(),
            "advertiser": creation.advertiser.0,
            "owner": creation.owner.0,
            "channel": creation.channel.0,
            "commission_bps": creation.commission.get(),
            "terms": terms_json(&creation.terms),
        }}),
        Change::DepositAddress(address) => json!({"deposit_address": address.to_string()}),
        Change::PayoutAddress(address) => json!({"payout_address": address.to_string()}),
        Change::Deposited(deposit) => json!({"deposited": deposit_json(deposit)}),
        Change::Returned { deposit, amount } => {
            json!({"returned": {"deposit": deposit.to_string(), "amount": amount.get()}})
        }
        Change::RefundOrdered(order) => json!({"refund_ordered": refund_json(order)}),
        Change::RefundSettled { number, tx } => {
            json!({"refund_settled": {"number": number, "tx": tx.to_string()}})
        }
        Change::PayoutSettled(tx) => json!({"payout_settled": tx.to_string()}),
        Change::Terms(terms) => json!({"terms": terms_json(terms)}),
        Change::Admins(admins) => {
            json!({"admins": admins.iter().map(|admin| admin.0).collect::<Vec<_>>()})
        }
        Change::CancelAgreed(party) => {
            json!({"cancel_agreed_by": party.map_or(NONE, party_name)})
        }
        Change::Creative(reference) => json!({"creative": reference}),
        Change::PublicationCommanded { publish_at } => {
            json!({"publish_at": clock::to_text(*publish_at)})
        }
        Change::PublicationFailed => json!({"publication_failed": true}),
        Change::Published(publication) => json!({"published": publication_json(publication)}),
        Change::Noted(text) => json!({"noted": text}),
        Change::Deadline(at) => json!({"deadline_at": time_json(*at)}),
        Change::SettlementDue(at) => json!({"settlement_due_at": time_json(*at)}),
    }
}

fn read_change(row: &Row) -> Result<Change, Corrupt> {
    let name = row.value.as_object().and_then(|fields| fields.keys().next()).cloned();
    let name = name.ok_or_else(|| row.bad("change"))?;
    let child = row.child(&name);
    Ok(match name.as_str() {
        "created" => Change::Created(Box::new(Creation {
            deal: child.parse("deal_id", DealId::parse)?,
            advertiser: ActorId(child.number("advertiser")?),
            owner: ActorId(child.number("owner")?),
            channel: ChannelId(child.number("channel")?),
            commission: child.basis_points("commission_bps")?,
            terms: read_terms(&child.child("terms"))?,
        })),
        "deposit_address" => Change::DepositAddress(row.parse(&name, parse_address)?),
        "payout_address" => Change::PayoutAddress(row.parse(&name, parse_address)?),
        "deposited" => Change::Deposited(read_deposit(&child)?),
        "returned" => Change::Returned {
            deposit: child.parse("deposit", TxHash::parse)?,
            amount: child.nano("amount")?,
        },
        "refund_ordered" => Change::RefundOrdered(read_refund(&child)?),
        "refund_settled" => Change::RefundSettled {
            number: child.small("number")?,
            tx: child.parse("tx", TxHash::parse)?,
        },
        "payout_settled" => Change::PayoutSettled(row.parse(&name, TxHash::parse)?),
        "terms" => Change::Terms(read_terms(&child)?),
        "admins" => Change::Admins(row.list(&name, |row| row.actor())?),
        "cancel_agreed_by" => Change::CancelAgreed(row.parse(&name, |text| {
            if text == NONE { Some(None) } else { parse_party(text).map(Some) }
        })?),
        "creative" => Change::Creative(row.parse(&name, owned)?),
        "publish_at" => {
            Change::PublicationCommanded { publish_at: row.parse(&name, clock::from_text)? }
        }
        "publication_failed" => Change::PublicationFailed,
        "published" => Change::Published(read_publication(&child)?),
        "noted" => Change::Noted(row.parse(&name, owned)?),
        "deadline_at" => Change::Deadline(row.optional(&name, parse_time)?.flatten()),
        "settlement_due_at" => Change::SettlementDue(row.optional(&name, parse_time)?.flatten()),
        _ => return Err(row.bad(&name)),
    })
}

/// An ended deadline is written as a word: nulls are left out of rows.
const NONE: &str = "none";

fn time_json(at: Option<Timestamp>) -> String {
    at.map_or_else(|| NONE.to_owned(), clock::to_text)
}

fn parse_time(text: &str) -> Option<Option<Timestamp>> {
    if text == NONE { Some(None) } else { clock::from_text(text).map(Some) }
}

fn party_name(party: Party) -> &'static str {
    match party {
        Party::Advertiser => "ADVERTISER",
        Party::Owner => "OWNER",
    }
}

fn parse_party(text: &str) -> Option<Party> {
    [Party::Advertiser, Party::Owner].into_iter().find(|party| party_name(*party) == text)
}

fn parse_address(text: &str) -> Option<Address> {
    Address::parse(text).ok()
}

/// A row, or a part of one, that knows what to call itself when a field is wrong.
struct Row {
    kind: &'static str,
    value: Value,
}

impl Row {
    fn new(kind: &'static str, value: Value) -> Self {
        Self { kind, value }
    }

    fn child(&self, name: &str) -> Self {
        let value = self.value.get(name).cloned().unwrap_or(Value::Object(Map::new()));
        Self { kind: self.kind, value }
    }

    fn bad(&self, field: &str) -> Corrupt {
        Corrupt::new(self.kind, field)
    }

    fn parse<T>(&self, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, Corrupt> {
        self.value[name].as_str().and_then(read).ok_or_else(|| self.bad(name))
    }

    fn optional<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Corrupt> {
        if self.value[name].is_null() {
            return Ok(None);
        }
        self.parse(name, read).map(Some)
    }

    fn number(&self, name: &str) -> Result<i64, Corrupt> {
        self.value[name].as_i64().ok_or_else(|| self.bad(name))
    }

    fn unsigned(&self, name: &str) -> Result<u64, Corrupt> {
        self.value[name].as_u64().ok_or_else(|| self.bad(name))
    }

    fn actor(&self) -> Result<ActorId, Corrupt> {
        self.value.as_i64().map(ActorId).ok_or_else(|| self.bad("actor"))
    }

    fn small(&self, name: &str) -> Result<u32, Corrupt> {
        u32::try_from(self.unsigned(name)?).map_err(|_| self.bad(name))
    }

    fn nano(&self, name: &str) -> Result<Nano, Corrupt> {
        self.number(name).map(Nano::new)
    }

    fn basis_points(&self, name: &str) -> Result<BasisPoints, Corrupt> {
        let points = u16::try_from(self.unsigned(name)?).ok().and_then(BasisPoints::new);
        points.ok_or_else(|| self.bad(name))
    }

    fn list<T>(
        &self,
        name: &str,
        read: impl Fn(Self) -> Result<T, Corrupt>,
    ) -> Result<Vec<T>, Corrupt> {
        let values = match &self.value[name] {
            Value::Null => return Ok(Vec::new()),
            Value::Array(values) => values,
            _ => return Err(self.bad(name)),
        };
        values.iter().map(|value| read(Self::new(self.kind, value.clone()))).collect()
    }
}
