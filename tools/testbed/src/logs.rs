//! What the deployed functions wrote to CloudWatch Logs.

use std::collections::BTreeMap;

use domain::time::Timestamp;
use serde_json::{Value, json};

/// How often a function came to each outcome since then, by its own log lines.
pub async fn outcomes(
    endpoint: &str,
    function: &str,
    since: Timestamp,
) -> Result<BTreeMap<String, u64>, String> {
    let mut outcomes = BTreeMap::new();
    let mut token = Value::Null;
    loop {
        let mut query = json!({"logGroupName": function, "startTime": since.as_millis()});
        if token.is_string() {
            query["nextToken"] = token;
        }
        let page = filter(endpoint.to_owned(), query).await?;
        for event in page["events"].as_array().into_iter().flatten() {
            let line: Option<Value> =
                event["message"].as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(outcome) = line.as_ref().and_then(|line| line["outcome"].as_str()) {
                *outcomes.entry(outcome.to_owned()).or_default() += 1;
            }
        }
        token = page["nextToken"].clone();
        if !token.is_string() {
            return Ok(outcomes);
        }
    }
}

async fn filter(endpoint: String, query: Value) -> Result<Value, String> {
    let work = move || {
        let request = ureq::post(&endpoint)
            .header("X-Amz-Target", "Logs_20140328.FilterLogEvents")
            .header("Content-Type", "application/x-amz-json-1.1");
        let answer = request.send(query.to_string())?.body_mut().read_to_string()?;
        Ok(serde_json::from_str(&answer).unwrap_or_default())
    };
    let answer = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
    answer.map_err(|error: ureq::Error| format!("the logs cannot be read: {error}"))
}
