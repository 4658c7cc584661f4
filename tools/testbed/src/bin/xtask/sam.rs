//! The real SAM CLI: builds the functions and deploys the template to an emulator of AWS.

use std::path::{Path, PathBuf};
use std::process::Command;

use platform::clock;
use sha2::{Digest as _, Sha256};

use crate::process;

pub const CLUSTER_ARN: &str = "arn:aws:kafka:us-east-1:000000000000:cluster/local/1";
/// Where `sam build` leaves what `sam deploy` takes. Always named: without it a deploy after a failed
/// build would take the sources.
pub const BUILT: &str = ".aws-sam/build/template.yaml";
/// What the built functions were built from.
const STAMP: &str = ".local/built";
/// All that the functions are made of.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "template.yaml",
    "infra",
    "shared",
    "functions",
];

/// Builds the functions with the light profile, unless they are built: SAM itself would ask cargo once
/// for each function. Returns what they were built from.
pub async fn build(root: &Path) -> Result<String, String> {
    let stamp = root.join(STAMP);
    let sources = sources(root)?;
    let built = std::fs::read_to_string(&stamp).is_ok_and(|text| text == sources);
    if built && root.join(BUILT).exists() {
        return Ok(sources);
    }
    let _ = std::fs::remove_file(&stamp);
    println!("building the functions with `sam build`: minutes the first time");
    sam(root, "sam-build", None, &["build", "--template", "template.yaml"]).await?;
    std::fs::write(&stamp, &sources).map_err(|error| format!("{STAMP}: {error}"))?;
    Ok(sources)
}

/// A hash of every source file's name and content.
fn sources(root: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root.join(source), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let content =
            std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        hash.update(file.strip_prefix(root).unwrap_or(&file).as_os_str().as_encoded_bytes());
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(content);
    }
    Ok(hex::encode(hash.finalize()))
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries =
        std::fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
    entries.flatten().try_for_each(|entry| collect(&entry.path(), files))
}

pub async fn deploy(root: &Path, endpoint: &str, stack: &str, brokers: &str) -> Result<(), String> {
    let cluster = format!("KafkaClusterArn={CLUSTER_ARN}");
    let brokers = format!("KafkaBrokers={brokers}");
    let arguments = [
        "deploy",
        "--template",
        BUILT,
        "--stack-name",
        stack,
        "--resolve-s3",
        "--capabilities",
        "CAPABILITY_IAM",
        "CAPABILITY_NAMED_IAM",
        "CAPABILITY_AUTO_EXPAND",
        "--no-confirm-changeset",
        "--no-fail-on-empty-changeset",
        "--no-progressbar",
        "--parameter-overrides",
        &cluster,
        &brokers,
        "KafkaAuth=none",
        "DeletionProtection=false",
    ];
    sam(root, "sam-deploy", Some(endpoint), &arguments).await
}

/// What emulators take for credentials.
pub fn credentials() -> [(&'static str, &'static str); 4] {
    [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ]
}

/// The program, which finds cargo-lambda beside itself.
pub fn command(root: &Path) -> Command {
    let tools = root.join(".tools/sam/bin");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(tools.join("sam"));
    command
        .current_dir(root)
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("SAM_CLI_TELEMETRY", "0");
    command
}

/// What it says goes to a log; of a failure the end is shown.
async fn sam(
    root: &Path,
    name: &str,
    endpoint: Option<&str>,
    arguments: &[&str],
) -> Result<(), String> {
    let mut command = command(root);
    command
        .args(arguments)
        .envs(credentials())
        .envs(endpoint.map(|endpoint| ("AWS_ENDPOINT_URL", endpoint)))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let begun = clock::now();
    let status = process::run(root, name, command).await;
    let status = status.map_err(|error| format!("{error}: run `tools/setup sam`"))?;
    if status.success() {
        let secs = clock::now().distance_ms(begun) / 1000;
        println!("  `sam {}` done in {secs} s", arguments[0]);
        return Ok(());
    }
    let log = root.join(format!(".local/{name}.log"));
    let told = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = told.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n");
    Err(format!("{last}\n`sam {}` failed; all of it is in .local/{name}.log", arguments[0]))
}
