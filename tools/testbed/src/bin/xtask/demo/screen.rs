//! What the demo shows at the end: the deals, the books, what was refused and what waits; and whether
//! all of it is as it must be.

use std::collections::{BTreeMap, BTreeSet};

use domain::money::{Account, Nano};
use domain::state::Status;
use domain::time::Timestamp;
use platform::clock;
use platform::pipeline::Outcome;
use testbed::deals::PRICE;
use testbed::published::Expected;
use testbed::{logs, report, samples};

use super::fate::Fate;
use super::play::Play;

pub async fn show(
    play: &Play<'_>,
    endpoint: &str,
    since: Timestamp,
    millis: u128,
) -> Result<(), String> {
    let wrong = deals(play).await?;
    let unbalanced = ledger(play).await?;
    messages(play, endpoint, since).await?;
    let unpublished = published(play).await?;
    letters(play, since).await;
    let sent = play.commands + play.records;
    let per_sec = sent as u128 * 1000 / millis.max(1);
    let secs = millis / 1000;
    println!("\n{sent} messages in {secs} s: {per_sec} a second, emulator included");
    if !wrong.is_empty() || unbalanced {
        return Err(format!("the books are wrong\n{}", wrong.join("\n")));
    }
    if unpublished {
        return Err("what was published is not what was committed".to_owned());
    }
    println!(
        "\nevery deal is where it must be, the books balance to the nanoton, and all of it was told"
    );
    println!("\nnext: make up                 the same stack, left running for you to explore");
    println!("      make send EVENT=events/deposit-confirmed/surplus.json");
    println!("      KAFKA=apache make demo  the same on Apache Kafka");
    Ok(())
}

/// Counts the deals; returns those that are not as their fate wants them.
async fn deals(play: &Play<'_>) -> Result<Vec<String>, String> {
    let mut by_status: BTreeMap<Status, u32> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (id, fate) in &play.deals {
        // Also sees that the deal is the fold of its journal, and sound.
        let deal = play.stack.bed.sound_deal(*id).await;
        *by_status.entry(deal.status).or_default() += 1;
        let open = deal.refunds.iter().filter(|order| order.settled.is_none()).count();
        let escrow = Nano::new(fate.escrow(PRICE.get()));
        if deal.status != fate.ends_in()
            || deal.escrow != escrow
            || deal.payable != Nano::ZERO
            || open > 0
        {
            wrong.push(report::deal(&deal));
        }
    }
    println!("\ndeals");
    for (status, count) in by_status {
        println!("  {:<22} {count:>6}", status.name());
    }
    Ok(wrong)
}

/// Sums up every posting of these deals, by account; true where they do not balance.
async fn ledger(play: &Play<'_>) -> Result<bool, String> {
    let mut accounts: BTreeMap<&str, i128> = BTreeMap::new();
    for (id, _) in &play.deals {
        for posting in play.stack.bed.journal(*id).await.iter().flat_map(|fact| &fact.postings) {
            *accounts.entry(kind(posting.account)).or_default() += i128::from(posting.amount.get());
        }
    }
    println!("\nledger of these deals");
    let sum: i128 = accounts.values().sum();
    for (account, nano) in accounts.into_iter().chain([("sum", sum)]) {
        let amount = i64::try_from(nano).map_err(|_| "the ledger overflows".to_owned())?;
        println!("  {account:<22} {:>22}", report::ton(Nano::new(amount)));
    }
    Ok(sum != 0)
}

fn kind(account: Account) -> &'static str {
    match account {
        Account::ExternalTon => "EXTERNAL_TON",
        Account::Escrow(_) => "ESCROW",
        Account::Payable(_) => "PAYABLE",
        Account::Refundable(_) => "REFUNDABLE",
        Account::Commission => "COMMISSION",
        Account::NetworkFees => "NETWORK_FEES",
        Account::Suspense => "SUSPENSE",
    }
}

/// What each function made of its messages, as its log tells.
async fn messages(play: &Play<'_>, endpoint: &str, since: Timestamp) -> Result<(), String> {
    println!(
        "\n{} commands and {} records were sent; what the functions made of them",
        play.commands, play.records
    );
    let names = Outcome::ALL.map(Outcome::name);
    let row =
        |cells: [String; Outcome::ALL.len()]| cells.map(|cell| format!("{cell:>10}")).concat();
    println!("  {:<24}{}", "", row(names.map(str::to_owned)));
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for function in samples::functions().filter(|function| function.has_retry_queue()) {
        let group = format!("/aws/lambda/escrow-{}", function.name);
        let counts = logs::outcomes(endpoint, &group, since).await?;
        let cells = names.map(|name| counts.get(name).copied().unwrap_or_default().to_string());
        println!("  {:<24}{}", function.name, row(cells));
        for (name, count) in counts {
            *total.entry(name).or_default() += count;
        }
    }
    let cells = names.map(|name| total.get(name).copied().unwrap_or_default().to_string());
    println!("  {:<24}{}", "all", row(cells));
    Ok(())
}

/// What consumers have seen of these deals, held against the journal; true where something is lost or
/// came out of order.
async fn published(play: &Play<'_>) -> Result<bool, String> {
    play.stack.until_published().await?;
    let ours: BTreeSet<String> = play.deals.iter().map(|(deal, _)| deal.to_string()).collect();
    let expected = Expected::of_journal(&play.stack.bed).await.only(|key| ours.contains(key));
    let records = play.stack.published(|key| ours.contains(key));
    let verdict = expected.check(&records);
    println!("\npublished by the outbox relay, read back from Kafka");
    let mut topics: BTreeMap<&str, usize> = BTreeMap::new();
    for record in &records {
        *topics.entry(&record.topic).or_default() += 1;
    }
    for (topic, count) in topics {
        println!("  {topic:<22} {count:>6}");
    }
    println!("  {verdict}");
    let shown = play.deals.iter().find(|(_, fate)| *fate == Fate::Edited).expect("one of twenty");
    let key = shown.0.to_string();
    let mut told = records.into_iter().filter(|record| record.key == key).collect::<Vec<_>>();
    told.retain(|record| record.topic != "notifications.outbox");
    println!("\nwhat the workers and the backend were told about one deal, {key}");
    print!(
        "{}",
        report::published(&told).lines().map(|line| format!("  {line}\n")).collect::<String>()
    );
    Ok(!verdict.lost.is_empty() || !verdict.out_of_order.is_empty())
}

/// The letters that wait, by why they do.
async fn letters(play: &Play<'_>, since: Timestamp) {
    let since = clock::to_text(since);
    let mut reasons: BTreeMap<(String, String), (u32, String)> = BTreeMap::new();
    for letter in play.stack.bed.letters().await {
        let field = |name: &str| letter[name].as_str().unwrap_or_default().to_owned();
        if field("first_failure_at") >= since && letter["closed_as"].is_null() {
            let reason = reasons.entry((field("place"), field("class"))).or_default();
            reason.0 += 1;
            reason.1 = short(&field("error"));
        }
    }
    println!("\nletters: what could not be applied, and waits");
    for ((place, class), (count, error)) in reasons {
        println!("  {count:>4} {place:<6} {class:<20} {error}");
    }
}

fn short(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}
