//! The store's promises, on whichever engine the runner names: the embedded one and Amazon's own
//! DynamoDB Local.

use aws_sdk_dynamodb::types::AttributeValue;
use domain::command::{Action, ActorCommand};
use domain::deal::{Deal, MAX_DEPOSITS};
use domain::decision::Decision;
use domain::filing::Filing;
use domain::ids::DealId;
use domain::key::{Fingerprint, Key};
use domain::money::Nano;
use domain::plan::Checked;
use domain::policy::{Moment, Policy};
use domain::result::DepositConfirmed;
use domain::state::Status;
use domain::time::Timestamp;
use domain::ton::TxHash;
use platform::clock;
use platform::store::{Committed, Loaded};
use testbed::bed::Bed;
use testbed::deals::{self, ADVERTISER};

const DEAL: DealId = DealId::from_u128(1);

async fn awaiting() -> (Bed, Loaded) {
    let bed = Bed::new("store").await;
    deals::open(&bed.store, DEAL, Status::AwaitingPayment).await;
    let loaded = bed.deal(DEAL).await.expect("it is seeded");
    (bed, loaded)
}

fn deposit(tx: u8, amount: i64) -> DepositConfirmed {
    DepositConfirmed {
        deal: DEAL,
        tx: TxHash::from_bytes([tx; 32]),
        amount: Nano::new(amount),
        confirmations: 3,
        from: deals::sender(),
        deposit_address: deals::deposit_address(),
    }
}

fn planned(deal: &Deal, deposit: &DepositConfirmed) -> Checked {
    let policy = Policy::default();
    let now = clock::now();
    let moment = Moment { now, recorded_at: now, policy: &policy };
    let Decision::Apply(plan) = deposit_confirmed::decide(deal, deposit, &moment) else {
        panic!("the deposit applies")
    };
    plan.check(Some(deal), now).expect("the plan is sound")
}

async fn counts(bed: &Bed) -> [usize; 5] {
    let tables = &bed.config.tables;
    let mut counts = [0; 5];
    let names =
        [&tables.deals, &tables.journal, &tables.processed, &tables.outbox, &tables.operations];
    for (count, table) in counts.iter_mut().zip(names) {
        *count = bed.rows(table).await.len();
    }
    counts
}

#[tokio::test]
async fn a_commit_writes_everything_or_nothing() {
    let (bed, loaded) = awaiting().await;
    let before = counts(&bed).await;
    let checked = planned(&loaded.deal, &deposit(1, 400_000_000));
    // A row that stands in the way of the last item cancels the first three.
    let tables = &bed.config.tables;
    let bucket = platform::store::messages::bucket(&DEAL.to_string());
    let position = checked.after.outbox_position.clone();
    let key = |value: &str| AttributeValue::S(value.to_owned());
    let put = bed.clients.dynamodb.put_item().table_name(&tables.outbox);
    put.item("bucket", key(&bucket))
        .item("position", key(&position))
        .send()
        .await
        .expect("it is put");
    assert_eq!(bed.store.commit(&checked, loaded.next_look_at).await.unwrap(), Committed::Ahead);
    assert_eq!(bed.sound_deal(DEAL).await, loaded.deal);
    let delete = bed.clients.dynamodb.delete_item().table_name(&tables.outbox);
    delete
        .key("bucket", key(&bucket))
        .key("position", key(&position))
        .send()
        .await
        .expect("it goes");
    assert_eq!(counts(&bed).await, before);
    assert_eq!(bed.store.commit(&checked, loaded.next_look_at).await.unwrap(), Committed::Applied);
    let [deals, journal, processed, outbox, operations] = before;
    assert_eq!(counts(&bed).await, [deals, journal + 1, processed + 1, outbox + 1, operations]);
    assert_eq!(bed.sound_deal(DEAL).await, checked.after);
}

#[tokio::test]
async fn the_key_is_looked_at_before_the_deal() {
    let (bed, loaded) = awaiting().await;
    let checked = planned(&loaded.deal, &deposit(1, 400_000_000));
    assert_eq!(bed.store.commit(&checked, None).await.unwrap(), Committed::Applied);
    // The same plan again fails on key, deal, journal and outbox at once: it is known, not stale.
    let Committed::Known(known) = bed.store.commit(&checked, None).await.unwrap() else {
        panic!("the key is known")
    };
    assert!(known.is_same(&checked.plan.fingerprint));
    assert_eq!((known.result.as_str(), known.deal_id), ("SUCCESS", Some(DEAL.to_string())));
    // Another key on the old version is stale.
    let late = planned(&loaded.deal, &deposit(2, 400_000_000));
    assert_eq!(bed.store.commit(&late, None).await.unwrap(), Committed::Stale);
    // The same version in another status is stale too.
    let mut moved = bed.sound_deal(DEAL).await;
    moved.status = Status::Cancelled;
    let mut elsewhere = planned(&bed.sound_deal(DEAL).await, &deposit(3, 400_000_000));
    elsewhere.before = Some(moved);
    assert_eq!(bed.store.commit(&elsewhere, None).await.unwrap(), Committed::Stale);
}

#[tokio::test]
async fn a_read_shows_deal_and_key_or_that_there_is_none() {
    let (bed, loaded) = awaiting().await;
    let deposit = deposit(1, 400_000_000);
    let (found, known) = bed.store.load(Some(DEAL), Some(&deposit.key())).await.unwrap();
    assert_eq!((found, known), (Some(loaded.clone()), None));
    let checked = planned(&loaded.deal, &deposit);
    bed.store.commit(&checked, loaded.next_look_at).await.unwrap();
    let (found, known) = bed.store.load(Some(DEAL), Some(&deposit.key())).await.unwrap();
    assert_eq!(found.unwrap().deal, checked.after);
    assert_eq!(known, bed.store.processed(&deposit.key()).await.unwrap());
    let nobody = DealId::from_u128(404);
    assert_eq!(bed.store.load(Some(nobody), None).await.unwrap(), (None, None));
}

