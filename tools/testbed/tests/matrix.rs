//! Each state × each result, as the design's table has it, from the Lambda event to the rows.

use aws_sdk_dynamodb::types::AttributeValue;
use domain::ids::DealId;
use domain::money::Nano;
use domain::state::Status;
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::records::{self, Deposit, Record, kafka_event};
use testbed::{deals, functions};

/// What a cell shows: how the record ends, and the deal's state if it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    /// Retried with backoff.
    Waits,
    /// Parked, and if the flag is set, CRITICAL.
    Parks(bool),
    /// A fact without a move.
    Records,
    Moves(Status),
    Duplicate,
    /// The key alone, SKIPPED.
    Skips,
}

use Cell::{Duplicate, Moves, Parks, Records, Skips, Waits};
use Status::{CompletedReleased, DeliveryVerifying, Disputed, Funded};

const CRITICAL: Cell = Parks(true);
const PARKS: Cell = Parks(false);

struct Row {
    result: &'static str,
    function: &'static str,
    record: fn(DealId, u8) -> Record,
    /// In the order of `Status::ALL`.
    cells: [Cell; 16],
}

/// PUBLISHED is never at rest: a row found there is corrupt and parks everything, CRITICAL.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    Row {
        result: "deposit", function: "deposit-confirmed", record: |deal, tx| Deposit::new(deal, tx).record(),
        cells: [Waits, Waits, Waits, Waits, Moves(Funded), Records, Records, Records, Records, CRITICAL,
                Records, Records, Records, Records, Records, Records],
    },
    Row {
        result: "payout", function: "payout-completed", record: records::payout,
        cells: [CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL,
                CRITICAL, Records, CRITICAL, CRITICAL, CRITICAL, CRITICAL],
    },
    Row {
        // Of the seeds, only the dispute resolved for the advertiser has an open order.
        result: "refund", function: "refund-completed", record: |deal, tx| records::refund(deal, tx, deals::PRICE.get()),
        cells: [CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL, CRITICAL,
                CRITICAL, CRITICAL, CRITICAL, CRITICAL, Records, CRITICAL],
    },
    Row {
        // The seeds that were published carry the key; see below for those that were not.
        result: "publication succeeded", function: "publication-result", record: |deal, _| records::publication(deal),
        cells: [PARKS, PARKS, PARKS, PARKS, PARKS, PARKS, PARKS, PARKS, Moves(DeliveryVerifying), CRITICAL,
                Duplicate, Duplicate, Duplicate, Records, Duplicate, Records],
    },
    Row {
        result: "publication failed", function: "publication-result", record: |deal, _| records::failed_publication(deal, None),
        cells: [PARKS, PARKS, PARKS, PARKS, PARKS, PARKS, PARKS, PARKS, Records, CRITICAL,
                Skips, Skips, Records, Records, Records, Records],
    },
    Row {
        result: "check passed", function: "verification-result", record: |deal, _| records::check(deal, 7, true),
        cells: [Waits, Waits, Waits, Waits, Waits, Waits, Waits, Waits, Waits, CRITICAL,
                Records, Skips, Records, Skips, Skips, Skips],
    },
    Row {
        result: "final check passed", function: "verification-result", record: |deal, _| records::final_verification(deal),
        cells: [Waits, Waits, Waits, Waits, Waits, Waits, Waits, Waits, Waits, CRITICAL,
                Moves(CompletedReleased), Duplicate, Records, Records, Records, Records],
    },
    Row {
        result: "check failed", function: "verification-result", record: |deal, _| records::check(deal, 8, false),
        cells: [Waits, Waits, Waits, Waits, Waits, Waits, Waits, Waits, Waits, CRITICAL,
                Moves(Disputed), Records, Records, Records, Records, Records],
    },
];

/// Opens a deal in a state; for PUBLISHED the row is corrupted by hand.
async fn open(bed: &Bed, deal: DealId, status: Status) {
    if status != Status::Published {
        return deals::open(&bed.store, deal, status).await;
    }
    deals::open(&bed.store, deal, Status::Scheduled).await;
    let request = bed.clients.dynamodb.update_item().table_name(&bed.config.tables.deals);
    request
        .key("deal_id", AttributeValue::S(deal.to_string()))
        .update_expression("SET #status = :published")
        .expression_attribute_names("#status", "status")
        .expression_attribute_values(":published", AttributeValue::S("PUBLISHED".to_owned()))
        .send()
        .await
        .expect("the engine answers");
}

