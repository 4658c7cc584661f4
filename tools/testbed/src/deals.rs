//! Deals to act on, brought about by the same plans and commits that production uses.

use domain::deal::{Party, Terms};
use domain::fact::{Change, Creation};
use domain::ids::{ActorId, ChannelId, DealId};
use domain::key::{Fingerprint, Key};
use domain::money::{BasisPoints, NANO_PER_TON, Nano};
use domain::plan::{Plan, Step};
use domain::policy::{Moment, Policy};
use domain::state::Status;
use domain::time::Timestamp;
use domain::ton::Address;
use platform::store::{Committed, Store};

pub const ADVERTISER: ActorId = ActorId(1001);
pub const OWNER: ActorId = ActorId(2002);
pub const PRICE: Nano = Nano::new(NANO_PER_TON);

pub fn address(number: u8) -> Address {
    Address::from_parts(0, [number; 32])
}

/// The address that deposits of sample deals go to.
pub fn deposit_address() -> Address {
    address(0xd0)
}

/// Brings a new deal as far as `to`: DRAFT, OFFER_PENDING, ACCEPTED, AWAITING_PAYMENT or CANCELLED
/// from there. The states that hold money are reached by what moves money.
pub async fn open(store: &Store, id: DealId, to: Status, now: Timestamp) {
    let policy = Policy::default();
    let moment = Moment { now, recorded_at: now, policy: &policy };
    let creation = Creation {
        deal: id,
        advertiser: ADVERTISER,
        owner: OWNER,
        channel: ChannelId(123_456),
        commission: BasisPoints::DEFAULT,
        terms: Terms { version: 1, price: PRICE, proposed_by: Party::Advertiser },
    };
    let deadline = |status| Change::Deadline(moment.deadline(status));
    let path = [
        (Status::Draft, ADVERTISER, vec![Change::Created(Box::new(creation))]),
        (Status::OfferPending, ADVERTISER, vec![deadline(Status::OfferPending)]),
        (
            Status::Accepted,
            OWNER,
            vec![Change::PayoutAddress(address(0xa0)), deadline(Status::Accepted)],
        ),
        (
            Status::AwaitingPayment,
            OWNER,
            vec![Change::DepositAddress(deposit_address()), deadline(Status::AwaitingPayment)],
        ),
        (Status::Cancelled, ADVERTISER, vec![deadline(Status::Cancelled)]),
    ];
    let mut before = None;
    for (status, actor, changes) in path {
        let command = format!("seed-{id}-{status}");
        let plan = Plan {
            key: Key::command(&command),
            fingerprint: Fingerprint::of(&[("command", &command)]),
            event_type: "COMMAND",
            deal: id,
            steps: vec![Step {
                event_type: status.name(),
                to: status,
                actor: Some(actor),
                changes,
                postings: Vec::new(),
            }],
            messages: Vec::new(),
        };
        let checked = plan.check(before.as_ref(), now).expect("the seed is sound");
        let look = before.as_ref().and_then(domain::deal::Deal::due_at);
        let committed = store.commit(&checked, look).await.expect("the engine answers");
        assert_eq!(committed, Committed::Applied, "the deal {id} is new");
        before = Some(checked.after);
        if status == to {
            return;
        }
    }
    panic!("no seed leads to {to}");
}
