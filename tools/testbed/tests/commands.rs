//! `deal-transition` from the Lambda event to the rows: by HTTP, by queue, and in races with results.

use domain::ids::{ActorId, DealId};
use domain::money::Nano;
use domain::state::Status;
use platform::clock;
use platform::commands::Transition;
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::deals::{self, ADMIN, ADVERTISER, OPERATOR, OWNER, STRANGER};
use testbed::functions::{self, in_a_minute};
use testbed::records::{self, Deposit, Record, command, http_event, kafka_event, sqs_event};

const DEAL: DealId = DealId::from_u128(1);
const QUEUE: &str = "escrow-deal-commands";

/// A bed, its `deal-transition`, and a running number for command ids.
struct Desk {
    bed: Bed,
    transition: Transition,
    next: std::sync::atomic::AtomicU32,
}

impl Desk {
    async fn new() -> Self {
        let bed = Bed::new("commands").await;
        let transition = functions::transition(&bed);
        Self { bed, transition, next: 1.into() }
    }

    async fn with(status: Status) -> Self {
        let desk = Self::new().await;
        deals::open(&desk.bed.store, DEAL, status).await;
        desk
    }

    fn new_id(&self) -> String {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("c-{number}")
    }

    async fn version(&self, deal: DealId) -> u64 {
        self.bed.deal(deal).await.map_or(0, |loaded| loaded.deal.version)
    }

    async fn call(&self, event: Value) -> (u64, Value) {
        let answer = self.transition.invoke(event, in_a_minute()).await.expect("an answer");
        let body = serde_json::from_str(answer["body"].as_str().expect("a body")).expect("JSON");
        (answer["statusCode"].as_u64().expect("a status"), body)
    }

    /// A command on the deal as it stands, by the route that is its actor's.
    async fn ask(&self, deal: DealId, actor: ActorId, name: &str, payload: Value) -> (u64, Value) {
        let version = self.version(deal).await;
        let body = command(&self.new_id(), name, deal, actor.0, version, payload);
        self.call(http_event(actor == OPERATOR, deal, &body)).await
    }

    /// A command that must be carried out.
    async fn order(&self, actor: ActorId, name: &str, payload: Value) -> Status {
        let (status, body) = self.ask(DEAL, actor, name, payload).await;
        assert_eq!((status, &body["result"]), (200, &json!("APPLIED")), "{name}: {body}");
        self.bed.sound_deal(DEAL).await.status
    }

    /// The code that a command is refused with.
    async fn refused(&self, actor: ActorId, name: &str, payload: Value) -> String {
        let before = self.bed.sound_deal(DEAL).await;
        let (status, body) = self.ask(DEAL, actor, name, payload).await;
        assert_eq!(status, 409, "{name}: {body}");
        assert_eq!(body["status"], before.status.name(), "the answer names the state");
        assert_eq!(body["version"], before.version, "the answer names the version");
        assert_eq!(self.bed.sound_deal(DEAL).await, before);
        body["error"].as_str().expect("a code").to_owned()
    }

    async fn queue(&self, bodies: &[Value]) {
        let bodies: Vec<String> = bodies.iter().map(Value::to_string).collect();
        let answer = self.transition.invoke(sqs_event(QUEUE, &bodies), in_a_minute()).await;
        assert_eq!(answer.expect("an answer"), json!({"batchItemFailures": []}));
    }

    async fn address_ready(&self, deal: DealId) {
        let body = address_ready(deal, "ready").to_string();
        let attributes = records::signed_attributes("ton-deposit-watcher", &body);
        let event = records::sqs_event_with(QUEUE, &[(body, attributes)]);
        let answer = self.transition.invoke(event, in_a_minute()).await;
        assert_eq!(answer.expect("an answer"), json!({"batchItemFailures": []}));
    }

    async fn result(&self, function: &str, record: Record) -> Value {
        let answer = functions::invoke(&self.bed, function, kafka_event(&[record])).await;
        let answer = answer.expect("an answer");
        let counts = answer.as_object().expect("a summary").iter();
        let told = counts.filter(|(name, count)| *name != "records" && **count != json!(0));
        told.map(|(name, _)| json!(name)).next().expect("an outcome")
    }

    /// Topic and type of every message, as `topic TYPE`.
    async fn published(&self) -> Vec<String> {
        let text = |message: &Value, name: &str| message[name].as_str().unwrap().to_owned();
        let messages = self.bed.messages().await;
        messages
            .iter()
            .map(|each| format!("{} {}", text(each, "topic"), text(each, "type")))
            .collect()
    }

    /// The notifications of a kind, as payloads.
    async fn notices(&self, kind: &str) -> Vec<Value> {
        let messages = self.bed.messages().await;
        let own = messages.iter().filter(|message| message["type"] == kind);
        own.map(|message| serde_json::from_str(message["payload"].as_str().unwrap()).unwrap())
            .collect()
    }
}

