//! What comes of a record that nobody claims. A filter drops silently, so this function reads the
//! result topics without one: it skips what a sibling claims, by a cheap look, and parks the rest. A
//! redriven letter whose type is claimed by now goes to the function that claims it.

use std::collections::HashMap;

use crate::aws::Clients;
use crate::catalog::{self, UNCLAIMED_RESULTS};
use crate::clock;
use crate::config::UnclaimedConfig;
use crate::letter::{Failure, Letters};
use crate::pipeline::{Handled, Handler, NotDone, Outcome, Pipeline, Work};
use crate::telemetry::{self, Metrics};
use crate::wire::report;

pub async fn run() -> Result<(), lambda_runtime::Error> {
    telemetry::init(UNCLAIMED_RESULTS.name);
    let config = UnclaimedConfig::from_env()?;
    pipeline(config, Clients::from_env().await).run().await
}

pub fn pipeline(config: UnclaimedConfig, clients: Clients) -> Pipeline<Unclaimed> {
    let UnclaimedConfig { operations_table, letters, forward_queues, skip_records } = config;
    let Clients { dynamodb, sqs, .. } = clients;
    let letters = Letters::new(dynamodb, operations_table, sqs, letters, &UNCLAIMED_RESULTS);
    let unclaimed = Unclaimed { letters: letters.clone(), forward_queues };
    Pipeline::new(&UNCLAIMED_RESULTS, letters, skip_records, Metrics::default(), unclaimed)
}

pub struct Unclaimed {
    letters: Letters,
    /// The retry queues of the functions that may come to claim a type.
    forward_queues: HashMap<String, String>,
}

impl Handler for Unclaimed {
    async fn handle(&self, work: &Work) -> Result<Handled, NotDone> {
        let topic = &work.record.origin.topic;
        let Some(event_type) = report::peek(&work.record.body).event_type else {
            let detail = "the body is no JSON object with an event_type";
            return Ok(Handled::Failed(Failure::permanent("NO_TYPE", detail)));
        };
        if !catalog::is_claimed(topic, &event_type) {
            let shown: String = event_type.chars().take(100).collect();
            let detail = format!("nobody claims event_type {shown:?} on {topic}");
            return Ok(Handled::Failed(Failure::permanent("UNCLAIMED", detail)));
        }
        let Some(letter) = &work.letter else { return Ok(Handled::Done(Outcome::Skipped)) };
        let Some(function) = catalog::claimant(topic, &event_type) else {
            return Ok(Handled::Done(Outcome::Skipped));
        };
        let url = self.forward_queues.get(function.name).ok_or_else(|| {
            NotDone(format!("FORWARD_QUEUES names no queue for {}", function.name))
        })?;
        let now = clock::now();
        self.letters.forward(letter, function, url, now).await.map_err(NotDone::because)?;
        Ok(Handled::Done(Outcome::Forwarded))
    }

    async fn finish(&self) {}
}
