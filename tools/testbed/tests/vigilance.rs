//! What somebody must look at at once raises the alarm, however it came; and letters stay findable and
//! harmless: named by their content, readable or not, vouched for or not.

use aws_sdk_dynamodb::types::AttributeValue;
use domain::deal::MAX_DEPOSITS;
use domain::ids::DealId;
use domain::message::Kind;
use domain::state::Status;
use platform::catalog::{DEPOSIT_CONFIRMED, VERIFICATION_RESULT};
use platform::telemetry::CRITICAL;
use platform::{clock, results};
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::deals::{self, ADVERTISER, OPERATOR, OWNER, STRANGER};
use testbed::functions::{self, in_a_minute};
use testbed::records::{self, Deposit, Record, command, http_event, kafka_event, sqs_event};

const DEAL: DealId = DealId::from_u128(1);
const QUEUE: &str = "escrow-deal-commands";

async fn bed(status: Status) -> Bed {
    let bed = Bed::new("vigilance").await;
    deals::open(&bed.store, DEAL, status).await;
    bed
}

/// Changes an attribute of the deal's row behind everybody's back.
async fn damage(bed: &Bed, name: &str, value: AttributeValue) {
    let request = bed.clients.dynamodb.update_item().table_name(&bed.config.tables.deals);
    let request = request
        .key("deal_id", AttributeValue::S(DEAL.to_string()))
        .update_expression("SET #name = :value")
        .expression_attribute_names("#name", name)
        .expression_attribute_values(":value", value);
    request.send().await.expect("the engine answers");
}

#[tokio::test]
async fn a_command_that_meets_a_damaged_deal_raises_the_alarm_over_http_too() {
    let resolve = |version: u64, id: &str| {
        let payload = json!({"reason": "looked at it"});
        http_event(
            true,
            DEAL,
            &command(id, "resolve_for_owner", DEAL, OPERATOR.0, version, payload),
        )
    };
    let bed = bed(Status::Disputed).await;
    let transition = functions::transition(&bed);
    let version = bed.sound_deal(DEAL).await.version;
    // Rests in PUBLISHED; does not read back; holds less than its price.
    let damages = [
        ("status", AttributeValue::S("PUBLISHED".to_owned()), 409, "CORRUPT_DEAL"),
        ("status", AttributeValue::S("LOST".to_owned()), 500, "CORRUPT_ROW"),
    ];
    for (number, (name, value, status, code)) in damages.into_iter().enumerate() {
        damage(&bed, name, value).await;
        let answer = transition.invoke(resolve(version, &format!("r-{number}")), in_a_minute());
        let answer = answer.await.expect("an answer");
        assert_eq!(answer["statusCode"], status, "{answer}");
        assert!(answer["body"].to_string().contains(code), "{answer}");
        assert_eq!(transition.metrics().counted(CRITICAL), number as u64 + 1);
    }
    damage(&bed, "status", AttributeValue::S("DISPUTED".to_owned())).await;
    let answer = transition.invoke(resolve(version, "r-9"), in_a_minute()).await;
    assert_eq!(answer.expect("an answer")["statusCode"], 200);
    assert_eq!(transition.metrics().counted(CRITICAL), 2, "a good answer raises none");
}

#[tokio::test]
async fn an_effect_that_should_not_have_been_possible_raises_the_alarm() {
    let bed = bed(Status::CompletedReleased).await;
    let function = results::pipeline(
        &VERIFICATION_RESULT,
        verification_result::decide,
        bed.config.clone(),
        bed.clients.clone(),
    );
    let late = kafka_event(&[records::check(DEAL, 9, false)]);
    for _ in 0..2 {
        function.invoke(late.clone(), in_a_minute()).await.expect("it is done");
        assert_eq!(function.metrics.counted(CRITICAL), 1, "once, though delivered twice");
    }
    let told = bed.messages().await;
    assert!(told.iter().any(|message| message["type"] == Kind::ReleasedTooEarly.name()));

    let full = Bed::new("vigilance-full").await;
    deals::open(&full.store, DEAL, Status::AwaitingPayment).await;
    let function = functions::deposits(&full);
    let part = |number: usize| {
        let mut body = Deposit::new(DEAL, 0).amount(20_000_000).body();
        body["payload"]["tx_hash"] = format!("{:064x}", number + 1).into();
        Record::new(body.to_string().into_bytes()).key(&DEAL.to_string()).offset(number as i64 + 1)
    };
    let parts: Vec<Record> = (0..MAX_DEPOSITS).map(part).collect();
    function.invoke(kafka_event(&parts), in_a_minute()).await.expect("it is done");
    assert_eq!(function.metrics.counted(CRITICAL), 0);
    let one_more = kafka_event(&[part(MAX_DEPOSITS)]);
    function.invoke(one_more, in_a_minute()).await.expect("it is done");
    assert_eq!(function.metrics.counted(CRITICAL), 1, "money went to SUSPENSE");
}

