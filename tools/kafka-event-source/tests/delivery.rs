//! The tool as a process, between a real broker and a Lambda endpoint: what arrives, in what order,
//! what comes again, and what is committed.

mod stage;

use std::time::Duration;

use serde_json::{Value, json};
use stage::{Lambda, Reply, Stage, body, until};

fn numbers(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

#[tokio::test]
async fn every_partition_arrives_whole_and_in_order_and_is_committed() {
    let stage = Stage::new(3).await;
    for partition in 0..3_u32 {
        stage.send_numbers(partition as i32, partition * 100..partition * 100 + 25).await;
    }
    let lambda = Lambda::obliging();
    let tool = stage.start(&lambda, &json!({}));
    for partition in 0..3_u32 {
        lambda.await_done(partition as i32, &numbers(partition * 100..partition * 100 + 25)).await;
    }
    stage.await_committed(&[25, 25, 25]).await;
    assert!(lambda.batches().iter().all(|batch| batch.values().flatten().count() <= 10));
    assert!(tool.stop().await, "it ends well when asked");
}

#[tokio::test]
async fn an_event_has_awss_form() {
    let stage = Stage::new(1).await;
    stage.send(0, body("A", 7).as_bytes()).await;
    let lambda = Lambda::obliging();
    let _tool = stage.start(&lambda, &json!({}));
    lambda.await_done(0, &[7]).await;
    let event = lambda.events().remove(0);
    assert_eq!(event["eventSource"], "aws:kafka");
    assert_eq!(event["eventSourceArn"], "arn:aws:kafka:us-east-1:000000000000:cluster/c/1");
    assert_eq!(event["bootstrapServers"], stage.brokers);
    let record = &event["records"][format!("{}-0", stage.topic)][0];
    assert_eq!((&record["partition"], &record["offset"]), (&json!(0), &json!(0)));
    assert_eq!(record["timestampType"], "CREATE_TIME");
    assert!(record["timestamp"].as_i64().expect("a time") > 1_700_000_000_000);
    assert_eq!(record["key"], "aw==");
    // A header's bytes are signed, and one without a value loses its name.
    assert_eq!(record["headers"], json!([{"h": [-1]}, {}]));
}

#[tokio::test]
async fn what_the_filter_leaves_is_committed_without_a_call() {
    let stage = Stage::new(1).await;
    for other in [&b"no json"[..], b"\xff\xfe", b"", br#"{"type":"B","number":1}"#] {
        stage.send(0, other).await;
    }
    let lambda = Lambda::obliging();
    let _tool = stage.start(&lambda, &json!({}));
    stage.await_committed(&[4]).await;
    assert_eq!(lambda.events(), Vec::<Value>::new());
    stage.send(0, body("A", 1).as_bytes()).await;
    stage.send(0, body("B", 2).as_bytes()).await;
    lambda.await_done(0, &[1]).await;
    stage.await_committed(&[6]).await;
}

#[tokio::test]
async fn an_error_brings_the_same_batch_again_until_it_succeeds() {
    let stage = Stage::new(1).await;
    stage.send_numbers(0, 0..15).await;
    let lambda = Lambda::new(|call, _| match call {
        0 => Reply::Error("systemic"),
        1 => Reply::Nothing,
        2 => Reply::Error("still"),
        _ => Reply::Value(json!({"batchItemFailures": [{"itemIdentifier": "ignored"}]})),
    });
    let tool = stage.start(&lambda, &json!({}));
    until("three tries failed", || lambda.events().len() >= 3).await;
    assert!(stage.committed(1)[0] <= 0, "nothing is committed before it is done");
    lambda.await_done(0, &numbers(0..15)).await;
    let events = lambda.events();
    assert!(events[..3].iter().all(|event| *event == events[3]), "the same batch");
    stage.await_committed(&[15]).await;
    assert!(tool.told().contains("records come again: Oops: systemic"), "{}", tool.told());
}

#[tokio::test]
async fn a_window_collects_a_batch_and_six_megabytes_end_it() {
    let stage = Stage::new(1).await;
    let lambda = Lambda::obliging();
    let window = json!({"MaximumBatchingWindowInSeconds": 2, "BatchSize": 1000});
    let _tool = stage.start(&lambda, &window);
    // Joined before the records are sent, or the window would not be what collects them.
    stage.send(0, body("B", 0).as_bytes()).await;
    stage.await_committed(&[1]).await;
    for number in 1..=5 {
        stage.send(0, body("A", number).as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    lambda.await_done(0, &[1, 2, 3, 4, 5]).await;
    assert_eq!(lambda.events().len(), 1, "one window, one call");
    // A byte of a header grows to five characters.
    for number in 6..=9 {
        stage.send_with(0, body("A", number).as_bytes(), &[0x80; 500_000]).await;
    }
    lambda.await_done(0, &numbers(1..10)).await;
    let sizes: Vec<usize> = lambda.events().iter().map(|event| event.to_string().len()).collect();
    assert!(sizes.iter().all(|size| *size <= 6 * 1024 * 1024), "{sizes:?}");
    assert_eq!(sizes.len(), 3, "4 records of 2.5 MB need two calls: {sizes:?}");
}

fn provisioned(further: Value) -> Value {
    let mut properties = json!({"ProvisionedPollerConfig": {"MinimumPollers": 1}});
    for (name, value) in further.as_object().expect("properties") {
        properties[name] = value.clone();
    }
    properties
}

#[tokio::test]
async fn reported_items_come_again_with_all_that_follows_in_their_partition() {
    let stage = Stage::new(2).await;
    stage.send_numbers(0, 0..5).await;
    stage.send_numbers(1, 100..105).await;
    let topic = stage.topic.clone();
    let lambda = Lambda::new(move |_, batch| {
        let first = batch.get(&format!("{topic}-0")).is_some_and(|list| list.contains(&1));
        let item = json!({"partition": format!("{topic}-0"), "offset": 2});
        let failures = if first { vec![json!({"itemIdentifier": item})] } else { vec![] };
        Reply::Value(json!({"batchItemFailures": failures}))
    });
    // All ten in one batch: the window is long enough, and ten end it.
    let properties = provisioned(json!({
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "MaximumBatchingWindowInSeconds": 20,
    }));
    let _tool = stage.start(&lambda, &properties);
    stage.await_committed(&[5, 5]).await;
    let sent: Vec<u32> = lambda.done(0);
    assert_eq!(sent, [0, 1, 2, 3, 4, 2, 3, 4]);
    assert_eq!(lambda.done(1), numbers(100..105), "the other partition is not sent again");
}

#[tokio::test]
async fn bisecting_isolates_a_poison_record_and_goes_on_after_its_retries() {
    let stage = Stage::new(1).await;
    stage.send_numbers(0, 0..8).await;
    let poison = |list: &Vec<u32>| list.contains(&5);
    let lambda = Lambda::new(move |_, batch| {
        if batch.values().any(poison) { Reply::Error("poison") } else { Reply::Value(Value::Null) }
    });
    let limits = json!({"BisectBatchOnFunctionError": true, "MaximumRetryAttempts": 1});
    let tool = stage.start(&lambda, &provisioned(limits));
    lambda.await_done(0, &[0, 1, 2, 3, 4, 6, 7]).await;
    stage.await_committed(&[8]).await;
    assert!(tool.told().contains("1 records LOST to the function"), "{}", tool.told());
}

#[tokio::test]
async fn a_killed_tool_loses_nothing() {
    let stage = Stage::new(2).await;
    stage.send_numbers(0, 0..60).await;
    stage.send_numbers(1, 100..160).await;
    let lambda = Lambda::new(|_, _| Reply::Slow(Duration::from_millis(40)));
    for round in 1..=4 {
        let tool = stage.start(&lambda, &json!({}));
        until("it works", || lambda.events().len() >= 2 * round).await;
        tool.kill();
    }
    let _tool = stage.start(&lambda, &json!({}));
    stage.await_committed(&[60, 60]).await;
    for (partition, first) in [(0, 0), (1, 100)] {
        let mut seen = lambda.done(partition);
        let times = seen.len();
        // At least once, and never an earlier one after a later one but for a repeated batch.
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, numbers(first..first + 60));
        println!("partition {partition}: 60 records, delivered {times} times, lost 0");
    }
}

#[tokio::test]
async fn a_second_member_takes_its_share_and_inherits_it_whole() {
    let stage = Stage::new(4).await;
    let (one, two) = (Lambda::obliging(), Lambda::obliging());
    let first = stage.start(&one, &json!({}));
    let second = stage.start(&two, &json!({}));
    let mut next = 0;
    // Until both have had something: then the partitions are shared.
    while one.events().is_empty() || two.events().is_empty() {
        assert!(next < 2000, "the partitions are never shared");
        for partition in 0..4 {
            stage.send_numbers(partition, next..next + 1).await;
        }
        next += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    first.kill();
    for partition in 0..4 {
        stage.send_numbers(partition, next..next + 10).await;
    }
    next += 10;
    stage.await_committed(&[i64::from(next); 4]).await;
    for partition in 0..4 {
        let mut seen = [one.done(partition), two.done(partition)].concat();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, numbers(0..next));
    }
    drop(second);
}

#[tokio::test]
async fn a_topic_that_is_made_later_is_found() {
    let stage = Stage::without_topic();
    let lambda = Lambda::obliging();
    let tool = stage.start(&lambda, &json!({}));
    until("it says so", || tool.told().contains("does not exist yet")).await;
    stage.create_topic(1).await;
    stage.send_numbers(0, 0..3).await;
    lambda.await_done(0, &[0, 1, 2]).await;
}

#[tokio::test]
async fn a_broker_that_goes_away_and_comes_back_costs_nothing_but_time() {
    let stage = Stage::embedded().await;
    let lambda = Lambda::obliging();
    let _tool = stage.start(&lambda, &json!({}));
    stage.send_numbers(0, 0..5).await;
    lambda.await_done(0, &numbers(0..5)).await;
    stage.broker(false);
    tokio::time::sleep(Duration::from_millis(500)).await;
    stage.broker(true);
    stage.send_numbers(0, 5..10).await;
    until("the rest arrives", || lambda.done(0).contains(&9)).await;
    let mut seen = lambda.done(0);
    seen.dedup();
    assert_eq!(seen, numbers(0..10));
}
