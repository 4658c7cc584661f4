//! The real template, deployed: Kafka records and queued commands reach the deployed functions, and
//! what they do is in the deployed tables. `xtask test` brings the stack up and names it.

use std::time::{Duration, Instant};

use domain::deal::Deal;
use domain::ids::DealId;
use domain::state::Status;
use platform::clock;
use serde_json::json;
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::deals::{self, ADVERTISER, OWNER};
use testbed::records::{self, Deposit, Record, command};

/// Endpoint and brokers of the stack, as `endpoint,brokers`.
const STACK_VARIABLE: &str = "ESCROW_TEST_STACK";
const PREFIX: &str = "escrow";
const PATIENCE: Duration = Duration::from_secs(90);

fn stack() -> (Bed, Broker) {
    let stack = std::env::var(STACK_VARIABLE);
    let stack = stack.expect("run the tests with `make test`, which deploys the template");
    let (endpoint, brokers) = stack.split_once(',').expect("endpoint,brokers");
    (Bed::deployed(endpoint, PREFIX), Broker::at(brokers.to_owned()))
}

/// A deal that no other run has used.
fn fresh(number: u128) -> DealId {
    DealId::from_u128(
        (u128::try_from(clock::now().as_millis()).expect("after 1970") << 32) + number,
    )
}

fn deposit(deal: DealId, part: u64, nano: i64) -> Record {
    let mut body = Deposit::new(deal, 0).amount(nano).body();
    let hash =
        domain::key::Fingerprint::of(&[("deal", &deal.to_string()), ("part", &part.to_string())]);
    body["payload"]["tx_hash"] = hash.to_string().into();
    Record::new(body.to_string().into_bytes()).key(&deal.to_string())
}

async fn send(broker: &Broker, partition: i32, record: &Record) {
    broker.send(&record.topic, partition, &record.clone().at(clock::now())).await;
}

async fn until(bed: &Bed, deal: DealId, what: &str, holds: impl Fn(&Deal) -> bool) -> Deal {
    let begun = Instant::now();
    loop {
        let found = bed.deal(deal).await.map(|loaded| loaded.deal);
        if found.as_ref().is_some_and(&holds) {
            return bed.sound_deal(deal).await;
        }
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}; see .local/*.log; {found:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A poison record in the middle of a partition, and a worker that repeats everything: what is good
/// takes effect once, what is not has a letter, and the partition moves on.
#[tokio::test]
async fn deposits_take_effect_once_around_a_poison_record() {
    let (bed, broker) = stack();
    let (first, second) = (fresh(1), fresh(2));
    for deal in [first, second] {
        deals::open(&bed.store, deal, Status::AwaitingPayment).await;
    }
    let half = deals::PRICE.get() / 2;
    let poison = Record::new(br#"{"event_type":"DEPOSIT_CONFIRMED","deal_id":7}"#.to_vec());
    let forged = deposit(second, 9, half).signed_by(records::WATCHER, &"00".repeat(32), 0);
    let worker = [
        deposit(first, 1, half),
        poison,
        deposit(second, 1, half),
        forged,
        deposit(first, 2, half),
        deposit(second, 2, half),
    ];
    for record in worker.iter().chain(&worker) {
        send(&broker, 0, record).await;
    }
    for deal in [first, second] {
        let deal =
            until(&bed, deal, "the deal is funded", |deal| deal.status == Status::Funded).await;
        assert_eq!((deal.deposits.len(), deal.escrow, deal.refunds.len()), (2, deals::PRICE, 0));
    }
    let group = "cg-deposit-handler.deposit-confirmed";
    let begun = Instant::now();
    while let (done, all) = broker.progress(group, records::TOPIC, 3)
        && done < all
    {
        assert!(begun.elapsed() < PATIENCE, "the partition stands still: {done} of {all}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for deal in [first, second] {
        assert_eq!(bed.sound_deal(deal).await.deposits.len(), 2, "repeated, and no second effect");
    }
    let letters = bed.letters().await;
    let of_class = |class: &str| letters.iter().filter(|letter| letter["class"] == class).count();
    assert!(of_class("MALFORMED") >= 2, "{letters:#?}");
    assert!(of_class("BAD_SIGNATURE") >= 2, "{letters:#?}");
}

/// Commands by the queue, and a report after them: the deployed functions share one deal.
#[tokio::test]
async fn a_deal_goes_from_draft_to_funded() {
    let (bed, broker) = stack();
    let deal = fresh(3);
    let queue =
        bed.config.queues.letters.retry_url.replace("deal-transition-retry", "deal-commands");
    let send_command = async |body: String, signed: bool| {
        let mut request = bed.clients.sqs.send_message().queue_url(&queue).message_body(&body);
        let attributes = records::signed_attributes("ton-deposit-watcher", &body);
        for (name, attribute) in attributes.as_object().into_iter().flatten().filter(|_| signed) {
            let value = match name.as_str() {
                "X-Worker-Timestamp" => clock::now().as_millis().to_string(),
                _ => attribute["stringValue"].as_str().expect("text").to_owned(),
            };
            let attribute = aws_sdk_sqs::types::MessageAttributeValue::builder();
            let attribute = attribute.data_type("String").string_value(value).build();
            request = request.message_attributes(name, attribute.expect("a type is set"));
        }
        request.send().await.expect("the queue takes it");
    };
    let creation = json!({
        "owner_id": OWNER.0,
        "channel_id": deals::CHANNEL.0,
        "price_nano": deals::PRICE.get(),
    });
    let acceptance = json!({
        "terms_version": 1,
        "payout_address": deals::payout_address().to_friendly(false),
    });
    let steps = [
        ("create", ADVERTISER, creation, Status::Draft),
        ("submit_offer", ADVERTISER, json!({}), Status::OfferPending),
        ("accept", OWNER, acceptance, Status::Accepted),
    ];
    for (version, (name, actor, payload, status)) in (0..).zip(steps) {
        let body = command(&format!("{deal}-{name}"), name, deal, actor.0, version, payload);
        send_command(body.to_string(), false).await;
        until(&bed, deal, name, |deal| deal.status == status).await;
    }
    let ready = json!({
        "command_id": format!("{deal}-ready"),
        "command": "deposit_address_ready",
        "deal_id": deal.to_string(),
        "payload": {"deposit_address": deals::deposit_address().to_friendly(false)},
    });
    send_command(ready.to_string(), true).await;
    until(&bed, deal, "the address", |deal| deal.status == Status::AwaitingPayment).await;
    send(&broker, 1, &deposit(deal, 1, deals::PRICE.get())).await;
    until(&bed, deal, "the deposit", |deal| deal.status == Status::Funded).await;
}
