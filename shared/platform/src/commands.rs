//! What comes of a command, by queue or by HTTP. A refused command is an answer: a notification on
//! the queue, 409 over HTTP. Only what is malformed or unauthorised is parked.

use std::panic::AssertUnwindSafe;

use domain::command::{ActorCommand, NOT_AUTHORISED, Role};
use domain::deal::Deal;
use domain::decision::{Decision, NotReady, Refusal};
use domain::filing::Filing;
use domain::ids::DealId;
use domain::message::{Kind, Message, Recipient};
use domain::policy::Moment;
use domain::time::Timestamp;
use futures::FutureExt as _;
use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::{Value, json};

use crate::apply::{Applied, Applier, Fault, Standing, Subject};
use crate::aws::Clients;
use crate::catalog::DEAL_TRANSITION;
use crate::clock;
use crate::config::{Config, HttpConfig, Trust};
use crate::doorbell::Doorbell;
use crate::letter::{Failure, Letter, Letters, Place, Understood};
use crate::pipeline::{self, Handled, Handler, NotDone, Outcome, Pipeline, Work, own_fault};
use crate::results::conflict;
use crate::secrets::{ApiKeys, Keyring, Secret};
use crate::signature;
use crate::store::{Committed, Store};
use crate::telemetry::{self, CRITICAL, Metrics};
use crate::wire::{Incoming, command, http};

pub type Decide = fn(Option<&Deal>, &ActorCommand, &Moment<'_>) -> Decision;

const API_KEY_HEADER: &str = "X-Internal-Api-Key";
/// What a worker reports when it commands.
const ADDRESS_READY: &str = "DEPOSIT_ADDRESS_READY";

pub async fn run(decide: Decide) -> Result<(), lambda_runtime::Error> {
    telemetry::init(DEAL_TRANSITION.name);
    let (config, http) = (Config::from_env()?, HttpConfig::from_env()?);
    let transition = Transition::new(decide, config, http, Clients::from_env().await);
    let transition = &transition;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| async move {
        let deadline_ms = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
        Box::pin(transition.invoke(event.payload, Timestamp::from_millis(deadline_ms))).await
    }))
    .await
}

pub struct Transition {
    pipeline: Pipeline<Commands>,
    api_keys: Secret<ApiKeys>,
    http: HttpConfig,
}

impl Transition {
    pub fn new(decide: Decide, config: Config, http: HttpConfig, clients: Clients) -> Self {
        let Config { tables, queues, trust, policy, skip_records } = config;
        let Clients { dynamodb, sqs, secrets } = clients;
        let doorbell = Doorbell::new(sqs.clone(), queues.doorbell_url);
        let store = Store::new(dynamodb.clone(), tables.clone());
        let letters =
            Letters::new(dynamodb, tables.operations, sqs, queues.letters, &DEAL_TRANSITION);
        let metrics = Metrics::default();
        let commands = Commands {
            decide,
            workers: Secret::new(secrets.clone(), trust.secret_id.clone()),
            trust,
            applier: Applier::new(store, policy, doorbell, metrics.clone()),
        };
        Self {
            pipeline: Pipeline::new(&DEAL_TRANSITION, letters, skip_records, metrics, commands),
            api_keys: Secret::new(secrets, http.api_key_secret_id.clone()),
            http,
        }
    }

    pub async fn invoke(
        &self,
        event: Value,
        deadline: Timestamp,
    ) -> Result<Value, pipeline::Error> {
        let Some(request) = http::read(&event) else {
            return self.pipeline.invoke(event, deadline).await;
        };
        let answer = AssertUnwindSafe(self.answer(&request)).catch_unwind().await;
        let answer = answer.unwrap_or_else(|panic| {
            let detail = pipeline::panic_text(panic.as_ref());
            Answer::fault(Fault::Own { code: "PANIC", detail })
        });
        self.pipeline.handler.finish().await;
        let Answer { status, body, critical } = answer;
        // Over HTTP there is no letter to raise the alarm.
        if let Some(code) = critical {
            self.pipeline.metrics.count(CRITICAL, "");
            let path = &request.path;
            tracing::error!(code, path, severity = "CRITICAL", "the command met a damaged deal");
        }
        tracing::info!(status, request_id = request.request_id, path = request.path, "answered");
        self.pipeline.metrics.flush(DEAL_TRANSITION.name);
        Ok(http::answer(status, &body))
    }

