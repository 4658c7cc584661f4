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

    async fn start_in(root: &Path, folder: &Path, is_kept: bool) -> Result<Self, Missing> {
        java::set_up(root, "apache-kafka").await?;
        let broken = |error: std::io::Error| Missing::Broken(error.to_string());
        std::fs::create_dir_all(folder).map_err(broken)?;
        let path = folder.join("server.properties");
        if !path.exists() {
            let settings = root.join("tools/apache-kafka/server.properties");
            let settings = std::fs::read_to_string(settings).map_err(broken)?;
            let settings = settings
                .replace("CONTROLLER_PORT", &free_port().to_string())
                .replace("PORT", &free_port().to_string())
                .replace("FOLDER", &folder.display().to_string());
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

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for ApacheKafka {
    fn drop(&mut self) {
        self.kill();
        if !self.is_kept {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
