//! What becomes of a message that cannot be published, and of all that comes after it.

use std::collections::{BTreeMap, BTreeSet};

use domain::plan::outbox_position;
use domain::state::Status;
use outbox_relay::relay::{Left, Start};
use platform::clock;
use platform::store::messages::{ESCROW_COMMANDS, bucket};
use serde_json::json;
use testbed::faults::{Fault, Network};
use testbed::published::{DEAD_LETTERS, Record};
use testbed::stage::{Stage, backlog, ids, made_up, neighbours, new_deal, new_topic, only};

#[tokio::test]
async fn what_is_too_large_is_given_up_after_its_retries_and_alone() {
    let mut stage = Stage::new("large").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    let topic = new_topic("large");
    // On the reference broker the topic takes less than the relay would send, so the broker refuses.
    stage.broker.create_topic_with(&topic, 1, &[("max.message.bytes", "10000")]).await;
    let bytes = if stage.broker.is_embedded() { 30_000 } else { 15_000 };
    let names = neighbours(40);
    let now = clock::now();
    let mut rows = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let size = if index == 7 { bytes } else { 100 };
        rows.push(made_up(name, 1, None, now, &[(&topic, size)]));
        let previous = outbox_position(now, name, 1);
        rows.push(made_up(name, 2, Some(&previous), now, &[(&topic, 100)]));
    }
    stage.put_all(rows).await;
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
    let all: BTreeSet<String> = names.iter().cloned().collect();
    let published: BTreeSet<String> =
        ids(&stage.published_on(&[&topic], &all)).into_iter().collect();
    assert_eq!(published.len(), 79, "all but the one");
    let large = format!("{}-1-0", names[7]);
    assert!(!published.contains(&large));
    assert!(published.contains(&format!("{}-2-0", names[7])), "what came after it goes on");
    assert_eq!(relay.metrics.counted("outbox.retries"), 5);
    assert_eq!(relay.metrics.counted("outbox.dead_lettered"), 1);

    let dead = stage.published_on(&[DEAD_LETTERS], &all);
    assert_eq!(dead.len(), 1);
    let told = dead[0].json();
    assert_eq!((&told["event_id"], &told["retry_count"]), (&json!(large), &json!(5)));
    let letters = stage.bed.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((&letters[0]["place"], &letters[0]["critical"]), (&json!("DLQ"), &json!(false)));
    assert_eq!(told["payload"]["letter_id"], letters[0]["letter_id"], "a pointer, not the payload");
    assert!(told["error"].is_string() && told["failed_at"].is_string());
    let queued = stage.bed.take(&stage.bed.config.queues.letters.dlq_url).await;
    assert_eq!(queued.len(), 1);
}

#[tokio::test]
async fn a_command_about_money_that_fails_holds_those_after_it_until_an_operator_acts() {
    let mut stage = Stage::new("stuck").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 1);
    let topic = stage.topic("stuck", 1).await;
    let names = neighbours(2);
    let (stuck, other) = (names[0].as_str(), names[1].as_str());
    let now = clock::now();
    let first = stage.put(stuck, 1, None, now, &[(ESCROW_COMMANDS, 30_000), (&topic, 9)]).await;
    stage.put(stuck, 2, Some(&first), now, &[(ESCROW_COMMANDS, 10), (&topic, 9)]).await;
    stage.put(other, 1, None, now, &[(ESCROW_COMMANDS, 10)]).await;
    let relay = stage.relay();
    for _ in 0..3 {
        stage.ring_all(&relay).await;
    }
    let both = only(&[stuck, other]);
    let commands = stage.published_on(&[ESCROW_COMMANDS], &both);
    assert_eq!(ids(&commands), [format!("{other}-1-0")], "no later command of that deal");
    let others = stage.published_on(&[&topic], &both);
    assert_eq!(ids(&others), [format!("{stuck}-1-1"), format!("{stuck}-2-1")], "once each");
    assert_eq!(stage.rows().await.len(), 2);
    assert_eq!(stage.bed.letters().await.len(), 1, "one letter, however often it is met");

    // The operator sees to it that it fits, and lets it be tried again.
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 100_000);
    stage.unstick(&first).await;
    stage.ring_all(&stage.relay()).await;
    let letter = stage.bed.letters().await.remove(0);
    assert_eq!(letter["closed_as"], "RESOLVED");
    let commands = stage.published_on(&[ESCROW_COMMANDS], &only(&[stuck]));
    assert_eq!(ids(&commands), [format!("{stuck}-1-0"), format!("{stuck}-2-0")]);
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn a_message_that_its_letter_cannot_hold_whole_stays_in_the_outbox() {
    let mut stage = Stage::new("whole").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 0);
    let topic = stage.topic("whole", 1).await;
    let name = new_deal().to_string();
    stage.put(&name, 1, None, clock::now(), &[(&topic, 250_000)]).await;
    stage.ring_all(&stage.relay()).await;
    let letters = stage.bed.letters().await;
    assert_eq!((letters.len(), letters[0]["cut_from"].is_number()), (1, true));
    assert_eq!(stage.rows().await.len(), 1, "the only whole copy");
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 1_000_000);
    let row = stage.rows().await.remove(0);
    stage.unstick(row["position"].as_str().unwrap()).await;
    stage.ring_all(&stage.relay()).await;
    assert_eq!(ids(&stage.published_on(&[&topic], &only(&[&name]))), [format!("{name}-1-0")]);
    assert_eq!(stage.bed.letters().await.remove(0)["closed_as"], "RESOLVED");
}

