//! Invokes the function: on AWS, on an emulator of it, or on the runtime emulator alone.

use std::time::Duration;

use aws_sdk_lambda::Client;
use aws_sdk_lambda::config::retry::RetryConfig;
use aws_sdk_lambda::config::timeout::TimeoutConfig;
use aws_sdk_lambda::error::{DisplayErrorContext, SdkError};
use aws_sdk_lambda::operation::invoke::InvokeError;
use aws_sdk_lambda::primitives::Blob;
use serde_json::Value;

use crate::batch::Answer;

/// No function runs longer than a quarter of an hour.
const LONGEST: Duration = Duration::from_secs(910);
/// Characters of an error that are told.
const LONGEST_TOLD: usize = 500;

/// Without an endpoint it is AWS, with whatever credentials the environment has.
pub async fn client(endpoint: Option<&str>) -> Client {
    // Retrying is the event source's own business.
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(3))
        .operation_attempt_timeout(LONGEST)
        .build();
    let loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts);
    let loader = match endpoint {
        Some(url) if url.starts_with("http://") => {
            let plain = aws_smithy_http_client::Builder::new().build_http();
            loader.endpoint_url(url).http_client(plain)
        }
        Some(url) => loader.endpoint_url(url).http_client(encrypted()),
        None => loader.http_client(encrypted()),
    };
    Client::new(&loader.load().await)
}

fn encrypted() -> aws_smithy_runtime_api::client::http::SharedHttpClient {
    use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
    let builder = aws_smithy_http_client::Builder::new();
    builder.tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}

/// What the service said itself, where it said anything.
fn told(error: &SdkError<InvokeError>) -> String {
    let said = error.raw_response().map(|answer| {
        let body = String::from_utf8_lossy(answer.body().bytes().unwrap_or_default()).into_owned();
        format!("HTTP {}: {}", answer.status(), body.trim())
    });
    let said = said.unwrap_or_else(|| DisplayErrorContext(error).to_string());
    said.chars().take(LONGEST_TOLD).collect()
}

pub async fn invoke(client: &Client, function: &str, event: Vec<u8>) -> Answer {
    let request = client.invoke().function_name(function).payload(Blob::new(event));
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => return Answer::Failed(told(&error)),
    };
    let payload = answer.payload.map(Blob::into_inner).unwrap_or_default();
    let value: Value = serde_json::from_slice(&payload).unwrap_or_default();
    // The runtime emulator says 200 and leaves out the header: an error has a message and a type.
    let has = |name: &str| value.get(name).is_some();
    if answer.function_error.is_some() || (has("errorMessage") && has("errorType")) {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let (kind, message) = (text("errorType"), text("errorMessage"));
        let told: String = format!("{kind}: {message}").chars().take(LONGEST_TOLD).collect();
        return Answer::Failed(told);
    }
    // The runtime emulator answers a function that timed out or died in plain text.
    if !payload.is_empty() && serde_json::from_slice::<Value>(&payload).is_err() {
        let told: String = String::from_utf8_lossy(&payload).chars().take(LONGEST_TOLD).collect();
        return Answer::Failed(told);
    }
    Answer::Returned(value)
}
