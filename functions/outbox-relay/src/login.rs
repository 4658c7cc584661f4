//! How the relay logs in to the brokers: librdkafka's settings for each way, and MSK's token, which is
//! a signed URL.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign,
};
use aws_sigv4::sign::v4;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use platform::clock;
use platform::secrets::FromVersions;
use rdkafka::ClientConfig;
use rdkafka::client::OAuthToken;
use serde_json::Value;

use crate::config::Auth;

/// MSK takes a token for this long.
const TOKEN_LIFETIME: Duration = Duration::from_secs(900);

/// What the brokers' secret says, as MSK wants it; `ca` besides, for brokers whose certificate is
/// nobody's that the system knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    Known { username: String, password: String, ca: Option<String> },
    Unreadable,
}

impl FromVersions for Login {
    fn from_versions(versions: &[String]) -> Self {
        let current = versions.first().map(String::as_str).unwrap_or_default();
        let secret: Value = serde_json::from_str(current).unwrap_or_default();
        let text = |name: &str| secret[name].as_str().map(str::to_owned);
        match (text("username"), text("password")) {
            (Some(username), Some(password)) => Self::Known { username, password, ca: text("ca") },
            _ => Self::Unreadable,
        }
    }
}

/// Adds what a way to log in needs to a producer's settings.
pub fn settings(
    config: &mut ClientConfig,
    auth: &Auth,
    login: Option<&Login>,
) -> Result<(), String> {
    let mechanism = match auth {
        Auth::None => return Ok(()),
        Auth::Iam { .. } => "OAUTHBEARER",
        Auth::Scram { .. } => "SCRAM-SHA-512",
        Auth::Plain { .. } => "PLAIN",
    };
    config.set("security.protocol", "SASL_SSL").set("sasl.mechanisms", mechanism);
    // Whom the system trusts. The OpenSSL in here was built elsewhere and looks in no place that exists.
    config.set("ssl.ca.location", "probe");
    match (auth, login) {
        (Auth::None | Auth::Iam { .. }, _) => Ok(()),
        (_, Some(Login::Known { username, password, ca })) => {
            config.set("sasl.username", username).set("sasl.password", password);
            if let Some(ca) = ca {
                config.remove("ssl.ca.location");
                config.set("ssl.ca.pem", ca);
            }
            Ok(())
        }
        (_, Some(Login::Unreadable) | None) => {
            Err("the brokers' secret is not {\"username\": …, \"password\": …}".to_owned())
        }
    }
}

/// MSK's token for the function's own role.
pub fn msk_token(region: &str) -> Result<OAuthToken, String> {
    let now_ms = u64::try_from(clock::now().as_millis()).unwrap_or_default();
    token(region, credentials()?, UNIX_EPOCH + Duration::from_millis(now_ms))
}

/// Lambda gives a sandbox its credentials in its environment, for as long as it lives.
fn credentials() -> Result<Credentials, String> {
    let get = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let session = std::env::var("AWS_SESSION_TOKEN").ok();
    let (id, key) = (get("AWS_ACCESS_KEY_ID")?, get("AWS_SECRET_ACCESS_KEY")?);
    Ok(Credentials::new(id, key, session, None, "environment"))
}

