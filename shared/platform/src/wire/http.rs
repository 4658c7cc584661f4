//! A REST API's proxy event, as far as we look at it, and the answer it wants.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::time::Timestamp;
use serde_json::{Value, json};

use super::{Header, Incoming, Origin};

#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub source_ip: Option<IpAddr>,
    pub headers: Vec<Header>,
    pub body: Vec<u8>,
    pub request_id: String,
}

/// None where the event is no HTTP request.
pub fn read(event: &Value) -> Option<Request> {
    let method = event["httpMethod"].as_str()?.to_owned();
    let context = &event["requestContext"];
    let headers = event["multiValueHeaders"].as_object().into_iter().flatten();
    let mut headers: Vec<Header> = headers
        .flat_map(|(name, values)| {
            values.as_array().into_iter().flatten().map(|value| header(name, value))
        })
        .collect();
    if headers.is_empty() {
        let single = event["headers"].as_object().into_iter().flatten();
        headers = single.map(|(name, value)| header(name, value)).collect();
    }
    let text = event["body"].as_str().unwrap_or_default();
    let body = if event["isBase64Encoded"].as_bool() == Some(true) {
        STANDARD.decode(text).unwrap_or_default()
    } else {
        text.as_bytes().to_vec()
    };
    Some(Request {
        method,
        path: event["path"].as_str().unwrap_or_default().to_owned(),
        source_ip: context["identity"]["sourceIp"].as_str().and_then(|text| text.parse().ok()),
        headers,
        body,
        request_id: context["requestId"].as_str().unwrap_or_default().to_owned(),
    })
}

fn header(name: &str, value: &Value) -> Header {
    Header { name: name.to_owned(), value: value.as_str().map(|text| text.as_bytes().to_vec()) }
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| header.value.as_deref())
    }

    /// The request as a record that arrives now.
    pub fn incoming(&self, now: Timestamp) -> Incoming {
        Incoming {
            origin: Origin {
                topic: "http".to_owned(),
                partition: 0,
                offset: self.request_id.clone(),
            },
            key: None,
            body: self.body.clone(),
            headers: self.headers.clone(),
            recorded_at: now,
        }
    }
}

pub fn answer(status: u16, body: &Value) -> Value {
    json!({
        "statusCode": status,
        "headers": {"Content-Type": "application/json", "Cache-Control": "no-store"},
        "isBase64Encoded": false,
        "body": body.to_string(),
    })
}
