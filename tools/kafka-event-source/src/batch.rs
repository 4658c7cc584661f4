//! What becomes of a batch once the function answered: which records are done, which come again, and
//! what may be committed. Pure: the source does what this says.
//!
//! A record is done when it and all before it in its partition are: that alone is committed.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use serde_json::Value;

use crate::mapping::Provisioned;
use crate::payload::Record;

/// Topic and partition.
pub type Place = (String, i32);

/// What the function said.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It returned; this is what.
    Returned(Value),
    /// It failed, timed out, or could not be invoked.
    Failed(String),
}

/// What to do with a batch now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is done.
    Done,
    /// These parts come again, in this order; what is in none of them is done.
    Again { parts: Vec<Part>, why: String },
    /// Provisioned mode gives up on it: it is done, and lost to the function.
    GivenUp { why: String },
}

/// Records that are sent together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    pub records: Vec<Record>,
    /// How often it was tried.
    pub tries: u32,
}

impl Part {
    pub fn new(records: Vec<Record>) -> Self {
        Self { records, tries: 0 }
    }

    /// Judges an answer to this part.
    pub fn judge(mut self, answer: &Answer, mode: Option<&Provisioned>, now_ms: i64) -> Verdict {
        self.tries += 1;
        let on_demand = Provisioned::default();
        let provisioned = mode.unwrap_or(&on_demand);
        let why = match answer {
            Answer::Returned(value) if provisioned.reports_items => {
                match self.failed_items(value) {
                    Ok(None) => return Verdict::Done,
                    Ok(Some(rest)) => {
                        let why = format!("{} records were reported as failed", rest.len());
                        // Progress was made: what is left is a batch of its own.
                        let tries = if rest.len() < self.records.len() { 1 } else { self.tries };
                        let part = Self { records: rest, tries };
                        return part.again(provisioned, why, now_ms);
                    }
                    Err(why) => why,
                }
            }
            // Without the setting AWS ignores what is returned.
            Answer::Returned(_) => return Verdict::Done,
            Answer::Failed(why) => why.clone(),
        };
        self.again(provisioned, why, now_ms)
    }

    fn again(self, mode: &Provisioned, why: String, now_ms: i64) -> Verdict {
        let oldest = self.records.iter().map(|record| record.timestamp_ms).min();
        let age_ms = oldest.map_or(0, |oldest| now_ms - oldest);
        let limit_ms = mode.max_age_secs.and_then(|secs| i64::try_from(secs * 1000).ok());
        if limit_ms.is_some_and(|limit| age_ms > limit) {
            return Verdict::GivenUp { why: format!("too old after: {why}") };
        }
        // Splitting costs no retry.
        if mode.bisects && self.records.len() > 1 {
            let mut first = self.records;
            let second = first.split_off(first.len() / 2);
            let tries = self.tries - 1;
            let parts = vec![Self { records: first, tries }, Self { records: second, tries }];
            return Verdict::Again { parts, why };
        }
        if mode.max_retries.is_some_and(|max| self.tries > max) {
            return Verdict::GivenUp { why: format!("given up after {} tries: {why}", self.tries) };
        }
        Verdict::Again { parts: vec![self], why }
    }

    /// The records from each partition's first failed one on; None where there are none. An answer
    /// that AWS would not understand fails the whole batch.
    fn failed_items(&self, value: &Value) -> Result<Option<Vec<Record>>, String> {
        let failures = match value.get("batchItemFailures") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Array(failures)) => failures,
            Some(_) => return Err("batchItemFailures is no list".to_owned()),
        };
        let mut first_failed: BTreeMap<Place, i64> = BTreeMap::new();
        for failure in failures {
            let item = &failure["itemIdentifier"];
            let place = item["partition"].as_str().and_then(|name| name.rsplit_once('-'));
            let place =
                place.and_then(|(topic, number)| Some((topic.to_owned(), number.parse().ok()?)));
            let offset = item["offset"].as_i64();
            let (Some(place), Some(offset)) = (place, offset) else {
                return Err(format!("itemIdentifier is no partition and offset: {item}"));
            };
            let known = self
                .records
                .iter()
                .any(|record| record.place() == place && record.offset == offset);
            if !known {
                return Err(format!("itemIdentifier names no record of the batch: {item}"));
            }
            let first = first_failed.entry(place).or_insert(offset);
            *first = offset.min(*first);
        }
        if first_failed.is_empty() {
            return Ok(None);
        }
        let failed = |record: &&Record| {
            first_failed.get(&record.place()).is_some_and(|first| record.offset >= *first)
        };
        Ok(Some(self.records.iter().filter(failed).cloned().collect()))
    }
}

