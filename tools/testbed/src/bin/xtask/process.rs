//! Processes that outlive the command that starts them, and are stopped by their pids: each leads a
//! group of its own, so that what it starts goes with it.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt as _;
use tokio::signal::unix::{SignalKind, signal};

/// A process, and when it began: a pid alone may be somebody else's by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub name: String,
    pub pid: u32,
    pub began: u64,
}

impl Running {
    /// Starts a program whose output goes to `.local/<name>.log`.
    pub fn start(root: &Path, name: &str, mut command: Command) -> Result<Self, String> {
        let log = root.join(format!(".local/{name}.log"));
        let file =
            std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let child = command.spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        let pid = child.id();
        // Nobody may wait for it later; a thread does, so that it never stays a zombie.
        std::thread::spawn(move || child.wait_with_output());
        let began =
            began(pid).ok_or_else(|| format!("{name} ended at once; see .local/{name}.log"))?;
        Ok(Self { name: name.to_owned(), pid, began })
    }

    pub fn is_alive(&self) -> bool {
        began(self.pid) == Some(self.began)
    }

    /// Ends it and all that it started, politely first.
    pub fn stop(&self) {
        for (signal, patience) in
            [("-TERM", Duration::from_secs(10)), ("-KILL", Duration::from_secs(5))]
        {
            if self.group().is_empty() {
                return;
            }
            kill(signal, self.pid);
            let begun = Instant::now();
            while !self.group().is_empty() && begun.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Who is left of its group. None where the pid belongs to somebody else by now: a group's number
    /// is not given away while it has members.
    fn group(&self) -> Vec<u32> {
        if began(self.pid).is_some_and(|began| began != self.began) {
            return Vec::new();
        }
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| field(*pid, GROUP) == Some(u64::from(self.pid))).collect()
    }
}

/// Runs a program to its end, and what it started with it; dropped before, it stops them all.
pub async fn run(root: &Path, name: &str, command: Command) -> Result<ExitStatus, String> {
    struct Stop(u32);
    impl Drop for Stop {
        fn drop(&mut self) {
            kill("-KILL", self.0);
        }
    }
    let log = root.join(format!(".local/{name}.log"));
    let file =
        std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let copy = file.try_clone().map_err(|error| error.to_string())?;
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{name} does not start: {error}"))?;
    let stop = child.id().map(Stop);
    let status = child.wait().await.map_err(|error| error.to_string())?;
    std::mem::forget(stop);
    Ok(status)
}

/// Signals a whole group.
fn kill(signal: &str, group: u32) {
    let group = format!("-{group}");
    let _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
}

/// Fields of `/proc/<pid>/stat`, counted from the one after the name.
const GROUP: usize = 2;
const BEGAN: usize = 19;

/// In clock ticks since the machine started; None for a process that is gone.
fn began(pid: u32) -> Option<u64> {
    field(pid, BEGAN)
}

/// None for a process that is gone, or a zombie.
fn field(pid: u32, number: usize) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if fields.first() == Some(&"Z") { None } else { fields.get(number)?.parse().ok() }
}

/// Ends when somebody wants this program to end: by Ctrl-C, by `kill`, or by closing the terminal.
pub async fn interrupted() {
    let of = |kind| signal(kind).expect("signals can be heard");
    let (mut interrupt, mut terminate, mut hangup) =
        (of(SignalKind::interrupt()), of(SignalKind::terminate()), of(SignalKind::hangup()));
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// Does something unless it is interrupted; then it is dropped where it stands, and whatever it holds
/// is stopped with it. For the outermost work alone: signals that nobody waits for are lost.
pub async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::select! {
        done = work => done,
        () = interrupted() => Err("interrupted".to_owned()),
    }
}
