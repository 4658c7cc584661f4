//! `make send`: puts the records of a sample event on Kafka, as their workers would, and shows what
//! the deployed functions made of them.

use std::path::Path;

use platform::clock;
use serde_json::Value;
use testbed::deployed::Deployed;
use testbed::records::Record;
use testbed::{report, samples};

use crate::stack;

pub async fn run(root: &Path, path: &str) -> Result<(), String> {
    let state = stack::running(root).ok_or("the stack is not up: run `make up` first")?;
    let text = std::fs::read_to_string(root.join(path))
        .map_err(|error| format!("EVENT={path} cannot be read: {error}; samples are in events/"))?;
    let event: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    let records = Record::of_event(&event);
    if records.is_empty() {
        return Err(format!("{path} has no Kafka records: only those can be sent"));
    }
    let stack = Deployed::at(&state.endpoint, &state.brokers).await?;
    for record in &records {
        // Freshness is measured from the record's own time, which is now.
        stack.report(0, &record.clone().at(clock::now())).await;
    }
    println!("{} records sent to {}", records.len(), records[0].topic);
    stack.until_read().await?;
    for deal in samples::deals_of(&event) {
        if stack.bed.deal(deal).await.is_some() {
            println!("\n{}", report::deal(&stack.bed.sound_deal(deal).await));
            println!("{}", report::journal(&stack.bed.journal(deal).await));
        }
    }
    println!("{}", report::letters(&stack.bed.letters().await));
    Ok(())
}
