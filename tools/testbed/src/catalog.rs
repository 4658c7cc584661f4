//! What the code says about functions, settings and tables, as JSON: `tools/check-template` holds the
//! template against it.

use platform::catalog::{DEAL_TRANSITION, RESULT_FUNCTIONS, UNCLAIMED_RESULTS};
use platform::config::{HTTP_VARIABLES, UNCLAIMED_VARIABLES, VARIABLES};
use serde_json::{Value, json};

use crate::engine::TABLES;

pub fn json() -> Value {
    let functions = RESULT_FUNCTIONS.iter().copied().chain([&UNCLAIMED_RESULTS, &DEAL_TRANSITION]);
    let functions = functions.map(|function| {
        let mut variables = match function.name {
            name if name == UNCLAIMED_RESULTS.name => UNCLAIMED_VARIABLES.to_vec(),
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
        json!({
            "name": function.name,
            "sources": sources.collect::<Vec<_>>(),
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
