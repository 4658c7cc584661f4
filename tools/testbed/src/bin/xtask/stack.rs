//! `make deploy-local`, `make up` and `make down`: the real template deployed by the real SAM CLI on an
//! emulator of AWS, a broker, and the event source between them. They run on until `down` stops them;
//! what runs already is left alone, and what ended is started again.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::TimeToLiveSpecification;
use domain::state::Status;
use serde_json::{Value, json};
use testbed::apache_kafka::ApacheKafka;
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::deployed::{PARTITIONS, PREFIX, TOPICS};
use testbed::java::Missing;
use testbed::{engine, ministack, programs, published, records, samples};

use crate::process::{self, Running};
use crate::sam::{self, CLUSTER_ARN};

/// Where LocalStack and its like listen.
const PORT: u16 = 4566;
/// Names the emulator to use, where somebody else runs one.
const ENDPOINT_VARIABLE: &str = "ENDPOINT";
/// Which broker to start.
const KAFKA_VARIABLE: &str = "KAFKA";

/// What runs, and what is deployed there.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct State {
    pub endpoint: String,
    /// `embedded` or `apache`.
    pub kafka: String,
    pub brokers: String,
    /// What the deployed functions were built from.
    deployed: String,
    processes: Vec<Running>,
}

impl State {
    fn path(root: &Path) -> PathBuf {
        root.join(".local/stack.json")
    }

    pub fn read(root: &Path) -> Option<Self> {
        let state: Value = serde_json::from_slice(&std::fs::read(Self::path(root)).ok()?).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let running = |value: &Value| {
            let pid = u32::try_from(value["pid"].as_u64()?).ok()?;
            Some(Running { name: text(&value["name"])?, pid, began: value["began"].as_u64()? })
        };
        Some(Self {
            endpoint: text(&state["endpoint"])?,
            kafka: text(&state["kafka"])?,
            brokers: text(&state["brokers"])?,
            deployed: text(&state["deployed"])?,
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
            "kafka": self.kafka,
            "brokers": self.brokers,
            "deployed": self.deployed,
            "processes": processes.collect::<Vec<_>>(),
        });
        let path = Self::path(root);
        std::fs::write(&path, format!("{state:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn is_up(&self) -> bool {
        !self.brokers.is_empty()
            && self.processes.iter().any(|each| each.name == "event-source")
            && self.processes.iter().all(Running::is_alive)
    }
}

/// What is up, if all of it is.
pub fn running(root: &Path) -> Option<State> {
    State::read(root).filter(State::is_up)
}

/// The stack, for as long as it is wanted: dropped, it is stopped again, unless it was up before.
pub struct Lease<'a> {
    root: &'a Path,
    pub state: State,
    ends: bool,
}

impl<'a> Lease<'a> {
    pub async fn take(root: &'a Path) -> Result<Self, String> {
        let begun = Instant::now();
        let before = State::read(root);
        let ends = !before.as_ref().is_some_and(State::is_up);
        let mut lease = Self { root, state: before.unwrap_or_default(), ends };
        lease.state = bring_up(root, lease.state.clone()).await?;
        println!("up after {} s\n", begun.elapsed().as_secs());
        Ok(lease)
    }

    /// Leaves it running.
    pub fn keep(&mut self) {
        self.ends = false;
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if self.ends
            && let Err(error) = down(self.root)
        {
            eprintln!("not all is stopped: {error}");
        }
    }
}

pub async fn up(root: &Path) -> Result<(), String> {
    let mut lease = Lease::take(root).await?;
    lease.keep();
    tell(&lease.state);
    Ok(())
}

async fn bring_up(root: &Path, before: State) -> Result<State, String> {
    std::fs::create_dir_all(root.join(".local")).map_err(|error| error.to_string())?;
    let wanted = std::env::var(KAFKA_VARIABLE).ok().filter(|text| !text.is_empty());
    let wanted = wanted.as_deref().unwrap_or("embedded");
    if !["embedded", "apache"].contains(&wanted) {
        return Err(format!("{KAFKA_VARIABLE}={wanted} is unknown: embedded or apache"));
    }
    if !before.kafka.is_empty() && before.kafka != wanted {
        let is = &before.kafka;
        return Err(format!("the stack is up with KAFKA={is}: run `make down` first"));
    }
    let mut start = Start { root, state: State { kafka: wanted.to_owned(), ..before } };
    start.sweep();
    start.emulator().await?;
    start.broker().await?;
    start.deploy().await?;
    start.event_source().await?;
    Ok(start.state)
}

struct Start<'a> {
    root: &'a Path,
    state: State,
}