/// A topic that is made anew counts its offsets from zero: what is there must not swallow what comes.
#[tokio::test]
async fn another_record_at_the_same_place_gets_a_letter_of_its_own() {
    let bed = bed(Status::AwaitingPayment).await;
    let function = functions::deposits(&bed);
    let malformed = |text: &str| kafka_event(&[Record::new(text.as_bytes().to_vec()).offset(7)]);
    for text in ["one", "two", "one", "two"] {
        let answer = function.invoke(malformed(text), in_a_minute()).await.expect("it is done");
        assert_eq!(answer["parked"], 1);
    }
    assert_eq!(bed.letters().await.len(), 2);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 2);
}

#[tokio::test]
async fn a_damaged_letter_stops_neither_its_partition_nor_its_queue() {
    let bed = bed(Status::AwaitingPayment).await;
    let function = functions::deposits(&bed);
    let event = kafka_event(&[Record::new(b"no deposit".to_vec()).offset(7)]);
    function.invoke(event.clone(), in_a_minute()).await.expect("it is done");
    let letter = bed.letters().await.remove(0);
    let message = bed.take(&bed.config.queues.letters.dlq_url).await.remove(0);
    let key = |name: &str| AttributeValue::S(letter[name].as_str().expect("a key").to_owned());
    let request = bed.clients.dynamodb.update_item().table_name(&bed.config.tables.operations);
    let request = request.key("pk", key("pk")).key("sk", key("sk"));
    request.update_expression("REMOVE generation").send().await.expect("the engine answers");

    let answer = function.invoke(event, in_a_minute()).await.expect("the partition moves on");
    assert_eq!(answer["parked"], 1);
    assert_eq!(bed.take(&bed.config.queues.letters.dlq_url).await.len(), 1, "somebody sees it");
    let redriven = sqs_event("escrow-deposit-confirmed-retry", &[message.to_string()]);
    let answer = function.invoke(redriven, in_a_minute()).await.expect("the queue moves on");
    assert_eq!(answer, json!({"batchItemFailures": []}));
    let letters = bed.letters().await;
    let adopted = letters.iter().find(|letter| letter["class"] == "NO_LETTER").expect("a letter");
    assert!(adopted["error"].as_str().expect("a reason").contains("damaged"), "{adopted}");
}

/// Nobody signs a party's command: its letter must not hold up the deal's timeout, nor pass for one.
#[tokio::test]
async fn the_letter_of_a_command_is_not_vouched_for_unless_it_was_signed() {
    let bed = bed(Status::Accepted).await;
    let transition = functions::transition(&bed);
    let foreign = command("x", "cancel", DEAL, STRANGER.0, 1, json!({}));
    let reused = |name: &str| command("same", name, DEAL, ADVERTISER.0, 1, json!({}));
    for body in [foreign, reused("submit_offer"), reused("cancel")] {
        let event = sqs_event(QUEUE, &[body.to_string()]);
        transition.invoke(event, in_a_minute()).await.expect("an answer");
    }
    let letters = bed.letters().await;
    let classes: Vec<&Value> = letters.iter().map(|letter| &letter["class"]).collect();
    assert!(classes.contains(&&json!("NOT_AUTHORISED")) && classes.contains(&&json!("CONFLICT")));
    for letter in &letters {
        assert_eq!(letter["verified"], false, "{letter}");
        assert_eq!((&letter["deal_id"], &letter["idempotency_key"]), (&Value::Null, &Value::Null));
    }
}

/// An outage is not a redrive: the hour that a report may wait for its confirmation does not begin anew.
#[tokio::test]
async fn a_retry_that_comes_late_starts_nothing_afresh() {
    let bed = bed(Status::AwaitingPayment).await;
    let function = results::pipeline(
        &DEPOSIT_CONFIRMED,
        deposit_confirmed::decide,
        bed.config.clone(),
        bed.clients.clone(),
    );
    let mut young = Deposit::new(DEAL, 1);
    young.confirmations = json!(1);
    function.invoke(kafka_event(&[young.record()]), in_a_minute()).await.expect("it waits");
    let letter = bed.letters().await.remove(0);
    bed.make_due(&letter).await;
    let key = |name: &str| AttributeValue::S(letter[name].as_str().expect("a key").to_owned());
    let overdue = clock::to_text(clock::now().minus_secs(7200));
    let request = bed.clients.dynamodb.update_item().table_name(&bed.config.tables.operations);
    let request = request
        .key("pk", key("pk"))
        .key("sk", key("sk"))
        .update_expression("SET due_at = :then")
        .expression_attribute_values(":then", AttributeValue::S(overdue));
    request.send().await.expect("the engine answers");
    let body = json!({"letter_id": letter["letter_id"], "generation": letter["generation"]});
    let event = sqs_event("escrow-deposit-confirmed-retry", &[body.to_string()]);
    function.invoke(event, in_a_minute()).await.expect("it is done");
    assert_eq!(bed.letters().await[0]["place"], "DLQ", "its hour is over");
}