fn address_ready(deal: DealId, id: &str) -> Value {
    json!({
        "command_id": id, "command": "deposit_address_ready", "deal_id": deal.to_string(),
        "payload": {"deposit_address": deals::deposit_address().to_friendly(false)},
    })
}

fn creation() -> Value {
    json!({"owner_id": OWNER.0, "channel_id": deals::CHANNEL.0, "price_nano": deals::PRICE.get()})
}

fn acceptance(terms_version: u32) -> Value {
    json!({
        "terms_version": terms_version,
        "payout_address": deals::payout_address().to_friendly(true),
    })
}

#[tokio::test]
async fn a_deal_goes_from_draft_to_paid_out_with_every_side_effect() {
    let desk = Desk::new().await;
    assert_eq!(desk.order(ADVERTISER, "create", creation()).await, Status::Draft);
    assert_eq!(desk.order(ADVERTISER, "submit_offer", json!({})).await, Status::OfferPending);
    assert_eq!(desk.order(OWNER, "accept", acceptance(1)).await, Status::Accepted);
    desk.address_ready(DEAL).await;
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::AwaitingPayment);
    assert_eq!(desk.result("deposit-confirmed", Deposit::new(DEAL, 1).record()).await, "applied");
    let draft = json!({"creative": "creative-77"});
    assert_eq!(desk.order(OWNER, "submit_draft", draft).await, Status::CreativeSubmitted);
    assert_eq!(desk.order(ADVERTISER, "approve", json!({})).await, Status::CreativeApproved);
    let publish_at = clock::to_text(clock::now().plus_secs(3600));
    let schedule = json!({"publish_at": publish_at});
    assert_eq!(desk.order(OWNER, "schedule", schedule).await, Status::Scheduled);
    let posted = clock::now().plus_secs(3600);
    let post = records::published(DEAL, posted).at(posted);
    assert_eq!(desk.result("publication-result", post).await, "applied");
    let early = records::final_verification(DEAL).at(posted.plus_secs(24 * 3600 - 1));
    assert_eq!(desk.result("verification-result", early).await, "parked");
    let verified = records::final_verification(DEAL).at(posted.plus_secs(24 * 3600)).offset(99);
    assert_eq!(desk.result("verification-result", verified).await, "applied");
    let released = desk.bed.sound_deal(DEAL).await;
    assert_eq!(released.status, Status::CompletedReleased);
    assert_eq!((released.escrow, released.payable), (Nano::ZERO, deals::SHARE));
    assert_eq!(desk.result("payout-completed", records::payout(DEAL, 0xa1)).await, "applied");
    let paid = desk.bed.sound_deal(DEAL).await;
    assert_eq!((paid.payable, paid.settlement_due_at), (Nano::ZERO, None));

    let published = desk.published().await;
    let expected = [
        "deal.events DRAFT",
        "deal.events OFFER_PENDING",
        "notifications.outbox DEAL_STATUS_CHANGED",
        "deal.events ACCEPTED",
        "escrow.commands GENERATE_DEPOSIT_ADDRESS",
        "notifications.outbox DEAL_STATUS_CHANGED",
        "deal.events AWAITING_PAYMENT",
        "notifications.outbox DEAL_STATUS_CHANGED",
        "deal.events FUNDED",
        "deal.events CREATIVE_SUBMITTED",
        "notifications.outbox DEAL_STATUS_CHANGED",
        "deal.events CREATIVE_APPROVED",
        "notifications.outbox DEAL_STATUS_CHANGED",
        "deal.events SCHEDULED",
        "delivery.commands PUBLISH_POST",
        "deal.events PUBLISHED",
        "deal.events DELIVERY_VERIFYING",
        "delivery.commands START_VERIFICATION",
        "deal.events COMPLETED_RELEASED",
        "escrow.commands EXECUTE_PAYOUT",
        "deal.events PAYOUT_SETTLED",
    ];
    assert_eq!(published, expected);
    let told: Vec<Value> = desk
        .notices("DEAL_STATUS_CHANGED")
        .await
        .into_iter()
        .map(|mut each| each["recipients"].take())
        .collect();
    let to = |actor: ActorId| json!([{"user_id": actor.0}]);
    let expected = [OWNER, ADVERTISER, ADVERTISER, ADVERTISER, OWNER].map(to);
    assert_eq!(told, expected);
    let notices = desk.notices("DEAL_STATUS_CHANGED").await;
    let address = deals::deposit_address().to_friendly(false);
    assert!(notices[2]["text"].as_str().unwrap().contains(&address), "{}", notices[2]);
    let payout = desk.notices("EXECUTE_PAYOUT").await.remove(0);
    assert_eq!(payout["amount_nano"], deals::SHARE.get());
    assert_eq!(payout["command_id"], format!("payout:{DEAL}"));
    let post = desk.notices("PUBLISH_POST").await.remove(0);
    assert_eq!(
        (&post["creative"], &post["publish_at"]),
        (&json!("creative-77"), &json!(publish_at))
    );
}

