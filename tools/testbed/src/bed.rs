//! One function's surroundings: its own tables, queues and secret under a name of their own, so that
//! tests never meet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::QueueAttributeName;
use domain::deal::Deal;
use domain::fact::Fact;
use domain::ids::DealId;
use domain::key::Key;
use platform::aws::Clients;
use platform::catalog::RESULT_FUNCTIONS;
use platform::config::Config;
use platform::store::item::{Item, to_json};
use platform::store::{Loaded, Store, rows};
use serde_json::Value;

use crate::{dynamodb_local, engine, ministack, records};

static BEDS: AtomicU64 = AtomicU64::new(0);

pub struct Bed {
    pub clients: Clients,
    pub env: HashMap<String, String>,
    pub config: Config,
    pub store: Store,
    pub dynamodb_url: String,
}

impl Bed {
    /// An engine of its own, or the one that the test runner names, and the SQS that it started.
    pub async fn new(function: &str) -> Self {
        if let Ok(url) = std::env::var(dynamodb_local::ENDPOINT_VARIABLE) {
            return Self::on(&url, &ministack::shared_endpoint(), function).await;
        }
        let engine = engine::Engine::start().await;
        Self::on(&engine.url(), &ministack::shared_endpoint(), function).await
    }

    pub async fn on(dynamodb_url: &str, aws_url: &str, function: &str) -> Self {
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("t{}-{number}-{function}", std::process::id());
        let clients = Clients {
            dynamodb: engine::client(dynamodb_url),
            sqs: ministack::sqs(aws_url),
            secrets: ministack::secrets(aws_url),
        };
        let tables = engine::create_tables(&clients.dynamodb, &prefix).await;
        let secret_id = format!("{prefix}-workers");
        let secret = clients.secrets.create_secret().name(&secret_id);
        secret.secret_string(records::SECRET).send().await.expect("the secret is created");
        let queue =
            async |name: &str| create_queue(&clients.sqs, &format!("{prefix}-{name}")).await;
        let key_id = format!("{prefix}-internal-api-key");
        let secret = clients.secrets.create_secret().name(&key_id);
        secret.secret_string(records::API_KEY).send().await.expect("the secret is created");
        let retry_url = queue("retry").await;
        let forward = RESULT_FUNCTIONS.iter().map(|each| format!("{}={retry_url}", each.name));
        let forward = forward.collect::<Vec<_>>().join(",");
        let env = HashMap::from([
            ("FORWARD_QUEUES".to_owned(), forward),
            ("INTERNAL_API_KEY_SECRET_ID".to_owned(), key_id),
            ("INTERNAL_ALLOWED_NETWORKS".to_owned(), "172.18.0.0/16,127.0.0.1/32".to_owned()),
            ("DEALS_TABLE".to_owned(), tables.deals),
            ("JOURNAL_TABLE".to_owned(), tables.journal),
            ("PROCESSED_TABLE".to_owned(), tables.processed),
            ("OUTBOX_TABLE".to_owned(), tables.outbox),
            ("OPERATIONS_TABLE".to_owned(), tables.operations),
            ("RETRY_QUEUE_URL".to_owned(), retry_url),
            ("DLQ_URL".to_owned(), queue("dlq").await),
            ("DOORBELL_QUEUE_URL".to_owned(), queue("doorbell.fifo").await),
            ("WORKER_SECRET_ID".to_owned(), secret_id),
        ]);
        let config = Config::read(&env).expect("the bed's settings are complete");
        let store = Store::new(clients.dynamodb.clone(), config.tables.clone());
        Self { clients, env, config, store, dynamodb_url: dynamodb_url.to_owned() }
    }

    /// The whole environment of a function here, as the template and Lambda would set it.
    pub fn function_env(&self, aws_url: &str) -> HashMap<String, String> {
        let mut env = self.env.clone();
        for (name, value) in [
            ("AWS_ENDPOINT_URL", aws_url),
            ("AWS_ENDPOINT_URL_DYNAMODB", &self.dynamodb_url),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_LAMBDA_FUNCTION_TIMEOUT", "60"),
        ] {
            env.insert(name.to_owned(), value.to_owned());
        }
        env
    }

