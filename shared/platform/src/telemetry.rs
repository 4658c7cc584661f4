//! Logs as one JSON object a line, with the field names that Powertools users know, and metrics in
//! CloudWatch's embedded format. No body, secret or address is ever logged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

/// Nothing is written before a function sets telemetry up: a test's output is its own.
static ON: AtomicBool = AtomicBool::new(false);

/// Once per process; a second call changes nothing.
pub fn init(service: &'static str) {
    ON.store(true, Ordering::Relaxed);
    let filter = std::env::var("LOG_LEVEL").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::registry().with(filter).with(JsonLines { service }).try_init();
}

struct JsonLines {
    service: &'static str,
}

/// The fields of a span, to be repeated on every line inside it.
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.0.insert(field.name().to_owned(), Value::String(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), Value::String(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::span::Id,
        context: Context<'_, S>,
    ) {
        let mut fields = Fields(Map::new());
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut line = Fields(Map::new());
        line.0.insert("timestamp".to_owned(), crate::clock::to_text(crate::clock::now()).into());
        line.0.insert("level".to_owned(), event.metadata().level().to_string().into());
        line.0.insert("service".to_owned(), self.service.into());
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                line.0.extend(fields.0.clone());
            }
        }
        event.record(&mut line);
        write_line(&Value::Object(line.0));
    }
}

/// Lambda captures both streams. Ours goes to stderr, so that tools can print a result on stdout.
fn write_line(value: &Value) {
    if ON.load(Ordering::Relaxed) {
        let _ = writeln!(std::io::stderr(), "{value}");
    }
}

/// Counts what somebody must look at at once, whatever it is: the alarm `critical` watches it.
pub const CRITICAL: &str = "worker.critical";

#[derive(Clone, Copy, Default)]
struct Count {
    since_flush: u64,
    ever: u64,
}

/// Counters of one invocation, written as one embedded-metric line per set of dimensions. Its copies
/// count together.
#[derive(Clone, Default)]
pub struct Metrics {
    /// By dimension and name.
    counts: Arc<Mutex<BTreeMap<(String, &'static str), Count>>>,
    /// Values since the last flush, by name, unit and dimension.
    values: Arc<Mutex<BTreeMap<Observed, Vec<u64>>>>,
}

type Observed = (&'static str, &'static str, String);

/// CloudWatch takes this many values of a metric in one line.
const VALUES_A_LINE: usize = 100;

impl Metrics {
    /// Counts under a dimension such as `topic=escrow.confirmations`; empty for none.
    pub fn count(&self, name: &'static str, dimension: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = counts.entry((dimension.to_owned(), name)).or_default();
        count.since_flush += 1;
        count.ever += 1;
    }

    /// How often it was counted since the process began, under whatever dimension.
    pub fn counted(&self, name: &str) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.iter().filter(|((_, known), _)| *known == name).map(|(_, count)| count.ever).sum()
    }

    /// Notes a value, such as an age or a depth, under a dimension like `count`.
    pub fn observe(&self, name: &'static str, unit: &'static str, value: u64, dimension: &str) {
        let mut values = self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        values.entry((name, unit, dimension.to_owned())).or_default().push(value);
    }

    /// What was noted under a name since the last flush.
    pub fn observed(&self, name: &str) -> Vec<u64> {
        let values = self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let named = values.iter().filter(|((known, ..), _)| *known == name);
        named.flat_map(|(_, values)| values.iter().copied()).collect()
    }

    pub fn flush(&self, service: &str) {
        let mut values = self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (observed, values) in std::mem::take(&mut *values) {
            for values in values.chunks(VALUES_A_LINE) {
                write_line(&observations(service, &observed, values));
            }
        }
        drop(values);
        let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for line in lines(&counts, service) {
            write_line(&line);
        }
        counts.values_mut().for_each(|count| count.since_flush = 0);
    }
}

fn observations(service: &str, observed: &Observed, values: &[u64]) -> Value {
    let (name, unit, dimension) = observed;
    line(service, dimension, &[(name, unit, values.into())])
}

