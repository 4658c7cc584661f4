//! The outbox row of a commit: all its messages, in the order of their facts, and the position of the
//! aggregate's row before it.

use domain::fact::Fact;
use domain::ids::EventId;
use domain::message::{Command, Message, Recipient};
use domain::plan::Checked;
use domain::state::Status;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::item::{self, Item};
use crate::clock;

pub const BUCKETS: u8 = 16;

const DEAL_EVENTS: &str = "deal.events";
const ESCROW_COMMANDS: &str = "escrow.commands";
const NOTIFICATIONS: &str = "notifications.outbox";

/// Where an aggregate's rows are, in the outbox and in the sweep's index.
pub fn bucket(aggregate: &str) -> String {
    let digest = Sha256::digest(aggregate.as_bytes());
    format!("{:02}", digest[0] % BUCKETS)
}

struct Outgoing {
    id: EventId,
    topic: &'static str,
    event_type: &'static str,
    payload: Value,
}

pub fn outbox_item(checked: &Checked) -> Item {
    let aggregate = checked.after.id.to_string();
    let messages: Vec<Value> = outgoing(checked)
        .into_iter()
        .map(|message| {
            json!({
                "id": message.id.to_string(),
                "topic": message.topic,
                "type": message.event_type,
                "payload": message.payload.to_string(),
            })
        })
        .collect();
    let previous = checked.before.as_ref().map(|deal| deal.outbox_position.clone());
    item::from_json(json!({
        "bucket": bucket(&aggregate),
        "position": checked.after.outbox_position,
        "aggregate_type": "Deal",
        "aggregate_id": aggregate,
        "seq": checked.after.version,
        "previous": previous.filter(|position| !position.is_empty()),
        "messages": messages,
        "created_at": clock::to_text(checked.at),
    }))
}

/// The messages that go with a fact: its own event, and for the last fact the plan's messages too.
pub fn ids_of_fact(checked: &Checked, index: usize) -> Vec<String> {
    let own = index..=index;
    let others = checked.facts.len()..;
    let last = index + 1 == checked.facts.len();
    let ids = outgoing(checked).into_iter().enumerate();
    ids.filter(|(place, _)| own.contains(place) || (last && others.contains(place)))
        .map(|(_, message)| message.id.to_string())
        .collect()
}

fn outgoing(checked: &Checked) -> Vec<Outgoing> {
    let aggregate = checked.after.id.to_string();
    let facts = checked.facts.iter().map(|fact| Outgoing {
        id: EventId::derive(fact.at, &aggregate, fact.seq, 1),
        topic: DEAL_EVENTS,
        event_type: fact.event_type,
        payload: fact_payload(checked, fact),
    });
    let last_seq = checked.after.version;
    let messages = (2..).zip(&checked.plan.messages).map(|(index, message)| {
        let (topic, event_type, payload) = encode(checked, message);
        Outgoing {
            id: EventId::derive(checked.at, &aggregate, last_seq, index),
            topic,
            event_type,
            payload,
        }
    });
    facts.chain(messages).collect()
}

fn fact_payload(checked: &Checked, fact: &Fact) -> Value {
    let event_id = EventId::derive(fact.at, &checked.after.id.to_string(), fact.seq, 0);
    json!({
        "event_id": event_id.as_uuid(),
        "seq": fact.seq,
        "from_status": fact.from.map(Status::name),
        "to_status": fact.to.name(),
        "actor_id": fact.actor.map(|actor| actor.0),
        "escrow_nano": checked.after.escrow.get(),
    })
}

fn encode(checked: &Checked, message: &Message) -> (&'static str, &'static str, Value) {
    let deal = &checked.after;
    match message {
        Message::Command(Command::ExecuteRefund { number, amount, to, deposit }) => (
            ESCROW_COMMANDS,
            "EXECUTE_REFUND",
            json!({
                "command_id": format!("refund:{}:{number}", deal.id),
                "deal_id": deal.id.to_string(),
                "amount_nano": amount.get(),
                "to_address": to.to_friendly(false),
                "deposit_tx_hash": deposit.to_string(),
            }),
        ),
        Message::Notification(notification) => {
            let recipients = notification.recipients.iter().map(|recipient| match recipient {
                Recipient::User(actor) => json!({"user_id": actor.0}),
                Recipient::Operator => json!({"role": "OPERATOR"}),
            });
            (
                NOTIFICATIONS,
                notification.kind.name(),
                json!({
                    "kind": notification.kind.name(),
                    "recipients": recipients.collect::<Vec<_>>(),
                    "deal_id": deal.id.to_string(),
                    "text": notification.text,
                }),
            )
        }
    }
}
