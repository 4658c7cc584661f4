//! The relay, the event source, and brokers that let in only whom they know: Apache Kafka's TLS and
//! SASL, which the embedded broker does not have.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::state::Status;
use outbox_relay::relay::Relay;
use platform::clock;
use serde_json::json;
use testbed::apache_kafka::{ApacheKafka, Guarded, PASSWORD, USER};
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::emulator::Emulator;
use testbed::engine::Engine;
use testbed::records::{Deposit, TOPIC};
use testbed::stage::{Stage, new_deal};
use testbed::{deals, ministack, programs};

const SECRET_ID: &str = "AmazonMSK_relay_login";

async fn guarded(name: &str) -> (ApacheKafka, Guarded, Stage) {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (kafka, guarded) = ApacheKafka::start_guarded(root).await.expect("it starts");
    let mut stage = Stage::on(name, Broker::at(kafka.brokers.clone())).await;
    stage.set("KAFKA_BROKERS", &guarded.brokers);
    (kafka, guarded, stage)
}

fn login(password: &str, ca: Option<&str>) -> String {
    json!({"username": USER, "password": password, "ca": ca}).to_string()
}

/// Keeps a login under a name of its own, for which the relay is then set.
async fn keep(stage: &mut Stage, mechanism: &str, secret: &str) -> String {
    let id = format!("{SECRET_ID}_{}", new_deal());
    let request = stage.bed.clients.secrets.create_secret().name(&id).secret_string(secret);
    request.send().await.expect("the secret is created");
    stage.set("KAFKA_AUTH", mechanism);
    stage.set("KAFKA_SECRET_ID", &id);
    id
}

async fn commit(stage: &Stage) {
    deals::keep_busy(&stage.bed.store, new_deal(), 5, |_| clock::now()).await;
}

async fn nothing_is_published(stage: &Stage, relay: &Relay) {
    let answer = stage.ring_all(relay).await;
    assert_eq!(answer, json!({"batchItemFailures": []}), "the bell is answered: the next will do");
    let rows = stage.rows().await;
    assert_eq!(rows.len(), 5, "all of it waits");
    assert!(!rows.iter().any(|row| row["failed_0"].is_object()), "no retry is spent");
    assert!(stage.published().await.1.is_empty());
    assert!(relay.metrics.counted("outbox.unanswered") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_known_publishes_over_tls_by_scram_and_by_plain() {
    let (_kafka, guarded, mut stage) = guarded("login").await;
    for mechanism in ["scram", "plain"] {
        keep(&mut stage, mechanism, &login(PASSWORD, Some(&guarded.ca))).await;
        commit(&stage).await;
        stage.ring_all(&stage.relay()).await;
        assert_eq!(stage.rows().await.len(), 0, "{mechanism}");
    }
    let (expected, records) = stage.published().await;
    let verdict = expected.check(&records);
    verdict.must_hold();
    assert_eq!(verdict.duplicates, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_spends_no_retry_and_a_right_one_is_found_without_a_restart() {
    let (_kafka, guarded, mut stage) = guarded("wrong").await;
    let id = keep(&mut stage, "scram", &login("a-guess", Some(&guarded.ca))).await;
    commit(&stage).await;
    let relay = stage.relay();
    nothing_is_published(&stage, &relay).await;
    // The operator mends the secret; the relay is the one that was refused.
    let request = stage.bed.clients.secrets.put_secret_value().secret_id(id);
    let request = request.secret_string(login(PASSWORD, Some(&guarded.ca)));
    request.send().await.expect("the secret is changed");
    // It does not ask for the secret at every bell.
    let begun = Instant::now();
    while !stage.rows().await.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(90), "it does not heal");
        stage.ring_all(&relay).await;
    }
    let (expected, records) = stage.published().await;
    expected.check(&records).must_hold();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_nobody_vouches_for_gets_nothing() {
    let (_kafka, _, mut stage) = guarded("stranger").await;
    keep(&mut stage, "scram", &login(PASSWORD, None)).await;
    commit(&stage).await;
    nothing_is_published(&stage, &stage.relay()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_source_delivers_over_tls_to_whom_is_known() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (_kafka, guarded, stage) = guarded("source").await;
    let program = programs::build(root, "kafka-event-source").await.expect("it builds");
    let bootstrap = programs::build(root, "deposit-confirmed").await.expect("it builds");
    let engine = Engine::start().await;
    let aws = ministack::shared_endpoint();
    let bed = Bed::on(&engine.url(), &aws, "source").await;
    let env = bed.function_env(&aws);
    let function = Emulator::start(root, &bootstrap, &env, Stdio::null()).await.expect("it starts");
    let deal = new_deal();
    deals::open(&bed.store, deal, Status::AwaitingPayment).await;
    stage.broker.create_topic(TOPIC, 1).await;
    stage.broker.send(TOPIC, 0, &Deposit::new(deal, 1).record().at(clock::now())).await;

    let ca = std::env::temp_dir().join(format!("escrow-ca-{}.pem", std::process::id()));
    std::fs::write(&ca, &guarded.ca).expect("a file");
    let settings = [
        "security.protocol=SASL_SSL".to_owned(),
        "sasl.mechanisms=SCRAM-SHA-512".to_owned(),
        format!("sasl.username={USER}"),
        format!("sasl.password={PASSWORD}"),
        format!("ssl.ca.location={}", ca.display()),
    ];
    let mut source = Command::new(program)
        .current_dir(root)
        .args(["run", "--brokers", &guarded.brokers, "--endpoint", &function.endpoint])
        .args(["--template", "template.yaml", "--only", "DepositConfirmedFunction"])
        .args(["--function", "DepositConfirmedFunction=function"])
        .args([
            "--parameter",
            "KafkaClusterArn=arn:aws:kafka:us-east-1:000000000000:cluster/local/1",
        ])
        .args(settings.iter().flat_map(|setting| ["-X", setting]))
        .envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")])
        .env("AWS_REGION", "us-east-1")
        .stderr(Stdio::null())
        .spawn()
        .expect("the event source starts");
    let begun = Instant::now();
    let mut status = None;
    while status != Some(Status::Funded) && begun.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        status = bed.deal(deal).await.map(|loaded| loaded.deal.status);
    }
    source.kill().and_then(|()| source.wait()).expect("it ends");
    std::fs::remove_file(ca).expect("it was made");
    assert_eq!(status, Some(Status::Funded));
}
