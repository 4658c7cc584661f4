//! Clients for AWS with limits set: the SDK's defaults wait for ever. Endpoint, region and credentials
//! come from the environment, as Lambda and `sam local` provide them.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

/// What the functions call. Built apart from each other, so that each can be pointed elsewhere.
#[derive(Clone)]
pub struct Clients {
    pub dynamodb: aws_sdk_dynamodb::Client,
    pub sqs: aws_sdk_sqs::Client,
    pub secrets: aws_sdk_secretsmanager::Client,
}

impl Clients {
    pub async fn from_env() -> Self {
        let config = config().await;
        Self {
            dynamodb: aws_sdk_dynamodb::Client::new(&config),
            sqs: aws_sdk_sqs::Client::new(&config),
            secrets: aws_sdk_secretsmanager::Client::new(&config),
        }
    }
}

async fn config() -> SdkConfig {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .timeout_config(timeouts())
        .retry_config(retries())
        .load()
        .await
}

/// A call that has not answered in two seconds is lost; three tries fit every function's timeout.
pub fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_millis(1500))
        .operation_attempt_timeout(Duration::from_secs(2))
        .operation_timeout(Duration::from_secs(7))
        .build()
}

/// Exponential with full jitter, which is the SDK's own.
pub fn retries() -> RetryConfig {
    RetryConfig::standard()
        .with_max_attempts(3)
        .with_initial_backoff(Duration::from_millis(100))
        .with_max_backoff(Duration::from_secs(1))
}