#[tokio::test]
async fn a_hold_keeps_commands_about_money_back_and_nothing_else() {
    let stage = Stage::new("hold").await;
    stage.hold(true).await;
    let deal = stage.open(Status::CompletedReleased).await.to_string();
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    let (expected, records) = stage.published().await;
    assert!(records.iter().all(|record| record.topic != ESCROW_COMMANDS));
    assert_eq!(expected.check(&records).lost.len(), 2, "the address and the payout wait");
    stage.hold(false).await;
    stage.ring_all(&relay).await;
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0, "what was published stays published");
    assert_eq!(stage.published_on(&[ESCROW_COMMANDS], &only(&[&deal])).len(), 2);
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test]
async fn a_topic_that_is_missing_holds_up_its_own_messages_and_heals_when_it_is_made() {
    let stage = Stage::new("missing").await;
    if stage.broker.is_embedded() {
        // It makes topics by itself; here it is told to say otherwise.
        let missing = new_topic("missing");
        stage.broker.forget_topic(&missing);
        heals(&stage, &missing, async |_: &str| stage.broker.remember_topic(&missing)).await;
    } else {
        let missing = new_topic("missing");
        heals(&stage, &missing, async |topic: &str| stage.broker.create_topic(topic, 1).await)
            .await;
    }
}