/// All that was taken from the topic and is not committed: the parts to send, and how far the reading
/// got, records that no filter let pass included.
#[derive(Debug, Default)]
pub struct Ledger {
    parts: VecDeque<Part>,
    /// The offset after the last one read.
    read: BTreeMap<Place, i64>,
    committed: BTreeMap<Place, i64>,
}

impl Ledger {
    /// A record was read; whether the function sees it is the filter's business.
    pub fn read(&mut self, place: Place, offset: i64) {
        self.read.insert(place, offset + 1);
    }

    pub fn push(&mut self, part: Part) {
        if !part.records.is_empty() {
            self.parts.push_back(part);
        }
    }

    /// Puts parts back where they were taken from: before all others.
    pub fn put_back(&mut self, parts: Vec<Part>) {
        for part in parts.into_iter().rev().filter(|part| !part.records.is_empty()) {
            self.parts.push_front(part);
        }
    }

    pub fn take(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// A partition went to another member: what is left of it is theirs.
    pub fn forget(&mut self, place: &Place) {
        for part in &mut self.parts {
            part.records.retain(|record| record.place() != *place);
        }
        self.parts.retain(|part| !part.records.is_empty());
        self.read.remove(place);
        self.committed.remove(place);
    }

    /// What may be committed and is not yet: up to the first record that is still to be sent.
    pub fn commits(&self) -> BTreeMap<Place, i64> {
        let mut commits = self.read.clone();
        for record in self.parts.iter().flat_map(|part| &part.records) {
            if let Some(offset) = commits.get_mut(&record.place()) {
                *offset = record.offset.min(*offset);
            }
        }
        commits.retain(|place, offset| self.committed.get(place) != Some(offset));
        commits
    }

    pub fn note_commits(&mut self, commits: BTreeMap<Place, i64>) {
        self.committed.extend(commits);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(partition: i32, offset: i64) -> Record {
        Record {
            topic: "t-x".to_owned(),
            partition,
            offset,
            timestamp_ms: 1000,
            timestamp_type: "CREATE_TIME",
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    fn part(places: &[(i32, i64)]) -> Part {
        Part::new(places.iter().map(|(partition, offset)| record(*partition, *offset)).collect())
    }

    fn offsets(part: &Part) -> Vec<(i32, i64)> {
        part.records.iter().map(|record| (record.partition, record.offset)).collect()
    }

    fn failed() -> Answer {
        Answer::Failed("boom".to_owned())
    }

    fn again(verdict: Verdict) -> Vec<Part> {
        match verdict {
            Verdict::Again { parts, .. } => parts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn on_demand_an_error_brings_the_whole_batch_again_for_ever() {
        let mut current = part(&[(0, 1), (0, 2), (1, 5)]);
        for _ in 0..1000 {
            let mut parts = again(current.clone().judge(&failed(), None, i64::MAX / 2));
            assert_eq!(parts.len(), 1);
            current = parts.remove(0);
            assert_eq!(offsets(&current), [(0, 1), (0, 2), (1, 5)]);
        }
        let ignored = Answer::Returned(json!({"batchItemFailures": [{"itemIdentifier": ""}]}));
        assert_eq!(current.judge(&ignored, None, 0), Verdict::Done);
    }

    #[test]
    fn reported_items_come_again_from_the_first_of_their_partition_on() {
        let mode = Provisioned { reports_items: true, ..Provisioned::default() };
        let batch = part(&[(0, 1), (0, 2), (0, 3), (1, 5), (1, 6)]);
        let answer = |items: Value| Answer::Returned(json!({"batchItemFailures": items}));
        let item = |partition: &str, offset: i64| json!({"itemIdentifier": {"partition": partition, "offset": offset}});
        let judged = |items: Value| batch.clone().judge(&answer(items), Some(&mode), 0);
        assert_eq!(judged(json!([])), Verdict::Done);
        assert_eq!(judged(Value::Null), Verdict::Done);
        assert_eq!(
            batch.clone().judge(&Answer::Returned(Value::Null), Some(&mode), 0),
            Verdict::Done
        );
        let parts = again(judged(json!([item("t-x-0", 3), item("t-x-0", 2)])));
        assert_eq!(offsets(&parts[0]), [(0, 2), (0, 3)]);
        let parts = again(judged(json!([item("t-x-0", 3), item("t-x-1", 5)])));
        assert_eq!(offsets(&parts[0]), [(0, 3), (1, 5), (1, 6)]);
        let nonsense = [
            json!([item("t-x-0", 99)]),
            json!([item("t-x", 1)]),
            json!([{"itemIdentifier": ""}]),
            json!([{"itemIdentifier": null}]),
            json!([{}]),
            json!("all"),
        ];
        for items in nonsense {
            let parts = again(judged(items.clone()));
            assert_eq!(parts[0].records.len(), 5, "{items}");
        }
    }

    #[test]
    fn bisecting_finds_the_poison_and_the_limits_end_the_retries() {
        let mode = Provisioned {
            bisects: true,
            max_retries: Some(2),
            max_age_secs: Some(60),
            ..Provisioned::default()
        };
        let mut ledger = Ledger::default();
        ledger.push(part(&[(0, 1), (0, 2), (0, 3), (0, 4)]));
        let (mut sent, mut lost) = (Vec::new(), Vec::new());
        while let Some(next) = ledger.take() {
            let poisoned = next.records.iter().any(|record| record.offset == 3);
            let answer = if poisoned { failed() } else { Answer::Returned(Value::Null) };
            let seen = offsets(&next);
            match next.judge(&answer, Some(&mode), 2000) {
                Verdict::Done => sent.extend(seen),
                Verdict::Again { parts, .. } => ledger.put_back(parts),
                Verdict::GivenUp { .. } => lost.extend(seen),
            }
        }
        assert_eq!(sent, [(0, 1), (0, 2), (0, 4)]);
        assert_eq!(lost, [(0, 3)]);
        let old = part(&[(0, 1)]).judge(&failed(), Some(&mode), 62_001);
        assert!(matches!(old, Verdict::GivenUp { .. }));
    }

    #[test]
    fn only_what_is_done_with_all_before_it_is_committed() {
        let mut ledger = Ledger::default();
        let place = |partition| ("t-x".to_owned(), partition);
        for offset in 1..=6 {
            ledger.read(place(0), offset);
        }
        ledger.read(place(1), 9);
        ledger.push(part(&[(0, 2), (0, 4)]));
        // Offset 1 was filtered away before the first record; 9 has nothing before it.
        assert_eq!(ledger.commits(), BTreeMap::from([(place(0), 2), (place(1), 10)]));
        ledger.note_commits(ledger.commits());
        assert_eq!(ledger.commits(), BTreeMap::new());
        let taken = ledger.take().unwrap();
        ledger.put_back(vec![Part::new(vec![taken.records[1].clone()])]);
        assert_eq!(ledger.commits(), BTreeMap::from([(place(0), 4)]));
        assert_eq!(ledger.take().unwrap().records.len(), 1);
        assert_eq!(ledger.commits(), BTreeMap::from([(place(0), 7)]));
        ledger.push(part(&[(0, 7), (1, 10)]));
        ledger.forget(&place(0));
        assert_eq!(offsets(&ledger.take().unwrap()), [(1, 10)]);
        assert!(!ledger.commits().contains_key(&place(0)));
    }
}
