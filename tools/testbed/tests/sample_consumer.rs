//! The sample consumer, as its users run it, on what the relay published: each message takes effect
//! once, whatever comes twice, and what nobody vouches for takes none.

use std::path::{Path, PathBuf};
use std::process::Command;

use domain::state::Status;
use platform::signature;
use serde_json::json;
use testbed::broker::Broker;
use testbed::deals;
use testbed::published::Expected;
use testbed::records::{Record, SECRET};
use testbed::stage::{Stage, new_deal};

struct Consumer<'a> {
    broker: &'a Broker,
    store: PathBuf,
}

impl Consumer<'_> {
    /// What it says until nothing comes any more.
    fn run(&self, group: &str) -> String {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let python = root.join(".tools/consumer/bin/python");
        let output = Command::new(python)
            .arg(root.join("tools/sample-consumer/sample_consumer.py"))
            .args(["--brokers", &self.broker.brokers, "--group", group, "--key", SECRET])
            .args(["--until-idle", "6", "--store"])
            .arg(&self.store)
            .output()
            .expect("run the tests with `make test`, which installs what it needs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_twice_takes_effect_once() {
    let stage = Stage::on("consumer", Broker::embedded()).await;
    for status in [Status::CompletedReleased, Status::Refunded, Status::DeliveryVerifying] {
        deals::open(&stage.bed.store, new_deal(), status).await;
    }
    let rows = stage.rows().await;
    stage.ring_all(&stage.relay()).await;
    // A relay died before its deletions: all of it comes again.
    stage.put_all(rows).await;
    stage.ring_all(&stage.relay()).await;
    let forged = json!({"event_id": "x", "aggregate_id": "y", "event_type": "EXECUTE_PAYOUT", "payload": {}});
    let forged = Record::new(forged.to_string().into_bytes()).signed_by("outbox-relay", "0", 0);
    stage.broker.send("escrow.commands", 0, &forged).await;
    let signature = signature::sign_v1(SECRET.as_bytes(), b"{}");
    let empty = Record::new(b"{}".to_vec()).signed_by("outbox-relay", &signature, 0);
    stage.broker.send("deal.events", 0, &empty).await;

    let folder = std::env::temp_dir().join(format!("escrow-consumer-{}", std::process::id()));
    let consumer = Consumer { broker: &stage.broker, store: folder.join("seen.db") };
    let count = Expected::of_journal(&stage.bed).await.count();
    let first = consumer.run("one");
    assert!(first.contains(&format!("{count} new, {count} again, 2 left alone")), "{first}");
    for told in [
        "COMPLETED_RELEASED       1",
        "REFUNDED                 1",
        "DELIVERY_VERIFYING       1   1 TON in escrow",
    ] {
        assert!(first.contains(told), "{told}: {first}");
    }
    let again = consumer.run("one");
    assert!(again.contains("0 new, 0 again, 0 left alone"), "its offsets were committed: {again}");
    let lost = consumer.run("another");
    let twice = 2 * count;
    assert!(lost.contains(&format!("0 new, {twice} again, 2 left alone")), "offsets lost: {lost}");
    std::fs::remove_dir_all(folder).expect("it was made");
}