/// Document 4's actor-driven moves, and ours, each with whoever may make it. Everything else is
/// refused in every state, and changes nothing.
#[rustfmt::skip]
const LEGAL: &[(&str, &str, &[ActorId], &str)] = &[
    ("DRAFT", "submit_offer", &[ADVERTISER], "OFFER_PENDING"),
    ("DRAFT", "cancel", &[ADVERTISER], "CANCELLED"),
    ("OFFER_PENDING", "counter_offer", &[OWNER], "NEGOTIATING"),
    ("OFFER_PENDING", "accept", &[OWNER], "ACCEPTED"),
    ("OFFER_PENDING", "reject", &[OWNER], "CANCELLED"),
    ("OFFER_PENDING", "withdraw", &[ADVERTISER], "CANCELLED"),
    // The seed's terms are the owner's: only the advertiser can agree to them.
    ("NEGOTIATING", "agree", &[ADVERTISER], "ACCEPTED"),
    ("NEGOTIATING", "counter_offer", &[ADVERTISER, OWNER], "NEGOTIATING"),
    ("NEGOTIATING", "cancel", &[ADVERTISER, OWNER], "CANCELLED"),
    ("ACCEPTED", "cancel", &[ADVERTISER, OWNER], "CANCELLED"),
    ("AWAITING_PAYMENT", "cancel", &[ADVERTISER], "CANCELLED"),
    ("FUNDED", "submit_draft", &[OWNER, ADMIN], "CREATIVE_SUBMITTED"),
    ("FUNDED", "agree_cancel", &[ADVERTISER, OWNER], "FUNDED"),
    ("CREATIVE_SUBMITTED", "approve", &[ADVERTISER], "CREATIVE_APPROVED"),
    ("CREATIVE_SUBMITTED", "request_revision", &[ADVERTISER], "FUNDED"),
    ("CREATIVE_SUBMITTED", "dispute_quality", &[ADVERTISER], "DISPUTED"),
    ("CREATIVE_APPROVED", "schedule", &[OWNER, ADMIN], "SCHEDULED"),
    ("CREATIVE_APPROVED", "publish_now", &[OWNER, ADMIN], "CREATIVE_APPROVED"),
    ("CREATIVE_APPROVED", "open_dispute", &[OPERATOR], "DISPUTED"),
    ("SCHEDULED", "open_dispute", &[OPERATOR], "DISPUTED"),
    ("DISPUTED", "resolve_for_owner", &[OPERATOR], "COMPLETED_RELEASED"),
    ("DISPUTED", "resolve_for_advertiser", &[OPERATOR], "REFUNDED"),
    ("COMPLETED_RELEASED", "reissue", &[OPERATOR], "COMPLETED_RELEASED"),
];

/// Commands without content that ask for what is the case already: done, and no second fact.
const ALREADY: &[(&str, &str)] = &[
    ("OFFER_PENDING", "submit_offer"),
    ("CANCELLED", "cancel"),
    ("CANCELLED", "reject"),
    ("CANCELLED", "withdraw"),
    ("CANCELLED", "agree_cancel"),
    ("CREATIVE_APPROVED", "approve"),
    ("DISPUTED", "dispute_quality"),
    ("DISPUTED", "open_dispute"),
    ("COMPLETED_RELEASED", "resolve_for_owner"),
    ("REFUNDED", "resolve_for_advertiser"),
];

/// Whether an actor may ever give such a command.
fn entitled(name: &str, actor: ActorId) -> bool {
    LEGAL.iter().any(|(_, command, actors, _)| *command == name && actors.contains(&actor))
}

fn payload_of(name: &str, actor: ActorId) -> Value {
    match name {
        "create" => creation(),
        "counter_offer" if actor == OWNER => {
            json!({"price_nano": 2, "payout_address": deals::payout_address().to_string()})
        }
        "counter_offer" => json!({"price_nano": 2}),
        "accept" => acceptance(1),
        "agree" if actor == ADVERTISER => json!({"terms_version": 2}),
        "agree" => acceptance(2),
        "submit_draft" => json!({"creative": "creative-1"}),
        "request_revision" => json!({"comment": "larger, please"}),
        "dispute_quality" | "open_dispute" | "resolve_for_owner" | "resolve_for_advertiser" => {
            json!({"reason": "because"})
        }
        "schedule" => json!({"publish_at": clock::to_text(clock::now().plus_secs(60))}),
        "set_channel_admins" => json!({"admin_ids": [ADMIN.0]}),
        "reissue" => json!({"what": "payout"}),
        _ => json!({}),
    }
}