#[tokio::test]
async fn a_commit_only_ever_lowers_the_time_of_the_next_look() {
    let (bed, loaded) = awaiting().await;
    let due = loaded.deal.due_at();
    assert_eq!(loaded.next_look_at, due);
    let sooner = Some(Timestamp::from_millis(5));
    let checked = planned(&loaded.deal, &deposit(1, 1_000_000_000));
    bed.store.commit(&checked, sooner).await.unwrap();
    let after = bed.deal(DEAL).await.unwrap();
    assert_eq!(after.next_look_at, sooner, "the sweep alone moves it on");
    assert!(after.deal.due_at() > due);
    let checked = planned(&after.deal, &deposit(2, 1_000_000_000));
    bed.store.commit(&checked, None).await.unwrap();
    let after = bed.deal(DEAL).await.unwrap();
    assert_eq!(after.next_look_at, after.deal.due_at());
}

#[tokio::test]
async fn a_filing_writes_its_key_and_no_deal() {
    let (bed, loaded) = awaiting().await;
    let before = counts(&bed).await;
    let fingerprint = Fingerprint::of(&[("a", "b")]);
    let skip = Filing::skip(Key::command("skipped"), fingerprint, "COMMAND", DEAL);
    assert_eq!(bed.store.file(&skip, clock::now()).await.unwrap(), Committed::Filed);
    let Committed::Known(known) = bed.store.file(&skip, clock::now()).await.unwrap() else {
        panic!("the key is known")
    };
    assert_eq!(known.result, "SKIPPED");
    let [deals, journal, processed, outbox, operations] = before;
    assert_eq!(counts(&bed).await, [deals, journal, processed + 1, outbox, operations]);
    assert_eq!(bed.sound_deal(DEAL).await, loaded.deal);
}

/// The largest plan there is: a hundred deposits go back to a hundred senders in one commit.
#[tokio::test]
async fn the_fullest_deal_still_fits_its_rows() {
    let (bed, loaded) = awaiting().await;
    let mut deal = loaded.deal;
    deal.terms.price = Nano::new(i64::MAX);
    for number in 0..MAX_DEPOSITS {
        let mut part = deposit(0, 9_000_000_000_000_000);
        let mut hash = [0xff; 32];
        hash[0] = u8::try_from(number).unwrap();
        part.tx = TxHash::from_bytes(hash);
        deal = planned(&deal, &part).after;
    }
    deal.version = bed.sound_deal(DEAL).await.version;
    let command = ActorCommand {
        id: "cancel".to_owned(),
        deal: DEAL,
        actor: Some(ADVERTISER),
        expected_version: Some(deal.version),
        action: Action::Cancel,
        fingerprint: Fingerprint::of(&[("cancel", "1")]),
    };
    let policy = Policy::default();
    let moment = Moment { now: clock::now(), recorded_at: clock::now(), policy: &policy };
    let Decision::Apply(plan) = deal_transition::decide(Some(&deal), &command, &moment) else {
        panic!("it is cancelled")
    };
    let checked = plan.check(Some(&deal), moment.now).expect("the plan is sound");
    assert_eq!(checked.after.refunds.len(), MAX_DEPOSITS);
    assert_eq!(bed.store.commit(&checked, None).await.unwrap(), Committed::Applied);
    let stored = bed.deal(DEAL).await.unwrap().deal;
    assert_eq!(stored, checked.after);
    let row = bed.rows(&bed.config.tables.outbox).await;
    let messages = row.iter().map(|row| row["messages"].as_array().unwrap().len()).max();
    assert_eq!(messages, Some(MAX_DEPOSITS + 2), "its event, the refunds, and the owner's notice");
}

#[tokio::test]
async fn every_kind_of_row_reads_back_as_it_was_written() {
    let bed = Bed::new("roundtrip").await;
    for (number, status) in (1_u128..).zip(Status::ALL) {
        if status != Status::Published {
            let deal = DealId::from_u128(number);
            deals::open(&bed.store, deal, status).await;
            // Reads the row and every fact, and compares the row with the fold.
            assert_eq!(bed.sound_deal(deal).await.status, status);
        }
    }
    let words: std::collections::BTreeSet<String> = bed
        .rows(&bed.config.tables.journal)
        .await
        .iter()
        .flat_map(|row| row["payload"].as_array().cloned().unwrap_or_default())
        .flat_map(|change| change.as_object().unwrap().keys().cloned().collect::<Vec<_>>())
        .collect();
    for word in
        ["created", "terms", "creative", "publish_at", "published", "refund_ordered", "noted"]
    {
        assert!(words.contains(word), "{word} was never written: {words:?}");
    }
}

/// Document 4's fourth race: a timeout that was decided on an older row meets a manual move, and does
/// nothing.
#[tokio::test]
async fn a_timeout_that_lost_against_a_manual_move_is_stale() {
    let (bed, loaded) = awaiting().await;
    let timeout = deals::expire(&loaded.deal).check(Some(&loaded.deal), clock::now());
    let timeout = timeout.expect("it would be sound");
    let paid = planned(&loaded.deal, &deposit(1, 1_000_000_000));
    assert_eq!(bed.store.commit(&paid, loaded.next_look_at).await.unwrap(), Committed::Applied);
    assert_eq!(bed.store.commit(&timeout, loaded.next_look_at).await.unwrap(), Committed::Stale);
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::Funded);
}
