//! Random histories of commands and results, with duplicates, reorderings, wrong amounts and
//! strangers, on the real engine. After every step the books must be right.

use std::collections::BTreeMap;

use domain::deal::Deal;
use domain::ids::{ActorId, DealId};
use domain::key::Fingerprint;
use domain::money::Nano;
use domain::state::Status;
use domain::time::Timestamp;
use domain::ton::TxHash;
use platform::clock;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::deals::{self, ADVERTISER, OPERATOR, OWNER, STRANGER};
use testbed::functions;
use testbed::records::{self, Record, command, http_event, kafka_event};

#[derive(Debug, Clone)]
enum Act {
    /// What usually comes next.
    Progress,
    Command {
        name: usize,
        actor: usize,
        stale: bool,
        reused: Option<u8>,
    },
    Deposit {
        tx: u8,
        amount: usize,
        confirmations: u8,
    },
    Payout {
        tx: u8,
        right: bool,
    },
    Refund {
        tx: u8,
        which: usize,
    },
    Publication {
        other_channel: bool,
    },
    FailedPublication {
        attempt: u32,
    },
    Check {
        number: u32,
        passed: bool,
    },
    Final {
        edited: bool,
    },
    /// Something that was delivered before, once more.
    Again {
        which: usize,
    },
}

const COMMANDS: &[&str] = &[
    "submit_offer",
    "cancel",
    "counter_offer",
    "accept",
    "reject",
    "withdraw",
    "agree",
    "agree_cancel",
    "revoke_cancel",
    "submit_draft",
    "approve",
    "request_revision",
    "dispute_quality",
    "schedule",
    "publish_now",
    "set_channel_admins",
    "resolve_for_owner",
    "resolve_for_advertiser",
    "open_dispute",
    "reissue",
];
const ACTORS: [ActorId; 4] = [ADVERTISER, OWNER, OPERATOR, STRANGER];
const AMOUNTS: [i64; 5] = [1_000_000_000, 350_000_000, 2_000_000_000, 7, 20_000_000];

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => Just(Act::Progress),
        6 => (0..COMMANDS.len(), 0..4_usize, prop::bool::weighted(0.2), prop::option::weighted(0.1, 0..3_u8))
            .prop_map(|(name, actor, stale, reused)| Act::Command { name, actor, stale, reused }),
        4 => (0..6_u8, 0..AMOUNTS.len(), prop_oneof![4 => Just(3_u8), 1 => Just(1)])
            .prop_map(|(tx, amount, confirmations)| Act::Deposit { tx, amount, confirmations }),
        1 => (0..2_u8, any::<bool>()).prop_map(|(tx, right)| Act::Payout { tx, right }),
        3 => (0..5_u8, 0..4_usize).prop_map(|(tx, which)| Act::Refund { tx, which }),
        1 => prop::bool::weighted(0.3).prop_map(|other_channel| Act::Publication { other_channel }),
        2 => (1..4_u32).prop_map(|attempt| Act::FailedPublication { attempt }),
        2 => (1..4_u32, any::<bool>()).prop_map(|(number, passed)| Act::Check { number, passed }),
        1 => any::<bool>().prop_map(|edited| Act::Final { edited }),
        4 => (0..64_usize).prop_map(|which| Act::Again { which }),
    ]
}

/// One history: its deal, and all that was delivered so far.
struct History<'a> {
    bed: &'a Bed,
    deal: DealId,
    delivered: Vec<(&'static str, Value)>,
    commands: u32,
    begun: Timestamp,
}