    pub fn metrics(&self) -> &Metrics {
        &self.pipeline.metrics
    }

    async fn answer(&self, request: &http::Request) -> Answer {
        if let Err(refused) = self.admit(request).await {
            return refused;
        }
        let (role, deal) = match route(request) {
            Ok(route) => route,
            Err(refused) => return refused,
        };
        let command = match command::read(&request.body) {
            Ok(command) => command,
            Err(error) => return Answer::error(400, "MALFORMED", &error.0),
        };
        if command.deal != deal {
            let detail = "deal_id is not the deal of the path";
            return Answer::error(400, "MALFORMED", detail);
        }
        let commands = &self.pipeline.handler;
        let incoming = request.incoming(clock::now());
        match commands.may_come(&command, &incoming, role).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Answer::error(403, failure.code(), failure.detail()),
            Err(NotDone(reason)) => return Answer::unavailable(&reason),
        }
        match commands.apply(&command, incoming.recorded_at).await {
            Ok(applied) => commands.tell(&command, applied).await,
            Err(fault) => Answer::fault(fault),
        }
    }

    /// The network first, then the key: an outsider learns nothing about either.
    async fn admit(&self, request: &http::Request) -> Result<(), Answer> {
        let networks = &self.http.allowed_networks;
        let inside =
            request.source_ip.is_some_and(|ip| networks.iter().any(|net| net.contains(&ip)));
        if !inside {
            return Err(Answer::error(403, "FORBIDDEN", "this network is not admitted"));
        }
        let sent = request.header(API_KEY_HEADER).unwrap_or_default();
        let unavailable =
            |error: crate::secrets::Unavailable| Answer::unavailable(&error.to_string());
        let known = self.api_keys.get().await.map_err(unavailable)?.admit(sent);
        if known || self.api_keys.get_again().await.map_err(unavailable)?.admit(sent) {
            return Ok(());
        }
        let detail = format!("{API_KEY_HEADER} is missing or wrong");
        Err(Answer::error(401, "UNAUTHENTICATED", &detail))
    }
}

/// The two routes: members' commands, and operators', which IAM grants separately.
fn route(request: &http::Request) -> Result<(Role, DealId), Answer> {
    let path: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let (role, id) = match path.as_slice() {
        ["internal", "v1", "deals", id, "commands"] => (Role::Member, id),
        ["internal", "v1", "operator", "deals", id, "commands"] => (Role::Operator, id),
        _ => return Err(Answer::error(404, "NO_ROUTE", "there is nothing at this path")),
    };
    if request.method != "POST" {
        return Err(Answer::error(405, "METHOD", "commands are sent by POST"));
    }
    let deal = DealId::parse(id);
    let deal =
        deal.ok_or_else(|| Answer::error(400, "MALFORMED", "the deal in the path is not a UUID"))?;
    Ok((role, deal))
}

struct Answer {
    status: u16,
    body: Value,
    /// Set where somebody must look at this at once: why.
    critical: Option<&'static str>,
}

impl Answer {
    fn error(status: u16, code: &str, detail: &str) -> Self {
        Self { status, body: json!({"error": code, "detail": detail}), critical: None }
    }

    fn unavailable(reason: &str) -> Self {
        tracing::error!(reason, "the command is not done");
        Self::error(
            503,
            "UNAVAILABLE",
            "whether it was done is unknown; send the same command again",
        )
    }

    fn fault(fault: Fault) -> Self {
        match fault {
            Fault::NotDone(reason) => Self::unavailable(&reason),
            Fault::Own { code, detail } => {
                tracing::error!(code, detail, "the command failed");
                let told = "nothing was done; an operator must look at this";
                Self { critical: Some(code), ..Self::error(500, code, told) }
            }
        }
    }

