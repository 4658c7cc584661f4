//! The project's chores: `xtask test | events | diagram | catalog | invoke | demo`. The Makefile
//! calls it; each part says by itself what it needs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[path = "xtask/demo.rs"]
mod demo;
#[path = "xtask/diagram.rs"]
mod diagram;
#[path = "xtask/invoke.rs"]
mod invoke;
#[path = "xtask/stack.rs"]
mod stack;
#[path = "xtask/tests.rs"]
mod tests;

use testbed::samples;

const USAGE: &str = "usage:
  xtask test                          all tests, with the servers they need
  xtask test-deployed                 the template deployed on ministack, and driven
  xtask events [--check]              make the files in events/, or see that they are in step
  xtask diagram [--check]             make docs/state-machine.md, or see that it is in step
  xtask catalog                       what the code says about functions, settings and tables
  xtask invoke FUNCTION EVENT         run a function's real bootstrap on an event file
  xtask demo                          the money path, with duplicates, forgeries and retries
  xtask up                            the template deployed on ministack, with Kafka behind it
  xtask send EVENT                    an event file's records, onto that Kafka
  xtask down                          stops what `up` started
  xtask broker FILE                   the embedded broker alone; its address goes to the file";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let done = match words.as_slice() {
        ["test"] => tests::run(&root).await,
        ["test-deployed"] => tests::run_deployed(&root).await,
        ["events"] => made().iter().try_for_each(|file| file.write(&root)),
        ["events", "--check"] => {
            made().iter().try_for_each(|file| file.check(&root, "make events"))
        }
        ["diagram"] => diagram::page().write(&root),
        ["diagram", "--check"] => diagram::page().check(&root, "make diagram"),
        ["catalog"] => {
            println!("{:#}", testbed::catalog::json());
            Ok(())
        }
        ["invoke", function, event] => invoke::run(&root, function, event).await,
        ["demo"] => demo::run(&root).await,
        ["up"] => stack::up(&root).await.map(drop),
        ["down"] => stack::down(&root),
        ["send", event] => stack::send(&root, event).await,
        ["broker", address] => stack::broker(Path::new(address)).await,
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate lies two folders deep").to_owned()
}

/// A file that is made from the code.
pub struct Made {
    path: String,
    text: String,
}

impl Made {
    fn write(&self, root: &Path) -> Result<(), String> {
        let path = root.join(&self.path);
        let folder = path.parent().expect("a file has a folder");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, &self.text))
            .map_err(|error| format!("{}: {error}", self.path))
    }

    fn check(&self, root: &Path, fix: &str) -> Result<(), String> {
        match std::fs::read_to_string(root.join(&self.path)) {
            Ok(text) if text == self.text => Ok(()),
            Ok(_) => Err(format!("{} is out of step with the code: run `{fix}`", self.path)),
            Err(error) => Err(format!("{}: {error}: run `{fix}`", self.path)),
        }
    }
}

fn made() -> Vec<Made> {
    let events = samples::all().into_iter();
    let events = events.map(|sample| Made { path: sample.path(), text: sample.file() });
    let page = Made { path: "events/README.md".to_owned(), text: samples::page() };
    events.chain([page]).collect()
}
