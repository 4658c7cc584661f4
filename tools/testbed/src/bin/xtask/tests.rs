//! Runs all tests, tier by tier, with the servers they need, and says how many ran and how many did
//! not.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use testbed::ministack::{ENDPOINT_VARIABLE, Ministack};

struct Tier {
    name: &'static str,
    arguments: &'static [&'static str],
}

const TIERS: &[Tier] = &[
    Tier {
        name: "unit (pure code and wire formats)",
        arguments: &["--workspace", "--lib", "--bins"],
    },
    Tier {
        name: "engine (real DynamoDB engine, real SQS)",
        arguments: &["--package", "testbed", "--test", "*", "--", "--show-output"],
    },
];

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub async fn run(root: &Path) -> Result<(), String> {
    let ministack = Ministack::start(root).await?;
    let mut table = String::new();
    let mut total = Counts::default();
    let mut broken = false;
    for tier in TIERS {
        println!("== {}", tier.name);
        let begun = Instant::now();
        let (counts, ended_well) = run_tier(root, tier, &ministack.url)?;
        let secs = begun.elapsed().as_secs();
        let Counts { passed, failed, skipped } = counts;
        table += &format!("{:<45} {passed:>6} {failed:>6} {skipped:>7} {secs:>6} s\n", tier.name);
        // A tier without a test is a tier that did not run.
        broken |= !ended_well || passed == 0;
        total.passed += passed;
        total.failed += failed;
        total.skipped += skipped;
    }
    println!("\n{:<45} {:>6} {:>6} {:>7}", "tier", "passed", "failed", "skipped");
    println!("{table}");
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if broken { Err("not all tests passed".to_owned()) } else { Ok(()) }
}

fn run_tier(root: &Path, tier: &Tier, aws_url: &str) -> Result<(Counts, bool), String> {
    let child = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["test", "--locked", "--no-fail-fast"])
        .args(tier.arguments)
        .env(ENDPOINT_VARIABLE, aws_url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let mut counts = Counts::default();
    for line in text.lines().filter(|line| line.starts_with("test result: ")) {
        counts.passed += number_before(line, " passed");
        counts.failed += number_before(line, " failed");
        counts.skipped += number_before(line, " ignored");
    }
    Ok((counts, output.status.success()))
}

fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split(word).next().unwrap_or_default();
    before.rsplit([' ', ';']).next().and_then(|number| number.parse().ok()).unwrap_or_default()
}
