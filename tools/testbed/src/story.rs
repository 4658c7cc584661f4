//! Stories: what parties, workers and strangers say about some deals, a line each, told against the
//! deployed template. What it answers is compared with what the story told before.
//!
//! `a owner accept` sends and waits until it was read, then tells what changed. `+` before a line
//! holds it back and sends it together with the next one. `twice` repeats every message from there
//! on, `a day later` moves the workers' clock, `a show` opens a deal's books,
//! `a published` tells what others were told about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use domain::command::Action;
use domain::ids::{ActorId, DealId};
use domain::key::Key;
use domain::time::Timestamp;
use platform::clock;
use serde_json::{Value, json};

use crate::deals::{self, ADVERTISER, OPERATOR, OWNER, STRANGER};
use crate::deployed::{Deployed, Queued, fresh_deal};
use crate::records::{self, Deposit, Record, WATCHER};
use crate::report;

const DAY_SECS: u32 = 24 * 3600;

pub struct Story<'a> {
    stack: &'a Deployed,
    began: String,
    later_secs: u32,
    twice: bool,
    commands: u32,
    deals: BTreeMap<String, DealId>,
    /// Facts of each deal that were told.
    told: BTreeMap<String, usize>,
    letters_told: BTreeSet<String>,
    held: Vec<Message>,
    text: String,
}