fn token(region: &str, credentials: Credentials, now: SystemTime) -> Result<OAuthToken, String> {
    let url = format!("https://kafka.{region}.amazonaws.com/?Action=kafka-cluster%3AConnect");
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(TOKEN_LIFETIME);
    let principal_name = credentials.access_key_id().to_owned();
    let identity = credentials.into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("kafka-cluster")
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?
        .into();
    let body = SignableBody::Bytes(&[]);
    let request = SignableRequest::new("GET", &url, std::iter::empty(), body);
    let signed = sign(request.map_err(|error| error.to_string())?, &parameters);
    let (instructions, _) = signed.map_err(|error| error.to_string())?.into_parts();
    let mut signed = http::Request::get(&url).body(()).map_err(|error| error.to_string())?;
    instructions.apply_to_request_http1x(&mut signed);
    let token = format!("{}&User-Agent=escrow-functions", signed.uri());
    let until = now + TOKEN_LIFETIME;
    let lifetime = until.duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    Ok(OAuthToken {
        token: URL_SAFE_NO_PAD.encode(token),
        principal_name,
        lifetime_ms: i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(session: Option<&str>) -> Credentials {
        Credentials::new("AKID", "secret", session.map(str::to_owned), None, "test")
    }

    #[test]
    fn msk_gets_a_presigned_url_of_its_own_action() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let made = token("eu-west-1", credentials(Some("a/b+c")), now).unwrap();
        assert_eq!(made.lifetime_ms, 1_700_000_900_000);
        let url = String::from_utf8(URL_SAFE_NO_PAD.decode(&made.token).unwrap()).unwrap();
        let (address, query) = url.split_once('?').unwrap();
        assert_eq!(address, "https://kafka.eu-west-1.amazonaws.com/");
        let fields: Vec<&str> = query.split('&').collect();
        for field in [
            "Action=kafka-cluster%3AConnect",
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Credential=AKID%2F20231114%2Feu-west-1%2Fkafka-cluster%2Faws4_request",
            "X-Amz-Date=20231114T221320Z",
            "X-Amz-Expires=900",
            "X-Amz-SignedHeaders=host",
            "X-Amz-Security-Token=a%2Fb%2Bc",
            "User-Agent=escrow-functions",
        ] {
            assert!(fields.contains(&field), "{field} is missing in {url}");
        }
        assert!(fields.iter().any(|field| field.starts_with("X-Amz-Signature=")), "{url}");
        let other = token("eu-west-2", credentials(None), now).unwrap();
        assert_ne!(made.token, other.token);
    }

    #[test]
    fn a_secret_is_msks_or_says_that_it_is_not() {
        let read = |text: &str| Login::from_versions(&[text.to_owned(), "older".to_owned()]);
        let known =
            Login::Known { username: "relay".to_owned(), password: "pass".to_owned(), ca: None };
        assert_eq!(read(r#"{"username":"relay","password":"pass"}"#), known);
        let auth = Auth::Scram { secret_id: "login".to_owned() };
        for text in ["", "pass", r#"{"username":"relay"}"#] {
            let error = settings(&mut ClientConfig::new(), &auth, Some(&read(text))).unwrap_err();
            assert!(error.contains("username"), "{error}");
        }
    }

    #[test]
    fn every_login_but_none_is_encrypted_and_trusts_whom_the_system_trusts() {
        let secret_id = "login".to_owned();
        let login = |ca: Option<&str>| Login::Known {
            username: "relay".to_owned(),
            password: "pass".to_owned(),
            ca: ca.map(str::to_owned),
        };
        for (auth, mechanism) in [
            (Auth::Iam { region: "eu-west-1".to_owned() }, "OAUTHBEARER"),
            (Auth::Scram { secret_id: secret_id.clone() }, "SCRAM-SHA-512"),
            (Auth::Plain { secret_id: secret_id.clone() }, "PLAIN"),
        ] {
            let mut config = ClientConfig::new();
            settings(&mut config, &auth, Some(&login(None))).unwrap();
            assert_eq!(config.get("security.protocol"), Some("SASL_SSL"));
            assert_eq!(config.get("sasl.mechanisms"), Some(mechanism));
            assert_eq!(config.get("ssl.ca.location"), Some("probe"));
            assert_eq!(config.get("ssl.ca.pem"), None);
        }
        let mut config = ClientConfig::new();
        settings(&mut config, &Auth::Scram { secret_id }, Some(&login(Some("PEM")))).unwrap();
        assert_eq!((config.get("ssl.ca.location"), config.get("ssl.ca.pem")), (None, Some("PEM")));
    }
}
