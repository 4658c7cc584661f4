//! The relay as a real process behind AWS's runtime emulator, killed with -9 right before and right
//! after each of its calls: so before, between and after publishing, noting and deleting.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};

use platform::clock;
use platform::store::messages::bucket;
use serde_json::{Value, json};
use testbed::broker::Broker;
use testbed::emulator::Emulator;
use testbed::engine::Engine;
use testbed::proxy::{Moment, Proxy};
use testbed::records::sqs_event;
use testbed::stage::{Stage, new_deal};
use testbed::{bed::Bed, deals, ministack, programs};

fn bells(deal: &str) -> Value {
    let bell = json!({"bucket": bucket(deal)}).to_string();
    sqs_event("escrow-outbox-doorbell.fifo", &[bell])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_step_it_loses_nothing_and_keeps_the_order() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let bootstrap = programs::build(&root, "outbox-relay").await.expect("it builds");
    let aws = ministack::shared_endpoint();
    let engine = Engine::start().await;
    let bed = Bed::on(&engine.url(), &aws, "relay-kills").await;
    let stage = Stage::with(bed, Broker::from_env()).await;

    let victim: Arc<OnceLock<Emulator>> = Arc::default();
    let killer = victim.clone();
    let proxy = Proxy::start(&engine.url(), move || {
        let killed = killer.get().is_some_and(Emulator::kill_function);
        assert!(killed, "there was nothing to kill");
    })
    .await;
    let mut env = stage.bed.function_env(&aws);
    env.extend(stage.env());
    env.insert("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), proxy.url.clone());
    let emulator = Emulator::start(&root, &bootstrap, &env, Stdio::null()).await;
    let emulator = victim.get_or_init(|| emulator.expect("it starts"));

    let (mut kills, mut at) = (0, BTreeSet::new());
    let moments = (1..).flat_map(|call| [(call, Moment::Before), (call, Moment::After)]);
    for (call, moment) in moments {
        let deal = new_deal();
        deals::keep_busy(&stage.bed.store, deal, 7, |_| clock::now()).await;
        proxy.set(call, moment);
        let answer = emulator.invoke(&bells(&deal.to_string())).await;
        let caught = proxy.caught();
        proxy.clear();
        let Some(operation) = caught else {
            assert_eq!(answer, Ok(json!({"batchItemFailures": []})));
            break;
        };
        assert_ne!(answer, Ok(json!({"batchItemFailures": []})), "it was killed in {operation}");
        kills += 1;
        at.insert(format!("{moment:?} {operation}"));
        let answer = emulator.invoke(&bells(&deal.to_string())).await;
        assert_eq!(answer, Ok(json!({"batchItemFailures": []})), "after {operation}");
        assert_eq!(stage.rows().await.len(), 0, "after {operation}");
    }
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    println!("{}, {kills} kills, {at:?}: {verdict}", stage.broker.kind());
    verdict.must_hold();
    for step in ["After Query", "Before BatchWriteItem", "After BatchWriteItem"] {
        assert!(at.contains(step), "{at:?}");
    }
    assert!(verdict.duplicates > 0, "a kill between publishing and deleting must show");
}