/// Something on its way into the system, or a look at it.
enum Message {
    Queued(String, Value, Option<&'static str>),
    Called(Value),
    Reported(Record),
}

/// Tells a whole story: its lines, each with what came of it.
pub async fn tell(stack: &Deployed, script: &str) -> Result<String, String> {
    let mut story = Story {
        stack,
        began: clock::to_text(clock::now()),
        later_secs: 0,
        twice: false,
        commands: 0,
        deals: BTreeMap::new(),
        told: BTreeMap::new(),
        letters_told: BTreeSet::new(),
        held: Vec::new(),
        text: String::new(),
    };
    for (number, line) in (1..).zip(script.lines()) {
        let prompt = if line.is_empty() || line.starts_with('#') { "" } else { "> " };
        let _ = writeln!(story.text, "{prompt}{line}");
        let done = story.line(line.trim()).await;
        done.map_err(|error| format!("line {number}, `{line}`: {error}\n\n{}", story.text))?;
    }
    Ok(story.text)
}

impl Story<'_> {
    async fn line(&mut self, line: &str) -> Result<(), String> {
        let (waits, line) = match line.strip_prefix("+ ") {
            Some(line) => (false, line),
            None => (true, line),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] | ["#", ..] => return Ok(()),
            ["twice"] => {
                self.twice = true;
                return Ok(());
            }
            ["a", "day", "later"] => {
                self.later_secs += DAY_SECS;
                return Ok(());
            }
            [deal, "show"] => {
                let deal = self.deal(deal);
                let found = self.stack.bed.sound_deal(deal).await;
                let shown = report::balances(&found);
                self.tell(&shown);
                return Ok(());
            }
            [deal, "published"] => {
                let deal = self.deal(deal);
                self.stack.until_published().await?;
                let shown = report::published(&self.stack.published(|key| key == deal.to_string()));
                self.tell(&shown);
                return Ok(());
            }
            [deal, who, what, rest @ ..] => {
                let message = self.message(deal, who, what, rest).await?;
                self.held.push(message);
            }
            _ => return Err("a line is: DEAL WHO WHAT [AMOUNT]".to_owned()),
        }
        if waits { self.send().await } else { Ok(()) }
    }

    fn deal(&mut self, name: &str) -> DealId {
        let next = u32::try_from(self.deals.len()).expect("few deals");
        *self.deals.entry(name.to_owned()).or_insert_with(|| fresh_deal(next))
    }

    fn now(&self) -> Timestamp {
        clock::now().plus_secs(self.later_secs)
    }

    async fn message(
        &mut self,
        name: &str,
        who: &str,
        what: &str,
        rest: &[&str],
    ) -> Result<Message, String> {
        let deal = self.deal(name);
        let actor = match who {
            "advertiser" => ADVERTISER,
            "owner" => OWNER,
            "stranger" => STRANGER,
            "operator" => OPERATOR,
            "watcher" if what == "address_ready" => return Ok(self.address_ready(deal)),
            _ => return self.report(deal, who, what, rest).map(Message::Reported),
        };
        let body = self.command(deal, actor, what, rest).await?;
        Ok(if who == "operator" {
            Message::Called(body)
        } else {
            let id = body["command_id"].as_str().expect("we gave it one").to_owned();
            Message::Queued(id, body, None)
        })
    }

    fn command_id(&mut self, deal: DealId) -> String {
        self.commands += 1;
        format!("{deal}-{}", self.commands)
    }

    async fn command(
        &mut self,
        deal: DealId,
        actor: ActorId,
        what: &str,
        rest: &[&str],
    ) -> Result<Value, String> {
        let payload = command_payload(what, &rest.join(" "))?;
        let loaded = self.stack.bed.deal(deal).await;
        let version = loaded.map_or(0, |loaded| loaded.deal.version);
        Ok(records::command(&self.command_id(deal), what, deal, actor.0, version, payload))
    }

    fn address_ready(&mut self, deal: DealId) -> Message {
        let id = self.command_id(deal);
        Message::Queued(id.clone(), address_ready(&id, deal), Some(WATCHER))
    }

    /// What a worker, or somebody who would like to be one, puts on Kafka.
    fn report(&self, deal: DealId, who: &str, what: &str, rest: &[&str]) -> Result<Record, String> {
        let record = match (who, what, rest) {
            ("watcher" | "forger", "deposit", [part, amount, "TON"]) => {
                let part = part.parse().map_err(|_| format!("{part} numbers no deposit"))?;
                Deposit::new(deal, 0).part(part).amount(nano(amount)?).record()
            }
            ("watcher", "garbage", []) => {
                Record::new(br#"{"event_type":"DEPOSIT_CONFIRMED","deal_id":7}"#.to_vec())
            }
            ("publisher", "published", []) => records::published(deal, self.now()),
            ("publisher", "failed", [attempt]) => {
                records::failed_publication(deal, attempt.parse().ok())
            }
            ("verifier", "check", [number, passed]) => {
                let number = number.parse().map_err(|_| format!("{number} numbers no check"))?;
                records::check(deal, number, *passed == "passed")
            }
            ("verifier", "passed", []) => records::final_verification(deal),
            ("payer", "paid_out", []) => records::payout_by(deal, records::tx(deal, "payout")),
            ("refunder", "refunded", [number, amount, "TON"]) => {
                let tx = records::tx(deal, &format!("refund {number}"));
                records::refund_by(deal, tx, nano(amount)?)
            }
            _ => return Err(format!("nobody knows `{who} {what} {}`", rest.join(" "))),
        };
        let record = record.at(self.now());
        Ok(if who == "forger" {
            let at = record.recorded_at_ms;
            record.signed_by(WATCHER, &"00".repeat(32), at)
        } else {
            record
        })
    }

    /// Sends what is held back, waits until it was read, and tells what came of it.
    async fn send(&mut self) -> Result<(), String> {
        let messages = std::mem::take(&mut self.held);
        let mut asked = Vec::new();
        for _ in 0..=usize::from(self.twice) {
            for message in &messages {
                match message {
                    Message::Queued(id, body, worker) => {
                        let queued = Queued { body: body.clone(), worker: *worker };
                        self.stack.queue_up(&[queued]).await?;
                        if !asked.contains(id) {
                            asked.push(id.clone());
                        }
                    }
                    Message::Called(body) => {
                        let (status, answer) = self.stack.call(true, body).await?;
                        let (result, standing) = (&answer["result"], &answer["status"]);
                        self.tell(&format!("HTTP {status} {result} {standing}\n"));
                    }
                    Message::Reported(record) => self.stack.report(0, record).await,
                }
            }
        }
        self.stack.until_read().await?;
        for id in asked {
            if self.stack.bed.result_of(&Key::command(&id)).await.as_deref() != Some("SUCCESS") {
                self.tell("refused\n");
            }
        }
        self.tell_news().await;
        Ok(())
    }

    /// The new facts of each deal, and the new letters.
    async fn tell_news(&mut self) {
        let mut news = String::new();
        for (name, deal) in &self.deals {
            let told = self.told.entry(name.clone()).or_default();
            for fact in self.stack.bed.journal(*deal).await.iter().skip(*told) {
                *told += 1;
                let fact = report::fact(fact).replace(&format!(":{deal}"), &" ".repeat(37));
                let _ = write!(news, "{name} {}", fact.trim_start().replace(&" ".repeat(30), ""));
            }
        }
        let letters = self.stack.bed.letters().await;
        let mut new: Vec<String> = Vec::new();
        for letter in letters {
            let field = |name: &str| letter[name].as_str().unwrap_or_default().to_owned();
            let ours = field("first_failure_at") >= self.began;
            if ours && self.letters_told.insert(field("letter_id")) {
                let (place, class, error) = (field("place"), field("class"), field("error"));
                new.push(self.nameless(&format!("letter {place} {class}: {error}\n")));
            }
        }
        // The records of one batch are worked on at once.
        new.sort();
        news.extend(new);
        if news.is_empty() {
            news.push_str("nothing changed\n");
        }
        self.tell(&news);
    }

    /// Without what is another in each run.
    fn nameless(&self, text: &str) -> String {
        let is_hash =
            |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut text = text.to_owned();
        for (name, deal) in &self.deals {
            text = text.replace(&deal.to_string(), name);
        }
        let parts = text.split_inclusive([' ', ':']).map(|part| match part.trim_end() {
            hash if is_hash(hash) => part.replace(hash, "<hash>"),
            _ => part.to_owned(),
        });
        parts.collect()
    }

    fn tell(&mut self, lines: &str) {
        for line in lines.lines() {
            let _ = writeln!(self.text, "  {}", line.trim_end());
        }
    }
}