#[tokio::test]
async fn every_command_in_every_state_by_everybody() {
    let names = [
        "create",
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
        "resolve_for_owner",
        "resolve_for_advertiser",
        "open_dispute",
        "reissue",
    ];
    let operators = ["resolve_for_owner", "resolve_for_advertiser", "open_dispute", "reissue"];
    let desk = Desk::new().await;
    let (mut tried, mut applied, mut deal_number) = (0, 0, 100_u128);
    for status in Status::ALL.into_iter().filter(|status| *status != Status::Published) {
        let mut fresh = async || {
            deal_number += 1;
            let deal = DealId::from_u128(deal_number);
            deals::open(&desk.bed.store, deal, status).await;
            if !status.is_final() {
                let admins = payload_of("set_channel_admins", OWNER);
                let (code, body) = desk.ask(deal, OWNER, "set_channel_admins", admins).await;
                assert_eq!(code, 200, "{body}");
            }
            deal
        };
        let mut deal = fresh().await;
        for name in names {
            for actor in [ADVERTISER, OWNER, ADMIN, STRANGER, OPERATOR] {
                let place = format!("{name} by {} in {status}", actor.0);
                let before = desk.bed.sound_deal(deal).await;
                let (code, body) = desk.ask(deal, actor, name, payload_of(name, actor)).await;
                let after = desk.bed.sound_deal(deal).await;
                tried += 1;
                let legal = LEGAL.iter().find(|(from, command, actors, _)| {
                    *from == status.name() && *command == name && actors.contains(&actor)
                });
                if let Some((_, _, _, to)) = legal {
                    assert_eq!((code, after.status.name()), (200, *to), "{place}: {body}");
                    assert!(after.version > before.version, "{place}");
                    assert_eq!(body["status"], *to, "{place}");
                    applied += 1;
                    deal = fresh().await;
                    continue;
                }
                assert_eq!(after, before, "{place}: {body}");
                let outsider = actor == STRANGER || (actor == ADMIN && status.is_final());
                let expected = if operators.contains(&name) != (actor == OPERATOR) {
                    403
                } else if name == "create" {
                    409
                } else if outsider {
                    403
                } else if ALREADY.contains(&(status.name(), name)) && entitled(name, actor) {
                    200
                } else {
                    409
                };
                assert_eq!(code, expected, "{place}: {body}");
            }
        }
    }
    println!("{tried} commands tried in 15 states by five actors, {applied} carried out");
    assert_eq!(applied, LEGAL.iter().map(|(_, _, actors, _)| actors.len()).sum::<usize>());
}

#[tokio::test]
async fn terms_are_accepted_by_the_other_side_and_in_their_last_version() {
    let desk = Desk::with(Status::OfferPending).await;
    let counter = |price: i64| json!({"price_nano": price, "payout_address": deals::payout_address().to_string()});
    let no_address = desk.refused(OWNER, "counter_offer", json!({"price_nano": 5})).await;
    assert_eq!(no_address, "NO_PAYOUT_ADDRESS");
    assert_eq!(
        desk.order(OWNER, "counter_offer", counter(1_200_000_000)).await,
        Status::Negotiating
    );
    assert_eq!(desk.refused(OWNER, "agree", acceptance(2)).await, "OWN_TERMS");
    assert_eq!(
        desk.refused(ADVERTISER, "agree", json!({"terms_version": 1})).await,
        "TERMS_CONFLICT"
    );
    let deadline = desk.bed.sound_deal(DEAL).await.deadline_at;
    desk.order(ADVERTISER, "counter_offer", json!({"price_nano": 1_100_000_000})).await;
    let deal = desk.bed.sound_deal(DEAL).await;
    assert_eq!(
        (deal.status, deal.deadline_at, deal.terms.version),
        (Status::Negotiating, deadline, 3)
    );
    assert_eq!(desk.refused(ADVERTISER, "agree", json!({"terms_version": 3})).await, "OWN_TERMS");
    assert_eq!(
        desk.refused(OWNER, "agree", json!({"terms_version": 3})).await,
        "NO_PAYOUT_ADDRESS"
    );
    assert_eq!(desk.order(OWNER, "agree", acceptance(3)).await, Status::Accepted);
    let deal = desk.bed.sound_deal(DEAL).await;
    assert_eq!(deal.terms.price, Nano::new(1_100_000_000));
    assert_eq!(desk.notices("TERMS_PROPOSED").await.len(), 1);
}

