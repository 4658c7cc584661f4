//! What the tool tells while it works: one line an event, on stderr, with the time and the mapping.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;

/// The same text of the same mapping is told this often at most.
const SELDOM: Duration = Duration::from_secs(10);

pub fn line(name: &str, text: &str) {
    let secs = clock::now_ms() / 1000;
    let (hours, minutes, secs) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
    eprintln!("{hours:02}:{minutes:02}:{secs:02} {name}: {text}");
}

/// For what would repeat itself while it lasts.
pub fn seldom(name: &str, text: &str) {
    static TOLD: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());
    let key = format!("{name}: {text}");
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.get(&key).is_none_or(|last| last.elapsed() > SELDOM) {
        told.insert(key, Instant::now());
        line(name, text);
    }
}
