//! Runs all tests, tier by tier, with the servers they need, and says how many ran and how many did
//! not.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::stack::{Lease, State};
use testbed::apache_kafka::{self, ApacheKafka};
use testbed::deployed::STACK_VARIABLE;
use testbed::dynamodb_local::{self, DynamoDbLocal};
use testbed::java::Missing;
use testbed::ministack::{ENDPOINT_VARIABLE, Ministack};

struct Tier {
    name: &'static str,
    /// Test files; none stands for the tests beside the code.
    files: Vec<String>,
}

impl Tier {
    fn arguments(&self) -> Vec<&str> {
        // Always the whole workspace: a package alone has other features, and builds all again.
        let mut arguments = vec!["--workspace"];
        if self.files.is_empty() {
            arguments.extend(["--lib", "--bins", "--test", MODEL]);
        }
        for file in &self.files {
            arguments.extend(["--test", file]);
        }
        arguments
    }
}

/// The tests that run on Kafka, beside those of the event source itself.
const ON_KAFKA: &[&str] =
    &["kills", "relay", "relay_bells", "relay_failures", "relay_kills", "relay_outages"];
/// Those that need what only Apache Kafka has.
const ON_APACHE_KAFKA: &[&str] = &["logins", SOAK];
const SOAK: &str = "relay_soak";
/// Tells that test how much to do.
const SOAK_FACTS_VARIABLE: &str = "ESCROW_SOAK_FACTS";
/// The relay's protocol, checked without a server.
const MODEL: &str = "model";
/// The tests that want the template deployed.
const DEPLOYED: &[&str] = &["stories"];
/// The tests that ask Amazon's own engine too.
const SECOND_ENGINE: &[&str] = &["store", "deposits"];

/// The names of a package's test files.
fn files_of(root: &Path, package: &str) -> Result<Vec<String>, String> {
    let folder = root.join("tools").join(package).join("tests");
    let entries = std::fs::read_dir(&folder);
    let entries = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    let names = files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

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
    let aws = (ENDPOINT_VARIABLE, ministack.url.as_str());
    let (mut engine, mut kafka) =
        (files_of(root, "testbed")?, files_of(root, "kafka-event-source")?);
    kafka.extend(engine.extract_if(.., |file| ON_KAFKA.contains(&file.as_str())));
    let guarded: Vec<String> =
        engine.extract_if(.., |file| ON_APACHE_KAFKA.contains(&file.as_str())).collect();
    let deployed = engine.extract_if(.., |file| DEPLOYED.contains(&file.as_str())).collect();
    let second = SECOND_ENGINE.iter().map(|file| (*file).to_owned()).collect();
    let mut report = Report::default();

    let unit = Tier { name: "unit (pure code and wire formats)", files: Vec::new() };
    report.run(root, &unit, &[aws])?;
    report.run(root, &Tier { name: "real DynamoDB engine, real SQS", files: engine }, &[aws])?;
    let embedded = Tier { name: "event source and relay, embedded broker", files: kafka.clone() };
    report.run(root, &embedded, &[aws])?;

    let tier = Tier { name: "store on Amazon's DynamoDB Local", files: second };
    match DynamoDbLocal::start(root).await {
        Ok(engine) => {
            let engine = (dynamodb_local::ENDPOINT_VARIABLE, engine.url.as_str());
            report.run(root, &tier, &[aws, engine])?;
        }
        Err(missing) => report.skip(root, &tier, missing)?,
    }
    kafka.extend(guarded);
    let tier = Tier { name: "event source and relay, Apache Kafka", files: kafka };
    match ApacheKafka::start(root).await {
        Ok(kafka) => {
            let brokers = (apache_kafka::BROKERS_VARIABLE, kafka.brokers.as_str());
            report.run(root, &tier, &[aws, brokers])?;
        }
        Err(missing) => report.skip(root, &tier, missing)?,
    }

    let tier = Tier { name: "stories, on the deployed template", files: deployed };
    let stack = Lease::take(root).await?;
    report.run(root, &tier, &[aws, (STACK_VARIABLE, &named(&stack.state))])?;
    drop(stack);

    println!("\n{:<45} {:>6} {:>6} {:>7}", "tier", "passed", "failed", "skipped");
    println!("{}", report.table);
    let Counts { passed, failed, skipped } = report.total;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if report.broken { Err("not all tests passed".to_owned()) } else { Ok(()) }
}

/// Tells the stories anew and writes down what they tell, for `git diff` to show what changed.
pub async fn renew_stories(root: &Path) -> Result<(), String> {
    let stack = Lease::take(root).await?;
    let named = named(&stack.state);
    let files = DEPLOYED.iter().map(|file| (*file).to_owned()).collect();
    let env = [(STACK_VARIABLE, named.as_str()), ("ESCROW_RENEW_STORIES", "1")];
    let tier = Tier { name: "stories, written down anew", files };
    let (_, ended_well) = run_tier(root, &tier, &env)?;
    if ended_well { Ok(()) } else { Err("not all stories could be told".to_owned()) }
}

/// The soak with fifty thousand facts, or as many as are asked for.
pub async fn soak(root: &Path) -> Result<(), String> {
    let ministack = Ministack::start(root).await?;
    let facts = std::env::var(SOAK_FACTS_VARIABLE).unwrap_or_else(|_| "50000".to_owned());
    let env = [(ENDPOINT_VARIABLE, ministack.url.as_str()), (SOAK_FACTS_VARIABLE, &facts)];
    let tier = Tier { name: "a soak of the relay", files: vec![SOAK.to_owned()] };
    let (_, ended_well) = run_tier(root, &tier, &env)?;
    if ended_well { Ok(()) } else { Err("the soak found something".to_owned()) }
}

fn named(state: &State) -> String {
    format!("{},{}", state.endpoint, state.brokers)
}

impl Report {
    fn run(&mut self, root: &Path, tier: &Tier, env: &[(&str, &str)]) -> Result<(), String> {
        println!("== {}", tier.name);
        let begun = Instant::now();
        let (counts, ended_well) = run_tier(root, tier, env)?;
        self.add(tier, &counts, ended_well, begun);
        Ok(())
    }

    /// Where a tier cannot run, the report says so, and how many tests it left out.
    fn skip(&mut self, root: &Path, tier: &Tier, missing: Missing) -> Result<(), String> {
        let reason = match missing {
            Missing::Broken(reason) => return Err(format!("{}: {reason}", tier.name)),
            Missing::Tools(reason) => reason,
        };
        println!("== {}", tier.name);
        let begun = Instant::now();
        let skipped = count_tests(root, tier)?;
        println!("SKIPPED: {skipped} tests of {:?}, because {reason}.", tier.name);
        println!("SKIPPED: install Java 17 and Maven to run them.");
        self.add(tier, &Counts { skipped, ..Counts::default() }, true, begun);
        Ok(())
    }
}

fn cargo_test(root: &Path, tier: &Tier) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["test", "--locked", "--no-fail-fast"]).args(tier.arguments());
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
    let mut command = cargo_test(root, tier);
    // What a test measured is worth reading.
    if !tier.files.is_empty() {
        command.args(["--", "--show-output"]);
    }
    // Stories tell of every letter that there is: one at a time.
    if env.iter().any(|(name, _)| *name == STACK_VARIABLE) {
        command.arg("--test-threads=1");
    }
    let child = command.envs(env.iter().copied()).spawn();
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