#[tokio::test]
async fn cancelling_a_funded_deal_needs_both_and_consent_ends_with_the_stay() {
    let desk = Desk::with(Status::Funded).await;
    assert_eq!(desk.refused(ADVERTISER, "cancel", json!({})).await, "ILLEGAL_MOVE");
    assert_eq!(desk.refused(ADVERTISER, "revoke_cancel", json!({})).await, "NOT_AGREED");
    assert_eq!(desk.order(ADVERTISER, "agree_cancel", json!({})).await, Status::Funded);
    assert_eq!(desk.refused(ADVERTISER, "agree_cancel", json!({})).await, "ALREADY_AGREED");
    assert_eq!(desk.order(ADVERTISER, "revoke_cancel", json!({})).await, Status::Funded);
    assert_eq!(desk.order(OWNER, "agree_cancel", json!({})).await, Status::Funded);
    // The creative goes back and forth: whoever agreed before has to agree again.
    desk.order(OWNER, "submit_draft", json!({"creative": "draft"})).await;
    desk.order(ADVERTISER, "request_revision", json!({"comment": "no"})).await;
    assert_eq!(desk.order(ADVERTISER, "agree_cancel", json!({})).await, Status::Funded);
    assert_eq!(desk.order(OWNER, "agree_cancel", json!({})).await, Status::Cancelled);
    let deal = desk.bed.sound_deal(DEAL).await;
    assert_eq!((deal.escrow, deal.refundable), (Nano::ZERO, deals::PRICE));
    assert_eq!(desk.notices("EXECUTE_REFUND").await.len(), 1);
    assert_eq!(
        desk.result("refund-completed", records::refund(DEAL, 5, deals::PRICE.get())).await,
        "applied"
    );
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::Cancelled);
}

