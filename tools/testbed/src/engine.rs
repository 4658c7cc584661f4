//! The embedded DynamoDB engine (dynoxide) on a loopback port, with the tables of infra/data.yaml.

use std::net::SocketAddr;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType,
};
use platform::config::Tables;

/// Key attributes of a table or index, `N` after a number's name.
pub struct TableShape {
    pub name: &'static str,
    pub keys: &'static [(&'static str, ScalarAttributeType)],
    pub index: Option<IndexShape>,
}

pub struct IndexShape {
    pub name: &'static str,
    pub keys: &'static [(&'static str, ScalarAttributeType)],
    /// Attributes beside the keys; none for keys only.
    pub includes: &'static [&'static str],
}

const S: ScalarAttributeType = ScalarAttributeType::S;
const N: ScalarAttributeType = ScalarAttributeType::N;

/// The same as in infra/data.yaml; `make check` compares the two.
pub const TABLES: &[TableShape] = &[
    TableShape {
        name: "deals",
        keys: &[("deal_id", S)],
        index: Some(IndexShape {
            name: "deadlines",
            keys: &[("look_bucket", S), ("next_look_at", N)],
            includes: &[],
        }),
    },
    TableShape {
        name: "journal",
        keys: &[("aggregate_id", S), ("seq", N)],
        index: Some(IndexShape {
            name: "by-day",
            keys: &[("day_shard", S), ("event_id", S)],
            includes: &["postings", "event_type"],
        }),
    },
    TableShape { name: "processed", keys: &[("idempotency_key", S)], index: None },
    TableShape { name: "outbox", keys: &[("bucket", S), ("position", S)], index: None },
    TableShape {
        name: "operations",
        keys: &[("pk", S), ("sk", S)],
        index: Some(IndexShape {
            name: "lists",
            keys: &[("list_pk", S), ("list_sk", S)],
            includes: &["function", "class", "due_at", "error", "deal_id", "attempts"],
        }),
    },
];

/// A running engine; it ends with the process.
pub struct Engine {
    pub address: SocketAddr,
}

impl Engine {
    pub async fn start() -> Self {
        let database = dynoxide::Database::memory().expect("an in-memory engine opens");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let forever = std::future::pending::<()>();
        tokio::spawn(async move {
            let _ = dynoxide::server::serve_with_shutdown(listener, database, forever).await;
        });
        Self { address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A client for a local endpoint, with the limits that the functions have.
pub fn client(url: &str) -> Client {
    Client::from_conf(settings(url).build())
}

pub fn settings(url: &str) -> aws_sdk_dynamodb::config::Builder {
    aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::for_tests())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .timeout_config(platform::aws::timeouts())
        .retry_config(platform::aws::retries())
        .endpoint_url(url)
}

/// Creates the tables under a prefix of their own.
pub async fn create_tables(client: &Client, prefix: &str) -> Tables {
    for shape in TABLES {
        let index_keys = shape.index.iter().flat_map(|index| index.keys);
        let attributes = shape.keys.iter().chain(index_keys).map(|(name, kind)| {
            let attribute = AttributeDefinition::builder().attribute_name(*name);
            attribute.attribute_type(kind.clone()).build().expect("name and type are set")
        });
        let request = client
            .create_table()
            .table_name(format!("{prefix}-{}", shape.name))
            .billing_mode(BillingMode::PayPerRequest)
            .set_attribute_definitions(Some(attributes.collect()))
            .set_key_schema(Some(schema(shape.keys)));
        let request = match &shape.index {
            Some(index) => request.global_secondary_indexes(global_index(index)),
            None => request,
        };
        request.send().await.expect("the table is created");
    }
    Tables {
        deals: format!("{prefix}-deals"),
        journal: format!("{prefix}-journal"),
        processed: format!("{prefix}-processed"),
        outbox: format!("{prefix}-outbox"),
        operations: format!("{prefix}-operations"),
    }
}

fn schema(keys: &[(&str, ScalarAttributeType)]) -> Vec<KeySchemaElement> {
    let kinds = [KeyType::Hash, KeyType::Range];
    let element = |((name, _), kind): (&(&str, ScalarAttributeType), KeyType)| {
        KeySchemaElement::builder().attribute_name(*name).key_type(kind).build()
    };
    keys.iter().zip(kinds).map(|pair| element(pair).expect("name and kind are set")).collect()
}

fn global_index(index: &IndexShape) -> GlobalSecondaryIndex {
    let projection = Projection::builder();
    let projection = if index.includes.is_empty() {
        projection.projection_type(ProjectionType::KeysOnly)
    } else {
        let names = index.includes.iter().map(|name| (*name).to_owned()).collect();
        projection.projection_type(ProjectionType::Include).set_non_key_attributes(Some(names))
    };
    GlobalSecondaryIndex::builder()
        .index_name(index.name)
        .set_key_schema(Some(schema(index.keys)))
        .projection(projection.build())
        .build()
        .expect("name and keys are set")
}
