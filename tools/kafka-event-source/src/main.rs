//! `kafka-event-source`: delivers Kafka records to Lambda functions as AWS's event source mappings do.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kafka_event_source::filter::{Criteria, Mismatch};
use kafka_event_source::lambda;
use kafka_event_source::log;
use kafka_event_source::mapping::{Mapping, Source, Start};
use kafka_event_source::source::{EventSource, Settings};
use kafka_event_source::template::Template;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Delivers Kafka records to Lambda functions as AWS's event source mappings do, on your own machine:
/// for emulators of AWS, which accept such mappings and never poll.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Polls the topics and invokes the functions until it is stopped.
    Run(Run),
    /// Shows the mappings of a template, with all parameters filled in.
    List(Which),
    /// Says whether a value on stdin passes a filter pattern. Exit code 0: it does; 1: it does not.
    Match {
        /// The pattern, as it stands in FilterCriteria.
        pattern: String,
    },
}

#[derive(Args)]
struct Which {
    /// SAM or CloudFormation template, YAML or JSON.
    #[arg(long, default_value = "template.yaml")]
    template: PathBuf,
    /// A parameter of the template.
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = pair)]
    parameters: Vec<(String, String)>,
    /// The name of a function that the template does not name (see `sam list resources`).
    #[arg(long = "function", value_name = "LOGICAL-ID=NAME", value_parser = pair)]
    functions: Vec<(String, String)>,
    /// Only the mappings whose name begins like this, such as a function's logical id.
    #[arg(long)]
    only: Option<String>,
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    which: Which,
    /// Kafka brokers, host:port, separated by commas.
    #[arg(long, value_name = "BROKERS")]
    brokers: String,
    /// Where to invoke functions: an emulator of AWS or of the Lambda runtime. Without it, AWS.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Further settings of librdkafka, such as sasl.mechanism=PLAIN.
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = pair)]
    kafka: Vec<(String, String)>,
    /// What becomes of a record whose value has another format than its filter asks for; AWS's own
    /// documents disagree.
    #[arg(long, value_enum, default_value_t = Other::Drop)]
    other_format: Other,
}

#[derive(Clone, Copy, ValueEnum)]
enum Other {
    Drop,
    Deliver,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let parts = parts.ok_or_else(|| "NAME=VALUE is needed".to_owned())?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(run) => run.go().await,
        Command::List(which) => which.show(),
        Command::Match { pattern } => return matches(&pattern),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kafka-event-source: {error}");
            ExitCode::from(2)
        }
    }
}

impl Which {
    fn mappings(&self) -> Result<Vec<Mapping>, String> {
        let path = self.template.display();
        let text = std::fs::read_to_string(&self.template)
            .map_err(|error| format!("{path}: {error}: say --template FILE"))?;
        let map = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
        let template = Template::read(&text, &map(&self.parameters));
        let mappings = template.and_then(|template| template.mappings(&map(&self.functions)));
        let mut mappings = mappings.map_err(|error| format!("{path}: {error}"))?;
        mappings.retain(|each| self.only.as_ref().is_none_or(|only| each.name.starts_with(only)));
        if mappings.is_empty() {
            return Err(format!("{path} has no enabled Kafka mapping of that name"));
        }
        // Two mappings in one group split the partitions, and each loses what the other filters away.
        for (index, mapping) in mappings.iter().enumerate() {
            if let Some(other) = mappings[..index].iter().find(|other| other.group == mapping.group)
            {
                let (name, other, group) = (&mapping.name, &other.name, &mapping.group);
                return Err(format!("{name} and {other} share the consumer group {group}"));
            }
        }
        Ok(mappings)
    }

    fn show(&self) -> Result<(), String> {
        for mapping in self.mappings()? {
            let Mapping { name, function, topic, group, batch_size, window_ms, .. } = &mapping;
            let kind = match mapping.source {
                Source::Msk { .. } => "MSK",
                Source::SelfManaged => "self-managed",
            };
            let start = match mapping.start {
                Start::TrimHorizon => "TRIM_HORIZON",
                Start::Latest => "LATEST",
            };
            let mode = if mapping.provisioned.is_some() { "provisioned" } else { "on-demand" };
            println!("{name}: {topic} -> {function}");
            println!("    group {group}, {kind}, {mode}, from {start}");
            println!("    batches of {batch_size}, window {window_ms} ms");
        }
        Ok(())
    }
}

impl Run {
    async fn go(self) -> Result<(), String> {
        let mappings = self.which.mappings()?;
        let settings = Settings {
            brokers: self.brokers,
            kafka: self.kafka.into_iter().collect(),
            mismatch: match self.other_format {
                Other::Drop => Mismatch::Drop,
                Other::Deliver => Mismatch::Deliver,
            },
        };
        let client = lambda::client(self.endpoint.as_deref()).await;
        let (stop, stopped) = watch::channel(false);
        let mut sources = JoinSet::new();
        for mapping in mappings {
            let name = mapping.name.clone();
            log::line(&name, &format!("{} -> {}", mapping.topic, mapping.function));
            let source = EventSource::new(mapping, &settings, client.clone());
            let source = source.map_err(|error| format!("{name}: {error}"))?;
            sources.spawn(source.run(stopped.clone()));
        }
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            Some(ended) = sources.join_next() => {
                return Err(format!("a mapping ended by itself: {ended:?}"));
            }
        }
        log::line("all", "stopping after the batches under way; a second signal stops at once");
        let _ = stop.send(true);
        tokio::select! {
            () = async { while sources.join_next().await.is_some() {} } => {}
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    }
}

fn matches(pattern: &str) -> ExitCode {
    let criteria = match Criteria::parse(&[pattern]) {
        Ok(criteria) => criteria,
        Err(error) => {
            eprintln!("kafka-event-source: {error}");
            return ExitCode::from(2);
        }
    };
    let mut value = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut value) {
        eprintln!("kafka-event-source: stdin: {error}");
        return ExitCode::from(2);
    }
    let passes = criteria.passes(Some(&value), Mismatch::Drop);
    println!("{}", if passes { "passes" } else { "does not pass" });
    if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