impl Start<'_> {
    fn alive(&self, name: &str) -> bool {
        self.state.processes.iter().any(|each| each.name == name)
    }

    /// Forgets what ended, and what is left of it.
    fn sweep(&mut self) {
        let ended = self.state.processes.extract_if(.., |each| !each.is_alive());
        for process in ended {
            println!("the {} of before has ended", process.name);
            process.stop();
        }
    }

    fn spawn(&mut self, name: &str, command: Command) -> Result<Running, String> {
        let running = Running::start(self.root, name, command)?;
        self.state.processes.push(running.clone());
        self.state.write(self.root)?;
        Ok(running)
    }

    fn stop(&mut self, name: &str) {
        let stopped = self.state.processes.extract_if(.., |each| each.name == name);
        stopped.for_each(|each| each.stop());
    }

    async fn emulator(&mut self) -> Result<(), String> {
        if let Some(endpoint) =
            std::env::var(ENDPOINT_VARIABLE).ok().filter(|text| !text.is_empty())
        {
            if self.state.endpoint != endpoint {
                println!("using the emulator at {endpoint}");
                self.state.deployed.clear();
            }
            self.state.endpoint = endpoint;
            return Ok(());
        }
        let ours = format!("http://127.0.0.1:{PORT}");
        if self.alive("ministack") && self.state.endpoint == ours {
            return Ok(());
        }
        if std::net::TcpListener::bind(("127.0.0.1", PORT)).is_err() {
            return Err(format!(
                "port {PORT} is taken. If it is an emulator of AWS that you want to use, say so:\n  \
                 {ENDPOINT_VARIABLE}={ours} make up\notherwise stop it, and run this again"
            ));
        }
        println!("starting ministack on port {PORT}");
        self.state.deployed.clear();
        self.state.endpoint = ours;
        let mut command = Command::new(self.root.join(".tools/ministack/bin/ministack"));
        command.envs(ministack::environment(PORT));
        self.spawn("ministack", command)?;
        ministack::until_ready(PORT).await
    }

    async fn broker(&mut self) -> Result<(), String> {
        if self.alive("broker") {
            return Ok(());
        }
        println!("starting the broker ({})", self.state.kafka);
        let address = self.root.join(".local/brokers");
        let _ = std::fs::remove_file(&address);
        // Not the program that runs: a build may have replaced it.
        let mut command = Command::new(programs::build(self.root, "xtask").await?);
        command.arg("broker").arg(&self.state.kafka).arg(&address);
        let broker = self.spawn("broker", command)?;
        let brokers = until_written(&address, &broker).await?;
        if self.state.brokers != brokers {
            self.stop("event-source");
            // The relay is told by its settings where it is.
            self.state.deployed.clear();
        }
        self.state.brokers = brokers;
        Ok(())
    }

    async fn deploy(&mut self) -> Result<(), String> {
        let built = sam::build(self.root).await?;
        if self.state.deployed != built {
            println!("deploying the template to {}", self.state.endpoint);
            self.stop("event-source");
            sam::deploy(self.root, &self.state.endpoint, PREFIX, &self.state.brokers).await?;
            finish_deploy(&self.state.endpoint).await?;
            self.state.deployed = built;
            self.state.write(self.root)?;
        }
        seed(&self.state.endpoint).await;
        Ok(())
    }

    async fn event_source(&mut self) -> Result<(), String> {
        if self.alive("event-source") {
            return Ok(());
        }
        println!("starting the event source");
        let mut command = Command::new(programs::build(self.root, "kafka-event-source").await?);
        command
            .current_dir(self.root)
            .args(["run", "--template", "template.yaml"])
            .args(["--brokers", &self.state.brokers, "--endpoint", &self.state.endpoint])
            .args(["--parameter", &format!("KafkaClusterArn={CLUSTER_ARN}")])
            // A killed one is missed soon.
            .args(["-X", "session.timeout.ms=6000"])
            .envs(sam::credentials());
        let source = self.spawn("event-source", command)?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        if source.is_alive() {
            self.state.write(self.root)
        } else {
            Err("the event source ended at once; see .local/event-source.log".to_owned())
        }
    }
}

