//! Load, decide, check, commit: what takes effect, takes effect here, and once.

use domain::deal::Deal;
use domain::decision::{Decision, NotReady, Refusal};
use domain::filing::Filing;
use domain::ids::DealId;
use domain::key::{Fingerprint, Key};
use domain::plan::Plan;
use domain::policy::{Moment, Policy};
use domain::state::Status;
use domain::time::Timestamp;

use crate::clock;
use crate::doorbell::Doorbell;
use crate::store::{self, Committed, Loaded, Processed, Store, messages};

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
    /// It took effect before.
    Duplicate,
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
    pub doorbell: Doorbell,
}

impl Applier {
    pub fn new(store: Store, policy: Policy, doorbell: Doorbell) -> Self {
        Self { store, policy, doorbell }
    }

    /// Decides and commits; again while others move the deal in between.
    pub async fn apply(
        &self,
        subject: &Subject,
        decide: impl Fn(Option<&Deal>, &Moment<'_>) -> Decision,
    ) -> Result<Applied, Fault> {
        let (key, fingerprint) = (subject.key.as_ref(), &subject.fingerprint);
        let mut taken = None;
        for attempt in 0..DECISIONS {
            let (loaded, known) = self.store.load(subject.deal, key).await?;
            if let Some(known) = known {
                return Ok(judge(known, fingerprint));
            }
            let deal = loaded.as_ref().map(|loaded| &loaded.deal);
            let now = clock::now();
            let moment = Moment { now, recorded_at: subject.recorded_at, policy: &self.policy };
            let committed = match decide(deal, &moment) {
                Decision::Apply(plan) => self.commit(plan, loaded, now).await?,
                Decision::File(filing) => (self.file(&filing, now).await?, standing(deal)),
                Decision::Duplicate => return Ok(Applied::Duplicate),
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
            }
            store::pause(attempt).await;
        }
        // The deal says that an effect is open and the keys say that it is not.
        taken.map_or_else(
            || Err(Fault::NotDone("the deal kept moving".to_owned())),
            |known| Ok(Applied::Conflict(known)),
        )
    }

    async fn commit(
        &self,
        plan: Plan,
        loaded: Option<Loaded>,
        now: Timestamp,
    ) -> Result<(Committed, Option<Standing>), Fault> {
        let before = loaded.as_ref().map(|loaded| &loaded.deal);
        // An unsound plan is a bug of `decide`, and never written.
        let checked = plan.check(before, now).map_err(|why| Fault::Own {
            code: "UNSOUND_PLAN",
            detail: format!("the decision does not hold: {why:?}"),
        })?;
        let next_look_at = loaded.as_ref().and_then(|loaded| loaded.next_look_at);
        let committed = self.store.commit(&checked, next_look_at).await?;
        if committed == Committed::Applied {
            self.doorbell.note(messages::bucket(&checked.after.id.to_string()));
        }
        Ok((committed, standing(Some(&checked.after))))
    }

    /// Files what is no deal's change.
    pub async fn file(&self, filing: &Filing, now: Timestamp) -> Result<Committed, Fault> {
        let committed = self.store.file(filing, now).await?;
        if matches!(committed, Committed::Applied | Committed::Filed) && !filing.messages.is_empty()
        {
            self.doorbell.note(messages::bucket(filing.key.as_str()));
        }
        Ok(committed)
    }

    /// A refusal is final only if the key is unknown after the deal was read: else this very report
    /// may have taken effect in between, and the refusal would be about our own footprints.
    async fn unless_known(
        &self,
        final_word: Applied,
        key: Option<&Key>,
        fingerprint: &Fingerprint,
    ) -> Result<Applied, Fault> {
        // Without a key of its own the deal alone decides, and it was just read.
        let Some(key) = key else { return Ok(final_word) };
        let known = self.store.processed(key).await?;
        Ok(known.map_or(final_word, |known| judge(known, fingerprint)))
    }

    /// Where a deal stands now.
    pub async fn standing(&self, deal: DealId) -> Result<Option<Standing>, Fault> {
        let (loaded, _) = self.store.load(Some(deal), None).await?;
        Ok(standing(loaded.as_ref().map(|loaded| &loaded.deal)))
    }
}

fn standing(deal: Option<&Deal>) -> Option<Standing> {
    deal.map(|deal| Standing { status: deal.status, version: deal.version })
}

/// The key is known: the same report again, or another one under its name.
fn judge(known: Processed, fingerprint: &Fingerprint) -> Applied {
    if known.is_same(fingerprint) { Applied::Duplicate } else { Applied::Conflict(known) }
}
