//! `make sam-local`: every file in `events/` through the real `sam local invoke`, each on tables of its
//! own, and its answer held against the expected one. Where no container engine can be had, AWS's
//! runtime emulator from the SAM package takes its place, and the run says so.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use platform::catalog::OUTBOX_RELAY;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use testbed::bed::{Bed, deployed_env};
use testbed::broker::Broker;
use testbed::deployed::PREFIX;
use testbed::emulator::Emulator;
use testbed::ministack::Ministack;
use testbed::published;
use testbed::samples::{self, Sample};
use tokio::net::{TcpListener, TcpStream};

use crate::{Made, sam};

/// Where containers of that network find the emulator.
const COMPOSE_ENDPOINT: &str = "http://emulator:4566";
/// The image of users who have an engine: AWS's own, told where the emulator is.
const DERIVED_IMAGE: &str = "escrow-functions/provided:al2023";
const BASE_IMAGE: &str = "public.ecr.aws/lambda/provided:al2023-x86_64";

pub async fn run(root: &Path) -> Result<(), String> {
    std::fs::create_dir_all(root.join(".local")).map_err(|error| error.to_string())?;
    sam::build(root).await?;
    let ministack = Ministack::start(root).await?;
    let engine = Engine::start(root, &ministack.url).await;
    let runner = match engine {
        Ok(engine) => Runner::Containers(engine),
        Err(Absent::Nowhere(reason)) => {
            println!("\n**** NOT THROUGH `sam local invoke`: {reason}");
            println!(
                "**** AWS's runtime emulator, from the SAM package, runs the same files instead.\n"
            );
            Runner::Emulator
        }
        Err(Absent::Broken(reason)) => return Err(reason),
    };
    let _forwarder = match &runner {
        Runner::Containers(engine) => engine.forward(&ministack.url).await?,
        Runner::Emulator => None,
    };
    let begun = Instant::now();
    let (mut right, mut wrong) = (0, Vec::new());
    for sample in samples::all() {
        let bed = Bed::on(&ministack.url, &ministack.url, sample.function).await;
        samples::seed(&bed, sample.function, &sample.event).await;
        let answer = runner.invoke(root, &bed, &ministack.url, &sample).await?;
        if answer == sample.answer {
            right += 1;
            println!("  as expected   {}", sample.path());
        } else {
            println!(
                "  OTHERWISE     {}\n    {answer}\n    instead of {}",
                sample.path(),
                sample.answer
            );
            wrong.push(sample.path());
        }
    }
    let by = match runner {
        Runner::Containers(_) => "`sam local invoke`",
        Runner::Emulator => "the runtime emulator, NOT by `sam local invoke`",
    };
    let secs = begun.elapsed().as_secs();
    println!(
        "\n{right} events answered as expected, {} otherwise, in {secs} s, by {by}",
        wrong.len()
    );
    if wrong.is_empty() { Ok(()) } else { Err(format!("otherwise: {}", wrong.join(", "))) }
}

enum Runner {
    Containers(Engine),
    Emulator,
}

impl Runner {
    async fn invoke(
        &self,
        root: &Path,
        bed: &Bed,
        aws_url: &str,
        sample: &Sample,
    ) -> Result<Value, String> {
        match self {
            Self::Containers(engine) => engine.invoke(root, bed, sample).await,
            Self::Emulator => {
                let bootstrap = root.join(".aws-sam/build").join(logical_id(sample.function));
                let broker = Broker::embedded();
                published::create_topics(&broker).await;
                let (mut env, program) = (bed.function_env(aws_url), bootstrap.join("bootstrap"));
                env.insert("KAFKA_BROKERS".to_owned(), broker.brokers.clone());
                let emulator = Emulator::start(root, &program, &env, Stdio::null()).await?;
                emulator.invoke(&sample.event).await
            }
        }
    }
}

/// What `sam local invoke` tells each function about the emulator in infra/compose.yaml: SAM itself
/// knows no table's name before the template is deployed.
pub fn environment_file() -> Made {
    let env = samples::functions().map(|function| {
        let mut env: BTreeMap<_, _> =
            deployed_env(function.name, COMPOSE_ENDPOINT, PREFIX).into_iter().collect();
        if *function == OUTBOX_RELAY {
            env.retain(|name, _| outbox_relay::config::VARIABLES.contains(&name.as_str()));
        }
        (logical_id(function.name), json!(env))
    });
    let env: serde_json::Map<String, Value> = env.collect();
    Made {
        path: "infra/sam-local-env.json".to_owned(),
        text: format!("{:#}\n", Value::Object(env)),
    }
}

fn logical_id(function: &str) -> String {
    let parts = function.split('-').map(|part| {
        let (first, rest) = part.split_at(1);
        first.to_uppercase() + rest
    });
    parts.chain(["Function".to_owned()]).collect()
}

/// A container engine: the user's own, or one that `tools/container-engine` brought.
struct Engine {
    root: PathBuf,
    folder: PathBuf,
    image: String,
    gateway: String,
    host: String,
}

enum Absent {
    /// It cannot be had on this machine.
    Nowhere(String),
    Broken(String),
}

