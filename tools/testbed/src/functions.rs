//! The functions as tests call them: the same pipelines as in production, on a bed's engines.

use domain::result::{
    DepositConfirmed, PayoutCompleted, PublicationResult, RefundCompleted, VerificationResult,
};
use domain::time::Timestamp;
use outbox_relay::bell;
use outbox_relay::relay::Relay;
use platform::catalog;
use platform::clock;
use platform::commands::Transition;
use platform::config::{HttpConfig, UnclaimedConfig};
use platform::pipeline::{Error, Pipeline};
use platform::results::{self, Results};
use platform::unclaimed;
use serde_json::Value;

use crate::bed::Bed;
use crate::broker::Broker;
use crate::published;

pub fn deposits(bed: &Bed) -> Pipeline<Results<DepositConfirmed>> {
    let (config, clients) = (bed.config.clone(), bed.clients.clone());
    results::pipeline(&catalog::DEPOSIT_CONFIRMED, deposit_confirmed::decide, config, clients)
}

pub fn transition(bed: &Bed) -> Transition {
    let http = HttpConfig::read(&bed.env).expect("the bed's settings are complete");
    Transition::new(deal_transition::decide, bed.config.clone(), http, bed.clients.clone())
}

/// A minute from now: as much time as anybody needs.
pub fn in_a_minute() -> Timestamp {
    clock::now().plus_secs(60)
}

/// One invocation of the relay, with a broker of its own.
async fn ring(bed: &Bed, event: Value) -> Value {
    let broker = Broker::embedded();
    published::create_topics(&broker).await;
    let mut env = bed.env.clone();
    env.insert("KAFKA_BROKERS".to_owned(), broker.brokers.clone());
    let config = outbox_relay::config::Config::read(&env).expect("the settings are complete");
    let relay = Relay::new(config, bed.clients.clone());
    bell::invoke(&relay, event, in_a_minute()).await.expect("it is an event of a queue")
}

/// One invocation of a function by its name.
pub async fn invoke(bed: &Bed, function: &str, event: Value) -> Result<Value, Error> {
    let (config, clients, until) = (bed.config.clone(), bed.clients.clone(), in_a_minute());
    match function {
        "deposit-confirmed" => deposits(bed).invoke(event, until).await,
        "payout-completed" => {
            let function = &catalog::PAYOUT_COMPLETED;
            let decide: results::Decide<PayoutCompleted> = payout_completed::decide;
            results::pipeline(function, decide, config, clients).invoke(event, until).await
        }
        "refund-completed" => {
            let function = &catalog::REFUND_COMPLETED;
            let decide: results::Decide<RefundCompleted> = refund_completed::decide;
            results::pipeline(function, decide, config, clients).invoke(event, until).await
        }
        "publication-result" => {
            let function = &catalog::PUBLICATION_RESULT;
            let decide: results::Decide<PublicationResult> = publication_result::decide;
            results::pipeline(function, decide, config, clients).invoke(event, until).await
        }
        "verification-result" => {
            let function = &catalog::VERIFICATION_RESULT;
            let decide: results::Decide<VerificationResult> = verification_result::decide;
            results::pipeline(function, decide, config, clients).invoke(event, until).await
        }
        "reconciliation-result" => {
            let function = &catalog::RECONCILIATION_RESULT;
            let file = reconciliation_result::file;
            results::filing_pipeline(function, file, config, clients).invoke(event, until).await
        }
        "unclaimed-results" => {
            let config = UnclaimedConfig::read(&bed.env).expect("the bed's settings are complete");
            unclaimed::pipeline(config, clients).invoke(event, until).await
        }
        "deal-transition" => transition(bed).invoke(event, until).await,
        "outbox-relay" => Ok(ring(bed, event).await),
        _ => panic!("there is no function {function}"),
    }
}
