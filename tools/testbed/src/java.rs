//! Programs that need Java: fetched by Maven into `.tools/`, where there is both.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

/// Why a Java program is not there.
#[derive(Debug)]
pub enum Missing {
    /// Java or Maven is not installed.
    Tools(String),
    Broken(String),
}

/// Sees that `.tools/<name>/lib` has what `tools/<name>/pom.xml` asks for.
pub async fn set_up(root: &Path, name: &str) -> Result<(), Missing> {
    let setup = Command::new(root.join("tools/setup-java")).arg(name).stdin(Stdio::null()).output();
    let output = setup.await.map_err(|error| Missing::Broken(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let absent = output.status.code() == Some(3);
    Err(if absent { Missing::Tools(told) } else { Missing::Broken(told) })
}
