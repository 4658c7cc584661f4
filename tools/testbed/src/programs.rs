//! The programs of this workspace, built and run as processes of their own.

use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Builds a program and says where it is. Within the whole workspace: a package built alone has other
/// features, and builds all it depends on again.
pub async fn build(root: &Path, name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["build", "--locked", "--quiet", "--workspace", "--bin", name])
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !status.success() {
        return Err(format!("{name} does not build"));
    }
    Ok(root.join("target/debug").join(name))
}