fn outcome(answer: &Value) -> &'static str {
    let names = ["applied", "duplicate", "parked", "retrying", "skipped"];
    names.into_iter().find(|name| answer[name] == 1).expect("one record has one outcome")
}

#[tokio::test]
async fn every_state_and_every_result_as_the_table_has_it() {
    let mut cells = 0;
    for (number, row) in (0_u128..).zip(TABLE) {
        let bed = Bed::new("matrix").await;
        for (index, (status, expected)) in (0_u8..).zip(Status::ALL.into_iter().zip(row.cells)) {
            let place = format!("{} in {status}", row.result);
            let deal = DealId::from_u128(1000 * (number + 1) + u128::from(index));
            open(&bed, deal, status).await;
            let before = bed.deal(deal).await.expect("it is seeded").deal;
            let record = (row.record)(deal, index + 1).offset(100 + i64::from(index));
            let event = kafka_event(&[record]);
            let answer = functions::invoke(&bed, row.function, event.clone()).await.expect(&place);
            let after = bed.deal(deal).await.expect("it stays").deal;
            let unchanged = before == after;
            let letter = bed
                .letters()
                .await
                .into_iter()
                .find(|letter| letter["deal_id"] == deal.to_string());
            match expected {
                Waits => {
                    assert_eq!((outcome(&answer), unchanged), ("retrying", true), "{place}");
                }
                Parks(critical) => {
                    assert_eq!((outcome(&answer), unchanged), ("parked", true), "{place}");
                    assert_eq!(letter.expect(&place)["critical"], critical, "{place}");
                }
                Records => {
                    assert_eq!((outcome(&answer), after.status), ("applied", status), "{place}");
                    assert_eq!(after.version, before.version + 1, "{place}");
                }
                Moves(to) => {
                    assert_eq!((outcome(&answer), after.status), ("applied", to), "{place}");
                }
                Duplicate => {
                    assert_eq!((outcome(&answer), unchanged), ("duplicate", true), "{place}");
                }
                Skips => {
                    assert_eq!((outcome(&answer), unchanged), ("skipped", true), "{place}");
                }
            }
            // Delivered again, nothing more happens; what is corrupt is not looked at further.
            if status != Status::Published {
                let settled = bed.sound_deal(deal).await;
                let again = functions::invoke(&bed, row.function, event).await.expect(&place);
                let expected = match expected {
                    Waits => "retrying",
                    Parks(_) => "parked",
                    Records | Moves(_) | Duplicate | Skips => "duplicate",
                };
                assert_eq!(outcome(&again), expected, "{place}, again");
                assert_eq!(bed.sound_deal(deal).await, settled, "{place}, again");
            }
            cells += 1;
        }
        assert_books_balance(&bed).await;
    }
    println!("{cells} cells of state × result, each delivered twice");
    assert_eq!(cells, 128);
}

async fn assert_books_balance(bed: &Bed) {
    let mut sum = 0_i64;
    for row in bed.rows(&bed.config.tables.journal).await {
        for posting in row["postings"].as_array().into_iter().flatten() {
            sum += posting[1].as_i64().expect("an amount");
        }
    }
    assert_eq!(sum, 0);
}

