//! Runs all tests, tier by tier, with the servers they need, and says how many ran and how many did
//! not.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use testbed::dynamodb_local::{self, DynamoDbLocal, Missing};
use testbed::ministack::{ENDPOINT_VARIABLE, Ministack};

struct Tier {
    name: &'static str,
    arguments: &'static [&'static str],
}

const UNIT: Tier = Tier {
    name: "unit (pure code and wire formats)",
    arguments: &["--workspace", "--lib", "--bins"],
};
const ENGINE: Tier = Tier {
    name: "engine (real DynamoDB engine, real SQS)",
    arguments: &["--package", "testbed", "--test", "*", "--", "--show-output"],
};
const SECOND_ENGINE: Tier = Tier {
    name: "store on Amazon's DynamoDB Local",
    arguments: &["--package", "testbed", "--test", "store", "--test", "deposits"],
};

#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

#[derive(Default)]
struct Report {
    table: String,
    total: Counts,
    broken: bool,
}

impl Report {
    fn add(&mut self, tier: &Tier, counts: &Counts, ended_well: bool, begun: Instant) {
        let Counts { passed, failed, skipped } = counts;
        let (name, secs) = (tier.name, begun.elapsed().as_secs());
        self.table += &format!("{name:<45} {passed:>6} {failed:>6} {skipped:>7} {secs:>6} s\n");
        // A tier without a test is a tier that did not run.
        self.broken |= !ended_well || passed + skipped == 0;
        self.total.passed += passed;
        self.total.failed += failed;
        self.total.skipped += skipped;
    }
}

pub async fn run(root: &Path) -> Result<(), String> {
    let ministack = Ministack::start(root).await?;
    let mut report = Report::default();
    let servers = [(ENDPOINT_VARIABLE, ministack.url.as_str())];
    for tier in [&UNIT, &ENGINE] {
        println!("== {}", tier.name);
        let begun = Instant::now();
        let (counts, ended_well) = run_tier(root, tier, &servers)?;
        report.add(tier, &counts, ended_well, begun);
    }
    second_engine(root, servers[0], &mut report).await?;
    println!("\n{:<45} {:>6} {:>6} {:>7}", "tier", "passed", "failed", "skipped");
    println!("{}", report.table);
    let Counts { passed, failed, skipped } = report.total;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if report.broken { Err("not all tests passed".to_owned()) } else { Ok(()) }
}

/// The store's tests once more, on Amazon's engine where there is Java. Where there is none, the run
/// says so, and how many tests it left out.
async fn second_engine(root: &Path, sqs: (&str, &str), report: &mut Report) -> Result<(), String> {
    println!("== {}", SECOND_ENGINE.name);
    let begun = Instant::now();
    let engine = match DynamoDbLocal::start(root).await {
        Ok(engine) => engine,
        Err(Missing::Broken(reason)) => return Err(format!("DynamoDB Local: {reason}")),
        Err(Missing::Tools(reason)) => {
            let skipped = count_tests(root, &SECOND_ENGINE)?;
            println!("SKIPPED: {skipped} tests on Amazon's DynamoDB Local, because {reason}.");
            println!("SKIPPED: install Java 17 and Maven to run them.");
            report.add(&SECOND_ENGINE, &Counts { skipped, ..Counts::default() }, true, begun);
            return Ok(());
        }
    };
    let servers = [sqs, (dynamodb_local::ENDPOINT_VARIABLE, engine.url.as_str())];
    let (counts, ended_well) = run_tier(root, &SECOND_ENGINE, &servers)?;
    report.add(&SECOND_ENGINE, &counts, ended_well, begun);
    Ok(())
}

fn cargo_test(root: &Path, tier: &Tier) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["test", "--locked", "--no-fail-fast"]).args(tier.arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn count_tests(root: &Path, tier: &Tier) -> Result<u64, String> {
    let output = cargo_test(root, tier).args(["--", "--list"]).output();
    let output = output.map_err(|error| format!("cargo does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|line| line.ends_with(": test")).count() as u64)
}

fn run_tier(root: &Path, tier: &Tier, env: &[(&str, &str)]) -> Result<(Counts, bool), String> {
    let child = cargo_test(root, tier).envs(env.iter().copied()).spawn();
    let child = child.map_err(|error| format!("cargo does not start: {error}"))?;
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