/// A time whose text would not be read back would make the deal's row unreadable for ever.
#[tokio::test]
async fn an_impossible_publication_time_is_refused_in_every_state() {
    for status in [Status::Scheduled, Status::Disputed] {
        let bed = bed(status).await;
        let before = bed.sound_deal(DEAL).await;
        let times =
            ["0000-01-01T00:30:00+01:00", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"];
        for (index, time) in times.into_iter().enumerate() {
            let payload = json!({
                "success": true,
                "message_id": 5,
                "channel_id": deals::CHANNEL.0,
                "content_hash": deals::CONTENT_HASH,
                "published_at": time,
            });
            let record = records::report("PUBLICATION_RESULT", Some(DEAL), &payload);
            let event = kafka_event(&[record.offset(index as i64 + 1)]);
            let answer = functions::invoke(&bed, "publication-result", event).await;
            let parked = answer.expect("it is done")["parked"].clone();
            // A disputed deal that was published before says so first.
            assert_eq!(parked, 1, "{status} {time}");
        }
        assert_eq!(bed.sound_deal(DEAL).await, before);
    }
}

#[tokio::test]
async fn a_check_of_another_channel_opens_a_dispute() {
    let bed = bed(Status::DeliveryVerifying).await;
    let payload = json!({
        "verified": true,
        "message_id": deals::MESSAGE_ID,
        "channel_id": 999,
        "checks_passed": 5,
        "checks_failed": 0,
        "final_content_hash": deals::CONTENT_HASH,
    });
    let record = records::report("VERIFICATION_RESULT", Some(DEAL), &payload);
    let answer = functions::invoke(&bed, "verification-result", kafka_event(&[record])).await;
    assert_eq!(answer.expect("it is done")["applied"], 1);
    assert_eq!(bed.sound_deal(DEAL).await.status, Status::Disputed);
}

/// A deal with an overdue payout and an open refund: issuing the refund again must not hide the payout.
#[tokio::test]
async fn what_is_not_issued_again_stays_overdue() {
    let bed = bed(Status::CompletedReleased).await;
    let late = kafka_event(&[Deposit::new(DEAL, 9).record()]);
    functions::invoke(&bed, "deposit-confirmed", late).await.expect("it is done");
    let before = bed.sound_deal(DEAL).await;
    assert!(before.payable.is_positive() && before.refundable.is_positive());
    let reissue = async |id: &str, payload: Value| {
        let version = bed.sound_deal(DEAL).await.version;
        let body = command(id, "reissue", DEAL, OPERATOR.0, version, payload);
        let answer =
            functions::invoke(&bed, "deal-transition", http_event(true, DEAL, &body)).await;
        assert_eq!(answer.expect("an answer")["statusCode"], 200);
        bed.sound_deal(DEAL).await.settlement_due_at
    };
    let refund = json!({"what": "refund", "number": 1});
    assert_eq!(reissue("one", refund.clone()).await, before.settlement_due_at);
    assert_eq!(reissue("two", json!({"what": "payout"})).await, before.settlement_due_at);
    let paid = kafka_event(&[records::payout(DEAL, 0xa1)]);
    functions::invoke(&bed, "payout-completed", paid).await.expect("it is done");
    assert!(reissue("three", refund).await > before.settlement_due_at);
}

#[tokio::test]
async fn a_repeated_command_is_told_whether_it_took_effect() {
    let bed = bed(Status::Draft).await;
    let transition = functions::transition(&bed);
    let refused = command("no", "cancel", DEAL, OWNER.0, 1, json!({}));
    let done = command("yes", "submit_offer", DEAL, ADVERTISER.0, 1, json!({}));
    for (body, took_effect) in [(refused, false), (done, true)] {
        let queued = sqs_event(QUEUE, &[body.to_string()]);
        transition.invoke(queued, in_a_minute()).await.expect("an answer");
        let answer = transition.invoke(http_event(false, DEAL, &body), in_a_minute()).await;
        let answer = answer.expect("an answer");
        let told: Value =
            serde_json::from_str(answer["body"].as_str().expect("text")).expect("JSON");
        assert_eq!(told["result"], "DUPLICATE");
        assert_eq!(told["took_effect"], took_effect);
    }
}
