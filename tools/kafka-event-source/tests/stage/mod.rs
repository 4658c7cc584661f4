//! What the tests play on: a broker, topics, a Lambda endpoint that answers as a test wants, and the
//! tool itself as a process of its own.
//!
//! The broker is librdkafka's, inside this process, unless `ESCROW_TEST_KAFKA_BROKERS` names another.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::{Value, json};

pub const BROKERS_VARIABLE: &str = "ESCROW_TEST_KAFKA_BROKERS";
const PATIENCE: Duration = Duration::from_secs(60);

static STAGES: AtomicU32 = AtomicU32::new(0);

pub struct Stage {
    pub topic: String,
    pub group: String,
    pub brokers: String,
    embedded: Option<MockCluster<'static, rdkafka::producer::DefaultProducerContext>>,
    producer: FutureProducer,
    folder: PathBuf,
}

impl Stage {
    /// A topic and a group of its own.
    pub async fn new(partitions: i32) -> Self {
        let stage = Self::without_topic();
        stage.create_topic(partitions).await;
        stage
    }

    /// Always on the embedded broker, which can be taken down by a call.
    pub async fn embedded() -> Self {
        let stage = Self::at(None);
        stage.create_topic(1).await;
        stage
    }

    pub fn without_topic() -> Self {
        Self::at(std::env::var(BROKERS_VARIABLE).ok())
    }

    fn at(given: Option<String>) -> Self {
        let number = STAGES.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}-{number}", std::process::id());
        let embedded = given.is_none().then(|| MockCluster::new(1).expect("a broker starts"));
        let brokers = given.unwrap_or_else(|| embedded.as_ref().expect("one").bootstrap_servers());
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers).set("linger.ms", "5");
        let producer = config.create().expect("a producer");
        let folder = std::env::temp_dir().join(format!("kafka-event-source-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self {
            topic: name.clone(),
            group: format!("g-{name}"),
            brokers,
            embedded,
            producer,
            folder,
        }
    }

    pub async fn create_topic(&self, partitions: i32) {
        if let Some(embedded) = &self.embedded {
            return embedded.create_topic(&self.topic, partitions, 1).expect("a topic");
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        let admin: AdminClient<DefaultClientContext> = config.create().expect("an admin");
        let topic = NewTopic::new(&self.topic, partitions, TopicReplication::Fixed(1));
        let made = admin.create_topics([&topic], &AdminOptions::new()).await.expect("an answer");
        made.into_iter().for_each(|topic| {
            topic.expect("the topic is made");
        });
    }

    pub fn broker(&self, up: bool) {
        let embedded = self.embedded.as_ref().expect("it is embedded");
        if up { embedded.broker_up(1) } else { embedded.broker_down(1) }.expect("it obeys");
    }

    pub async fn send(&self, partition: i32, value: &[u8]) {
        self.send_with(partition, value, &[0xff]).await;
    }

    pub async fn send_with(&self, partition: i32, value: &[u8], header: &[u8]) {
        let headers = OwnedHeaders::new()
            .insert(Header { key: "h", value: Some(header) })
            .insert(Header { key: "none", value: None::<&[u8]> });
        let record = FutureRecord::to(&self.topic).partition(partition).key("k").payload(value);
        self.producer.send(record.headers(headers), PATIENCE).await.expect("the broker takes it");
    }

    pub async fn send_numbers(&self, partition: i32, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.send(partition, body("A", number).as_bytes()).await;
        }
    }

    /// The committed offset of each partition.
    pub fn committed(&self, partitions: i32) -> Vec<i64> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", &self.group);
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        (0..partitions).for_each(|partition| {
            list.add_partition(&self.topic, partition);
        });
        let found = consumer.committed_offsets(list, Duration::from_secs(10)).expect("an answer");
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { -1 };
        found.elements().iter().map(|each| offset(each.offset())).collect()
    }

    pub async fn await_committed(&self, wanted: &[i64]) {
        let partitions = i32::try_from(wanted.len()).expect("few partitions");
        until("the offsets are committed", || self.committed(partitions) == wanted).await;
    }

    /// Starts the tool on a mapping with these further properties.
    pub fn start(&self, lambda: &Lambda, properties: &Value) -> Tool {
        let mut mapping = json!({
            "Topics": [self.topic],
            "ConsumerGroupId": self.group,
            "Stream": "arn:aws:kafka:us-east-1:000000000000:cluster/c/1",
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": 10,
            "MaximumBatchingWindowInSeconds": 0,
            "FilterCriteria": {"Filters": [{"Pattern": r#"{"value":{"type":["A"]}}"#}]},
        });
        for (name, value) in properties.as_object().expect("properties") {
            mapping[name] = value.clone();
        }
        let events = json!({"Results": {"Type": "MSK", "Properties": mapping}});
        let properties = json!({"FunctionName": "the-function", "Events": events});
        let function = json!({"Type": "AWS::Serverless::Function", "Properties": properties});
        let template = json!({"Resources": {"TheFunction": function}});
        let path = self.folder.join("template.json");
        std::fs::write(&path, template.to_string()).expect("a template");
        Tool::start(&path, &self.brokers, &lambda.url)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn body(kind: &str, number: u32) -> String {
    json!({"type": kind, "number": number}).to_string()
}

/// Looks again and again, with an end.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "in vain for a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The tool's process; dropping it kills it.
pub struct Tool {
    process: Child,
    told: Arc<Mutex<String>>,
}

impl Tool {
    fn start(template: &std::path::Path, brokers: &str, endpoint: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kafka-event-source"))
            .args(["run", "--brokers", brokers, "--endpoint", endpoint, "--template"])
            .arg(template)
            // A killed member is missed soon.
            .args(["-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500"])
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_REGION", "us-east-1")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let told = Arc::new(Mutex::new(String::new()));
        let (lines, into) = (process.stderr.take().expect("it is piped"), told.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                *into.lock().expect("no panic under it") += &format!("{line}\n");
            }
        });
        Self { process, told }
    }

    pub fn told(&self) -> String {
        self.told.lock().expect("no panic under it").clone()
    }

    /// Kills it as `kill -9` does.
    pub fn kill(mut self) {
        self.process.kill().expect("it is killed");
        self.process.wait().expect("it ends");
    }

    /// Asks it to stop, and waits for its end.
    pub async fn stop(mut self) -> bool {
        let id = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().expect("kill is there");
        let mut ended = None;
        until("the tool stops", || {
            ended = self.process.try_wait().expect("it can be waited for");
            ended.is_some()
        })
        .await;
        ended.is_some_and(|status| status.success())
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the tool told:\n{}", self.told());
        }
    }
}

/// What the function answers to a batch.
pub enum Reply {
    Value(Value),
    Error(&'static str),
    /// The connection breaks: whether the function ran is unknown.
    Nothing,
    /// Takes this long, then answers null.
    Slow(Duration),
}

/// One invocation: the numbers of its records, by partition, in order.
pub type Batch = BTreeMap<String, Vec<u32>>;

/// A Lambda endpoint whose function is a closure, on a loopback port.
pub struct Lambda {
    pub url: String,
    seen: Arc<Mutex<Vec<(Value, bool)>>>,
}

impl Lambda {
    pub fn new(function: impl Fn(usize, &Batch) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen: Arc<Mutex<Vec<(Value, bool)>>> = Arc::default();
        let (into, function) = (seen.clone(), Arc::new(function));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (into, function) = (into.clone(), function.clone());
                std::thread::spawn(move || serve(stream, &into, &*function));
            }
        });
        Self { url, seen }
    }

    /// A function to which everything succeeds.
    pub fn obliging() -> Self {
        Self::new(|_, _| Reply::Value(Value::Null))
    }

    pub fn events(&self) -> Vec<Value> {
        self.seen
            .lock()
            .expect("no panic under it")
            .iter()
            .map(|(event, _)| event.clone())
            .collect()
    }

    pub fn batches(&self) -> Vec<Batch> {
        self.events().iter().map(batch).collect()
    }

    /// The numbers of a partition in the order in which successful batches had them.
    pub fn done(&self, partition: i32) -> Vec<u32> {
        let seen = self.seen.lock().expect("no panic under it");
        let suffix = format!("-{partition}");
        let batches = seen.iter().filter(|(_, done)| *done).map(|(event, _)| batch(event));
        let lists = batches.flat_map(|batch| {
            batch.into_iter().filter(|(name, _)| name.ends_with(&suffix)).collect::<Vec<_>>()
        });
        lists.flat_map(|(_, numbers)| numbers).collect()
    }

    pub async fn await_done(&self, partition: i32, wanted: &[u32]) {
        until("the records are done", || self.done(partition).len() >= wanted.len()).await;
        assert_eq!(self.done(partition), wanted);
    }
}

