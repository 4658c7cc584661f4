//! SQS and Secrets Manager: ministack, a process of its own on a loopback port. Tests share the one
//! that the test runner started; tools start their own and stop it with them.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Set by the test runner.
pub const ENDPOINT_VARIABLE: &str = "ESCROW_TEST_AWS_ENDPOINT";

pub fn shared_endpoint() -> String {
    std::env::var(ENDPOINT_VARIABLE).unwrap_or_else(|_| {
        panic!("{ENDPOINT_VARIABLE} is not set: run the tests with `make test`, which starts SQS")
    })
}

/// A running ministack; dropping it stops it.
pub struct Ministack {
    pub url: String,
    _process: Child,
}

impl Ministack {
    /// Starts the one in `.tools/ministack`, which `tools/setup ministack` installs.
    pub async fn start(root: &Path) -> Result<Self, String> {
        let program = root.join(".tools/ministack/bin/ministack");
        if !program.exists() {
            return Err("ministack is not installed: run `tools/setup ministack`".to_owned());
        }
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        let log = root.join("target/ministack.log");
        let log =
            std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let process = Command::new(program)
            .envs(environment(port))
            .stdin(Stdio::null())
            .stderr(log.try_clone().map_err(|error| error.to_string())?)
            .stdout(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("ministack does not start: {error}"))?;
        let mut stack = Self { url, _process: process };
        stack.wait_until_ready(port).await?;
        Ok(stack)
    }

    async fn wait_until_ready(&mut self, port: u16) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if let Ok(Some(status)) = self._process.try_wait() {
                return Err(format!("ministack ended with {status}; see target/ministack.log"));
            }
            if answers(port).await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("ministack did not answer within 60 s; see target/ministack.log".to_owned())
    }
}

/// What it is started with: on the loopback interface, and so that its functions find it.
pub fn environment(port: u16) -> [(&'static str, String); 5] {
    [
        ("BIND_HOST", "127.0.0.1".to_owned()),
        ("GATEWAY_PORT", port.to_string()),
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("SFTP_ENABLED", "0".to_owned()),
        ("IOT_MTLS_ENABLED", "0".to_owned()),
    ]
}

/// Waits for one that somebody else started.
pub async fn until_ready(port: u16) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if answers(port).await {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(format!("ministack did not answer on port {port} within 60 s"))
}

async fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else { return false };
    let request = "GET /_ministack/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut answer = [0u8; 12];
    stream.read_exact(&mut answer).await.is_ok() && answer.starts_with(b"HTTP/1.1")
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

pub fn sqs(url: &str) -> aws_sdk_sqs::Client {
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::for_tests())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .timeout_config(platform::aws::timeouts())
        .retry_config(platform::aws::retries())
        .endpoint_url(url);
    aws_sdk_sqs::Client::from_conf(config.build())
}

pub fn secrets(url: &str) -> aws_sdk_secretsmanager::Client {
    let config = aws_sdk_secretsmanager::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::for_tests())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .timeout_config(platform::aws::timeouts())
        .retry_config(platform::aws::retries())
        .endpoint_url(url);
    aws_sdk_secretsmanager::Client::from_conf(config.build())
}
