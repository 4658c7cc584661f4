//! `make up` and `make down`: the real template deployed by the real SAM CLI on ministack, a broker,
//! and the event source between them. They run on after `up` and are stopped by `down`, by their pids.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::TimeToLiveSpecification;
use platform::clock;
use serde_json::{Value, json};
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::records::Record;
use testbed::{engine, ministack, programs, records, report, samples};

/// Where LocalStack and its like listen.
const PORT: u16 = 4566;
const PREFIX: &str = "escrow";
pub const CLUSTER_ARN: &str = "arn:aws:kafka:us-east-1:000000000000:cluster/local/1";
const TOPICS: &[&str] = &["escrow.confirmations", "delivery.results", "reconciliation.triggers"];
const PARTITIONS: i32 = 3;

/// What `up` left running.
#[derive(Clone)]
pub struct State {
    pub endpoint: String,
    pub brokers: String,
    /// False where somebody had it up already.
    pub is_ours: bool,
    processes: Vec<Running>,
}

/// A process, and when it began: a pid alone may be somebody else's by now.
#[derive(Clone)]
struct Running {
    name: String,
    pid: u32,
    began: u64,
}

impl Running {
    fn is_alive(&self) -> bool {
        began(self.pid) == Some(self.began)
    }

    /// Ends it and all that it started.
    fn stop(&self) {
        for (signal, patience) in
            [("-TERM", Duration::from_secs(10)), ("-KILL", Duration::from_secs(5))]
        {
            if !self.is_alive() {
                return;
            }
            let group = format!("-{}", self.pid);
            let _ =
                Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
            let begun = Instant::now();
            while self.is_alive() && begun.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// In clock ticks since the machine started; None for a process that is gone, or a zombie.
fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if fields.first() == Some(&"Z") { None } else { fields.get(19)?.parse().ok() }
}

impl State {
    fn path(root: &Path) -> PathBuf {
        root.join(".local/stack.json")
    }

    fn read(root: &Path) -> Option<Self> {
        let state: Value = serde_json::from_slice(&std::fs::read(Self::path(root)).ok()?).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let running = |value: &Value| {
            let pid = u32::try_from(value["pid"].as_u64()?).ok()?;
            Some(Running { name: text(&value["name"])?, pid, began: value["began"].as_u64()? })
        };
        Some(Self {
            endpoint: text(&state["endpoint"])?,
            brokers: text(&state["brokers"])?,
            is_ours: false,
            processes: state["processes"].as_array()?.iter().filter_map(running).collect(),
        })
    }

    fn write(&self, root: &Path) -> Result<(), String> {
        let processes = self
            .processes
            .iter()
            .map(|each| json!({"name": each.name, "pid": each.pid, "began": each.began}));
        let state = json!({
            "endpoint": self.endpoint,
            "brokers": self.brokers,
            "processes": processes.collect::<Vec<_>>(),
        });
        let path = Self::path(root);
        std::fs::write(&path, format!("{state:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Starts everything, or nothing: what was begun is stopped again if something fails.
struct Start<'a> {
    root: &'a Path,
    state: State,
    done: bool,
}

impl Start<'_> {
    fn spawn(&mut self, name: &str, mut command: Command) -> Result<Running, String> {
        let log = self.root.join(format!(".local/{name}.log"));
        let file =
            std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let child = command.spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        let began = began(child.id())
            .ok_or_else(|| format!("{name} ended at once; see .local/{name}.log"))?;
        let running = Running { name: name.to_owned(), pid: child.id(), began };
        self.state.processes.push(running.clone());
        self.state.write(self.root)?;
        Ok(running)
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.state.processes.iter().rev().for_each(Running::stop);
            let _ = std::fs::remove_file(State::path(self.root));
        }
    }
}

pub async fn up(root: &Path) -> Result<State, String> {
    if let Some(state) = State::read(root) {
        if state.processes.iter().all(Running::is_alive) {
            println!("the stack is up already");
            tell(&state);
            return Ok(state);
        }
        println!("parts of an earlier stack are left; stopping them");
        down(root)?;
    }
    if std::net::TcpListener::bind(("127.0.0.1", PORT)).is_err() {
        return Err(format!(
            "port {PORT} is taken, by LocalStack or another emulator perhaps: stop it, then run `make up` again"
        ));
    }
    std::fs::create_dir_all(root.join(".local")).map_err(|error| error.to_string())?;
    let endpoint = format!("http://127.0.0.1:{PORT}");
    let state = State { endpoint, brokers: String::new(), is_ours: true, processes: Vec::new() };
    let mut start = Start { root, state, done: false };
    let begun = Instant::now();
    tokio::select! {
        done = start_all(&mut start) => done?,
        _ = tokio::signal::ctrl_c() => return Err("interrupted; all that was begun is stopped".to_owned()),
    }
    start.done = true;
    println!("up after {} s\n", begun.elapsed().as_secs());
    tell(&start.state);
    Ok(start.state.clone())
}

async fn start_all(start: &mut Start<'_>) -> Result<(), String> {
    let root = start.root;
    println!("building the functions and the event source");
    let source = programs::build(root, "kafka-event-source")?;
    sam(root, "sam-build", &["build", "--template", "template.yaml"]).await?;

    println!("starting ministack on port {PORT}");
    let mut command = Command::new(root.join(".tools/ministack/bin/ministack"));
    command.envs(ministack::environment(PORT));
    start.spawn("ministack", command)?;
    ministack::until_ready(PORT).await?;

    println!("starting the broker");
    let address = root.join(".local/brokers");
    let _ = std::fs::remove_file(&address);
    // Not the program that runs: a build may have replaced it.
    let mut command = Command::new(programs::build(root, "xtask")?);
    command.arg("broker").arg(&address);
    let broker = start.spawn("broker", command)?;
    start.state.brokers = until_written(&address, &broker).await?;

    println!("deploying the template");
    let deploy = [
        "deploy",
        "--template",
        ".aws-sam/build/template.yaml",
        "--stack-name",
        PREFIX,
        "--resolve-s3",
        "--capabilities",
        "CAPABILITY_IAM",
        "CAPABILITY_NAMED_IAM",
        "CAPABILITY_AUTO_EXPAND",
        "--no-confirm-changeset",
        "--no-fail-on-empty-changeset",
        "--no-progressbar",
        "--parameter-overrides",
        &format!("KafkaClusterArn={CLUSTER_ARN}"),
        "DeletionProtection=false",
    ];
    sam(root, "sam-deploy", &deploy).await?;
    finish_deploy(&start.state.endpoint).await?;

    println!("starting the event source");
    let mut command = Command::new(source);
    command
        .current_dir(root)
        .args(["run", "--template", "template.yaml"])
        .args(["--brokers", &start.state.brokers, "--endpoint", &start.state.endpoint])
        .args(["--parameter", &format!("KafkaClusterArn={CLUSTER_ARN}")])
        .envs(credentials());
    let source = start.spawn("event-source", command)?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    if source.is_alive() {
        start.state.write(root)
    } else {
        Err("the event source ended at once; see .local/event-source.log".to_owned())
    }
}

async fn until_written(path: &Path, by: &Running) -> Result<String, String> {
    for _ in 0..200 {
        match std::fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return Ok(text),
            _ if !by.is_alive() => break,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    Err(format!("the {} is not ready; see .local/{}.log", by.name, by.name))
}

fn credentials() -> [(&'static str, &'static str); 3] {
    [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_REGION", "us-east-1")]
}

/// The SAM CLI, against ministack, with the light profile; what it says goes to a log.
async fn sam(root: &Path, name: &str, arguments: &[&str]) -> Result<(), String> {
    let tools = root.join(".tools/sam/bin");
    let path = std::env::var("PATH").unwrap_or_default();
    let log = root.join(format!(".local/{name}.log"));
    let file =
        std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let copy = file.try_clone().map_err(|error| error.to_string())?;
    let status = tokio::process::Command::new(tools.join("sam"))
        .current_dir(root)
        .args(arguments)
        .env("PATH", format!("{}:{path}", tools.display()))
        .envs(credentials())
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{PORT}"))
        .env("SAM_CLI_TELEMETRY", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| format!("sam does not start: {error}: run `tools/setup sam`"))?;
    if status.success() {
        return Ok(());
    }
    let told = std::fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<&str> = told.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n");
    Err(format!("{last}\n`sam {}` failed; all of it is in .local/{name}.log", arguments[0]))
}

/// What ministack leaves out, and the secrets that the samples are signed with.
async fn finish_deploy(endpoint: &str) -> Result<(), String> {
    let ttl = TimeToLiveSpecification::builder().attribute_name("expires_at").enabled(true).build();
    let ttl = ttl.map_err(|error| error.to_string())?;
    let table = format!("{PREFIX}-processed");
    let request = engine::client(endpoint).update_time_to_live().table_name(table);
    request.time_to_live_specification(ttl).send().await.map_err(|error| format!("{error:?}"))?;
    let secrets = ministack::secrets(endpoint);
    for (name, value) in
        [("worker-signing-key", records::SECRET), ("internal-api-key", records::API_KEY)]
    {
        let request = secrets.put_secret_value().secret_id(format!("{PREFIX}/{name}"));
        request.secret_string(value).send().await.map_err(|error| format!("{error:?}"))?;
    }
    poll_queues(endpoint).await
}

/// A concurrency that is a parameter of the template stays a text in ministack, which then never polls
/// the queue: said again as a number, it does.
async fn poll_queues(endpoint: &str) -> Result<(), String> {
    let all = format!("{endpoint}/2015-03-31/event-source-mappings/");
    let work = move || -> Result<(), String> {
        let fault = |error: ureq::Error| format!("the mappings cannot be set: {error}");
        let answer = ureq::get(&all).call().map_err(fault)?.body_mut().read_to_string();
        let answer: Value = serde_json::from_str(&answer.map_err(fault)?).unwrap_or_default();
        for mapping in answer["EventSourceMappings"].as_array().into_iter().flatten() {
            let of_queue =
                mapping["EventSourceArn"].as_str().is_some_and(|arn| arn.contains(":sqs:"));
            let limit = mapping["ScalingConfig"]["MaximumConcurrency"].as_str();
            let limit = limit.and_then(|limit| limit.parse::<u32>().ok());
            if let (Some(id), Some(limit), true) = (mapping["UUID"].as_str(), limit, of_queue) {
                let body = json!({"ScalingConfig": {"MaximumConcurrency": limit}}).to_string();
                ureq::put(format!("{all}{id}")).send(body).map_err(fault)?;
            }
        }
        Ok(())
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

fn tell(state: &State) {
    println!("AWS      {}   (any credentials, us-east-1)", state.endpoint);
    println!("Kafka    {}", state.brokers);
    println!("logs     .local/*.log");
    println!("\nnext: make send EVENT=events/deposit-confirmed/confirmed.json");
    println!("      make down");
}

pub fn down(root: &Path) -> Result<(), String> {
    let Some(state) = State::read(root) else {
        println!("nothing is up");
        return Ok(());
    };
    for process in state.processes.iter().rev() {
        process.stop();
        println!("stopped  {}", process.name);
    }
    std::fs::remove_file(State::path(root)).map_err(|error| error.to_string())
}

/// The embedded broker, as a process of its own: it says where it is, and stays.
pub async fn broker(address: &Path) -> Result<(), String> {
    let broker = Broker::embedded();
    for topic in TOPICS {
        broker.create_topic(topic, PARTITIONS).await;
    }
    std::fs::write(address, &broker.brokers).map_err(|error| error.to_string())?;
    std::future::pending::<()>().await;
    Ok(())
}

/// `make send`: puts the records of a sample event on Kafka, as their workers would, and shows what
/// the deployed functions made of them.
pub async fn send(root: &Path, path: &str) -> Result<(), String> {
    let state = State::read(root).filter(|state| state.processes.iter().all(Running::is_alive));
    let state = state.ok_or("the stack is not up: run `make up` first")?;
    let text = std::fs::read_to_string(root.join(path))
        .map_err(|error| format!("EVENT={path} cannot be read: {error}; samples are in events/"))?;
    let event: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    let records = Record::of_event(&event);
    if records.is_empty() {
        return Err(format!("{path} has no Kafka records: only those can be sent"));
    }
    let function = path.trim_start_matches("events/").split('/').next().unwrap_or_default();
    let bed = Bed::deployed(&state.endpoint, PREFIX);
    for deal in samples::deals_of(&event) {
        if bed.deal(deal).await.is_none() {
            samples::seed_deals(&bed, &[deal]).await;
        }
    }
    let broker = Broker::at(state.brokers);
    for record in &records {
        // Freshness is measured from the record's own time, which is now.
        broker.send(&record.topic, 0, &record.clone().at(clock::now())).await;
    }
    println!("{} records sent to {}", records.len(), records[0].topic);
    let claimed = samples::functions().find(|each| each.name == function);
    for source in claimed.iter().flat_map(|function| function.sources) {
        let begun = Instant::now();
        loop {
            let (done, all) = broker.progress(source.consumer_group, source.topic, PARTITIONS);
            if done >= all {
                break;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("not done after a minute; see .local/event-source.log".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    for deal in samples::deals_of(&event) {
        if bed.deal(deal).await.is_some() {
            println!("\n{}", report::deal(&bed.sound_deal(deal).await));
            println!("{}", report::journal(&bed.journal(deal).await));
        }
    }
    println!("{}", report::letters(&bed.rows(&bed.config.tables.operations).await));
    Ok(())
}
