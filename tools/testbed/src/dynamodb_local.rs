//! Amazon's own DynamoDB Local on a loopback port, where there is Java: a second opinion on the
//! embedded engine.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::java::{self, Missing};
use crate::ministack::free_port;

/// Names the engine that tests use instead of the embedded one.
pub const ENDPOINT_VARIABLE: &str = "ESCROW_TEST_DYNAMODB_ENDPOINT";

/// A running server; dropping it stops it.
pub struct DynamoDbLocal {
    pub url: String,
    _process: Child,
}

impl DynamoDbLocal {
    pub async fn start(root: &Path) -> Result<Self, Missing> {
        java::set_up(root, "dynamodb-local").await?;
        let port = free_port();
        let process = Command::new("java")
            .current_dir(root.join(".tools/dynamodb-local"))
            .args(["-Djava.library.path=lib", "-cp", "lib/*"])
            .arg(root.join("tools/dynamodb-local/Local.java"))
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Missing::Broken(format!("java does not start: {error}")))?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(Self { url: format!("http://127.0.0.1:{port}"), _process: process });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Missing::Broken("DynamoDB Local did not listen within 60 s".to_owned()))
    }
}
