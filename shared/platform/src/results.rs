//! What comes of a worker's result: record → verify → parse → key → load → decide → commit.

use domain::deal::Deal;
use domain::decision::{Decision, Wait};
use domain::filing::Filing;
use domain::policy::Moment;
use domain::result::ReconciliationResult;

use crate::apply::{Applied, Applier, Fault, Subject};
use crate::aws::Clients;
use crate::catalog::{self, Function};
use crate::config::{Config, Trust};
use crate::doorbell::Doorbell;
use crate::letter::{Failure, Letters, Understood};
use crate::pipeline::{Handled, Handler, NotDone, Outcome, Pipeline, Work, own_fault};
use crate::secrets::{Keyring, Secret};
use crate::signature::{self, Verified};
use crate::store::{Processed, Store};
use crate::telemetry::{self, Metrics};
use crate::wire::report::{self, Report, WorkerResult};

/// Decides on a deal that exists; one that does not exist yet is waited for.
pub type Decide<R> = fn(&Deal, &R, &Moment<'_>) -> Decision;

/// Runs a function whose results are about deals.
pub async fn run<R: WorkerResult>(
    function: &'static Function,
    decide: Decide<R>,
) -> Result<(), lambda_runtime::Error> {
    telemetry::init(function.name);
    let config = Config::from_env()?;
    pipeline(function, decide, config, Clients::from_env().await).run().await
}

pub fn pipeline<R: WorkerResult>(
    function: &'static Function,
    decide: Decide<R>,
    config: Config,
    clients: Clients,
) -> Pipeline<Results<R>> {
    let decide = move |deal: Option<&Deal>, result: &R, moment: &Moment<'_>| match deal {
        Some(deal) => decide(deal, result, moment),
        None => Decision::not_ready("UNKNOWN_DEAL", "no such deal yet", Wait::Backoff),
    };
    Results::pipeline(function, Box::new(decide), config, clients)
}

/// Runs the function whose results are about no deal.
pub async fn run_filing(
    function: &'static Function,
    file: fn(&ReconciliationResult) -> Filing,
) -> Result<(), lambda_runtime::Error> {
    telemetry::init(function.name);
    let config = Config::from_env()?;
    filing_pipeline(function, file, config, Clients::from_env().await).run().await
}

pub fn filing_pipeline(
    function: &'static Function,
    file: fn(&ReconciliationResult) -> Filing,
    config: Config,
    clients: Clients,
) -> Pipeline<Results<ReconciliationResult>> {
    let decide = move |_: Option<&Deal>, result: &ReconciliationResult, _: &Moment<'_>| {
        Decision::File(file(result))
    };
    Results::pipeline(function, Box::new(decide), config, clients)
}

