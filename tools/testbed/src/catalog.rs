//! What the code says about functions, settings and tables, as JSON: `tools/check-template` holds the
//! template against it.

use platform::catalog::{DEAL_TRANSITION, OUTBOX_RELAY, UNCLAIMED_RESULTS};
use platform::config::{HTTP_VARIABLES, UNCLAIMED_VARIABLES, VARIABLES};
use platform::store::messages::TOPICS;
use serde_json::{Value, json};

use crate::engine::TABLES;
use crate::samples;

pub fn json() -> Value {
    let functions = samples::functions().map(|function| {
        let mut variables = match function.name {
            name if name == UNCLAIMED_RESULTS.name => UNCLAIMED_VARIABLES.to_vec(),
            name if name == OUTBOX_RELAY.name => outbox_relay::config::VARIABLES.to_vec(),
            name if name == DEAL_TRANSITION.name => [VARIABLES, HTTP_VARIABLES].concat(),
            _ => VARIABLES.to_vec(),
        };
        variables.sort_unstable();
        let sources = function.sources.iter().map(|source| {
            json!({
                "topic": source.topic,
                "consumer_group": source.consumer_group,
                "event_type": source.event_type,
            })
        });
        // What it writes to, but for a prefix that is a setting.
        let topics = match function.name {
            name if name == OUTBOX_RELAY.name => [TOPICS, &["${KafkaTopicPrefix}.*"]].concat(),
            _ => Vec::new(),
        };
        json!({
            "name": function.name,
            "sources": sources.collect::<Vec<_>>(),
            "topics": topics,
            "retries": function.has_retry_queue(),
            "queue": function.queue,
            "timeout_secs": function.timeout_secs,
            "variables": variables,
        })
    });
    let tables = TABLES.iter().map(|table| {
        let keys = |keys: &[(&str, aws_sdk_dynamodb::types::ScalarAttributeType)]| {
            keys.iter().map(|(name, kind)| json!([name, kind.as_str()])).collect::<Vec<_>>()
        };
        json!({
            "name": table.name,
            "keys": keys(table.keys),
            "index": table.index.as_ref().map(|index| {
                json!({"name": index.name, "keys": keys(index.keys), "includes": index.includes})
            }),
        })
    });
    json!({
        "functions": functions.collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
    })
}
