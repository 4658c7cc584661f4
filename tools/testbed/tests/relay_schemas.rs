//! Everything that the relay publishes keeps to the schemas in `docs/schemas/`: of every sample in
//! `events/`, of deals in every state, and of messages that cannot be published.

use std::collections::BTreeSet;
use std::path::Path;

use domain::state::Status;
use platform::clock;
use testbed::broker::Broker;
use testbed::published::{self, read_back};
use testbed::schemas::{self, Judge};
use testbed::stage::{Stage, made_up, new_deal};
use testbed::{bed::Bed, deals, functions, samples};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A stage whose relay publishes on another's broker.
async fn on(broker: &Broker, name: &str) -> Stage {
    let mut stage = Stage::with(Bed::new(name).await, Broker::embedded()).await;
    stage.set("KAFKA_BROKERS", &broker.brokers);
    stage
}

#[tokio::test]
async fn whatever_is_published_keeps_to_its_schema() {
    let broker = Broker::embedded();
    published::create_topics(&broker).await;
    for sample in samples::all().into_iter().filter(|sample| sample.function != "outbox-relay") {
        let stage = on(&broker, sample.function).await;
        samples::seed(&stage.bed, sample.function, &sample.event).await;
        let answer = functions::invoke(&stage.bed, sample.function, sample.event.clone()).await;
        answer.expect("an answer");
        if !stage.rows().await.is_empty() {
            stage.ring_all(&stage.relay()).await;
            assert_eq!(stage.rows().await.len(), 0, "{}", sample.path());
        }
    }
    let mut stage = on(&broker, "every-state").await;
    // PUBLISHED is passed through, never rested in.
    for status in Status::ALL.into_iter().filter(|status| *status != Status::Published) {
        deals::open(&stage.bed.store, new_deal(), status).await;
    }
    stage.ring_all(&stage.relay()).await;
    // And a message that is too large: it becomes a dead letter.
    stage.set("OUTBOX_MAX_MESSAGE_BYTES", 20_000);
    stage.set("OUTBOX_MAX_RETRIES", 0);
    let size = [("delivery.commands", 30_000)];
    let mut row = made_up(&new_deal().to_string(), 1, None, clock::now(), &size);
    row["messages"][0]["type"] = "PUBLISH_POST".into();
    row["messages"][0]["id"] = "01HYABCDEF1234567890QRSTVW".into();
    stage.put_all(vec![row]).await;
    stage.ring_all(&stage.relay()).await;

    let judge = Judge::new(root()).expect("the schemas are right");
    let topics: Vec<&str> = published::topics().collect();
    let records = read_back(&broker.brokers, &topics);
    let (mut used, mut words) = (BTreeSet::new(), BTreeSet::new());
    for record in &records {
        let message = record.json();
        used.insert(judge.judge(&record.topic, &message).unwrap_or_else(|wrong| panic!("{wrong}")));
        words.insert(message["event_type"].as_str().unwrap().to_owned());
    }
    let schemas = schemas::all(root()).unwrap();
    let names: BTreeSet<&str> = schemas.iter().map(|schema| schema.name.as_str()).collect();
    assert_eq!(used, names, "a schema for what nobody publishes");
    let told = schemas.iter().flat_map(schemas::Schema::event_types);
    let never: BTreeSet<String> = told.filter(|word| !words.contains(word)).collect();
    println!("{} messages keep to {} schemas; not seen: {never:?}", records.len(), used.len());
}
