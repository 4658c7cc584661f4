//! What the code says about functions, settings and tables, as JSON: `tools/check-template` holds the
//! template against it.

use platform::catalog::FUNCTIONS;
use platform::config::VARIABLES;
use serde_json::{Value, json};

use crate::engine::TABLES;

pub fn json() -> Value {
    let functions = FUNCTIONS.iter().map(|function| {
        json!({
            "name": function.name,
            "event_type": function.event_type,
            "topic": function.topic,
            "consumer_group": function.consumer_group,
            "timeout_secs": function.timeout_secs,
            "variables": VARIABLES,
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
