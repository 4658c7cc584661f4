//! Load, decide, check, commit: what takes effect, takes effect here, and once.

use domain::deal::Deal;
use domain::decision::{Decision, NotReady, Refusal};
use domain::filing::Filing;
use domain::ids::DealId;
use domain::key::{Fingerprint, Key};
use domain::message::{Message, Notification};
use domain::plan::{Checked, Unsound};
use domain::policy::{Moment, Policy};
use domain::state::Status;
use domain::time::Timestamp;

use crate::clock;
use crate::doorbell::Doorbell;
use crate::store::{self, Committed, Processed, Store, messages, rows};
use crate::telemetry::{CRITICAL, Metrics};

/// How often a record whose deal moved on is decided again before it is left to the next delivery.
const DECISIONS: u32 = 6;

/// What is to take effect, as far as it is known before the deal is read.
#[derive(Debug)]
pub struct Subject {
    pub deal: Option<DealId>,
    /// None where the deal decides which effect a report is about (refunds).
    pub key: Option<Key>,
    pub fingerprint: Fingerprint,
    pub recorded_at: Timestamp,
}

/// Where a deal stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub status: Status,
    pub version: u64,
}

#[derive(Debug)]
pub enum Applied {
    /// It took effect; a deal's standing afterwards.
    Fresh(Option<Standing>),
    /// The key was recorded and nothing else was to be done.
    Skipped(Option<Standing>),
    /// It was done before: it took effect, or its key was recorded with nothing to do.
    Duplicate {
        took_effect: bool,
    },
    /// Its key was used before, with other content.
    Conflict(Processed),
    Refused(Refusal, Option<Standing>),
    NotReady(NotReady),
}

/// Why nothing came of it.
#[derive(Debug)]
pub enum Fault {
    /// The world's fault: it must come again.
    NotDone(String),
    /// Our own fault: trying again is no use.
    Own { code: &'static str, detail: String },
}

impl From<store::Error> for Fault {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Systemic { .. } => Self::NotDone(error.to_string()),
            store::Error::Invalid { .. } => {
                Self::Own { code: "INVALID_WRITE", detail: error.to_string() }
            }
            store::Error::Corrupt(_) => {
                Self::Own { code: "CORRUPT_ROW", detail: error.to_string() }
            }
        }
    }
}

pub struct Applier {
    store: Store,
    policy: Policy,
    metrics: Metrics,
    pub doorbell: Doorbell,
}

impl Applier {
    pub fn new(store: Store, policy: Policy, doorbell: Doorbell, metrics: Metrics) -> Self {
        Self { store, policy, metrics, doorbell }
    }

