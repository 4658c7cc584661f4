//! Samples of `outbox-relay`: bells as its queue delivers them.

use domain::ids::DealId;
use domain::state::Status;
use platform::store::messages::bucket;
use serde_json::json;

use super::{AWAITING, SECOND, Sample, all_done};
use crate::records::sqs_event;

/// Whose rows wait in the outbox when a bell rings.
pub const DEALS: [DealId; 2] = [AWAITING, SECOND];

pub fn all() -> Vec<Sample> {
    let sample = |case, shows, bells: &[String]| {
        let event = sqs_event("escrow-outbox-doorbell.fifo", bells);
        let ends_in = Some(Status::AwaitingPayment);
        Sample::new("outbox-relay", case, shows, event, all_done(), AWAITING, ends_in)
    };
    let of = |deal: DealId| json!({"bucket": bucket(&deal.to_string())}).to_string();
    let (bell, other) = (of(AWAITING), of(SECOND));
    let by_schedule = json!({"ring_all": "2025-01-15T14:00:00Z"}).to_string();
    let no_bell = json!({"bucket": "99"}).to_string();
    vec![
        sample(
            "bell",
            "a commit rang: what waits in that bucket is published and deleted",
            std::slice::from_ref(&bell),
        ),
        sample(
            "duplicate",
            "two commits of one bucket rang: one look serves both",
            &[bell.clone(), bell.clone()],
        ),
        sample(
            "ring-all",
            "the schedule: every bucket that has a row is rung, and what waits is measured",
            std::slice::from_ref(&by_schedule),
        ),
        sample(
            "malformed",
            "what names no bucket is dropped: a bell is a hint",
            &[no_bell.clone(), "ring".to_owned()],
        ),
        sample("mixed-batch", "bells of all kinds", &[bell, no_bell, by_schedule, other]),
    ]
}
