//! `make invoke`: a function's real bootstrap under AWS's runtime emulator, on the embedded engine,
//! with the deals that the samples name; then what it left behind.

use std::path::Path;
use std::process::Stdio;

use platform::clock;
use serde_json::Value;
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::emulator::Emulator;
use testbed::engine::Engine;
use testbed::ministack::Ministack;
use testbed::{programs, published, report, samples};

pub async fn run(root: &Path, function: &str, event: &str) -> Result<(), String> {
    let names: Vec<&str> = samples::functions().map(|each| each.name).collect();
    if !names.contains(&function) {
        return Err(format!("FUNCTION={function} is unknown; there are: {}", names.join(", ")));
    }
    let text = std::fs::read_to_string(event).map_err(|error| {
        format!("EVENT={event} cannot be read: {error}; samples are in events/{function}/")
    })?;
    let event: Value =
        serde_json::from_str(&text).map_err(|error| format!("{event} is not JSON: {error}"))?;
    let stack = Stack::start(root, function).await?;
    samples::seed(&stack.bed, function, &event).await;
    let begun = clock::to_text(clock::now());
    let answer = stack.emulator.invoke(&event).await?;
    println!("\nanswer");
    match answer["body"].as_str() {
        Some(body) => println!("  HTTP {} {body}\n", answer["statusCode"]),
        None => println!("  {answer}\n"),
    }
    for id in samples::deals_of(&event) {
        match stack.bed.deal(id).await {
            Some(_) => {
                println!("{}", report::deal(&stack.bed.sound_deal(id).await));
                println!("{}", report::journal(&stack.bed.journal(id).await));
            }
            None => println!("deal {id}\n  does not exist\n"),
        }
    }
    let topics: Vec<&str> = published::topics().collect();
    let records = published::read_back(&stack.broker.brokers, &topics);
    if !records.is_empty() {
        println!("published\n{}", report::published(&records));
    }
    let tables = &stack.bed.config.tables;
    let mut rows = stack.bed.rows(&tables.outbox).await;
    rows.retain(|row| row["created_at"].as_str() >= Some(begun.as_str()));
    rows.sort_by_key(|row| row["position"].as_str().map(str::to_owned));
    println!("{}", report::outbox(&rows));
    let rows = stack.bed.rows(&tables.operations).await;
    println!("{}", report::letters(&rows));
    print!("{}", report::reconciliations(&rows));
    Ok(())
}

/// Everything that a function needs, and the function.
pub struct Stack {
    pub bed: Bed,
    pub emulator: Emulator,
    /// Where the relay publishes.
    broker: Broker,
    _ministack: Ministack,
    _engine: Engine,
}

impl Stack {
    pub async fn start(root: &Path, function: &str) -> Result<Self, String> {
        let bootstrap = programs::build(root, function).await?;
        let ministack = Ministack::start(root).await?;
        let engine = Engine::start().await;
        let bed = Bed::on(&engine.url(), &ministack.url, function).await;
        let broker = Broker::embedded();
        published::create_topics(&broker).await;
        let mut env = bed.function_env(&ministack.url);
        env.insert("KAFKA_BROKERS".to_owned(), broker.brokers.clone());
        let log = root.join("target/function.log");
        let file = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let emulator = Emulator::start(root, &bootstrap, &env, Stdio::from(file)).await?;
        Ok(Self { bed, emulator, broker, _ministack: ministack, _engine: engine })
    }
}
