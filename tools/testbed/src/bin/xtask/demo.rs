//! `make demo`: the money path for real. Some hundred deals are paid by a watcher that repeats
//! itself, forges, mangles and reports too early; then the books are opened.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use domain::ids::DealId;
use domain::money::Nano;
use domain::state::Status;
use serde_json::Value;
use testbed::records::{Deposit, Record, kafka_event};
use testbed::{deals, report};

use crate::invoke::Stack;

const DEALS: u32 = 300;
const BATCH: usize = 50;

pub async fn run(root: &Path) -> Result<(), String> {
    println!("starting: embedded DynamoDB engine, SQS, the function's real bootstrap");
    let stack = Stack::start(root, "deposit-confirmed").await?;
    let begun = Instant::now();
    for number in 0..DEALS {
        let status = if number % 10 == 9 { Status::Cancelled } else { Status::AwaitingPayment };
        deals::open(&stack.bed.store, deal(number), status).await;
        if (number + 1) % 100 == 0 {
            println!("  {:>5} deals opened", number + 1);
        }
    }
    let records = reports();
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    let mut sent = 0;
    println!("the watcher reports: {} records, every deposit at least twice", records.len());
    for (index, batch) in records.chunks(BATCH).enumerate() {
        let first = (index * BATCH) as i64 + 1;
        let numbered: Vec<Record> =
            (first..).zip(batch).map(|(offset, record)| record.clone().offset(offset)).collect();
        let answer = stack.emulator.invoke(&kafka_event(&numbered)).await?;
        let counts = answer.as_object().ok_or_else(|| format!("the function answered {answer}"))?;
        if counts.contains_key("errorMessage") {
            return Err(format!("the function failed: {answer}; see target/function.log"));
        }
        for (name, count) in counts {
            *totals.entry(name.clone()).or_default() += count.as_u64().unwrap_or_default();
        }
        sent += batch.len();
        println!("  {sent:>5} records delivered, {} applied", totals["applied"]);
    }
    let secs = begun.elapsed().as_millis().max(1);
    show(&stack, &totals, secs).await
}

fn deal(number: u32) -> DealId {
    DealId::from_u128(0xde40_0000_0000_4000_8000_0000_0000_0000 + u128::from(number))
}

/// Every deposit, then every deposit again in the other order, with some trouble in between.
fn reports() -> Vec<Record> {
    let deposit = |number: u32| {
        let mut deposit = Deposit::new(deal(number), 0);
        let amount = match number % 10 {
            7 => 400_000_000,
            8 => 1_500_000_000,
            _ => 1_000_000_000,
        };
        deposit.amount = amount.into();
        let mut body = deposit.body();
        body["payload"]["tx_hash"] = format!("{:064x}", u64::from(number) + 1).into();
        Record::new(body.to_string().into_bytes()).key(&deal(number).to_string())
    };
    let mut records: Vec<Record> = (0..DEALS).map(deposit).collect();
    records.extend((0..DEALS).rev().map(deposit));
    let forged = deposit(0).signed_by(
        testbed::records::WATCHER,
        &"00".repeat(32),
        testbed::records::RECORDED_AT_MS,
    );
    records.insert(100, forged);
    records.insert(200, Record::new(b"{\"event_type\": \"DEPOSIT_CONF".to_vec()));
    records.insert(300, deposit(DEALS + 1));
    records
}

async fn show(stack: &Stack, totals: &BTreeMap<String, u64>, millis: u128) -> Result<(), String> {
    let mut by_status: BTreeMap<Status, u32> = BTreeMap::new();
    let mut ledger: BTreeMap<String, i128> = BTreeMap::new();
    for number in 0..DEALS {
        // Also checks that the deal is the fold of its journal, and sound.
        let found = stack.bed.sound_deal(deal(number)).await;
        *by_status.entry(found.status).or_default() += 1;
        for posting in stack.bed.journal(deal(number)).await.iter().flat_map(|fact| &fact.postings)
        {
            let account = posting.account.to_string();
            let account = account.split(':').next().unwrap_or_default().to_owned();
            *ledger.entry(account).or_default() += i128::from(posting.amount.get());
        }
    }
    println!("\ndeals");
    for (status, count) in by_status {
        println!("  {status:<20} {count:>6}");
    }
    println!("\nledger, all deals");
    for (account, nano) in &ledger {
        let amount = i64::try_from(*nano).map_err(|_| "the ledger overflows".to_owned())?;
        println!("  {account:<20} {:>22}", report::ton(Nano::new(amount)));
    }
    let sum: i128 = ledger.values().sum();
    println!(
        "  {:<20} {:>22}",
        "sum",
        report::ton(Nano::new(i64::try_from(sum).unwrap_or(i64::MAX)))
    );
    println!("\nrecords");
    for (name, count) in totals {
        println!("  {name:<20} {count:>6}");
    }
    let letters = stack.bed.rows(&stack.bed.config.tables.operations).await;
    println!("\n{}", report::letters(&letters));
    let rows: Vec<Value> = stack.bed.rows(&stack.bed.config.tables.outbox).await;
    println!("outbox rows waiting for the relay: {}", rows.len());
    println!("{} records in {millis} ms", totals["records"]);
    println!(
        "\nnext: make invoke FUNCTION=deposit-confirmed EVENT=events/deposit-confirmed/surplus.json"
    );
    if sum != 0 || totals["applied"] != u64::from(DEALS) {
        return Err("the books are wrong".to_owned());
    }
    println!("\nevery deposit took effect once, and the books balance to the nanoton");
    Ok(())
}