async fn heals(stage: &Stage, missing: &str, make: impl AsyncFn(&str)) {
    let there = stage.topic("there", 1).await;
    let names = neighbours(3);
    let now = clock::now();
    for name in &names {
        let first = stage.put(name, 1, None, now, &[(missing, 10), (&there, 10)]).await;
        stage.put(name, 2, Some(&first), now, &[(&there, 10), (missing, 10)]).await;
    }
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    let all: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(stage.published_on(&[&there], &all).len(), 6, "the other topic goes on");
    assert_eq!(stage.rows().await.len(), 6);
    assert!(relay.metrics.counted("outbox.topic_refused") > 0);
    assert_eq!(relay.metrics.counted("outbox.retries"), 0, "no retry is spent");
    make(missing).await;
    for _ in 0..60 {
        stage.ring_all(&relay).await;
        if stage.rows().await.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let records = stage.published_on(&[missing], &all);
    for name in &names {
        let own: Vec<String> =
            records.iter().filter(|record| record.key == *name).map(Record::event_id).collect();
        assert_eq!(own, [format!("{name}-1-0"), format!("{name}-2-1")]);
    }
    assert_eq!(stage.published_on(&[&there], &all).len(), 6, "and nothing twice");
}

#[tokio::test]
async fn a_topic_that_does_not_answer_holds_up_no_other() {
    let mut stage = Stage::embedded("sick").await;
    stage.set("OUTBOX_BATCH_SIZE", 12);
    let sick = stage.topic("sick", 1).await;
    stage.broker.lacks_replicas(&sick, true);
    let names = neighbours(13);
    let (payee, others) = names.split_last().unwrap();
    let now = clock::now();
    for name in others {
        stage.put(name, 1, None, now.minus_secs(60), &[(&sick, 10)]).await;
    }
    stage.put(payee, 1, None, now, &[(ESCROW_COMMANDS, 10), (&sick, 10)]).await;
    let relay = stage.relay();
    stage.ring_all(&relay).await;
    let commands = stage.published_on(&[ESCROW_COMMANDS], &only(&[payee]));
    assert_eq!(ids(&commands), [format!("{payee}-1-0")], "money is not held up by a sick topic");
    assert_eq!(stage.rows().await.len(), 13);
    assert_eq!(relay.metrics.counted("outbox.retries"), 0);
    stage.broker.lacks_replicas(&sick, false);
    stage.by_schedule(&relay).await;
    assert_eq!(stage.rows().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_aggregate_is_stuck_while_999_go_on() {
    let mut stage = Stage::new("one-stuck").await;
    stage.set("OUTBOX_BASE_DELAY_SECONDS", 600);
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    let topic = stage.topic("one-stuck", 3).await;
    let (rows, expected) = backlog(&topic, 1000, 3, Some(500));
    stage.put_all(rows).await;
    stage.ring_all(&stage.relay()).await;
    assert_eq!(stage.rows().await.len(), 3, "those of the one");
    let records = stage.published_on(&[&topic], &expected.0.keys().cloned().collect());
    let verdict = expected.check(&records);
    assert_eq!((verdict.lost.len(), verdict.out_of_order.len(), verdict.duplicates), (3, 0, 0));
}

#[tokio::test]
async fn a_damaged_row_blocks_its_aggregate_alone_and_is_told() {
    let stage = Stage::new("damaged").await;
    let topic = stage.topic("damaged", 1).await;
    let names = neighbours(2);
    let (damaged, other) = (names[0].as_str(), names[1].as_str());
    let now = clock::now();
    let mut row = made_up(damaged, 1, None, now, &[(&topic, 10)]);
    let position = row["position"].as_str().unwrap().to_owned();
    row.as_object_mut().unwrap().remove("messages");
    stage.put_all(vec![row]).await;
    stage.put(damaged, 2, Some(&position), now, &[(&topic, 10)]).await;
    stage.put(other, 1, None, now, &[(&topic, 10)]).await;
    let relay = stage.relay();
    let buckets = BTreeMap::from([(bucket(other), Start::Beginning)]);
    let lefts = relay.work_on(&buckets, clock::now().plus_secs(60)).await;
    let lefts: Vec<Left> = lefts.into_values().map(|left| left.expect("it works")).collect();
    assert_eq!(lefts, [Left::NextBell], "no siege of a row that does not heal");
    let records = stage.published_on(&[&topic], &only(&[damaged, other]));
    assert_eq!(ids(&records), [format!("{other}-1-0")]);
    assert_eq!(stage.rows().await.len(), 2);
    assert!(relay.metrics.counted("worker.critical") > 0);
}

#[tokio::test]
async fn a_failure_that_cannot_be_written_down_costs_nobody_else_anything() {
    let mut stage = Stage::new("trouble").await;
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 0);
    let topic = stage.topic("trouble", 1).await;
    let names = neighbours(6);
    let now = clock::now();
    for (index, name) in names.iter().enumerate() {
        let size = if index == 2 { 30_000 } else { 10 };
        stage.put(name, 1, None, now, &[(&topic, size)]).await;
    }
    let network = Network::new(|called| match called {
        "SendMessage" => Fault::Unreachable,
        _ => Fault::None,
    });
    let relay = stage.relay_with(network.clients(&stage.bed));
    for _ in 0..3 {
        let answer = stage.ring_all(&relay).await;
        assert_eq!(answer, json!({"batchItemFailures": []}), "the bucket is not closed");
        assert_eq!(stage.rows().await.len(), 1, "all others went");
    }
    stage.ring_all(&stage.relay()).await;
    assert_eq!(stage.rows().await.len(), 0);
    let all: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(stage.published_on(&[&topic], &all).len(), 5, "once each");
    assert_eq!(stage.bed.letters().await.len(), 1);
}

#[tokio::test]
async fn what_keeps_the_relay_from_working_is_told_and_the_schedule_brings_it_again() {
    for (operation, fault) in [
        ("Query", Fault::Unreachable),
        ("BatchGetItem", Fault::error("ProvisionedThroughputExceededException")),
        ("GetItem", Fault::Unreachable),
        ("GetSecretValue", Fault::Unreachable),
        ("BatchWriteItem", Fault::Unreachable),
    ] {
        let stage = Stage::new("away").await;
        // Of one deal, and the first row is gone: so that a predecessor is looked for.
        let deal = stage.open(Status::Funded).await;
        let first = stage.rows().await.remove(0);
        let position = first["position"].as_str().unwrap().to_owned();
        let outbox = stage.relay().outbox;
        outbox.delete(&bucket(&deal.to_string()), &[position]).await.expect("it goes");
        let network = Network::new(
            move |called| {
                if called == operation { fault.clone() } else { Fault::None }
            },
        );
        let relay = stage.relay_with(network.clients(&stage.bed));
        let answer = stage.ring_all(&relay).await;
        // A bell that was given back would close the bucket until it came again.
        assert_eq!(answer, json!({"batchItemFailures": []}), "{operation}");
        assert!(relay.metrics.counted("outbox.troubles") > 0, "{operation}");
        // The weather clears.
        stage.by_schedule(&stage.relay()).await;
        assert_eq!(stage.rows().await.len(), 0, "{operation}");
        let (expected, records) = stage.published().await;
        let verdict = expected.check(&records);
        assert!(
            verdict.out_of_order.is_empty() && verdict.lost.len() <= 1,
            "{operation}: {verdict}"
        );
    }
}