#[tokio::test]
async fn a_cancelled_deal_gives_back_what_was_paid_in_parts() {
    let desk = Desk::with(Status::AwaitingPayment).await;
    for (tx, amount) in [(1, 300_000_000), (2, 400_000_000), (3, 5)] {
        desk.result("deposit-confirmed", Deposit::new(DEAL, tx).amount(amount).record()).await;
    }
    assert_eq!(desk.order(ADVERTISER, "cancel", json!({})).await, Status::Cancelled);
    let deal = desk.bed.sound_deal(DEAL).await;
    assert_eq!((deal.escrow, deal.refundable), (Nano::ZERO, Nano::new(700_000_000)));
    let amounts: Vec<i64> = deal.refunds.iter().map(|order| order.amount.get()).collect();
    assert_eq!(amounts, [300_000_000, 400_000_000]);
    let commands = desk.notices("EXECUTE_REFUND").await;
    let ids: Vec<&str> = commands.iter().map(|each| each["command_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [format!("refund:{DEAL}:1"), format!("refund:{DEAL}:2")]);
    let keys = desk.bed.rows(&desk.bed.config.tables.processed).await;
    let cancel = keys.iter().find(|row| row["idempotency_key"] == "cmd:c-1").expect("the key");
    assert!(cancel["expires_at"].is_null(), "this command moved money");
}

/// Document 4's first race: whoever commits first wins.
#[tokio::test]
async fn a_cancellation_against_a_deposit_in_both_orders_and_at_once() {
    let desk = Desk::with(Status::AwaitingPayment).await;
    let version = desk.version(DEAL).await;
    desk.result("deposit-confirmed", Deposit::new(DEAL, 1).record()).await;
    let body = command("late-cancel", "cancel", DEAL, ADVERTISER.0, version, json!({}));
    let (status, answer) = desk.call(http_event(false, DEAL, &body)).await;
    assert_eq!((status, &answer["status"]), (409, &json!("FUNDED")), "{answer}");

    let second = DealId::from_u128(2);
    deals::open(&desk.bed.store, second, Status::AwaitingPayment).await;
    assert_eq!(desk.ask(second, ADVERTISER, "cancel", json!({})).await.0, 200);
    assert_eq!(desk.result("deposit-confirmed", Deposit::new(second, 2).record()).await, "applied");
    let deal = desk.bed.sound_deal(second).await;
    assert_eq!((deal.status, deal.refundable), (Status::Cancelled, deals::PRICE));

    let (mut funded, mut cancelled) = (0, 0);
    for number in 0..24_u8 {
        let deal = DealId::from_u128(100 + u128::from(number));
        deals::open(&desk.bed.store, deal, Status::AwaitingPayment).await;
        let record = Deposit::new(deal, 100 + number).record();
        let ((status, answer), outcome) = tokio::join!(
            desk.ask(deal, ADVERTISER, "cancel", json!({})),
            desk.result("deposit-confirmed", record),
        );
        assert_eq!(outcome, "applied");
        let after = desk.bed.sound_deal(deal).await;
        match status {
            200 => {
                cancelled += 1;
                assert_eq!((after.status, after.refundable), (Status::Cancelled, deals::PRICE));
            }
            409 => {
                funded += 1;
                assert_eq!(
                    (after.status, after.escrow),
                    (Status::Funded, deals::PRICE),
                    "{answer}"
                );
            }
            other => panic!("{other}: {answer}"),
        }
    }
    println!(
        "cancel against deposit, 24 at once: {funded} funded, {cancelled} cancelled and refunded"
    );
}

/// Document 4's second race: the second operator gets a conflict that names the state.
#[tokio::test]
async fn two_operators_resolve_differently_and_one_wins() {
    let desk = Desk::new().await;
    let reason = || json!({"reason": "looked at it"});
    for number in 0..12_u128 {
        let deal = DealId::from_u128(number + 1);
        deals::open(&desk.bed.store, deal, Status::Disputed).await;
        let version = desk.version(deal).await;
        let ask = |name: &str| {
            let body = command(&desk.new_id(), name, deal, OPERATOR.0, version, reason());
            desk.call(http_event(true, deal, &body))
        };
        let (owner, advertiser) =
            tokio::join!(ask("resolve_for_owner"), ask("resolve_for_advertiser"));
        let mut codes = [owner.0, advertiser.0];
        codes.sort_unstable();
        assert_eq!(codes, [200, 409], "{owner:?} {advertiser:?}");
        let loser = if owner.0 == 409 { owner.1 } else { advertiser.1 };
        let after = desk.bed.sound_deal(deal).await;
        assert_eq!(loser["status"], after.status.name());
        assert_eq!(after.escrow, Nano::ZERO);
        assert_eq!(after.payable.is_positive(), after.status == Status::CompletedReleased);
        assert_eq!(after.refundable.is_positive(), after.status == Status::Refunded);
    }
}

#[tokio::test]
async fn a_command_takes_effect_once_and_its_id_stands_for_one_body() {
    let desk = Desk::with(Status::Draft).await;
    let body = command("once", "submit_offer", DEAL, ADVERTISER.0, 1, json!({}));
    let (status, answer) = desk.call(http_event(false, DEAL, &body)).await;
    assert_eq!(
        (status, &answer["result"], &answer["version"]),
        (200, &json!("APPLIED"), &json!(2))
    );
    let (status, answer) = desk.call(http_event(false, DEAL, &body)).await;
    assert_eq!(
        (status, &answer["result"], &answer["version"]),
        (200, &json!("DUPLICATE"), &json!(2))
    );
    desk.queue(std::slice::from_ref(&body)).await;
    let other = command("once", "cancel", DEAL, ADVERTISER.0, 2, json!({}));
    let (status, answer) = desk.call(http_event(false, DEAL, &other)).await;
    assert_eq!((status, &answer["error"]), (409, &json!("COMMAND_ID_REUSED")));
    desk.queue(&[other]).await;
    let letters = desk.bed.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((&letters[0]["class"], &letters[0]["topic"]), (&json!("CONFLICT"), &json!(QUEUE)));
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::OfferPending);
}

#[tokio::test]
async fn a_refused_command_on_the_queue_is_answered_by_a_notification_and_not_parked() {
    let desk = Desk::with(Status::Funded).await;
    let before = desk.bed.sound_deal(DEAL).await;
    let refused = command("no", "cancel", DEAL, ADVERTISER.0, before.version, json!({}));
    let stale = command("old", "submit_draft", DEAL, OWNER.0, 1, json!({"creative": "x"}));
    desk.queue(&[refused.clone(), stale]).await;
    desk.queue(&[refused]).await;
    assert_eq!(desk.bed.sound_deal(DEAL).await, before);
    assert_eq!(desk.bed.letters().await, Vec::<Value>::new());
    let notices = desk.notices("COMMAND_REFUSED").await;
    assert_eq!(notices.len(), 2);
    let texts: Vec<&str> = notices.iter().map(|each| each["text"].as_str().unwrap()).collect();
    assert!(texts.iter().any(|text| text.contains("cancel no: ILLEGAL_MOVE")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("VERSION_CONFLICT")), "{texts:?}");
    let keys = desk.bed.rows(&desk.bed.config.tables.processed).await;
    let key = keys.iter().find(|row| row["idempotency_key"] == "cmd:no").expect("the key");
    assert_eq!(key["result"], "SKIPPED");
    assert!(key["expires_at"].is_i64(), "nothing of money hangs on it");
}

#[tokio::test]
async fn a_command_that_is_ahead_waits_and_is_answered_when_it_waited_long_enough() {
    let desk = Desk::new().await;
    let submit = command("second", "submit_offer", DEAL, ADVERTISER.0, 1, json!({}));
    let create = command("first", "create", DEAL, ADVERTISER.0, 0, creation());
    desk.queue(&[submit]).await;
    let letter = desk.bed.letters().await.remove(0);
    assert_eq!((&letter["class"], &letter["place"]), (&json!("UNKNOWN_DEAL"), &json!("RETRY")));
    desk.queue(&[create]).await;
    let wake = async |letter: &Value| {
        desk.bed.make_due(letter).await;
        let body = json!({"letter_id": letter["letter_id"], "generation": letter["generation"]});
        let event = sqs_event("escrow-deal-transition-retry", &[body.to_string()]);
        desk.transition.invoke(event, in_a_minute()).await.expect("an answer");
    };
    wake(&letter).await;
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::OfferPending);
    assert_eq!(desk.bed.letters().await[0]["closed_as"], "RESOLVED");

    let lost = DealId::from_u128(77);
    desk.queue(&[command("lost", "submit_offer", lost, ADVERTISER.0, 1, json!({}))]).await;
    for _ in 0..5 {
        let letters = desk.bed.letters().await;
        let letter = letters.iter().find(|each| each["closed_as"].is_null()).expect("it is open");
        assert_eq!(letter["place"], "RETRY");
        wake(letter).await;
    }
    assert!(desk.bed.letters().await.iter().all(|letter| letter["closed_as"] == "RESOLVED"));
    assert_eq!(desk.notices("COMMAND_REFUSED").await.len(), 1);
}

