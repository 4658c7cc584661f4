//! Amazon's own DynamoDB Local on a loopback port, where there is Java: a second opinion on the
//! embedded engine.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::ministack::free_port;

/// Names the engine that tests use instead of the embedded one.
pub const ENDPOINT_VARIABLE: &str = "ESCROW_TEST_DYNAMODB_ENDPOINT";

/// A running server; dropping it stops it.
pub struct DynamoDbLocal {
    pub url: String,
    _process: Child,
}

pub enum Missing {
    /// Java or Maven is not there.
    Tools(String),
    Broken(String),
}

impl DynamoDbLocal {
    pub async fn start(root: &Path) -> Result<Self, Missing> {
        let setup = root.join("tools/dynamodb-local/setup");
        let output = Command::new(setup).stdin(Stdio::null()).output().await;
        let output = output.map_err(|error| Missing::Broken(error.to_string()))?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let absent = output.status.code() == Some(3);
            return Err(if absent { Missing::Tools(told) } else { Missing::Broken(told) });
        }
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
