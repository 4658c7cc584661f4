//! What comes in, as AWS sends it, and how a worker's report is read from it. Lenient about the
//! wrapping (one strange record must not fail its batch), strict about the report.

pub mod command;
pub mod http;
pub mod kafka;
pub mod report;
pub mod sqs;

use domain::time::Timestamp;

/// A record, wherever it came from: a topic, or the letter that kept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    pub origin: Origin,
    pub key: Option<Vec<u8>>,
    pub body: Vec<u8>,
    pub headers: Vec<Header>,
    /// The record's own time; with LOG_APPEND_TIME the broker vouches for it.
    pub recorded_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub name: String,
    pub value: Option<Vec<u8>>,
}

/// Where a record was first met. A queue has no partitions: its name and the message id stand in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub topic: String,
    pub partition: i64,
    /// A Kafka offset, or an SQS message id.
    pub offset: String,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.topic, self.partition, self.offset)
    }
}

/// A Lambda event of a function with a Kafka topic and a retry queue.
#[derive(Debug)]
pub enum Event {
    Kafka(Vec<kafka::Record>),
    Sqs(Vec<sqs::Message>),
}

#[derive(Debug, thiserror::Error)]
#[error("this is neither a Kafka nor an SQS event: {0}")]
pub struct UnknownEvent(&'static str);

impl Event {
    /// Records are taken one by one, so that a strange one is only its own problem.
    pub fn read(payload: serde_json::Value) -> Result<Self, UnknownEvent> {
        let serde_json::Value::Object(mut event) = payload else {
            return Err(UnknownEvent("it is no JSON object"));
        };
        match (event.remove("records"), event.remove("Records")) {
            (Some(serde_json::Value::Object(partitions)), None) => {
                Ok(Self::Kafka(kafka::read(partitions)))
            }
            (None, Some(serde_json::Value::Array(messages))) => Ok(Self::Sqs(sqs::read(messages))),
            (None, None) => Err(UnknownEvent("it has neither records nor Records")),
            _ => Err(UnknownEvent("its records have an unknown form")),
        }
    }
}
