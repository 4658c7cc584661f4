//! `make demo`: the main job for real. The template is deployed on this machine; deals by the hundred
//! are made, paid, published, verified, disputed and paid out by workers that repeat themselves, come
//! too early, forge and die; then the books are opened.

mod fate;
mod play;
mod screen;

use std::path::Path;
use std::time::Instant;

use platform::clock;
use serde_json::Value;
use testbed::broker::Broker;
use testbed::deployed::Deployed;
use testbed::records::Record;

use crate::stack::Lease;
use fate::Fate;
use play::Play;

const DEALS_VARIABLE: &str = "DEALS";
const DEALS: u32 = 300;

pub async fn run(root: &Path) -> Result<(), String> {
    let deals = match std::env::var(DEALS_VARIABLE) {
        Err(_) => DEALS,
        Ok(text) => {
            text.parse().ok().filter(|deals| (20..=2000).contains(deals)).ok_or_else(|| {
                format!("{DEALS_VARIABLE}={text}: a number from 20 to 2000 is needed")
            })?
        }
    };
    let lease = Lease::take(root).await?;
    let state = &lease.state;
    let stack = Deployed::at(&state.endpoint, &state.brokers).await?;
    let since = clock::now();
    let begun = Instant::now();
    let mut play = Play::new(&stack, deals);
    lifecycle(root, &mut play).await?;
    let millis = begun.elapsed().as_millis();
    screen::show(&play, &state.endpoint, since, millis).await
}

/// What happens to the deals, in the order in which it does.
async fn lifecycle(root: &Path, play: &mut Play<'_>) -> Result<(), String> {
    println!("{} deals, from their drafts on: commands by SQS, reports by Kafka", play.deals.len());
    play.command("create", "advertiser", Fate::any).await?;
    play.command("submit_offer", "advertiser", Fate::any).await?;
    play.command("accept", "owner", Fate::any).await?;
    let early = play.deposits_of(Fate::PaidTooEarly);
    play.report("deposits ahead of their deals' addresses", &early).await?;
    play.addresses().await?;
    play.command("cancel", "advertiser", |fate| fate == Fate::CancelledThenPaid).await?;

    let deposits = play.deposits();
    play.by_a_worker_that_dies(
        root,
        "deposits, by a watcher that is killed and repeats itself",
        &deposits,
    )
    .await?;
    play.retried().await?;
    play.command("agree_cancel", "advertiser", |fate| fate == Fate::BothCancel).await?;
    play.command("agree_cancel", "owner", |fate| fate == Fate::BothCancel).await?;
    play.command("submit_draft", "owner", Fate::is_published).await?;
    play.command("approve", "advertiser", Fate::is_published).await?;
    play.command("publish_now", "owner", Fate::is_published).await?;

    let posts = play.posts();
    play.report("posts, twice and out of order", &posts).await?;
    let checks = play.checks();
    play.report("checks on the way", &checks).await?;
    let verdicts = play.verdicts();
    play.report("verdicts, a day later", &verdicts).await?;
    play.resolve().await?;

    let settlements = play.settlements().await;
    play.report("payouts and refunds, by the executors", &settlements).await
}

/// A worker as a process of its own: sends what a file holds, a record after the other.
pub async fn worker(brokers: &str, path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let event: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let broker = Broker::at(brokers.to_owned());
    for record in Record::of_event(&event) {
        broker.send(&record.topic, play::partition(&record), &record).await;
    }
    Ok(())
}
