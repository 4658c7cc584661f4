//! The project's chores: `xtask test | events | diagram | catalog | invoke | demo`. The Makefile
//! calls it; each part says by itself what it needs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod bench;
mod demo;
mod diagram;
mod invoke;
mod process;
mod sam;
mod sam_local;
mod send;
mod stack;
mod tests;

use testbed::{samples, schemas};

const USAGE: &str = "usage:
  xtask test                          all tests, with the servers they need
  xtask soak                          fifty thousand facts through relays and a broker that are killed
  xtask bench-relay                   the relay against a bare rdkafka loop, and its idle pass
  xtask stories                       tell the stories, and write down what they told
  xtask events [--check]              make the files in events/ and what SAM needs for them, or
                                      see that they are in step
  xtask diagram [--check]             make docs/state-machine.md, or see that it is in step
  xtask schemas [--check|--release]   make docs/events.md, or see that it is in step, or write down
                                      what consumers rely on from now on
  xtask catalog                       what the code says about functions, settings and tables
  xtask invoke FUNCTION EVENT         run a function's real bootstrap on an event file
  xtask sam-local                     every event file through `sam local invoke`
  xtask demo                          deals by the hundred on the deployed template, with trouble
  xtask up                            the template deployed on ministack, with Kafka behind it;
                                      KAFKA=apache for Apache Kafka, ENDPOINT=URL for your emulator
  xtask send EVENT                    an event file's records, onto that Kafka
  xtask down                          stops what `up` started
  xtask broker KIND FILE              a broker alone; its address goes to the file
  xtask worker BROKERS FILE           sends the records in the file, one after the other";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match process::unless_interrupted(run(&root(), &words)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    match words {
        ["test"] => tests::run(root).await,
        ["bench-relay"] => bench::relay(root).await,
        ["soak"] => tests::soak(root).await,
        ["stories"] => tests::renew_stories(root).await,
        ["events"] => made().iter().try_for_each(|file| file.write(root)),
        ["events", "--check"] => made().iter().try_for_each(|file| file.check(root, "make events")),
        ["diagram"] => diagram::page().write(root),
        ["diagram", "--check"] => diagram::page().check(root, "make diagram"),
        ["schemas"] => events_page(root)?.write(root),
        ["schemas", "--check"] => events_page(root)?.check(root, "make schemas"),
        ["schemas", "--release"] => released_fields(root)?.write(root),
        ["catalog"] => {
            println!("{:#}", testbed::catalog::json());
            Ok(())
        }
        ["invoke", function, event] => invoke::run(root, function, event).await,
        ["sam-local"] => sam_local::run(root).await,
        ["demo"] => demo::run(root).await,
        ["up"] => stack::up(root).await,
        ["down"] => stack::down(root),
        ["send", event] => send::run(root, event).await,
        ["broker", kind, address] => stack::broker(root, kind, Path::new(address)).await,
        ["worker", brokers, file] => demo::worker(brokers, Path::new(file)).await,
        _ => Err(USAGE.to_owned()),
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

fn events_page(root: &Path) -> Result<Made, String> {
    Ok(Made { path: schemas::PAGE.to_owned(), text: schemas::page(&schemas::all(root)?) })
}

fn released_fields(root: &Path) -> Result<Made, String> {
    let fields = schemas::release(&schemas::all(root)?);
    Ok(Made { path: schemas::RELEASED.to_owned(), text: format!("{fields:#}\n") })
}

fn made() -> Vec<Made> {
    let events = samples::all().into_iter();
    let events = events.map(|sample| Made { path: sample.path(), text: sample.file() });
    let page = Made { path: "events/README.md".to_owned(), text: samples::page() };
    events.chain([page, sam_local::environment_file()]).collect()
}
