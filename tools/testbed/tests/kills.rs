//! The event source, the function and the broker as real processes, killed in the middle of their work.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use domain::ids::DealId;
use domain::money::Account;
use domain::state::Status;
use platform::clock;
use testbed::apache_kafka::{ApacheKafka, BROKERS_VARIABLE};
use testbed::bed::Bed;
use testbed::broker::Broker;
use testbed::emulator::Emulator;
use testbed::engine::Engine;
use testbed::records::{Deposit, Record, TOPIC};
use testbed::{deals, ministack, programs};

const DEALS: u32 = 120;
/// Deposits of a deal: together they are its price.
const PARTS: u32 = 5;
const PART_NANO: i64 = 200_000_000;
const PARTITIONS: i32 = 3;
const KILLS: u32 = 10;
const GROUP: &str = "cg-deposit-handler.deposit-confirmed";
/// Soon, for the function that hangs.
const TIMEOUT_SECS: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(180);

struct Source(Child);

impl Source {
    fn start(root: &Path, program: &Path, brokers: &str, endpoint: &str) -> Self {
        let mut log = std::fs::File::options();
        let log = log.create(true).append(true).open(root.join("target/kills.log"));
        let log = log.expect("a log");
        let child = Command::new(program)
            .current_dir(root)
            .args(["run", "--brokers", brokers, "--endpoint", endpoint])
            .args(["--template", "template.yaml", "--only", "DepositConfirmedFunction"])
            .args(["--function", "DepositConfirmedFunction=function"])
            .args([
                "--parameter",
                "KafkaClusterArn=arn:aws:kafka:us-east-1:000000000000:cluster/local/1",
            ])
            .args(["--parameter", "KafkaBatchSize=40"])
            // A killed member is missed soon.
            .args(["-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500"])
            .envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")])
            .env("AWS_REGION", "us-east-1")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn();
        Self(child.expect("the event source starts"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is killed");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn deal(number: u32) -> DealId {
    DealId::from_u128(u128::from(number) + 1)
}

/// Every deposit twice, the second time from the other end.
fn reports() -> Vec<(i32, Record)> {
    let one = |number: u32| {
        let deposit = Deposit::new(deal(number / PARTS), 0).part(number % PARTS).amount(PART_NANO);
        ((number / PARTS) as i32 % PARTITIONS, deposit.record().at(clock::now()))
    };
    let all = DEALS * PARTS;
    (0..all).chain((0..all).rev()).map(one).collect()
}

/// The function behind AWS's runtime emulator, on tables of its own, with deals that await payment.
async fn prepare(root: &Path, name: &str) -> (Engine, Bed, Emulator, PathBuf) {
    let program = programs::build(root, "kafka-event-source").await.expect("it builds");
    let bootstrap = programs::build(root, "deposit-confirmed").await.expect("it builds");
    let aws = ministack::shared_endpoint();
    let engine = Engine::start().await;
    let bed = Bed::on(&engine.url(), &aws, name).await;
    for number in 0..DEALS {
        deals::open(&bed.store, deal(number), Status::AwaitingPayment).await;
    }
    let mut env = bed.function_env(&aws);
    env.insert("AWS_LAMBDA_FUNCTION_TIMEOUT".to_owned(), TIMEOUT_SECS.to_string());
    let function = Emulator::start(root, &bootstrap, &env, Stdio::null()).await.expect("it starts");
    (engine, bed, function, program)
}

async fn send_all(broker: &Broker, reports: &[(i32, Record)]) {
    let sent = reports.iter().map(|(partition, record)| broker.send(TOPIC, *partition, record));
    futures::future::join_all(sent).await;
}

/// Opens the books: each deposit once, and nothing else.
async fn check_books(bed: &Bed, told: &str, reports: usize) {
    let (mut effects, mut external) = (0, 0);
    for number in 0..DEALS {
        let found = bed.sound_deal(deal(number)).await;
        assert_eq!((found.status, found.refunds.len()), (Status::Funded, 0));
        effects += found.deposits.len();
        let facts = bed.journal(deal(number)).await;
        let postings = facts.iter().flat_map(|fact| &fact.postings);
        let of_chain = postings.filter(|posting| posting.account == Account::ExternalTon);
        external += of_chain.map(|posting| i128::from(posting.amount.get())).sum::<i128>();
    }
    let deposits = (DEALS * PARTS) as usize;
    println!(
        "{told}: {reports} records in, {effects} effects, lost {}, double {}",
        deposits.saturating_sub(effects),
        effects.saturating_sub(deposits),
    );
    assert_eq!(effects, deposits);
    assert_eq!(external, -i128::from(PART_NANO) * deposits as i128);
    assert_eq!(bed.letters().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_and_a_timeout_under_load_lose_nothing_and_repeat_nothing() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (_engine, bed, function, program) = prepare(&root, "kills").await;
    let broker = Broker::from_env();
    broker.create_topic(TOPIC, PARTITIONS).await;
    let reports = reports();
    send_all(&broker, &reports).await;

    let start = || Source::start(&root, &program, &broker.brokers, &function.endpoint);
    let _ = std::fs::remove_file(root.join("target/kills.log"));
    let mut source = start();
    let log = || std::fs::read_to_string(root.join("target/kills.log")).unwrap_or_default();
    let processed = async || bed.rows(&bed.config.tables.processed).await.len();
    let begun = Instant::now();
    let (mut last, mut kills, mut of_function, mut hung) = (0, 0, 0, false);
    loop {
        assert!(begun.elapsed() < PATIENCE, "not done after {PATIENCE:?}; see target/kills.log");
        let (done, all) = broker.progress(GROUP, TOPIC, PARTITIONS);
        let now = processed().await;
        // In the middle of a batch: something was applied since the last kill, and not all is done.
        let hangs = hung && !log().contains("timed out");
        if kills < KILLS && now > last && !hangs {
            if !hung {
                // It answers no more, until its timeout ends it.
                hung = function.hang_function();
            } else if kills % 2 == 0 {
                source.kill();
                source = start();
                kills += 1;
            } else if function.kill_function() {
                of_function += 1;
                kills += 1;
            }
            last = now;
            continue;
        }
        if done == all && kills == KILLS {
            break;
        }
        assert!(done < all || kills == KILLS, "all was done before {KILLS} kills: {kills}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(source);
    assert!(log().contains("timed out"), "the timeout is told");
    let told =
        format!("{}, a timeout and {kills} kills ({of_function} of the function)", broker.kind());
    check_books(&bed, &told, reports.len()).await;
    assert!(of_function > 0, "the function was never killed");
}

/// A broker that can be killed: Apache Kafka as a process of its own, or the embedded one.
enum Victim {
    Apache(Box<ApacheKafka>),
    Embedded,
}

/// The broker dies while workers report and the function works, and comes back on what it kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_dies_under_load_loses_nothing() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (_engine, bed, function, program) = prepare(&root, "outage").await;
    let (broker, mut victim) = match std::env::var(BROKERS_VARIABLE) {
        Ok(_) => {
            // Not the one that the other tests use.
            let kafka = ApacheKafka::start(&root).await.expect("it starts");
            (Broker::at(kafka.brokers.clone()), Victim::Apache(Box::new(kafka)))
        }
        Err(_) => (Broker::embedded(), Victim::Embedded),
    };
    broker.create_topic(TOPIC, PARTITIONS).await;
    let _source = Source::start(&root, &program, &broker.brokers, &function.endpoint);
    let reports = reports();
    let outages = 3;
    for (outage, reports) in (1..).zip(reports.chunks(reports.len().div_ceil(outages))) {
        let sent = send_all(&broker, reports);
        let died = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            match &mut victim {
                Victim::Apache(kafka) => {
                    kafka.kill();
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    kafka.resume().await.expect("it comes back");
                }
                Victim::Embedded => {
                    broker.set_up(false);
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    broker.set_up(true);
                }
            }
        };
        tokio::join!(sent, died);
        println!("outage {outage} is over");
    }
    let begun = Instant::now();
    while let (done, all) = broker.progress(GROUP, TOPIC, PARTITIONS)
        && done < all
    {
        assert!(begun.elapsed() < PATIENCE, "{done} of {all} done; see target/kills.log");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let told = format!("{}, {outages} outages", broker.kind());
    check_books(&bed, &told, reports.len()).await;
}
