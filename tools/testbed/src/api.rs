//! The deployed internal API, called as the backend calls it: with the key, and signed for IAM.

use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use platform::clock;
use serde_json::Value;

use crate::records::API_KEY;

/// An API of an emulator: there they are reached by a path, not by a host name of their own.
#[derive(Clone)]
pub struct Api {
    url: String,
}

impl Api {
    /// Looks an API up by its name.
    pub async fn find(endpoint: &str, name: &str) -> Result<Self, String> {
        let answer = send("GET", format!("{endpoint}/restapis"), None, "apigateway").await?;
        let items = answer.1["item"].as_array().cloned().unwrap_or_default();
        let id =
            items.iter().find(|item| item["name"] == name).and_then(|item| item["id"].as_str());
        let id =
            id.ok_or_else(|| format!("{endpoint} has no API {name}: is the template deployed?"))?;
        Ok(Self { url: format!("{endpoint}/restapis/{id}/live/_user_request_") })
    }

    /// The status and the JSON of the answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value), String> {
        send("POST", format!("{}{path}", self.url), Some(body.to_string()), "execute-api").await
    }
}

async fn send(
    method: &'static str,
    url: String,
    body: Option<String>,
    service: &'static str,
) -> Result<(u16, Value), String> {
    let work = move || send_now(method, &url, body.unwrap_or_default(), service);
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

fn send_now(method: &str, url: &str, body: String, service: &str) -> Result<(u16, Value), String> {
    let mut request = http::Request::builder().method(method).uri(url);
    for (name, value) in signature(method, url, &body, service)? {
        request = request.header(name, value);
    }
    let request = request
        .header("Content-Type", "application/json")
        .header("X-Internal-Api-Key", API_KEY)
        .body(body)
        .map_err(|error| error.to_string())?;
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent.run(request).map_err(|error| format!("{method} {url}: {error}"))?;
    let status = answer.status().as_u16();
    let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}

/// The headers of a Signature Version 4.
fn signature(
    method: &str,
    url: &str,
    body: &str,
    service: &str,
) -> Result<Vec<(String, String)>, String> {
    let now_ms = u64::try_from(clock::now().as_millis()).unwrap_or_default();
    let since_epoch = Duration::from_millis(now_ms);
    let identity = Credentials::for_tests().into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region("us-east-1")
        .name(service)
        .time(UNIX_EPOCH + since_epoch)
        .settings(SigningSettings::default())
        .build()
        .map_err(|error| error.to_string())?
        .into();
    let body = SignableBody::Bytes(body.as_bytes());
    let request = SignableRequest::new(method, url, std::iter::empty(), body);
    let signed = sign(request.map_err(|error| error.to_string())?, &parameters);
    let (instructions, _) = signed.map_err(|error| error.to_string())?.into_parts();
    let headers = instructions.headers();
    Ok(headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}