/// The payload that makes sense of a command on a sample deal.
pub fn command_payload(what: &str, told: &str) -> Result<Value, String> {
    let reason = json!({"reason": told});
    Ok(match what {
        "create" => json!({
            "owner_id": OWNER.0, "channel_id": deals::CHANNEL.0, "price_nano": deals::PRICE.get(),
        }),
        "accept" => json!({
            "terms_version": 1, "payout_address": deals::payout_address().to_friendly(false),
        }),
        "submit_draft" => json!({"creative": "draft-1"}),
        "dispute_quality" | "open_dispute" | "resolve_for_owner" | "resolve_for_advertiser" => {
            reason
        }
        "submit_offer" | "approve" | "publish_now" | "cancel" | "agree_cancel" => json!({}),
        _ => return Err(format!("no command {what} in stories")),
    })
}

/// The watcher's command that names the address to pay to.
pub fn address_ready(id: &str, deal: DealId) -> Value {
    let address = deals::deposit_address();
    let name = Action::DepositAddressReady { address }.name();
    json!({
        "command_id": id,
        "command": name,
        "deal_id": deal.to_string(),
        "payload": {"deposit_address": address.to_friendly(false)},
    })
}

/// `0.5` in nanotons, exactly.
fn nano(ton: &str) -> Result<i64, String> {
    let (whole, part) = ton.split_once('.').unwrap_or((ton, ""));
    let digits = format!("{whole}{part:0<9}");
    let nano = digits.parse().ok().filter(|_| part.len() <= 9);
    nano.ok_or_else(|| format!("{ton} is no amount"))
}