    /// The tables of a deployed stack.
    pub fn deployed(endpoint: &str, prefix: &str) -> Self {
        let clients = Clients {
            dynamodb: engine::client(endpoint),
            sqs: ministack::sqs(endpoint),
            secrets: ministack::secrets(endpoint),
        };
        let env = deployed_env("deal-transition", endpoint, prefix);
        let config = Config::read(&env).expect("the settings are complete");
        let store = Store::new(clients.dynamodb.clone(), config.tables.clone());
        Self { clients, env, config, store, dynamodb_url: endpoint.to_owned() }
    }

    pub async fn deal(&self, id: DealId) -> Option<Loaded> {
        let request = self.clients.dynamodb.get_item().table_name(&self.config.tables.deals);
        let key = AttributeValue::S(id.to_string());
        let answer = request.key("deal_id", key).consistent_read(true).send().await;
        answer
            .expect("the engine answers")
            .item
            .map(|item| rows::deal_from_item(item).expect("reads"))
    }

    /// All deals, as their rows have them.
    pub async fn deals(&self) -> Vec<Deal> {
        let request = self.clients.dynamodb.scan().table_name(&self.config.tables.deals);
        let request = request.consistent_read(true).into_paginator().items();
        let items = request.send().collect::<Result<Vec<_>, _>>().await;
        let items = items.expect("the engine answers").into_iter();
        items.map(|item| rows::deal_from_item(item).expect("reads").deal).collect()
    }

    /// What the row of a key says came of it; None where there is no row.
    pub async fn result_of(&self, key: &Key) -> Option<String> {
        let request = self.clients.dynamodb.get_item().table_name(&self.config.tables.processed);
        let name = AttributeValue::S(key.as_str().to_owned());
        let answer = request.key("idempotency_key", name).consistent_read(true).send().await;
        let item = answer.expect("the engine answers").item?;
        item.get("result")?.as_s().ok().cloned()
    }

    pub async fn journal(&self, id: DealId) -> Vec<Fact> {
        let mut rows = self.journal_rows(id).await;
        rows.drain(..).map(|item| rows::fact_from_item(item).expect("a fact reads back")).collect()
    }

    pub async fn journal_rows(&self, id: DealId) -> Vec<Item> {
        let request = self.clients.dynamodb.query().table_name(&self.config.tables.journal);
        let answer = request
            .key_condition_expression("aggregate_id = :id")
            .expression_attribute_values(":id", AttributeValue::S(id.to_string()))
            .consistent_read(true)
            .send()
            .await;
        answer.expect("the engine answers").items.unwrap_or_default()
    }

    /// All rows of a table as JSON.
    pub async fn rows(&self, table: &str) -> Vec<Value> {
        let request = self.clients.dynamodb.scan().table_name(table).consistent_read(true);
        let pages = request.into_paginator().items().send().collect::<Result<Vec<_>, _>>().await;
        pages.expect("the engine answers").into_iter().map(to_json).collect()
    }

    /// How many rows a table has.
    pub async fn count(&self, table: &str) -> usize {
        let request = self.clients.dynamodb.scan().table_name(table).consistent_read(true);
        let request = request.select(aws_sdk_dynamodb::types::Select::Count);
        let pages = request.into_paginator().send().collect::<Result<Vec<_>, _>>().await;
        let pages = pages.expect("the engine answers").into_iter();
        pages.map(|page| usize::try_from(page.count).unwrap_or_default()).sum()
    }

    /// The deal as stored, after checking that it is the fold of its journal and sound.
    pub async fn sound_deal(&self, id: DealId) -> Deal {
        let stored = self.deal(id).await.expect("the deal is there").deal;
        let folded = Deal::fold(&self.journal(id).await).expect("the journal folds");
        assert_eq!(stored, folded, "the deal row is not the fold of its journal");
        domain::plan::check_deal(&stored).expect("the deal is sound");
        stored
    }

