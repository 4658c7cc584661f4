//! AWS's own Lambda runtime emulator, running a function's real bootstrap on loopback ports.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::ministack::free_port;

/// A function behind the emulator; dropping it stops both.
pub struct Emulator {
    /// The address of the emulated Lambda service; its one function is called `function`.
    pub endpoint: String,
    process: Child,
}

impl Emulator {
    /// `env` is the function's whole environment, as the template would set it.
    pub async fn start(
        root: &Path,
        bootstrap: &Path,
        env: &HashMap<String, String>,
        log: Stdio,
    ) -> Result<Self, String> {
        let program = emulator_program(root)?;
        let (port, runtime_port) = (free_port(), free_port());
        let process = Command::new(program)
            .args(["--log-level", "error"])
            .args(["--runtime-interface-emulator-address", &format!("127.0.0.1:{port}")])
            .args(["--runtime-api-address", &format!("127.0.0.1:{runtime_port}")])
            .arg(bootstrap)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("the runtime emulator does not start: {error}"))?;
        let endpoint = format!("http://127.0.0.1:{port}");
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(Self { endpoint, process });
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Err("the runtime emulator did not listen within 5 s".to_owned())
    }

    pub async fn invoke(&self, event: &Value) -> Result<Value, String> {
        let url = format!("{}/2015-03-31/functions/function/invocations", self.endpoint);
        let body = event.to_string();
        let call = move || -> Result<String, ureq::Error> {
            ureq::post(&url).send(body)?.body_mut().read_to_string()
        };
        let answer = tokio::task::spawn_blocking(call).await.map_err(|error| error.to_string())?;
        let answer = answer.map_err(|error| format!("the emulator does not answer: {error}"))?;
        serde_json::from_str(&answer).map_err(|_| format!("the function answered: {answer}"))
    }
}

impl Emulator {
    /// Kills the function's process, and nothing else, as `kill -9` does. False where none runs.
    pub fn kill_function(&self) -> bool {
        self.signal_function("-KILL")
    }

    /// Stops the function where it is, so that it answers no more.
    pub fn hang_function(&self) -> bool {
        self.signal_function("-STOP")
    }

    fn signal_function(&self, signal: &str) -> bool {
        let Some(id) = self.process.id() else { return false };
        // Any of its threads may have started it.
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
        let children: String = children.filter_map(Result::ok).collect();
        let send = |child: &str| {
            let sent = std::process::Command::new("kill").args([signal, child]).status();
            sent.is_ok_and(|status| status.success())
        };
        children.split_whitespace().any(send)
    }
}

/// It comes inside the SAM CLI's package.
fn emulator_program(root: &Path) -> Result<std::path::PathBuf, String> {
    let hint = "the SAM CLI is not installed: run `tools/setup sam`";
    let libraries = root.join(".tools/sam/lib");
    let mut pythons = std::fs::read_dir(libraries).map_err(|_| hint)?.flatten();
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" };
    let place = format!("site-packages/samcli/local/rapid/aws-lambda-rie-{machine}");
    let program = pythons.find_map(|python| {
        let program = python.path().join(&place);
        program.exists().then_some(program)
    });
    program.ok_or_else(|| hint.to_owned())
}