#[tokio::test]
async fn what_is_malformed_or_unauthorised_on_the_queue_is_parked() {
    let desk = Desk::with(Status::Accepted).await;
    let resolve = command("op", "resolve_for_owner", DEAL, OPERATOR.0, 3, json!({"reason": "x"}));
    let by_stranger = command("str", "cancel", DEAL, STRANGER.0, 3, json!({}));
    let unsigned = address_ready(DEAL, "unsigned");
    desk.queue(&[json!("hello"), resolve, by_stranger, unsigned]).await;
    let forged = address_ready(DEAL, "forged").to_string();
    let by_other = address_ready(DEAL, "other").to_string();
    let event = records::sqs_event_with(
        "elsewhere-deal-commands",
        &[
            (forged.clone(), records::signed_attributes("ton-deposit-watcher", "another")),
            (by_other.clone(), records::signed_attributes("payout-executor", &by_other)),
        ],
    );
    desk.transition.invoke(event, in_a_minute()).await.expect("an answer");
    let mut classes: Vec<String> = desk
        .bed
        .letters()
        .await
        .iter()
        .map(|each| each["class"].as_str().unwrap().to_owned())
        .collect();
    classes.sort();
    let expected = [
        "BAD_SIGNATURE",
        "MALFORMED",
        "MISSING_HEADER",
        "NOT_AUTHORISED",
        "NOT_AUTHORISED",
        "NOT_AUTHORISED",
    ];
    assert_eq!(classes, expected);
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::Accepted);
    // The address may come twice, and never another one.
    desk.address_ready(DEAL).await;
    desk.address_ready(DEAL).await;
    let after = desk.bed.sound_deal(DEAL).await;
    assert_eq!(after.status, Status::AwaitingPayment);
    let mut other = address_ready(DEAL, "another-address");
    other["payload"]["deposit_address"] = json!(deals::address(0x0f).to_string());
    let other = other.to_string();
    let attributes = records::signed_attributes("ton-deposit-watcher", &other);
    let event = records::sqs_event_with(QUEUE, &[(other, attributes)]);
    desk.transition.invoke(event, in_a_minute()).await.expect("an answer");
    assert_eq!(desk.bed.sound_deal(DEAL).await, after);
}