fn batch(event: &Value) -> Batch {
    let records = event["records"].as_object().expect("a Kafka event");
    let number = |record: &Value| {
        let value =
            STANDARD.decode(record["value"].as_str().unwrap_or_default()).unwrap_or_default();
        let value: Value = serde_json::from_slice(&value).unwrap_or_default();
        u32::try_from(value["number"].as_u64().unwrap_or(u64::from(u32::MAX))).expect("small")
    };
    let numbers = |records: &Value| records.as_array().into_iter().flatten().map(number).collect();
    records.iter().map(|(name, records)| (name.clone(), numbers(records))).collect()
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<(Value, bool)>>,
    function: &dyn Fn(usize, &Batch) -> Reply,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let event: Value = serde_json::from_slice(&body).expect("an event is JSON");
    let number = seen.lock().expect("no panic under it").len();
    let reply = function(number, &batch(&event));
    let done = matches!(reply, Reply::Value(_) | Reply::Slow(_));
    seen.lock().expect("no panic under it").push((event, done));
    let (header, text) = match reply {
        Reply::Value(value) => ("", value.to_string()),
        Reply::Error(why) => (
            "X-Amz-Function-Error: Unhandled\r\n",
            json!({"errorType": "Oops", "errorMessage": why}).to_string(),
        ),
        Reply::Nothing => return None,
        Reply::Slow(time) => {
            std::thread::sleep(time);
            ("", "null".to_owned())
        }
    };
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
    .ok()
}
