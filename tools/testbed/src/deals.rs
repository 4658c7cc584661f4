//! Deals to act on, brought about by the same decisions and commits that production uses.

use domain::command::{Action, ActorCommand};
use domain::deal::{Deal, Publication};
use domain::decision::Decision;
use domain::fact::Change;
use domain::ids::{ActorId, ChannelId, DealId};
use domain::key::{Fingerprint, Key};
use domain::message::{Kind, Message, both_parties};
use domain::money::{NANO_PER_TON, Nano};
use domain::plan::{Plan, Step};
use domain::policy::{Moment, Policy};
use domain::result::{
    DepositConfirmed, PayoutCompleted, PublicationOutcome, PublicationResult, VerificationResult,
};
use domain::state::Status;
use domain::time::Timestamp;
use domain::ton::{Address, TxHash};
use platform::store::{Committed, Loaded, Store};

use crate::records::{self, RECORDED_AT_MS};

pub const ADVERTISER: ActorId = ActorId(1001);
pub const OWNER: ActorId = ActorId(2002);
pub const ADMIN: ActorId = ActorId(2003);
pub const OPERATOR: ActorId = ActorId(9001);
pub const STRANGER: ActorId = ActorId(6666);
pub const CHANNEL: ChannelId = ChannelId(123_456);
pub const PRICE: Nano = Nano::new(NANO_PER_TON);
pub const COMMISSION: Nano = Nano::new(NANO_PER_TON / 10);
pub const SHARE: Nano = Nano::new(NANO_PER_TON / 10 * 9);
pub const MESSAGE_ID: i64 = 789;
pub const CONTENT_HASH: &str =
    "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

pub fn address(number: u8) -> Address {
    Address::from_parts(0, [number; 32])
}

/// The address that deposits of sample deals go to.
pub fn deposit_address() -> Address {
    address(0xd0)
}

pub fn payout_address() -> Address {
    address(0xa0)
}

/// Whom sample deposits come from.
pub fn sender() -> Address {
    address(0x51)
}

/// The transaction that funds a seeded deal: another one for each deal.
pub fn seed_tx(deal: DealId) -> TxHash {
    records::tx(deal, "seed")
}

/// Published long enough before the samples that their final verification is in time.
pub fn published_at() -> Timestamp {
    Timestamp::from_millis(RECORDED_AT_MS - 25 * 3600 * 1000)
}

/// When all that leads to a seeded state happened: before its publication was due.
pub fn opened_at() -> Timestamp {
    published_at().minus_secs(3600)
}

pub fn publication() -> Publication {
    Publication {
        message_id: MESSAGE_ID,
        content_hash: CONTENT_HASH.to_owned(),
        published_at: published_at(),
    }
}

/// Brings a new deal of 1 TON as far as `to`, step by step. PUBLISHED is no state to rest in.
pub async fn open(store: &Store, id: DealId, to: Status) {
    let mut loaded: Option<Loaded> = None;
    for act in path(to) {
        loaded = Some(perform(store, id, loaded, &act, opened_at()).await);
    }
    assert_eq!(loaded.map(|loaded| loaded.deal.status), Some(to));
}

/// A funded deal whose draft is revised and revised until it has that many facts, each at the time that
/// `clock` gives for it.
pub async fn keep_busy(
    store: &Store,
    id: DealId,
    facts: usize,
    clock: impl Fn(usize) -> Timestamp,
) {
    let draft = Act::Command(OWNER, Action::SubmitDraft { creative: "draft-1".to_owned() });
    let revision = Action::RequestRevision { comment: "shorter".to_owned() };
    let revisions = [draft, Act::Command(ADVERTISER, revision)].into_iter().cycle();
    let acts = path(Status::Funded).into_iter().chain(revisions);
    let mut loaded: Option<Loaded> = None;
    for (number, act) in acts.take(facts).enumerate() {
        loaded = Some(perform(store, id, loaded, &act, clock(number)).await);
    }
}

async fn perform(
    store: &Store,
    id: DealId,
    before: Option<Loaded>,
    act: &Act,
    now: Timestamp,
) -> Loaded {
    let policy = Policy::default();
    let deal = before.as_ref().map(|before| &before.deal);
    // The publication is reported when it happens, the verification a day later.
    let recorded_at = match act {
        Act::Publish => published_at(),
        _ => Timestamp::from_millis(RECORDED_AT_MS),
    };
    let moment = Moment { now, recorded_at, policy: &policy };
    let decision = act.decide(id, deal, &moment);
    let Decision::Apply(plan) = decision else { panic!("{act:?}: {decision:?}") };
    let checked = plan.check(deal, now).unwrap_or_else(|why| panic!("{act:?}: {why:?}"));
    let look = before.as_ref().and_then(|before| before.next_look_at);
    let committed = store.commit(&checked, look).await.expect("the engine answers");
    assert_eq!(committed, Committed::Applied, "nobody else works on {id}");
    let next_look_at = [look, checked.after.due_at()].into_iter().flatten().min();
    Loaded { deal: checked.after, next_look_at }
}

#[derive(Debug, Clone)]
enum Act {
    Command(ActorId, Action),
    AddressReady,
    Deposit,
    Publish,
    Verify(bool),
    Payout,
    Expire,
}