    /// Decides and commits; again while others move the deal in between.
    pub async fn apply(
        &self,
        subject: &Subject,
        decide: impl Fn(Option<&Deal>, &Moment<'_>) -> Decision,
    ) -> Result<Applied, Fault> {
        let (key, fingerprint) = (subject.key.as_ref(), &subject.fingerprint);
        let mut taken = None;
        let mut ahead = Ahead::default();
        for attempt in 0..DECISIONS {
            let (loaded, known) = self.store.load(subject.deal, key).await?;
            if let Some(known) = known {
                return Ok(judge(known, fingerprint));
            }
            let deal = loaded.as_ref().map(|loaded| &loaded.deal);
            let version = deal.map_or(0, |deal| deal.version);
            let next_look_at = loaded.as_ref().and_then(|loaded| loaded.next_look_at);
            let now = clock::now();
            let moment = Moment { now, recorded_at: subject.recorded_at, policy: &self.policy };
            let committed = match decide(deal, &moment) {
                Decision::Apply(plan) => match plan.check(deal, now) {
                    Ok(checked) => self.commit(&checked, next_look_at).await?,
                    // The key may have been read before the deal: then the deal shows this very
                    // report's own footprints, and only the key can say so.
                    Err(why) => match self.known(key).await? {
                        Some(known) => return Ok(judge(known, fingerprint)),
                        None => return Err(unsound(&why)),
                    },
                },
                Decision::File(filing) => (self.file(&filing, now).await?, standing(deal)),
                Decision::Duplicate => return Ok(Applied::Duplicate { took_effect: true }),
                Decision::Refuse(refusal) => {
                    let refused = Applied::Refused(refusal, standing(deal));
                    return self.unless_known(refused, key, fingerprint).await;
                }
                Decision::NotReady(not_ready) => {
                    let waits = Applied::NotReady(not_ready);
                    return self.unless_known(waits, key, fingerprint).await;
                }
            };
            match committed {
                (Committed::Applied, after) => return Ok(Applied::Fresh(after)),
                (Committed::Filed, after) => return Ok(Applied::Skipped(after)),
                (Committed::Known(known), _) if key.is_some() || known.is_same(fingerprint) => {
                    return Ok(judge(known, fingerprint));
                }
                // A key that the deal decides was taken by another report: the deal moved on.
                (Committed::Known(known), _) => taken = Some(known),
                (Committed::Stale, _) => taken = None,
                (Committed::Ahead, _) => ahead.met(version),
            }
            store::pause(attempt).await;
        }
        ahead.judge()?;
        // The deal says that an effect is open and the keys say that it is not.
        taken.map_or_else(
            || Err(Fault::NotDone("the deal kept moving".to_owned())),
            |known| Ok(Applied::Conflict(known)),
        )
    }

    async fn commit(
        &self,
        checked: &Checked,
        next_look_at: Option<Timestamp>,
    ) -> Result<(Committed, Option<Standing>), Fault> {
        let committed = self.store.commit(checked, next_look_at).await?;
        if committed == Committed::Applied {
            let deal = checked.after.id.to_string();
            self.doorbell.note(messages::bucket(&deal));
            self.alarm(&checked.plan.messages, Some(&deal));
        }
        Ok((committed, standing(Some(&checked.after))))
    }

    /// Files what is no deal's change.
    pub async fn file(&self, filing: &Filing, now: Timestamp) -> Result<Committed, Fault> {
        let committed = self.store.file(filing, now).await?;
        if matches!(committed, Committed::Applied | Committed::Filed) && !filing.messages.is_empty()
        {
            self.doorbell.note(messages::bucket(filing.key.as_str()));
            self.alarm(&filing.messages, filing.deal.map(|deal| deal.to_string()).as_deref());
        }
        Ok(committed)
    }

    /// What took effect and still needs somebody at once.
    fn alarm(&self, messages: &[Message], deal_id: Option<&str>) {
        for message in messages {
            if let Message::Notification(Notification { kind, .. }) = message
                && kind.is_critical()
            {
                self.metrics.count(CRITICAL, "");
                tracing::error!(code = kind.name(), deal_id, severity = "CRITICAL", "took effect");
            }
        }
    }

    /// A refusal is final only if the key is unknown after the deal was read: else this very report
    /// may have taken effect in between, and the refusal would be about our own footprints.
    async fn unless_known(
        &self,
        final_word: Applied,
        key: Option<&Key>,
        fingerprint: &Fingerprint,
    ) -> Result<Applied, Fault> {
        let known = self.known(key).await?;
        Ok(known.map_or(final_word, |known| judge(known, fingerprint)))
    }

    /// What is known of a key by now. Without a key of its own the deal alone decides, and it was just
    /// read.
    async fn known(&self, key: Option<&Key>) -> Result<Option<Processed>, Fault> {
        match key {
            Some(key) => Ok(self.store.processed(key).await?),
            None => Ok(None),
        }
    }

    /// Where a deal stands now.
    pub async fn standing(&self, deal: DealId) -> Result<Option<Standing>, Fault> {
        let (loaded, _) = self.store.load(Some(deal), None).await?;
        Ok(standing(loaded.as_ref().map(|loaded| &loaded.deal)))
    }
}

/// Rows that exist ahead of their deal. Met while the deal moves on, they are a rival's commit seen in
/// the middle; met time and again at one version, they are nobody's.
#[derive(Default)]
struct Ahead {
    version: u64,
    times: u32,
}

impl Ahead {
    fn met(&mut self, version: u64) {
        self.times = if self.version == version { self.times + 1 } else { 1 };
        self.version = version;
    }

    fn judge(&self) -> Result<(), Fault> {
        if self.times < DECISIONS {
            return Ok(());
        }
        let next = self.version + 1;
        let detail = format!("a row of version {next} exists ahead of its deal");
        Err(Fault::Own { code: "CORRUPT_ROW", detail })
    }
}

/// A bug of `decide`, and never written.
fn unsound(why: &Unsound) -> Fault {
    Fault::Own { code: "UNSOUND_PLAN", detail: format!("the decision does not hold: {why:?}") }
}

fn standing(deal: Option<&Deal>) -> Option<Standing> {
    deal.map(|deal| Standing { status: deal.status, version: deal.version })
}

/// The key is known: the same report again, or another one under its name.
fn judge(known: Processed, fingerprint: &Fingerprint) -> Applied {
    if known.is_same(fingerprint) {
        Applied::Duplicate { took_effect: known.result == rows::SUCCESS }
    } else {
        Applied::Conflict(known)
    }
}