#[tokio::test]
async fn the_internal_api_admits_its_networks_and_its_key_only() {
    let desk = Desk::with(Status::Draft).await;
    let body = command("api", "submit_offer", DEAL, ADVERTISER.0, 1, json!({}));
    let good = http_event(false, DEAL, &body);
    let with = |pointer: &str, value: Value| {
        let mut event = good.clone();
        *event.pointer_mut(pointer).expect("the field is there") = value;
        event
    };
    let key = "/multiValueHeaders/X-Internal-Api-Key";
    let mut elsewhere =
        command("api", "submit_offer", DealId::from_u128(9), ADVERTISER.0, 1, json!({}));
    let cases = [
        (with("/requestContext/identity/sourceIp", json!("10.0.0.1")), 403, "FORBIDDEN"),
        (with("/requestContext/identity/sourceIp", json!(null)), 403, "FORBIDDEN"),
        (with(key, json!(["wrong"])), 401, "UNAUTHENTICATED"),
        (with(key, json!([""])), 401, "UNAUTHENTICATED"),
        (with(key, json!([])), 401, "UNAUTHENTICATED"),
        (with("/path", json!("/internal/v1/deals")), 404, "NO_ROUTE"),
        (with("/path", json!("/internal/v1/deals/7/commands")), 400, "MALFORMED"),
        (with("/httpMethod", json!("GET")), 405, "METHOD"),
        (with("/body", json!(null)), 400, "MALFORMED"),
        (with("/body", json!("{")), 400, "MALFORMED"),
        (with("/body", elsewhere.take().to_string().into()), 400, "MALFORMED"),
    ];
    for (event, status, code) in cases {
        let (found, answer) = desk.call(event).await;
        assert_eq!((found, &answer["error"]), (status, &json!(code)), "{answer}");
    }
    let unknown = command("u", "cancel", DealId::from_u128(9), ADVERTISER.0, 1, json!({}));
    let (status, answer) = desk.call(http_event(false, DealId::from_u128(9), &unknown)).await;
    assert_eq!((status, &answer["error"]), (404, &json!("UNKNOWN_DEAL")));
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::Draft);
    assert_eq!(desk.call(good).await.0, 200);
    assert_eq!(desk.bed.letters().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_deal_is_published_at_most_once_by_command_and_by_schedule() {
    let desk = Desk::with(Status::CreativeApproved).await;
    desk.order(OWNER, "set_channel_admins", json!({"admin_ids": [ADMIN.0]})).await;
    let past = json!({"publish_at": "2025-01-01T00:00:00Z"});
    assert_eq!(desk.refused(OWNER, "schedule", past).await, "IMPOSSIBLE_TIME");
    assert_eq!(desk.order(ADMIN, "publish_now", json!({})).await, Status::CreativeApproved);
    assert_eq!(desk.refused(OWNER, "publish_now", json!({})).await, "ALREADY_COMMANDED");
    assert_eq!(
        desk.refused(OWNER, "schedule", payload_of("schedule", OWNER)).await,
        "ALREADY_COMMANDED"
    );
    assert_eq!(desk.notices("PUBLISH_POST").await.len(), 1);
    let forged_age = records::publication(DEAL);
    assert_eq!(desk.result("publication-result", forged_age).await, "applied");
    // The publisher claims a post from long before its command: the day is counted from the command.
    let early = records::final_verification(DEAL).at(clock::now().plus_secs(22 * 3600)).offset(98);
    assert_eq!(desk.result("verification-result", early).await, "parked");
    assert_eq!(desk.bed.sound_deal(DEAL).await.status, Status::DeliveryVerifying);
}

#[tokio::test]
async fn a_publication_after_a_dispute_is_recorded_for_the_operator() {
    let desk = Desk::with(Status::Scheduled).await;
    desk.order(OPERATOR, "open_dispute", json!({"reason": "the channel is gone"})).await;
    assert_eq!(desk.notices("DISPUTE_OPENED").await.len(), 1);
    let both = json!([{"user_id": ADVERTISER.0}, {"user_id": OWNER.0}]);
    assert!(
        desk.notices("DEAL_STATUS_CHANGED").await.iter().any(|each| each["recipients"] == both)
    );
    assert_eq!(
        desk.result("publication-result", records::failed_publication(DEAL, Some(1))).await,
        "applied"
    );
    assert_eq!(desk.result("publication-result", records::publication(DEAL)).await, "applied");
    let deal = desk.bed.sound_deal(DEAL).await;
    assert_eq!((deal.status, deal.publication), (Status::Disputed, Some(deals::publication())));
    assert_eq!(desk.notices("LATE_REPORT").await.len(), 2);
    assert_eq!(
        desk.order(OPERATOR, "resolve_for_owner", json!({"reason": "it is up"})).await,
        Status::CompletedReleased
    );
    let deal = desk.bed.sound_deal(DEAL).await;
    assert_eq!((deal.escrow, deal.payable), (Nano::ZERO, deals::SHARE));
}

#[tokio::test]
async fn an_operator_reissues_a_command_under_its_own_id() {
    let desk = Desk::with(Status::Refunded).await;
    let nothing = desk.refused(OPERATOR, "reissue", json!({"what": "payout"})).await;
    assert_eq!(nothing, "NOTHING_TO_REISSUE");
    assert_eq!(
        desk.refused(OPERATOR, "reissue", json!({"what": "refund", "number": 2})).await,
        "NOTHING_TO_REISSUE"
    );
    desk.order(OPERATOR, "reissue", json!({"what": "refund", "number": 1})).await;
    let commands = desk.notices("EXECUTE_REFUND").await;
    assert_eq!((commands.len(), &commands[0]), (2, &commands[1]));
    desk.result("refund-completed", records::refund(DEAL, 5, deals::PRICE.get())).await;
    let settled = desk.refused(OPERATOR, "reissue", json!({"what": "refund", "number": 1})).await;
    assert_eq!(settled, "NOTHING_TO_REISSUE");
}