    fn done(result: &str, standing: Option<Standing>) -> Self {
        let body = with_standing(json!({"result": result}), standing);
        Self { status: 200, body, critical: None }
    }

    fn refused(code: &str, detail: &str, standing: Option<Standing>) -> Self {
        let body = json!({"error": code, "detail": detail});
        Self { status: 409, body: with_standing(body, standing), critical: None }
    }
}

fn with_standing(mut body: Value, standing: Option<Standing>) -> Value {
    if let Some(standing) = standing {
        body["status"] = standing.status.name().into();
        body["version"] = standing.version.into();
    }
    body
}

pub struct Commands {
    decide: Decide,
    trust: Trust,
    workers: Secret<Keyring>,
    applier: Applier,
}

impl Commands {
    /// Whether a command may come this way at all: operators have a route of their own, and a worker
    /// signs.
    async fn may_come(
        &self,
        command: &ActorCommand,
        incoming: &Incoming,
        route: Role,
    ) -> Result<Result<(), Failure>, NotDone> {
        let name = command.action.name();
        let refused = |detail: String| Ok(Err(Failure::permanent(NOT_AUTHORISED, detail)));
        match (command.action.role(), route) {
            (Role::Member, Role::Member | Role::System) | (Role::Operator, Role::Operator) => {
                Ok(Ok(()))
            }
            (Role::Operator, Role::Member | Role::System) => {
                refused(format!("{name} is an operator's command and has a route of its own"))
            }
            (Role::Member | Role::System, Role::Operator) => {
                refused(format!("{name} is no operator's command"))
            }
            (Role::System, Role::Member | Role::System) => {
                let verified = signature::verify_fresh(incoming, &self.workers, &self.trust);
                match verified.await.map_err(NotDone::because)? {
                    Ok(verified)
                        if self.trust.allow_list.may_report(verified.worker(), ADDRESS_READY) =>
                    {
                        Ok(Ok(()))
                    }
                    Ok(verified) => {
                        refused(format!("{} may not command {name}", verified.worker()))
                    }
                    Err(error) => Ok(Err(Failure::permanent(error.code(), error.to_string()))),
                }
            }
        }
    }

    async fn apply(
        &self,
        command: &ActorCommand,
        recorded_at: Timestamp,
    ) -> Result<Applied, Fault> {
        let subject = Subject {
            deal: Some(command.deal),
            key: Some(command.key()),
            fingerprint: command.fingerprint,
            recorded_at,
        };
        let decide =
            |deal: Option<&Deal>, moment: &Moment<'_>| (self.decide)(deal, command, moment);
        self.applier.apply(&subject, decide).await
    }

    /// The answer over HTTP.
    async fn tell(&self, command: &ActorCommand, applied: Applied) -> Answer {
        match applied {
            Applied::Fresh(standing) => Answer::done("APPLIED", standing),
            Applied::Skipped(standing) => Answer::done("UNCHANGED", standing),
            Applied::Duplicate { took_effect } => match self.applier.standing(command.deal).await {
                Ok(standing) => {
                    let mut answer = Answer::done("DUPLICATE", standing);
                    answer.body["took_effect"] = took_effect.into();
                    answer
                }
                Err(fault) => Answer::fault(fault),
            },
            Applied::Conflict(known) => {
                let detail = format!("{} was used before, with another body", known.key);
                match self.applier.standing(command.deal).await {
                    Ok(standing) => Answer::refused("COMMAND_ID_REUSED", &detail, standing),
                    Err(fault) => Answer::fault(fault),
                }
            }
            Applied::Refused(refusal, _) if refusal.code == NOT_AUTHORISED => {
                Answer::error(403, refusal.code, &refusal.detail)
            }
            Applied::Refused(refusal, standing) => Answer {
                critical: refusal.critical.then_some(refusal.code),
                ..Answer::refused(refusal.code, &refusal.detail, standing)
            },
            Applied::NotReady(NotReady { code: code @ "UNKNOWN_DEAL", detail, .. }) => {
                Answer::error(404, code, &detail)
            }
            Applied::NotReady(NotReady { code, detail, .. }) => {
                match self.applier.standing(command.deal).await {
                    Ok(standing) => Answer::refused(code, &detail, standing),
                    Err(fault) => Answer::fault(fault),
                }
            }
        }
    }