async fn until_written(path: &Path, by: &Running) -> Result<String, String> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        match std::fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return Ok(text),
            _ if !by.is_alive() => break,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    // It says why it ended.
    let told = path.with_file_name(format!("{}.log", by.name));
    let told = std::fs::read_to_string(told).unwrap_or_default();
    Err(format!("{told}the {} is not ready; see .local/{}.log", by.name, by.name))
}

/// What ministack leaves out, and the secrets that the samples are signed with.
async fn finish_deploy(endpoint: &str) -> Result<(), String> {
    for table in ["processed", "operations"] {
        let ttl = TimeToLiveSpecification::builder().attribute_name("expires_at").enabled(true);
        let ttl = ttl.build().map_err(|error| error.to_string())?;
        let request = engine::client(endpoint).update_time_to_live();
        let request = request.table_name(format!("{PREFIX}-{table}"));
        let answer = request.time_to_live_specification(ttl).send().await;
        if let Err(error) = answer {
            let told = format!("{:?}", error.as_service_error());
            // A second deploy finds it on.
            if !told.contains("already enabled") {
                return Err(format!("the TTL of {table} cannot be set: {told}"));
            }
        }
    }
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

/// The deals that the files in `events/` speak of.
async fn seed(endpoint: &str) {
    let bed = Bed::deployed(endpoint, PREFIX);
    let own = [samples::AWAITING, samples::CANCELLED, samples::SECOND, samples::PAID_OUT];
    let mut new = 0;
    for deal in own.into_iter().chain(Status::ALL.map(samples::deal_in)) {
        if bed.deal(deal).await.is_none() {
            samples::seed_deals(&bed, &[deal]).await;
            new += u32::from(bed.deal(deal).await.is_some());
        }
    }
    if new > 0 {
        println!("{new} deals opened for the files in events/");
    }
}

fn tell(state: &State) {
    println!("AWS      {}   (any credentials, us-east-1)", state.endpoint);
    println!("Kafka    {}   ({})", state.brokers, state.kafka);
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
        // Not println: whoever listened may be gone, and all must be stopped nevertheless.
        let _ = writeln!(std::io::stdout(), "stopped  {}", process.name);
    }
    let _ = std::fs::remove_dir_all(root.join(KAFKA_FOLDER));
    std::fs::remove_file(State::path(root)).map_err(|error| error.to_string())
}

/// What the reference broker keeps while the stack is up.
const KAFKA_FOLDER: &str = ".local/kafka";
/// The verdict on a post comes a day after it: here the workers' clock is theirs to move.
const TOPIC_SETTINGS: &[(&str, &str)] =
    &[("message.timestamp.type", "CreateTime"), ("message.timestamp.after.max.ms", "604800000")];

/// A broker as a process of its own: it says where it is, and stays until it is stopped.
pub async fn broker(root: &Path, kind: &str, address: &Path) -> Result<(), String> {
    let mut apache = None;
    let broker = match kind {
        "embedded" => Broker::embedded(),
        "apache" => {
            let kafka = ApacheKafka::resume_in(root, &root.join(KAFKA_FOLDER)).await;
            let kafka = kafka.map_err(|missing| match missing {
                Missing::Broken(told) => told,
                Missing::Tools(told) => {
                    format!("KAFKA=apache needs Java 17 and Maven: {told}; without it runs the embedded broker")
                }
            })?;
            let brokers = kafka.brokers.clone();
            apache = Some(kafka);
            Broker::at(brokers)
        }
        _ => return Err(format!("{kind} is no broker")),
    };
    for topic in TOPICS {
        broker.create_topic_with(topic, PARTITIONS, TOPIC_SETTINGS).await;
    }
    published::create_topics(&broker).await;
    std::fs::write(address, &broker.brokers).map_err(|error| error.to_string())?;
    tokio::select! {
        () = process::interrupted() => Ok(()),
        ended = async {
            match &mut apache {
                Some(kafka) => kafka.ended().await,
                None => std::future::pending().await,
            }
        } => Err(format!("Kafka ended: {ended}; see target/kafka.log")),
    }
}