impl History<'_> {
    async fn begin(bed: &Bed, deal: DealId) -> History<'_> {
        let mut history =
            History { bed, deal, delivered: Vec::new(), commands: 0, begun: clock::now() };
        let payload = json!({"owner_id": OWNER.0, "channel_id": deals::CHANNEL.0, "price_nano": 1_000_000_000});
        let body = command(&format!("{deal}-create"), "create", deal, ADVERTISER.0, 0, payload);
        history.deliver("deal-transition", http_event(false, deal, &body)).await;
        history
    }

    async fn deliver(&mut self, function: &'static str, event: Value) {
        self.delivered.push((function, event.clone()));
        let answer = functions::invoke(self.bed, function, event).await;
        let answer = answer.expect("a healthy world has an answer");
        assert!(answer["statusCode"].as_u64().is_none_or(|code| code < 500), "{answer}");
    }

    async fn now(&self) -> Deal {
        self.bed.deal(self.deal).await.expect("it was created").deal
    }

    fn tx(&self, kind: &str, number: u8) -> String {
        let text = format!("{kind} {number} of {}", self.deal);
        TxHash::parse(&Fingerprint::of(&[("tx", &text)]).to_string()).expect("a hash").to_string()
    }

    async fn act(&mut self, act: &Act) {
        let deal = self.now().await;
        match act {
            Act::Progress => self.progress(&deal).await,
            Act::Command { name, actor, stale, reused } => {
                let version = deal.version - u64::from(*stale);
                let id = reused.map(|number| format!("{}-reused-{number}", self.deal));
                self.command(COMMANDS[*name], ACTORS[*actor], version, id).await;
            }
            Act::Deposit { tx, amount, confirmations } => {
                self.deposit(*tx, AMOUNTS[*amount], *confirmations).await;
            }
            Act::Payout { tx, right } => self.payout(&deal, *tx, *right).await,
            Act::Refund { tx, which } => self.refund(&deal, *tx, *which).await,
            Act::Publication { other_channel } => self.publication(*other_channel).await,
            Act::FailedPublication { attempt } => {
                let record = records::failed_publication(self.deal, Some(*attempt));
                self.result("publication-result", record).await;
            }
            Act::Check { number, passed } => {
                let record = records::check(self.deal, *number, *passed);
                self.result("verification-result", record).await;
            }
            Act::Final { edited } => self.final_result(*edited).await,
            Act::Again { which } => {
                let (function, event) = self.delivered[which % self.delivered.len()].clone();
                self.deliver(function, event).await;
            }
        }
    }

    /// What brings a deal on from where it is.
    async fn progress(&mut self, deal: &Deal) {
        let version = deal.version;
        match deal.status {
            Status::Draft => self.command("submit_offer", ADVERTISER, version, None).await,
            Status::OfferPending => self.command("accept", OWNER, version, None).await,
            Status::Negotiating => {
                let other = deal.actor(deal.terms.proposed_by.other());
                self.command("agree", other, version, None).await;
            }
            Status::Accepted => self.address_ready().await,
            Status::AwaitingPayment => self.deposit(0, 1_000_000_000, 3).await,
            Status::Funded => self.command("submit_draft", OWNER, version, None).await,
            Status::CreativeSubmitted => self.command("approve", ADVERTISER, version, None).await,
            Status::CreativeApproved if deal.publish_at.is_none() => {
                self.command("schedule", OWNER, version, None).await;
            }
            Status::CreativeApproved | Status::Scheduled => self.publication(false).await,
            Status::DeliveryVerifying => self.final_result(false).await,
            Status::Disputed => {
                self.command("resolve_for_advertiser", OPERATOR, version, None).await;
            }
            Status::CompletedReleased => self.payout(deal, 0, true).await,
            Status::Cancelled | Status::Refunded | Status::Expired => self.refund(deal, 0, 0).await,
            Status::Published => panic!("no deal rests in PUBLISHED"),
        }
    }

    async fn command(&mut self, name: &str, actor: ActorId, version: u64, id: Option<String>) {
        self.commands += 1;
        let id = id.unwrap_or_else(|| format!("{}-{}", self.deal, self.commands));
        let terms_version = self.now().await.terms.version;
        let address = deals::payout_address().to_string();
        let by_owner = actor == OWNER;
        let payload = match name {
            "counter_offer" if by_owner => {
                json!({"price_nano": 900_000_000, "payout_address": address})
            }
            "counter_offer" => json!({"price_nano": 1_000_000_000}),
            "agree" if !by_owner => json!({"terms_version": terms_version}),
            "accept" | "agree" => {
                json!({"terms_version": terms_version, "payout_address": address})
            }
            "submit_draft" => json!({"creative": "creative"}),
            "request_revision" => json!({"comment": "again"}),
            "schedule" => json!({"publish_at": clock::to_text(clock::now().plus_secs(600))}),
            "set_channel_admins" => json!({"admin_ids": [7]}),
            "reissue" => json!({"what": "refund", "number": 1}),
            _ => json!({"reason": "because"}),
        };
        let body = command(&id, name, self.deal, actor.0, version, payload);
        self.deliver("deal-transition", http_event(actor == OPERATOR, self.deal, &body)).await;
    }

    async fn address_ready(&mut self) {
        let body = json!({
            "command_id": format!("{}-address", self.deal), "command": "deposit_address_ready",
            "deal_id": self.deal.to_string(),
            "payload": {"deposit_address": deals::deposit_address().to_string()},
        })
        .to_string();
        let attributes = records::signed_attributes("ton-deposit-watcher", &body);
        let event = records::sqs_event_with("escrow-deal-commands", &[(body, attributes)]);
        self.deliver("deal-transition", event).await;
    }

    async fn result(&mut self, function: &'static str, record: Record) {
        // Each record of a topic has an offset of its own.
        let offset = 1 + self.delivered.len() as i64;
        self.deliver(function, kafka_event(&[record.offset(offset)])).await;
    }

    async fn deposit(&mut self, tx: u8, amount: i64, confirmations: u8) {
        let payload = json!({
            "tx_hash": self.tx("deposit", tx),
            "amount_nano": amount,
            "confirmations": confirmations,
            "from_address": deals::address(0x40 + tx).to_string(),
            "deposit_address": deals::deposit_address().to_string(),
        });
        let record = records::report("DEPOSIT_CONFIRMED", Some(self.deal), &payload);
        self.result("deposit-confirmed", record).await;
    }

    async fn payout(&mut self, deal: &Deal, tx: u8, right: bool) {
        let commission = domain::release::commission(deal).get();
        let payload = json!({
            "tx_hash": self.tx("payout", tx),
            "amount_nano": deal.payable.get().max(1) + i64::from(!right),
            "commission_nano": commission,
            "to_address": deals::payout_address().to_string(),
            "confirmations": 3,
        });
        let record = records::report("PAYOUT_COMPLETED", Some(self.deal), &payload);
        self.result("payout-completed", record).await;
    }

    async fn refund(&mut self, deal: &Deal, tx: u8, which: usize) {
        let open: Vec<_> = deal.refunds.iter().filter(|order| order.settled.is_none()).collect();
        let (amount, to) = match open.get(which % open.len().max(1)) {
            Some(order) => (order.amount.get(), order.to),
            None => (1_000_000_000, deals::address(0x40)),
        };
        let payload = json!({
            "tx_hash": self.tx("refund", tx),
            "amount_nano": amount,
            "to_address": to.to_string(),
            "confirmations": 3,
        });
        let record = records::report("REFUND_COMPLETED", Some(self.deal), &payload);
        self.result("refund-completed", record).await;
    }

    async fn publication(&mut self, other_channel: bool) {
        let payload = json!({
            "success": true,
            "message_id": deals::MESSAGE_ID,
            "channel_id": deals::CHANNEL.0 + i64::from(other_channel),
            "content_hash": deals::CONTENT_HASH,
            "published_at": clock::to_text(self.begun),
        });
        let record =
            records::report("PUBLICATION_RESULT", Some(self.deal), &payload).at(self.begun);
        self.result("publication-result", record).await;
    }

    async fn final_result(&mut self, edited: bool) {
        let hash = if edited { "sha256:00" } else { deals::CONTENT_HASH };
        let payload = json!({
            "verified": true,
            "message_id": deals::MESSAGE_ID,
            "checks_passed": 5,
            "checks_failed": 0,
            "final_content_hash": hash,
        });
        // Two days later at the latest: the day is counted from the command.
        let record = records::report("VERIFICATION_RESULT", Some(self.deal), &payload);
        self.result("verification-result", record.at(self.begun.plus_secs(48 * 3600))).await;
    }

    /// What must hold after every step, whatever the steps were.
    async fn check(&self) -> (Status, usize) {
        // The row is the fold of its journal, no account is below zero, nothing is stranded.
        let deal = self.bed.sound_deal(self.deal).await;
        let rows: Vec<Value> = self
            .bed
            .journal_rows(self.deal)
            .await
            .into_iter()
            .map(platform::store::item::to_json)
            .collect();
        let mut accounts: BTreeMap<String, i64> = BTreeMap::new();
        let mut keys: Vec<&str> = Vec::new();
        for row in &rows {
            let postings = row["postings"].as_array().expect("a list");
            let sum: i64 = postings.iter().map(|posting| posting[1].as_i64().unwrap()).sum();
            assert_eq!(sum, 0, "{row}");
            for posting in postings {
                let account = posting[0].as_str().unwrap().to_owned();
                *accounts.entry(account).or_default() += posting[1].as_i64().unwrap();
            }
            let key = row["idempotency_key"].as_str().unwrap();
            // A plan of two facts has two rows in a row; else every key has one effect.
            if keys.last() != Some(&key) {
                assert!(!keys.contains(&key), "{key} took effect twice");
                keys.push(key);
            }
        }
        let balance =
            |name: &str| accounts.get(&format!("{name}:{}", self.deal)).copied().unwrap_or(0);
        let stored = [deal.escrow, deal.payable, deal.refundable].map(Nano::get);
        assert_eq!(stored, ["ESCROW", "PAYABLE", "REFUNDABLE"].map(balance));
        // What came in went out or is still here.
        assert_eq!(accounts.values().sum::<i64>(), 0);
        (deal.status, rows.len())
    }
}

