//! The stories of `tools/testbed/stories`, told against the deployed template and compared with what
//! they told before. `xtask test` deploys it and names it; `make stories` renews what they told.

use std::path::Path;

use testbed::deployed::{Deployed, STACK_VARIABLE};
use testbed::story;

/// Set to write down what the stories tell instead of comparing it.
const RENEW_VARIABLE: &str = "ESCROW_RENEW_STORIES";

async fn tell(name: &str) {
    let stack = std::env::var(STACK_VARIABLE);
    let stack = stack.expect("run the tests with `make test`, which deploys the template");
    let (endpoint, brokers) = stack.split_once(',').expect("endpoint,brokers");
    let stack = Deployed::at(endpoint, brokers).await.expect("the template is deployed");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("stories");
    let script = std::fs::read_to_string(folder.join(format!("{name}.story"))).expect("a story");
    let told = story::tell(&stack, &script).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let golden = folder.join(format!("{name}.out"));
    if std::env::var_os(RENEW_VARIABLE).is_some() {
        std::fs::write(&golden, &told).expect("it is written");
    }
    let before = std::fs::read_to_string(&golden).unwrap_or_default();
    for (number, (told, before)) in (1..).zip(told.lines().zip(before.lines())) {
        assert_eq!(told, before, "{name}.out, line {number}; all of it:\n{told}");
    }
    assert_eq!(told.lines().count(), before.lines().count(), "{name} ends early or late:\n{told}");
}

#[tokio::test]
async fn a_deal_goes_from_its_draft_to_the_payout() {
    tell("happy").await;
}

#[tokio::test]
async fn a_dispute_ends_in_a_refund() {
    tell("dispute").await;
}

#[tokio::test]
async fn a_cancellation_meets_a_deposit() {
    tell("cancel").await;
}

#[tokio::test]
async fn poison_in_mid_partition_stops_nothing() {
    tell("poison").await;
}

#[tokio::test]
async fn messages_that_come_twice_take_effect_once() {
    tell("twice").await;
}