/// An open order settles whatever the state; a second transaction for it is CRITICAL for ever.
#[tokio::test]
async fn an_open_refund_order_settles_in_every_state_that_can_have_one() {
    let bed = Bed::new("orders").await;
    let states = [
        Status::Funded,
        Status::CreativeSubmitted,
        Status::CreativeApproved,
        Status::Scheduled,
        Status::DeliveryVerifying,
        Status::CompletedReleased,
        Status::Disputed,
        Status::Cancelled,
        Status::Expired,
    ];
    for (number, status) in (1_u8..).zip(states) {
        let deal = DealId::from_u128(u128::from(number));
        open(&bed, deal, status).await;
        let deliver = async |function: &str, record: Record| {
            let answer = functions::invoke(&bed, function, kafka_event(&[record])).await;
            outcome(&answer.expect("an answer"))
        };
        // A deposit too many brings the order about.
        let late = Deposit::new(deal, number).amount(500_000_000).record();
        assert_eq!(deliver("deposit-confirmed", late).await, "applied", "{status}");
        let ordered = bed.sound_deal(deal).await;
        assert_eq!((ordered.status, ordered.refundable), (status, Nano::new(500_000_000)));
        let refund = |tx| records::refund(deal, tx, 500_000_000);
        let offset = i64::from(number) * 10;
        assert_eq!(deliver("refund-completed", refund(0x60 + number)).await, "applied", "{status}");
        assert_eq!(
            deliver("refund-completed", refund(0x60 + number)).await,
            "duplicate",
            "{status}"
        );
        let other = refund(0x90 + number).offset(offset);
        assert_eq!(deliver("refund-completed", other).await, "parked", "{status}");
        let settled = bed.sound_deal(deal).await;
        assert_eq!((settled.status, settled.refundable), (status, Nano::ZERO));
        assert_eq!(settled.settlement_due_at.is_some(), settled.payable.is_positive(), "{status}");
    }
    assert!(bed.letters().await.iter().all(|letter| letter["critical"] == true));
}

/// Two equal orders are interchangeable: two transactions settle both, in any order, each once.
#[tokio::test]
async fn equal_refund_orders_are_interchangeable() {
    let bed = Bed::new("equal-orders").await;
    let deal = DealId::from_u128(1);
    open(&bed, deal, Status::Cancelled).await;
    let parts = [1, 2].map(|tx| Deposit::new(deal, tx).amount(300_000_000).record());
    functions::invoke(&bed, "deposit-confirmed", kafka_event(&parts)).await.expect("an answer");
    assert_eq!(bed.sound_deal(deal).await.refunds.len(), 2);
    let refunds = [0x72, 0x71, 0x72, 0x71].map(|tx| records::refund(deal, tx, 300_000_000));
    let answer = functions::invoke(&bed, "refund-completed", kafka_event(&refunds)).await;
    let answer = answer.expect("an answer");
    assert_eq!((&answer["applied"], &answer["duplicate"]), (&2.into(), &2.into()));
    let after = bed.sound_deal(deal).await;
    assert_eq!((after.refundable, after.settlement_due_at), (Nano::ZERO, None));
    let keys = bed.rows(&bed.config.tables.processed).await;
    for key in [format!("refund:{deal}"), format!("refund:{deal}:2")] {
        let row = keys.iter().find(|row| row["idempotency_key"] == key).expect(&key);
        assert!(row["expires_at"].is_null(), "a key that moved money never expires");
    }
}