type DecideAny<R> = Box<dyn Fn(Option<&Deal>, &R, &Moment<'_>) -> Decision + Send + Sync>;

pub struct Results<R> {
    function: &'static Function,
    decide: DecideAny<R>,
    trust: Trust,
    workers: Secret<Keyring>,
    applier: Applier,
}

impl<R: WorkerResult> Results<R> {
    fn pipeline(
        function: &'static Function,
        decide: DecideAny<R>,
        config: Config,
        clients: Clients,
    ) -> Pipeline<Self> {
        let Config { tables, queues, trust, policy, skip_records } = config;
        let doorbell = Doorbell::new(clients.sqs.clone(), queues.doorbell_url);
        let store = Store::new(clients.dynamodb.clone(), tables.clone());
        let letters = Letters::new(
            clients.dynamodb,
            tables.operations,
            clients.sqs,
            queues.letters,
            function,
        );
        let metrics = Metrics::default();
        let results = Self {
            function,
            decide,
            workers: Secret::new(clients.secrets, trust.secret_id.clone()),
            trust,
            applier: Applier::new(store, policy, doorbell, metrics.clone()),
        };
        Pipeline::new(function, letters, skip_records, metrics, results)
    }

    /// A type that somebody else claims on this topic.
    fn is_siblings(&self, work: &Work, event_type: &str) -> bool {
        self.function.event_type() != Some(event_type)
            && catalog::is_claimed(&work.record.origin.topic, event_type)
    }

    async fn handle_verified(
        &self,
        work: &Work,
        verified: &Verified<'_>,
    ) -> Result<Handled, NotDone> {
        work.note(Understood { verified: true, ..Understood::default() });
        let parked = |failure| Ok(Handled::Failed(failure));
        let malformed = |error: report::Malformed| parked(Failure::permanent("MALFORMED", error.0));
        let report = match Report::read(verified.body()) {
            Ok(report) => report,
            Err(error) => return malformed(error),
        };
        // Whatever else is wrong with it, its letter is kept under its deal.
        let deal = report.deal().ok();
        work.note(Understood { verified: true, deal, ..Understood::default() });
        if work.letter.is_none() && self.is_siblings(work, &report.event_type) {
            return Ok(Handled::Done(Outcome::Skipped));
        }
        if self.function.event_type() != Some(report.event_type.as_str()) {
            let shown: String = report.event_type.chars().take(100).collect();
            let detail = format!("event_type {shown:?} is nobody's on this topic");
            return parked(Failure::permanent("UNKNOWN_TYPE", detail));
        }
        if !self.trust.allow_list.may_report(verified.worker(), &report.event_type) {
            let detail = format!("{} may not report {}", verified.worker(), report.event_type);
            return parked(Failure::permanent("NOT_ALLOWED", detail));
        }
        match R::read(&report) {
            Ok(result) => self.apply(work, &result).await,
            Err(error) => malformed(error),
        }
    }

    async fn apply(&self, work: &Work, result: &R) -> Result<Handled, NotDone> {
        let subject = Subject {
            deal: result.deal(),
            key: result.key(),
            fingerprint: result.fingerprint(),
            recorded_at: work.record.recorded_at,
        };
        work.note(Understood {
            verified: true,
            deal: subject.deal,
            key: subject.key.as_ref().map(ToString::to_string),
            tx: result.tx().map(|tx| tx.to_string()),
        });
        let decide = |deal: Option<&Deal>, moment: &Moment<'_>| (self.decide)(deal, result, moment);
        let failure = match self.applier.apply(&subject, decide).await {
            Ok(Applied::Fresh(_)) => return Ok(Handled::Done(Outcome::Applied)),
            Ok(Applied::Skipped(_)) => return Ok(Handled::Done(Outcome::Skipped)),
            Ok(Applied::Duplicate { .. }) => return Ok(Handled::Done(Outcome::Duplicate)),
            Ok(Applied::Conflict(known)) => conflict(&known),
            Ok(Applied::Refused(refusal, _)) => Failure::from(refusal),
            Ok(Applied::NotReady(not_ready)) => Failure::from(not_ready),
            Err(fault @ (Fault::NotDone(_) | Fault::Own { .. })) => own_fault(fault)?,
        };
        Ok(Handled::Failed(failure))
    }
}

impl<R: WorkerResult> Handler for Results<R> {
    async fn handle(&self, work: &Work) -> Result<Handled, NotDone> {
        let verified = signature::verify_fresh(&work.record, &self.workers, &self.trust);
        let refused = match verified.await.map_err(NotDone::because)? {
            Ok(verified) => return self.handle_verified(work, &verified).await,
            Err(refused) => refused,
        };
        // Whoever claims the type parks it; once is enough.
        let siblings = || {
            let event_type = report::peek(&work.record.body).event_type;
            event_type.is_some_and(|name| self.is_siblings(work, &name))
        };
        if work.letter.is_none() && siblings() {
            return Ok(Handled::Done(Outcome::Skipped));
        }
        Ok(Handled::Failed(Failure::permanent(refused.code(), refused.to_string())))
    }

    async fn finish(&self) {
        self.applier.doorbell.ring_noted().await;
    }
}

pub fn conflict(known: &Processed) -> Failure {
    let of = known.deal_id.as_deref().unwrap_or("no deal");
    let detail = format!("{} was already applied with other content, to {of}", known.key);
    Failure::critical("CONFLICT", detail)
}
