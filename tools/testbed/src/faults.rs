//! A network with faults, at the SDK's HTTP connector: what no local engine does by itself. Every call
//! of the three clients passes a script that lets it through, answers in its place, loses the reply,
//! or never comes back, as when the process dies.

use std::sync::{Arc, Mutex};

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use platform::aws::Clients;
use serde_json::{Value, json};

use crate::bed::Bed;

#[derive(Debug, Clone)]
pub enum Fault {
    None,
    /// Nobody answers.
    Unreachable,
    /// The call takes effect and its reply is lost.
    LostReply,
    /// Answered in the service's place.
    Answer(u16, Value),
    /// The call is made without this table: as a read of several tables may see one of them late.
    Blind(String),
    /// The call is made once somebody says so.
    Waits(Arc<tokio::sync::Notify>),
    /// The reply comes without the row at this position: a query is no snapshot.
    Hides(String),
    /// The call is never made: the process died before it.
    DiesBefore,
    /// The call is made and nobody is there for its reply: the process died after it.
    DiesAfter,
}

impl Fault {
    pub fn error(name: &str) -> Self {
        let name = format!("com.amazonaws.dynamodb.v20120810#{name}");
        Self::Answer(400, json!({"__type": name, "message": "injected"}))
    }

    /// A cancelled transaction with these reasons, one for each item.
    pub fn cancelled(codes: &[&str]) -> Self {
        let reasons: Vec<Value> = codes.iter().map(|code| json!({"Code": code})).collect();
        Self::Answer(
            400,
            json!({
                "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
                "Message": "Transaction cancelled",
                "CancellationReasons": reasons,
            }),
        )
    }
}

/// Decides what becomes of a call, by its operation's name.
type Script = dyn FnMut(&str) -> Fault + Send;

/// What happened on the faulty network.
#[derive(Clone)]
pub struct Network {
    script: Arc<Mutex<Box<Script>>>,
    calls: Arc<Mutex<Vec<(String, String)>>>,
    died: Arc<tokio::sync::Notify>,
    died_in: Arc<Mutex<String>>,
}

impl Network {
    pub fn new(script: impl FnMut(&str) -> Fault + Send + 'static) -> Self {
        Self {
            script: Arc::new(Mutex::new(Box::new(script))),
            calls: Arc::default(),
            died: Arc::default(),
            died_in: Arc::default(),
        }
    }

    /// The bed's clients on this network.
    pub fn clients(&self, bed: &Bed) -> Clients {
        let http = SharedHttpClient::new(FaultyClient {
            network: self.clone(),
            inner: aws_smithy_http_client::Builder::new().build_http(),
        });
        let clients = &bed.clients;
        let dynamodb = clients.dynamodb.config().to_builder().http_client(http.clone());
        let sqs = clients.sqs.config().to_builder().http_client(http.clone());
        let secrets = clients.secrets.config().to_builder().http_client(http);
        Clients {
            dynamodb: aws_sdk_dynamodb::Client::from_conf(dynamodb.build()),
            sqs: aws_sdk_sqs::Client::from_conf(sqs.build()),
            secrets: aws_sdk_secretsmanager::Client::from_conf(secrets.build()),
        }
    }

    /// The operations called so far.
    pub fn calls(&self) -> Vec<String> {
        let calls = self.calls.lock().expect("no panic under it");
        calls.iter().map(|(operation, _)| operation.clone()).collect()
    }

    /// The body of an operation's last call.
    pub fn last_body(&self, operation: &str) -> Option<Value> {
        let calls = self.calls.lock().expect("no panic under it");
        let last = calls.iter().rev().find(|(name, _)| name == operation)?;
        serde_json::from_str(&last.1).ok()
    }

    /// Comes back when the script let the process die, with the operation it died in.
    pub async fn death(&self) -> String {
        self.died.notified().await;
        self.died_in.lock().expect("no panic under it").clone()
    }
}

#[derive(Clone)]
struct FaultyClient {
    network: Network,
    inner: SharedHttpClient,
}

impl std::fmt::Debug for FaultyClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyClient")
    }
}

impl HttpClient for FaultyClient {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let inner = self.inner.http_connector(settings, components);
        SharedHttpConnector::new(FaultyConnector { network: self.network.clone(), inner })
    }
}

struct FaultyConnector {
    network: Network,
    inner: SharedHttpConnector,
}

impl std::fmt::Debug for FaultyConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyConnector")
    }
}

impl HttpConnector for FaultyConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        let body = String::from_utf8_lossy(request.body().bytes().unwrap_or_default()).into_owned();
        let mut calls = self.network.calls.lock().expect("no panic under it");
        calls.push((operation.clone(), body));
        drop(calls);
        let fault = (self.network.script.lock().expect("no panic under it"))(&operation);
        if matches!(fault, Fault::DiesBefore | Fault::DiesAfter) {
            self.network.died_in.lock().expect("no panic under it").clone_from(&operation);
        }
        let (inner, died) = (self.inner.clone(), self.network.died.clone());
        let lost = || ConnectorError::io("injected: the connection was lost".into());
        HttpConnectorFuture::new(async move {
            match fault {
                Fault::None => inner.call(request).await,
                Fault::Unreachable => Err(lost()),
                Fault::LostReply => {
                    inner.call(request).await?;
                    Err(lost())
                }
                Fault::Answer(status, body) => Ok(answer(status, &body)),
                Fault::Waits(signal) => {
                    signal.notified().await;
                    inner.call(request).await
                }
                Fault::Hides(position) => hide(inner.call(request).await?, &position).await,
                Fault::Blind(table) => inner.call(without(request, &table)).await,
                Fault::DiesBefore => {
                    died.notify_one();
                    std::future::pending().await
                }
                Fault::DiesAfter => {
                    inner.call(request).await?;
                    died.notify_one();
                    std::future::pending().await
                }
            }
        })
    }
}

/// The engines of the tests do not look at signatures, so a body can be changed on the way.
fn without(mut request: HttpRequest, table: &str) -> HttpRequest {
    let body = request.body().bytes().unwrap_or_default();
    let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(items) = body["RequestItems"].as_object_mut() {
        items.remove(table);
    }
    let body = body.to_string();
    request.headers_mut().insert("content-length", body.len().to_string());
    *request.body_mut() = SdkBody::from(body);
    request
}

async fn hide(reply: HttpResponse, position: &str) -> Result<HttpResponse, ConnectorError> {
    let body = ByteStream::new(reply.into_body()).collect().await;
    let body = body.map_err(|error| ConnectorError::io(error.into()))?.into_bytes();
    let mut body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(items) = body["Items"].as_array_mut() {
        items.retain(|item| item["position"]["S"] != position);
        body["Count"] = items.len().into();
    }
    Ok(answer(200, &body))
}

fn answer(status: u16, body: &Value) -> HttpResponse {
    let status = status.try_into().expect("a status code");
    HttpResponse::new(status, SdkBody::from(body.to_string()))
}
