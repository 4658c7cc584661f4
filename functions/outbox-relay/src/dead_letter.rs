//! A message that cannot be published: it is kept as a letter, and the dead-letter topic is told.

use std::time::Duration;

use domain::ids::DealId;
use platform::catalog::OUTBOX_RELAY;
use platform::clock;
use platform::letter::{self, Failure, Held, LetterId, Understood};
use platform::outbox::{Message, Row};
use platform::store::messages::ESCROW_COMMANDS;
use platform::wire::{Incoming, Origin};

use crate::envelope::{self, Signer};
use crate::producer::Record;
use crate::relay::{Error, Relay};

/// The letter is what counts; the topic gets no more time than this.
const PATIENCE: Duration = Duration::from_secs(5);
const NOT_PUBLISHED: &str = "NOT_PUBLISHED";

pub struct GivenUp {
    pub letter_id: String,
    /// The letter has all of the message: the outbox need not keep it any longer.
    pub is_kept: bool,
    /// The dead-letter topic took it too.
    pub is_told: bool,
}

pub struct Reason<'a> {
    pub error: &'a str,
    pub is_oversized: bool,
}

pub async fn give_up(
    relay: &Relay,
    signer: &Signer,
    row: &Row,
    message: &Message,
    reason: Reason<'_>,
    patience: Duration,
) -> Result<GivenUp, Error> {
    let now = clock::now();
    let Reason { error, is_oversized } = reason;
    let (record, deal, letter_id) = letter_of(row, message);
    let is_kept = !letter::row::is_oversized(&record);
    let understood = Understood { verified: true, deal, ..Understood::default() };
    let is_critical = message.topic == ESCROW_COMMANDS || !is_kept;
    let describe = if is_critical { Failure::critical } else { Failure::permanent };
    let failure = describe(NOT_PUBLISHED, error);
    relay.letters.hold(&Held { record: &record, understood }, &failure, now).await?;

    let letter_id = letter_id.to_string();
    let topic = relay.config.dead_letter_topic();
    let event = envelope::dead_letter(row, message, error, &letter_id, now, is_oversized);
    let body = event.to_string().into_bytes();
    let headers = signer.headers(row, message, &body);
    let record = Record { topic: &topic, key: &row.aggregate_id, headers, body: &body };
    let mut is_told = false;
    if !patience.is_zero() {
        match relay.producer.send(&record, patience.min(PATIENCE)).await {
            Ok(()) => is_told = true,
            Err(failure) => {
                tracing::warn!(topic, ?failure, "the dead-letter topic does not take it");
            }
        }
    }
    Ok(GivenUp { letter_id, is_kept, is_told })
}

/// A message that was given up before was published after all.
pub async fn resolve(relay: &Relay, row: &Row, message: &Message) {
    let (_, _, letter_id) = letter_of(row, message);
    match relay.letters.load(&letter_id).await {
        Ok(Some(letter)) => relay.letters.close(&letter, "RESOLVED", clock::now()).await,
        Ok(None) => {}
        Err(error) => tracing::warn!(%letter_id, %error, "the letter stays open"),
    }
}

/// The same for a message however often it is given up.
fn letter_of(row: &Row, message: &Message) -> (Incoming, Option<DealId>, LetterId) {
    let record = Incoming {
        origin: Origin { topic: message.topic.clone(), partition: 0, offset: message.id.clone() },
        key: Some(row.aggregate_id.clone().into_bytes()),
        body: envelope::envelope(row, message).to_string().into_bytes(),
        headers: Vec::new(),
        recorded_at: row.created_at,
    };
    let deal = DealId::parse(&row.aggregate_id);
    let letter_id = LetterId::new(OUTBOX_RELAY.name, &record, deal);
    (record, deal, letter_id)
}