fn lines(counts: &BTreeMap<(String, &'static str), Count>, service: &str) -> Vec<Value> {
    let mut by_dimension: BTreeMap<&str, Vec<Metric<'_>>> = BTreeMap::new();
    for ((dimension, name), count) in counts.iter().filter(|(_, count)| count.since_flush > 0) {
        let metrics = by_dimension.entry(dimension).or_default();
        metrics.push((name, "Count", count.since_flush.into()));
    }
    by_dimension.iter().map(|(dimension, metrics)| line(service, dimension, metrics)).collect()
}

/// Name, unit and what was measured.
type Metric<'a> = (&'a str, &'a str, Value);

/// Metrics under one dimension, as CloudWatch reads them from a log line.
fn line(service: &str, dimension: &str, metrics: &[Metric<'_>]) -> Value {
    let namespace =
        std::env::var("METRICS_NAMESPACE").unwrap_or_else(|_| "EscrowFunctions".to_owned());
    let mut dimensions = vec!["service"];
    let mut line = Map::from_iter([("service".to_owned(), service.into())]);
    if let Some((name, value)) = dimension.split_once('=') {
        dimensions.push(name);
        line.insert(name.to_owned(), value.into());
    }
    let definitions = metrics.iter().map(|(name, unit, _)| json!({"Name": name, "Unit": unit}));
    let definitions: Vec<Value> = definitions.collect();
    let mut directives =
        vec![json!({"Namespace": namespace, "Dimensions": [dimensions], "Metrics": definitions})];
    // One alarm hears of all functions: it is counted under no dimension too.
    if metrics.iter().any(|(name, ..)| *name == CRITICAL) {
        let definition = json!({"Name": CRITICAL, "Unit": "Count"});
        let none: [[&str; 0]; 1] = [[]];
        directives
            .push(json!({"Namespace": namespace, "Dimensions": none, "Metrics": [definition]}));
    }
    line.extend(metrics.iter().map(|(name, _, value)| ((*name).to_owned(), value.clone())));
    let directive = json!({
        "Timestamp": crate::clock::now().as_millis(),
        "CloudWatchMetrics": directives,
    });
    line.insert("_aws".to_owned(), directive);
    Value::Object(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_one_line_with_all_of_them() {
        let observed = ("outbox.waiting", "Count", "retry_count=2".to_owned());
        let line = observations("outbox-relay", &observed, &[3, 5]);
        assert_eq!(line["outbox.waiting"], json!([3, 5]));
        assert_eq!((&line["service"], &line["retry_count"]), (&json!("outbox-relay"), &json!("2")));
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Dimensions"], json!([["service", "retry_count"]]));
        assert_eq!(directive["Metrics"], json!([{"Name": "outbox.waiting", "Unit": "Count"}]));
    }

    #[test]
    fn counters_become_embedded_metrics_with_their_dimensions() {
        let metrics = Metrics::default();
        metrics.count("worker.events.duplicate", "");
        metrics.count("worker.events.duplicate", "");
        metrics.count("worker.dlq.messages", "topic=escrow.confirmations.dlq");
        metrics.count(CRITICAL, "");
        let lines = lines(&metrics.counts.lock().unwrap(), "deposit-confirmed");
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["worker.events.duplicate"], 2);
        assert_eq!(lines[0]["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0], json!(["service"]));
        let of_all = &lines[0]["_aws"]["CloudWatchMetrics"][1];
        assert_eq!((&of_all["Dimensions"], lines[0][CRITICAL].as_u64()), (&json!([[]]), Some(1)));
        assert!(lines[1]["_aws"]["CloudWatchMetrics"][1].is_null());
        assert_eq!(lines[1]["worker.dlq.messages"], 1);
        assert_eq!(lines[1]["topic"], "escrow.confirmations.dlq");
        let definition = &lines[1]["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(definition["Dimensions"][0], json!(["service", "topic"]));
        assert_eq!(
            definition["Metrics"],
            json!([{"Name": "worker.dlq.messages", "Unit": "Count"}])
        );
    }
}
