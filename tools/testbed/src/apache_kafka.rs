//! Apache Kafka itself on loopback ports, where there is Java: the reference broker. It can be killed
//! and started again on what it kept.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::java::{self, Missing};
use crate::ministack::free_port;

/// Names the broker that tests use instead of the embedded one.
pub const BROKERS_VARIABLE: &str = "ESCROW_TEST_KAFKA_BROKERS";
/// 22 characters of base64, as Kafka wants it.
const CLUSTER_ID: &str = "escrowLocalClusterAAAA";

/// Who may log in where a login is wanted.
pub const USER: &str = "relay";
pub const PASSWORD: &str = "known-to-the-broker";

/// A listener that lets in nobody but `USER`, over TLS, by SCRAM-SHA-512 or PLAIN.
pub struct Guarded {
    pub brokers: String,
    /// Who vouches for the broker's certificate, as PEM.
    pub ca: String,
}

/// A running broker; dropping it stops it, and removes what it kept unless somebody named the folder.
pub struct ApacheKafka {
    pub brokers: String,
    port: u16,
    root: PathBuf,
    folder: PathBuf,
    is_kept: bool,
    process: Option<Child>,
}

impl ApacheKafka {
    /// A new one.
    pub async fn start(root: &Path) -> Result<Self, Missing> {
        let name = format!("escrow-kafka-{}-{}", std::process::id(), free_port());
        Self::start_in(root, &std::env::temp_dir().join(name), false).await
    }

    /// The one that was in this folder before, or a new one; what it keeps stays there.
    pub async fn resume_in(root: &Path, folder: &Path) -> Result<Self, Missing> {
        Self::start_in(root, folder, true).await
    }

    /// A new one, which has a guarded listener too.
    pub async fn start_guarded(root: &Path) -> Result<(Self, Guarded), Missing> {
        let broken = |error: &dyn std::error::Error| Missing::Broken(error.to_string());
        let name = format!("escrow-kafka-{}-{}", std::process::id(), free_port());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).map_err(|error| broken(&error))?;
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
        let made = made.map_err(|error| broken(&error))?;
        let ca = made.cert.pem();
        let store = format!("{}{ca}", made.signing_key.serialize_pem());
        std::fs::write(folder.join("keystore.pem"), store).map_err(|error| broken(&error))?;
        let port = free_port();
        let settings = settings(root, &folder, "server.properties").and_then(|all| {
            let more = settings(root, &folder, "guarded.properties")?;
            let guarded = format!(",GUARDED://127.0.0.1:{port}");
            let listens = |line: &str| {
                let is_list = ["listeners=", "advertised.listeners="];
                let ours = is_list.iter().any(|start| line.starts_with(start));
                format!("{line}{}\n", if ours { &guarded } else { "" })
            };
            let map = "listener.security.protocol.map=";
            let all = all.replace(map, &format!("{map}GUARDED:SASL_SSL,"));
            let more = more.replace("USER", USER).replace("PASSWORD", PASSWORD);
            Ok(all.lines().map(listens).collect::<String>() + &more)
        });
        let settings = settings.map_err(|error| broken(&error))?;
        std::fs::write(folder.join("server.properties"), settings)
            .map_err(|error| broken(&error))?;
        let kafka = Self::start_in(root, &folder, false).await?;
        Ok((kafka, Guarded { brokers: format!("127.0.0.1:{port}"), ca }))
    }

    async fn start_in(root: &Path, folder: &Path, is_kept: bool) -> Result<Self, Missing> {
        java::set_up(root, "apache-kafka").await?;
        let broken = |error: std::io::Error| Missing::Broken(error.to_string());
        std::fs::create_dir_all(folder).map_err(broken)?;
        let path = folder.join("server.properties");
        if !path.exists() {
            let settings = settings(root, folder, "server.properties").map_err(broken)?;
            std::fs::write(&path, settings).map_err(broken)?;
        }
        let settings = std::fs::read_to_string(&path).map_err(broken)?;
        let address = settings.lines().find_map(|line| line.split_once("PLAINTEXT://"));
        let brokers = address.and_then(|(_, rest)| rest.split(',').next()).unwrap_or_default();
        let port = brokers.rsplit(':').next().and_then(|port| port.parse().ok());
        let port =
            port.ok_or_else(|| Missing::Broken(format!("{} names no port", path.display())))?;
        let mut kafka = Self {
            brokers: brokers.to_owned(),
            port,
            root: root.to_owned(),
            folder: folder.to_owned(),
            is_kept,
            process: None,
        };
        kafka.format()?;
        kafka.resume().await?;
        Ok(kafka)
    }

    fn java(&self, class: &str) -> Command {
        let mut command = Command::new("java");
        let libraries = self.root.join(".tools/apache-kafka/lib/*");
        let logging = self.root.join("tools/apache-kafka/log4j2.properties");
        command
            .args(["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"])
            .arg(format!("-Dlog4j2.configurationFile={}", logging.display()))
            .arg("-cp")
            .arg(libraries)
            .arg(class)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    fn format(&self) -> Result<(), Missing> {
        let mut command = self.java("kafka.tools.StorageTool");
        command.args(["format", "--ignore-formatted", "-t", CLUSTER_ID, "-c", "server.properties"]);
        let user = format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]");
        command.args(["--add-scram", &user]);
        let output = command.output().map_err(|error| Missing::Broken(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Missing::Broken(format!("Kafka's storage cannot be formatted: {told}")))
    }

    /// Starts it on what it kept.
    pub async fn resume(&mut self) -> Result<(), Missing> {
        let broken = |error: std::io::Error| Missing::Broken(error.to_string());
        let log = self.root.join("target/kafka.log");
        let log = std::fs::File::create(log).map_err(broken)?;
        let mut command = self.java("kafka.Kafka");
        command.arg("server.properties").stdout(log.try_clone().map_err(broken)?).stderr(log);
        self.process = Some(command.spawn().map_err(broken)?);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(Missing::Broken(format!(
                    "Kafka ended with {status}; see target/kafka.log"
                )));
            }
            if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Missing::Broken("Kafka did not listen within 60 s; see target/kafka.log".to_owned()))
    }

    /// Waits until it ends by itself, or by somebody else's hand.
    pub async fn ended(&mut self) -> String {
        loop {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if let Some(status) = ended {
                return status.to_string();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Stops it where it is, so that it listens and answers nothing; or lets it go on.
    pub fn hang(&self, hangs: bool) {
        let id = self.process.as_ref().map(Child::id).expect("it runs").to_string();
        let signal = if hangs { "-STOP" } else { "-CONT" };
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "it cannot be signalled");
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A file of settings for a broker that keeps what it has in this folder.
fn settings(root: &Path, folder: &Path, name: &str) -> std::io::Result<String> {
    let settings = std::fs::read_to_string(root.join("tools/apache-kafka").join(name))?;
    Ok(settings
        .replace("CONTROLLER_PORT", &free_port().to_string())
        .replace("PORT", &free_port().to_string())
        .replace("FOLDER", &folder.display().to_string()))
}

impl Drop for ApacheKafka {
    fn drop(&mut self) {
        self.kill();
        if !self.is_kept {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