    /// The answer on the queue: a notification to whoever asked, in one transaction with the key.
    async fn refuse(
        &self,
        command: &ActorCommand,
        code: &str,
        detail: &str,
    ) -> Result<Handled, NotDone> {
        let told = command.actor.map_or(Recipient::Operator, Recipient::User);
        let text = format!("{} {}: {code}: {detail}", command.action.name(), command.id);
        let mut filing = Filing::skip(
            command.key(),
            command.fingerprint,
            ActorCommand::EVENT_TYPE,
            command.deal,
        );
        filing.messages = vec![Message::notify(Kind::CommandRefused, vec![told], text)];
        let failure = match self.applier.file(&filing, clock::now()).await {
            Ok(Committed::Applied | Committed::Filed) => {
                return Ok(Handled::Done(Outcome::Refused));
            }
            Ok(Committed::Known(known)) if known.is_same(&command.fingerprint) => {
                return Ok(Handled::Done(Outcome::Duplicate));
            }
            Ok(Committed::Known(known)) => conflict(&known),
            Ok(Committed::Stale | Committed::Ahead) => {
                return Err(NotDone("the refusal met another of its moment".to_owned()));
            }
            Err(fault) => own_fault(fault)?,
        };
        Ok(Handled::Failed(failure))
    }
}

impl Handler for Commands {
    async fn handle(&self, work: &Work) -> Result<Handled, NotDone> {
        let command = match command::read(&work.record.body) {
            Ok(command) => command,
            Err(error) => {
                return Ok(Handled::Failed(Failure::permanent("MALFORMED", error.0)));
            }
        };
        if let Err(failure) = self.may_come(&command, &work.record, Role::Member).await? {
            return Ok(Handled::Failed(failure));
        }
        // The backend vouches for a party, and nobody signed: such a letter must neither close nor hold
        // up anything of the deal.
        if command.action.role() == Role::System {
            work.note(Understood {
                verified: true,
                deal: Some(command.deal),
                key: Some(command.key().to_string()),
                tx: None,
            });
        }
        let failure = match self.apply(&command, work.record.recorded_at).await {
            Ok(Applied::Fresh(_)) => return Ok(Handled::Done(Outcome::Applied)),
            Ok(Applied::Skipped(_)) => return Ok(Handled::Done(Outcome::Skipped)),
            Ok(Applied::Duplicate { .. }) => return Ok(Handled::Done(Outcome::Duplicate)),
            Ok(Applied::Conflict(known)) => conflict(&known),
            Ok(Applied::Refused(refusal, _)) => match refusal {
                Refusal { critical: false, code, detail } if code != NOT_AUTHORISED => {
                    return self.refuse(&command, code, &detail).await;
                }
                refusal => Failure::from(refusal),
            },
            Ok(Applied::NotReady(waits)) if is_spent(work.letter.as_ref()) => {
                return self.refuse(&command, waits.code, &waits.detail).await;
            }
            Ok(Applied::NotReady(waits)) => Failure::from(waits),
            Err(fault) => own_fault(fault)?,
        };
        Ok(Handled::Failed(failure))
    }

    async fn finish(&self) {
        self.applier.doorbell.ring_noted().await;
    }
}

/// Whether a letter has waited as often as it may: then its sender gets an answer.
fn is_spent(letter: Option<&Letter>) -> bool {
    letter.is_some_and(|letter| {
        letter.place == Place::RetryQueue && letter.attempts >= DEAL_TRANSITION.backoff_secs.len()
    })
}
