//! SQS messages as Lambda delivers them, and the answer that names the ones to deliver again.

use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse};
use domain::time::Timestamp;
use serde_json::Value;

use super::{Header, Incoming, Origin};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub id: String,
    pub queue: String,
    pub body: String,
    pub sent_at_ms: i64,
    pub attributes: Vec<Header>,
}

impl Message {
    /// The message as a record: its attributes are its headers.
    pub fn incoming(&self) -> Incoming {
        Incoming {
            origin: Origin { topic: self.queue.clone(), partition: 0, offset: self.id.clone() },
            key: None,
            body: self.body.clone().into_bytes(),
            headers: self.attributes.clone(),
            recorded_at: Timestamp::from_millis(self.sent_at_ms),
        }
    }
}

pub fn read(messages: Vec<Value>) -> Vec<Message> {
    let read_one = |message: Value| {
        let arn = message["eventSourceARN"].as_str().unwrap_or_default();
        let sent_at = message["attributes"]["SentTimestamp"].as_str();
        Message {
            id: message["messageId"].as_str().unwrap_or_default().to_owned(),
            queue: arn.rsplit(':').next().unwrap_or_default().to_owned(),
            body: message["body"].as_str().unwrap_or_default().to_owned(),
            attributes: attributes(&message["messageAttributes"]),
            sent_at_ms: sent_at.and_then(|text| text.parse().ok()).unwrap_or_default(),
        }
    };
    messages.into_iter().map(read_one).collect()
}

fn attributes(value: &Value) -> Vec<Header> {
    let entries = value.as_object().into_iter().flatten();
    let headers = entries.map(|(name, attribute)| Header {
        name: name.clone(),
        value: attribute["stringValue"].as_str().map(|text| text.as_bytes().to_vec()),
    });
    headers.collect()
}

/// An empty identifier fails the whole batch at AWS: then say so ourselves, as an error.
pub fn response(failed: Vec<String>) -> Result<SqsBatchResponse, &'static str> {
    if failed.iter().any(String::is_empty) {
        return Err("a message without a messageId is not done: the whole batch must come again");
    }
    let mut response = SqsBatchResponse::default();
    response.batch_item_failures = failed
        .into_iter()
        .map(|id| {
            let mut failure = BatchItemFailure::default();
            failure.item_identifier = id;
            failure
        })
        .collect();
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_the_wire_form_that_aws_wants() {
        let wire = |failed: &[&str]| {
            let failed = failed.iter().map(|id| (*id).to_owned()).collect();
            serde_json::to_string(&response(failed).unwrap()).unwrap()
        };
        assert_eq!(wire(&[]), r#"{"batchItemFailures":[]}"#);
        assert_eq!(
            wire(&["a", "b"]),
            r#"{"batchItemFailures":[{"itemIdentifier":"a"},{"itemIdentifier":"b"}]}"#
        );
        assert!(response(vec![String::new()]).is_err());
    }
}