fn path(to: Status) -> Vec<Act> {
    let create = Action::Create { owner: OWNER, channel: CHANNEL, price: PRICE };
    let by_advertiser = |action| Act::Command(ADVERTISER, action);
    let by_owner = |action| Act::Command(OWNER, action);
    let mut path = vec![by_advertiser(create)];
    let offered = by_advertiser(Action::SubmitOffer);
    let accepted = by_owner(Action::Accept { terms_version: 1, payout_address: payout_address() });
    let publish_at = published_at();
    let main = [
        (Status::OfferPending, offered),
        (Status::Accepted, accepted),
        (Status::AwaitingPayment, Act::AddressReady),
        (Status::Funded, Act::Deposit),
        (
            Status::CreativeSubmitted,
            by_owner(Action::SubmitDraft { creative: "draft-1".to_owned() }),
        ),
        (Status::CreativeApproved, by_advertiser(Action::Approve)),
        (Status::Scheduled, by_owner(Action::Schedule { publish_at })),
        (Status::DeliveryVerifying, Act::Publish),
        (Status::CompletedReleased, Act::Verify(true)),
    ];
    let (until, last) = match to {
        Status::Draft => return path,
        Status::Negotiating => (
            Status::OfferPending,
            Some(by_owner(Action::CounterOffer {
                price: PRICE,
                payout_address: Some(payout_address()),
            })),
        ),
        Status::Cancelled => (Status::AwaitingPayment, Some(by_advertiser(Action::Cancel))),
        Status::Expired => (Status::AwaitingPayment, Some(Act::Expire)),
        Status::Disputed | Status::Refunded => {
            (Status::DeliveryVerifying, Some(Act::Verify(false)))
        }
        Status::OfferPending
        | Status::Accepted
        | Status::AwaitingPayment
        | Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled
        | Status::Published
        | Status::DeliveryVerifying
        | Status::CompletedReleased => (to, None),
    };
    for (status, act) in main {
        path.push(act);
        if status == until {
            break;
        }
    }
    path.extend(last);
    if to == Status::Refunded {
        let reason = "the post was deleted".to_owned();
        path.push(Act::Command(OPERATOR, Action::ResolveForAdvertiser { reason }));
    }
    path
}

impl Act {
    fn decide(&self, id: DealId, deal: Option<&Deal>, moment: &Moment<'_>) -> Decision {
        let on = || deal.expect("the deal exists");
        match self {
            Self::Command(actor, action) => {
                let command = command(id, Some(*actor), deal, action.clone());
                deal_transition::decide(deal, &command, moment)
            }
            Self::AddressReady => {
                let action = Action::DepositAddressReady { address: deposit_address() };
                deal_transition::decide(deal, &command(id, None, deal, action), moment)
            }
            Self::Deposit => deposit_confirmed::decide(on(), &deposit(id), moment),
            Self::Publish => publication_result::decide(on(), &published(id), moment),
            Self::Verify(passed) => {
                verification_result::decide(on(), &verified(id, *passed), moment)
            }
            Self::Payout => payout_completed::decide(on(), &paid_out(id), moment),
            Self::Expire => Decision::Apply(expire(on())),
        }
    }
}

fn command(
    deal: DealId,
    actor: Option<ActorId>,
    before: Option<&Deal>,
    action: Action,
) -> ActorCommand {
    let version = before.map_or(0, |deal| deal.version);
    let id = format!("seed-{deal}-{version}");
    let fingerprint = Fingerprint::of(&[("seed", &id)]);
    let expected_version = actor.map(|_| version);
    ActorCommand { id, deal, actor, expected_version, action, fingerprint }
}

fn deposit(deal: DealId) -> DepositConfirmed {
    DepositConfirmed {
        deal,
        tx: seed_tx(deal),
        amount: PRICE,
        confirmations: 3,
        from: sender(),
        deposit_address: deposit_address(),
    }
}

fn published(deal: DealId) -> PublicationResult {
    let outcome = PublicationOutcome::Succeeded { publication: publication(), channel: CHANNEL };
    PublicationResult { deal, outcome }
}

/// A passed final check, or a failed first one.
fn verified(deal: DealId, passed: bool) -> VerificationResult {
    VerificationResult {
        deal,
        check: (!passed).then_some(1),
        verified: passed,
        channel: None,
        message_id: Some(MESSAGE_ID),
        checks_failed: Some(0),
        final_content_hash: passed.then(|| CONTENT_HASH.to_owned()),
        reason: (!passed).then(|| "POST_DELETED".to_owned()),
    }
}

fn paid_out(deal: DealId) -> PayoutCompleted {
    PayoutCompleted {
        deal,
        tx: TxHash::from_bytes([0xa1; 32]),
        amount: SHARE,
        commission: COMMISSION,
        to: payout_address(),
        confirmations: 3,
    }
}

/// The function that expires deals is still to come; its move exists.
pub fn expire(deal: &Deal) -> Plan {
    let kind = Kind::DealMoved { from: deal.status, to: Status::Expired };
    let id = format!("seed-expire-{}", deal.id);
    Plan {
        key: Key::command(&id),
        fingerprint: Fingerprint::of(&[("seed", &id)]),
        event_type: "DEADLINE_REACHED",
        deal: deal.id,
        steps: vec![Step::of_system("EXPIRED", Status::Expired, vec![Change::Deadline(None)])],
        messages: vec![Message::notify(kind, both_parties(deal), "timeout")],
    }
}

/// Brings a deal to COMPLETED_RELEASED and settles its payout.
pub async fn open_paid_out(store: &Store, id: DealId) {
    let now = opened_at();
    open(store, id, Status::CompletedReleased).await;
    let (loaded, _) = store.load(Some(id), None).await.expect("the engine answers");
    let loaded = loaded.expect("the deal is there");
    let policy = Policy::default();
    let moment = Moment { now, recorded_at: now, policy: &policy };
    let Decision::Apply(plan) = Act::Payout.decide(id, Some(&loaded.deal), &moment) else {
        panic!("the payout settles")
    };
    let checked = plan.check(Some(&loaded.deal), now).expect("the payout is sound");
    store.commit(&checked, loaded.next_look_at).await.expect("the engine answers");
}