impl Engine {
    async fn start(root: &Path, aws_url: &str) -> Result<Self, Absent> {
        let broken = |error: std::io::Error| Absent::Broken(error.to_string());
        let port = aws_url.rsplit(':').next().unwrap_or_default();
        let folder = root.join(".local/engine");
        let output = tokio::process::Command::new(root.join("tools/container-engine"))
            .arg("start")
            .arg(&folder)
            .arg(format!("AWS_ENDPOINT_URL=http://{{gateway}}:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(broken)?
            .wait_with_output()
            .await
            .map_err(broken)?;
        let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => {}
            Some(3) => return Err(Absent::Nowhere(told)),
            _ => return Err(Absent::Broken(told)),
        }
        let text = std::fs::read_to_string(folder.join("env")).map_err(broken)?;
        let settings: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once('=')).collect();
        let get = |name: &str| settings.get(name).copied().unwrap_or_default().to_owned();
        let mut engine = Self {
            root: root.to_owned(),
            folder,
            image: get("IMAGE"),
            gateway: get("GATEWAY"),
            host: get("DOCKER_HOST"),
        };
        if engine.image.is_empty() {
            engine.derive_image(port).map_err(Absent::Broken)?;
        }
        Ok(engine)
    }

    /// SAM passes on only variables that the template names, and the template knows no emulator: an
    /// image may bring any.
    fn derive_image(&mut self, port: &str) -> Result<(), String> {
        let gateway = &self.gateway;
        let recipe = format!("FROM {BASE_IMAGE}\nENV AWS_ENDPOINT_URL=http://{gateway}:{port}\n");
        let mut child = std::process::Command::new("docker")
            .args(["build", "--quiet", "--tag", DERIVED_IMAGE, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("docker does not start: {error}"))?;
        let mut input = child.stdin.take().expect("it is piped");
        input.write_all(recipe.as_bytes()).map_err(|error| error.to_string())?;
        drop(input);
        let status = child.wait().map_err(|error| error.to_string())?;
        self.image = DERIVED_IMAGE.to_owned();
        if status.success() { Ok(()) } else { Err(format!("`docker build` ended with {status}")) }
    }

    /// A container cannot reach a loopback address of this machine. A way to it is opened on the
    /// engine's own bridge, for containers alone, as long as this lives.
    async fn forward(&self, aws_url: &str) -> Result<Option<Forwarder>, String> {
        // Docker Desktop's containers reach the loopback interface by a name.
        let Ok(gateway) = self.gateway.parse::<Ipv4Addr>() else { return Ok(None) };
        let fault = |error: std::io::Error| format!("no way for containers to {aws_url}: {error}");
        let port = aws_url.rsplit(':').next().and_then(|port| port.parse().ok());
        let port: u16 = port.ok_or("the emulator has no port")?;
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(fault)?;
        // Linux would take packets for this address on other interfaces too.
        if let Some(bridge) = bridge_of(gateway) {
            socket.bind_device(Some(bridge.as_bytes())).map_err(fault)?;
        }
        socket.set_reuse_address(true).map_err(fault)?;
        socket.bind(&SocketAddr::new(IpAddr::V4(gateway), port).into()).map_err(fault)?;
        socket.listen(16).and_then(|()| socket.set_nonblocking(true)).map_err(fault)?;
        let listener = TcpListener::from_std(socket.into()).map_err(fault)?;
        let task = tokio::spawn(async move {
            while let Ok((mut inside, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut outside) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                    }
                });
            }
        });
        Ok(Some(Forwarder(task)))
    }

    async fn invoke(&self, root: &Path, bed: &Bed, sample: &Sample) -> Result<Value, String> {
        let env = self.folder.join("env.json");
        std::fs::write(&env, json!({"Parameters": bed.env}).to_string())
            .map_err(|error| error.to_string())?;
        let mut command = tokio::process::Command::from(sam::command(root));
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"] {
            command.env_remove(name);
        }
        command
            .args(["local", "invoke", &logical_id(sample.function)])
            .args(["--template", sam::BUILT, "--event", &sample.path()])
            .arg("--env-vars")
            .arg(&env)
            .args(["--skip-pull-image", "--invoke-image", &self.image])
            // The settings in samconfig.toml are for compose's network.
            .args(["--config-env", "none"])
            .env("TMPDIR", &self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if !self.host.is_empty() {
            command.env("DOCKER_HOST", &self.host);
        }
        let output = command.output().await.map_err(|error| format!("sam: {error}"))?;
        let answer = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(answer.trim()).map_err(|_| {
            let told = String::from_utf8_lossy(&output.stderr);
            format!("{}: sam answered {answer:?}\n{told}", sample.path())
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let stop = std::process::Command::new(self.root.join("tools/container-engine"))
            .arg("stop")
            .arg(&self.folder)
            .status();
        if !stop.is_ok_and(|status| status.success()) {
            eprintln!("run `tools/container-engine stop {}`", self.folder.display());
        }
    }
}

struct Forwarder(tokio::task::JoinHandle<()>);

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The engine's bridge is named by the third part of its address.
fn bridge_of(gateway: Ipv4Addr) -> Option<String> {
    let name = format!("samlocal{}", gateway.octets()[2]);
    Path::new("/sys/class/net").join(&name).exists().then_some(name)
}