    /// The letters, in the order of their records.
    pub async fn letters(&self) -> Vec<Value> {
        let mut rows = self.rows(&self.config.tables.operations).await;
        rows.retain(|row| row["letter_id"].is_string());
        rows.sort_by_key(|row| row["offset"].as_str().map(str::to_owned));
        rows
    }

    /// Lets a letter's time come.
    pub async fn make_due(&self, letter: &Value) {
        let text = |value: &str| AttributeValue::S(value.to_owned());
        let key = |name: &str| text(letter[name].as_str().expect("a letter has its keys"));
        let request =
            self.clients.dynamodb.update_item().table_name(&self.config.tables.operations);
        let request = request
            .key("pk", key("pk"))
            .key("sk", key("sk"))
            .update_expression("SET not_before = :then")
            .expression_attribute_values(":then", text("2025-01-01T00:00:00.000Z"));
        request.send().await.expect("the engine answers");
    }

    /// All messages that wait in the outbox, in the order of their rows.
    pub async fn messages(&self) -> Vec<Value> {
        let mut rows = self.rows(&self.config.tables.outbox).await;
        rows.sort_by_key(|row| row["position"].as_str().map(str::to_owned));
        let messages = rows.into_iter().map(|mut row| row["messages"].take());
        messages.flat_map(|list| list.as_array().cloned().unwrap_or_default()).collect()
    }

    /// Takes what is in a queue now.
    pub async fn take(&self, queue_url: &str) -> Vec<Value> {
        let mut taken = Vec::new();
        loop {
            let request = self.clients.sqs.receive_message().queue_url(queue_url);
            let answer = request.max_number_of_messages(10).wait_time_seconds(0).send().await;
            let messages = answer.expect("SQS answers").messages.unwrap_or_default();
            if messages.is_empty() {
                return taken;
            }
            for message in messages {
                let request = self.clients.sqs.delete_message().queue_url(queue_url);
                let handle = message.receipt_handle.expect("a message has a handle");
                request.receipt_handle(handle).send().await.expect("SQS answers");
                let body = message.body.expect("a message has a body");
                taken.push(serde_json::from_str(&body).expect("our messages are JSON"));
            }
        }
    }
}

/// What the deployed template sets for a function, where it is not a rule.
pub fn deployed_env(function: &str, endpoint: &str, prefix: &str) -> HashMap<String, String> {
    let table = |name: &str| format!("{prefix}-{name}");
    let queue = |name: &str| format!("{endpoint}/000000000000/{prefix}-{name}");
    let forward = RESULT_FUNCTIONS.iter().map(|each| {
        let (name, retry) = (each.name, queue(&format!("{}-retry", each.name)));
        format!("{name}={retry}")
    });
    let env = [
        ("DEALS_TABLE", table("deals")),
        ("JOURNAL_TABLE", table("journal")),
        ("PROCESSED_TABLE", table("processed")),
        ("OUTBOX_TABLE", table("outbox")),
        ("OPERATIONS_TABLE", table("operations")),
        ("RETRY_QUEUE_URL", queue(&format!("{function}-retry"))),
        ("DLQ_URL", queue(&format!("{function}-dlq"))),
        ("DOORBELL_QUEUE_URL", queue("outbox-doorbell.fifo")),
        ("FORWARD_QUEUES", forward.collect::<Vec<_>>().join(",")),
        ("WORKER_SECRET_ID", format!("{prefix}/worker-signing-key")),
        ("INTERNAL_API_KEY_SECRET_ID", format!("{prefix}/internal-api-key")),
    ];
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

async fn create_queue(sqs: &aws_sdk_sqs::Client, name: &str) -> String {
    let request = sqs.create_queue().queue_name(name);
    let request = if name.ends_with(".fifo") {
        request.attributes(QueueAttributeName::FifoQueue, "true")
    } else {
        request
    };
    request.send().await.expect("the queue is created").queue_url.expect("a queue has a URL")
}