#[test]
fn random_histories_keep_the_books_right() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bed = runtime.block_on(Bed::new("properties"));
    let numbers = std::cell::Cell::new(0_u128);
    let (steps, facts) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let ends = std::cell::RefCell::new(BTreeMap::<&str, u32>::new());
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let cases = cases.unwrap_or(48);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&prop::collection::vec(act(), 1..45), |acts| {
        numbers.set(numbers.get() + 1);
        let deal = DealId::from_u128(0xface_0000_0000_4000_8000_0000_0000_0000 + numbers.get());
        runtime.block_on(async {
            let mut history = History::begin(&bed, deal).await;
            let mut last = history.check().await;
            for act in &acts {
                history.act(act).await;
                last = history.check().await;
            }
            steps.set(steps.get() + acts.len());
            facts.set(facts.get() + last.1);
            *ends.borrow_mut().entry(last.0.name()).or_default() += 1;
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    println!(
        "{cases} random histories: {} steps, {} facts, ending in {:?}",
        steps.get(),
        facts.get(),
        ends.borrow()
    );
    // Nobody's bug was hidden as a dead letter.
    let letters = runtime.block_on(bed.letters());
    let bugs: Vec<&Value> = letters
        .iter()
        .filter(|letter| {
            ["PANIC", "UNSOUND_PLAN", "INVALID_WRITE", "CORRUPT_ROW", "CORRUPT_DEAL"]
                .contains(&letter["class"].as_str().unwrap_or_default())
        })
        .collect();
    assert_eq!(bugs, Vec::<&Value>::new());
    assert!(ends.borrow().len() >= 5, "the histories are too alike: {:?}", ends.borrow());
}
