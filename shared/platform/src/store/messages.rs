//! The outbox row of a commit: all its messages, in the order of their facts, and the position of the
//! aggregate's row before it.

use domain::fact::Fact;
use domain::filing::Filing;
use domain::ids::{ChannelId, EventId};
use domain::message::{Command, Kind, Message, Recipient};
use domain::plan::{Checked, outbox_position};
use domain::state::Status;
use domain::time::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::item::{self, Item};
use crate::clock;

pub const BUCKETS: u8 = 16;

const DEAL_EVENTS: &str = "deal.events";
/// Commands about money: an operator can hold them all, and one that fails holds those after it.
pub const ESCROW_COMMANDS: &str = "escrow.commands";
const DELIVERY_COMMANDS: &str = "delivery.commands";
const NOTIFICATIONS: &str = "notifications.outbox";
/// Where messages go.
pub const TOPICS: &[&str] = &[DEAL_EVENTS, ESCROW_COMMANDS, DELIVERY_COMMANDS, NOTIFICATIONS];

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
    let previous = checked.before.as_ref().map(|deal| deal.outbox_position.clone());
    item::from_json(json!({
        "bucket": bucket(&aggregate),
        "position": checked.after.outbox_position,
        "aggregate_type": "Deal",
        "aggregate_id": aggregate,
        "seq": checked.after.version,
        "previous": previous.filter(|position| !position.is_empty()),
        "messages": outgoing(checked).into_iter().map(Outgoing::into_json).collect::<Vec<_>>(),
        "created_at": clock::to_text(checked.at),
    }))
}

/// The row of what is no deal's change: an aggregate of its own, without a predecessor.
pub fn filing_item(filing: &Filing, now: Timestamp) -> Item {
    let aggregate = filing.key.as_str();
    let messages = (1..).zip(&filing.messages).map(|(index, message)| {
        let deal = filing.deal.map(|deal| deal.to_string());
        let (topic, event_type, payload) = encode(deal.as_deref(), None, message);
        let id = EventId::derive(now, aggregate, 1, index);
        Outgoing { id, topic, event_type, payload }.into_json()
    });
    item::from_json(json!({
        "bucket": bucket(aggregate),
        "position": outbox_position(now, aggregate, 1),
        "aggregate_type": "Filing",
        "aggregate_id": aggregate,
        "seq": 1,
        "messages": messages.collect::<Vec<_>>(),
        "created_at": clock::to_text(now),
    }))
}

impl Outgoing {
    fn into_json(self) -> Value {
        json!({
            "id": self.id.to_string(),
            "topic": self.topic,
            "type": self.event_type,
            "payload": self.payload.to_string(),
        })
    }
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
        let channel = Some(checked.after.channel);
        let (topic, event_type, payload) = encode(Some(&aggregate), channel, message);
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

/// The wire form of a message about a deal, or about none.
fn encode(
    deal: Option<&str>,
    channel: Option<ChannelId>,
    message: &Message,
) -> (&'static str, &'static str, Value) {
    match message {
        Message::Command(command) => encode_command(deal.unwrap_or_default(), channel, command),
        Message::Notification(notification) => {
            let recipients = notification.recipients.iter().map(|recipient| match recipient {
                Recipient::User(actor) => json!({"user_id": actor.0}),
                Recipient::Operator => json!({"role": "OPERATOR"}),
            });
            let kind = notification.kind;
            let mut payload = json!({
                "kind": kind.name(),
                "severity": if kind.is_critical() { "CRITICAL" } else { "INFO" },
                "recipients": recipients.collect::<Vec<_>>(),
                "deal_id": deal,
                "text": notification.text,
            });
            if let Kind::DealMoved { from, to } = kind {
                payload["from_status"] = from.name().into();
                payload["to_status"] = to.name().into();
            }
            (NOTIFICATIONS, kind.name(), payload)
        }
    }
}

fn encode_command(
    deal: &str,
    channel: Option<ChannelId>,
    command: &Command,
) -> (&'static str, &'static str, Value) {
    let channel = channel.map(|channel| channel.0);
    match command {
        Command::GenerateDepositAddress => (
            ESCROW_COMMANDS,
            "GENERATE_DEPOSIT_ADDRESS",
            json!({"command_id": format!("deposit-address:{deal}"), "deal_id": deal}),
        ),
        Command::ExecutePayout { amount, commission, to } => (
            ESCROW_COMMANDS,
            "EXECUTE_PAYOUT",
            json!({
                "command_id": format!("payout:{deal}"),
                "deal_id": deal,
                "amount_nano": amount.get(),
                "commission_nano": commission.get(),
                "to_address": to.to_friendly(false),
            }),
        ),
        Command::ExecuteRefund { number, amount, to, deposit } => (
            ESCROW_COMMANDS,
            "EXECUTE_REFUND",
            json!({
                "command_id": format!("refund:{deal}:{number}"),
                "deal_id": deal,
                "amount_nano": amount.get(),
                "to_address": to.to_friendly(false),
                "deposit_tx_hash": deposit.to_string(),
            }),
        ),
        Command::PublishPost { publish_at, creative } => (
            DELIVERY_COMMANDS,
            "PUBLISH_POST",
            json!({
                "command_id": format!("publish:{deal}"),
                "deal_id": deal,
                "channel_id": channel,
                "publish_at": clock::to_text(*publish_at),
                "creative": creative,
            }),
        ),
        Command::StartVerification { publication, until } => (
            DELIVERY_COMMANDS,
            "START_VERIFICATION",
            json!({
                "command_id": format!("verify:{deal}"),
                "deal_id": deal,
                "channel_id": channel,
                "message_id": publication.message_id,
                "content_hash": publication.content_hash,
                "published_at": clock::to_text(publication.published_at),
                "until": clock::to_text(*until),
            }),
        ),
    }
}