/// Money left that nobody ordered so: parked, CRITICAL, and it says what differs.
#[tokio::test]
async fn a_payment_that_differs_from_its_order_is_parked_and_says_how() {
    let bed = Bed::new("payments").await;
    let (released, refunded) = (DealId::from_u128(1), DealId::from_u128(2));
    open(&bed, released, Status::CompletedReleased).await;
    open(&bed, refunded, Status::Refunded).await;
    let payout = |changes: &[(&str, Value)]| {
        let body: Value = serde_json::from_slice(&records::payout(released, 1).body).unwrap();
        changed("PAYOUT_COMPLETED", released, body, changes)
    };
    let refund = |changes: &[(&str, Value)]| {
        let record = records::refund(refunded, 1, deals::PRICE.get());
        let body: Value = serde_json::from_slice(&record.body).unwrap();
        changed("REFUND_COMPLETED", refunded, body, changes)
    };
    let elsewhere = || json!(deals::address(0x0e).to_string());
    let cases = [
        ("payout-completed", payout(&[("amount_nano", json!(1))]), "OTHER_AMOUNT", "parked"),
        ("payout-completed", payout(&[("commission_nano", json!(1))]), "OTHER_AMOUNT", "parked"),
        (
            "payout-completed",
            payout(&[("to_address", elsewhere())]),
            "OTHER_PAYOUT_ADDRESS",
            "parked",
        ),
        (
            "payout-completed",
            payout(&[("confirmations", json!(1))]),
            "TOO_FEW_CONFIRMATIONS",
            "retrying",
        ),
        ("refund-completed", refund(&[("amount_nano", json!(1))]), "REFUND_NOT_ORDERED", "parked"),
        (
            "refund-completed",
            refund(&[("to_address", elsewhere())]),
            "REFUND_NOT_ORDERED",
            "parked",
        ),
        (
            "refund-completed",
            refund(&[("confirmations", json!(1))]),
            "TOO_FEW_CONFIRMATIONS",
            "retrying",
        ),
    ];
    let before = [bed.sound_deal(released).await, bed.sound_deal(refunded).await];
    for (offset, (function, record, class, expected)) in (200..).zip(cases) {
        let answer = functions::invoke(&bed, function, kafka_event(&[record.offset(offset)])).await;
        assert_eq!(outcome(&answer.expect("an answer")), expected, "{class}");
        let letters = bed.letters().await;
        let at = offset.to_string();
        let letter = letters.iter().find(|letter| letter["offset"] == at.as_str()).expect(class);
        assert_eq!(letter["class"], class);
        assert_eq!(letter["critical"], expected == "parked", "{class}");
        assert_eq!(letter["tx_hash"], "01".repeat(32), "the letter names the transaction");
    }
    assert_eq!([bed.sound_deal(released).await, bed.sound_deal(refunded).await], before);
}

fn changed(event_type: &str, deal: DealId, mut body: Value, changes: &[(&str, Value)]) -> Record {
    for (name, value) in changes {
        body["payload"][name] = value.clone();
    }
    records::report(event_type, Some(deal), &body["payload"])
}

/// Bad news is not refused for its form, and what is malformed is still found under its deal: a
/// timeout must not pay out past it.
#[tokio::test]
async fn sloppy_bad_news_still_counts() {
    let bed = Bed::new("sloppy").await;
    let news = [
        json!({"verified": false}),
        json!({"verified": false, "reason": "", "message_id": "789"}),
        json!({"verified": false, "reason": "x".repeat(5000), "check_number": 2}),
    ];
    for (number, payload) in (1_u128..).zip(news) {
        let deal = DealId::from_u128(number);
        open(&bed, deal, Status::DeliveryVerifying).await;
        let record = records::report("VERIFICATION_RESULT", Some(deal), &payload);
        let answer = functions::invoke(&bed, "verification-result", kafka_event(&[record])).await;
        assert_eq!(outcome(&answer.expect("an answer")), "applied", "{payload}");
        assert_eq!(bed.sound_deal(deal).await.status, Status::Disputed);
    }
    let deal = DealId::from_u128(9);
    let nonsense = records::report("VERIFICATION_RESULT", Some(deal), &json!({"verified": "no"}));
    functions::invoke(&bed, "verification-result", kafka_event(&[nonsense]))
        .await
        .expect("an answer");
    let letter = bed.letters().await.remove(0);
    assert_eq!((&letter["class"], &letter["verified"]), (&json!("MALFORMED"), &json!(true)));
    assert_eq!(letter["pk"], format!("letters#{deal}"));
}

/// Thirty days later the key is gone and the result is not.
#[tokio::test]
async fn a_reconciliation_reported_again_after_its_key_expired_does_not_block() {
    let bed = Bed::new("recon").await;
    let event = kafka_event(&[records::reconciliation("night", false)]);
    functions::invoke(&bed, "reconciliation-result", event.clone()).await.expect("an answer");
    let delete = bed.clients.dynamodb.delete_item().table_name(&bed.config.tables.processed);
    let key = AttributeValue::S("recon:night".to_owned());
    delete.key("idempotency_key", key).send().await.expect("the engine answers");
    let answer = functions::invoke(&bed, "reconciliation-result", event).await.expect("an answer");
    assert_eq!(answer["applied"], 1);
    let rows = bed.rows(&bed.config.tables.operations).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["checks"].as_array().unwrap().len(), 4);
}
