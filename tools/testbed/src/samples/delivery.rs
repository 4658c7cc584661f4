//! Samples of `publication-result` and `verification-result`.

use domain::ids::DealId;
use domain::state::Status;
use serde_json::json;

use super::{Sample, UNKNOWN, all_done, answer, deal_in, forged, retry_event};
use crate::deals;
use crate::records::{
    Record, check, failed_publication, final_verification, kafka_event, publication, report,
};

pub fn all() -> Vec<Sample> {
    let mut all = publications();
    all.extend(verifications());
    all
}

fn publications() -> Vec<Sample> {
    let deal = deal_in(Status::Scheduled);
    let verifying = Some(Status::DeliveryVerifying);
    let scheduled = Some(Status::Scheduled);
    let sample =
        |case, shows, records: &[Record], counts: &[(&str, u64)], deal: DealId, ends_in| {
            let event = kafka_event(records);
            Sample::new("publication-result", case, shows, event, answer(counts), deal, ends_in)
        };
    let good = publication(deal);
    let elsewhere = report(
        "PUBLICATION_RESULT",
        Some(deal),
        &json!({
            "success": true, "message_id": 789, "channel_id": 666,
            "content_hash": deals::CONTENT_HASH, "published_at": "2025-01-14T13:00:00Z",
        }),
    );
    let ahead_of_time = report(
        "PUBLICATION_RESULT",
        Some(deal),
        &json!({
            "success": true, "message_id": 789, "channel_id": deals::CHANNEL.0,
            "content_hash": deals::CONTENT_HASH, "published_at": "2025-01-16T13:00:00Z",
        }),
    );
    let malformed = report("PUBLICATION_RESULT", Some(deal), &json!({"success": "yes"}));
    let failed = |attempt| failed_publication(deal, Some(attempt));
    let unasked = publication(deal_in(Status::Funded));
    vec![
        sample(
            "published",
            "a success: SCHEDULED → PUBLISHED → DELIVERY_VERIFYING in one commit",
            std::slice::from_ref(&good),
            &[("applied", 1)],
            deal,
            verifying,
        ),
        sample(
            "duplicate",
            "the same success twice: one effect",
            &[good.clone(), good.clone()],
            &[("applied", 1), ("duplicate", 1)],
            deal,
            verifying,
        ),
        sample(
            "failed",
            "a failure: counted, both parties and the operator are told, the state stays",
            &[failed(1)],
            &[("applied", 1)],
            deal,
            scheduled,
        ),
        sample(
            "failed-three-times",
            "the third failure opens a dispute; the second was delivered twice",
            &[failed(1), failed(2), failed(2), failed(3)],
            &[("applied", 3), ("duplicate", 1)],
            deal,
            Some(Status::Disputed),
        ),
        sample(
            "failed-then-published",
            "a failure does not burn the later success, and a late failure is skipped",
            &[failed(1), good.clone(), failed(2)],
            &[("applied", 2), ("skipped", 1)],
            deal,
            verifying,
        ),
        sample(
            "other-channel",
            "a post in another channel: disputed, never released",
            &[elsewhere],
            &[("applied", 1)],
            deal,
            Some(Status::Disputed),
        ),
        sample(
            "published-in-future",
            "a post from after its own report: parked",
            &[ahead_of_time],
            &[("parked", 1)],
            deal,
            scheduled,
        ),
        sample(
            "not-commanded",
            "a publication that nobody commanded: parked",
            std::slice::from_ref(&unasked),
            &[("parked", 1)],
            deal_in(Status::Funded),
            Some(Status::Funded),
        ),
        sample(
            "bad-signature",
            "a forged success: parked, nothing read, nothing believed",
            &[forged(&good)],
            &[("parked", 1)],
            deal,
            scheduled,
        ),
        sample(
            "malformed",
            "a success that is neither true nor false: parked, says so",
            std::slice::from_ref(&malformed),
            &[("parked", 1)],
            deal,
            scheduled,
        ),
        sample(
            "mixed-batch",
            "forged, a sibling's, malformed, good, not commanded, unknown deal, repeated",
            &[
                forged(&good),
                check(deal, 1, true),
                malformed,
                good.clone(),
                unasked,
                publication(UNKNOWN),
                good.clone(),
            ],
            &[("parked", 3), ("skipped", 1), ("applied", 1), ("retrying", 1), ("duplicate", 1)],
            deal,
            verifying,
        ),
        Sample::new(
            "publication-result",
            "retry-queue",
            "a success that waited in the retry queue",
            retry_event("publication-result"),
            all_done(),
            deal,
            verifying,
        ),
    ]
}

fn verifications() -> Vec<Sample> {
    let deal = deal_in(Status::DeliveryVerifying);
    let verifying = Some(Status::DeliveryVerifying);
    let released = Some(Status::CompletedReleased);
    let disputed = Some(Status::Disputed);
    let sample =
        |case, shows, records: &[Record], counts: &[(&str, u64)], deal: DealId, ends_in| {
            let event = kafka_event(records);
            Sample::new("verification-result", case, shows, event, answer(counts), deal, ends_in)
        };
    let good = final_verification(deal);
    let mut payload = json!({
        "verified": true, "message_id": 789, "checks_passed": 5, "checks_failed": 0,
        "final_content_hash": "sha256:0000000000000000000000000000000000000000000000000000000000000000",
    });
    let edited = report("VERIFICATION_RESULT", Some(deal), &payload);
    payload["final_content_hash"] = deals::CONTENT_HASH.into();
    payload["checks_failed"] = 1.into();
    let with_failures = report("VERIFICATION_RESULT", Some(deal), &payload);
    payload["checks_failed"] = 0.into();
    let signed_early = report("VERIFICATION_RESULT", Some(deal), &payload);
    let mut too_early = signed_early.clone();
    let early_ms = deals::published_at().as_millis() + 23 * 3600 * 1000;
    too_early.recorded_at_ms = early_ms;
    let signature =
        platform::signature::sign_v1(crate::records::SECRET.as_bytes(), &too_early.body);
    let too_early = too_early.signed_by("delivery-verifier", &signature, early_ms);
    let malformed = report("VERIFICATION_RESULT", Some(deal), &json!({"verified": true}));
    vec![
        sample(
            "passed",
            "the final check: COMPLETED_RELEASED, commission deducted, payout commanded",
            std::slice::from_ref(&good),
            &[("applied", 1)],
            deal,
            released,
        ),
        sample(
            "duplicate",
            "the same final result twice: one release",
            &[good.clone(), good.clone()],
            &[("applied", 1), ("duplicate", 1)],
            deal,
            released,
        ),
        sample(
            "check-passed",
            "a check on the way: recorded, no move",
            &[check(deal, 1, true), check(deal, 2, true)],
            &[("applied", 2)],
            deal,
            verifying,
        ),
        sample(
            "check-failed",
            "a deleted post: DISPUTED, the escrow is frozen, both parties are told",
            &[check(deal, 3, false)],
            &[("applied", 1)],
            deal,
            disputed,
        ),
        sample(
            "edited",
            "verified, but with another content hash than published: DISPUTED (POST_EDITED)",
            &[edited],
            &[("applied", 1)],
            deal,
            disputed,
        ),
        sample(
            "with-failed-checks",
            "verified, but with a failed check: DISPUTED",
            &[with_failures],
            &[("applied", 1)],
            deal,
            disputed,
        ),
        sample(
            "too-early",
            "a final result an hour before 24 h had passed: parked, CRITICAL",
            &[too_early],
            &[("parked", 1)],
            deal,
            verifying,
        ),
        sample(
            "ahead",
            "a check ahead of its publication: to the retry queue with document 1's backoff",
            &[check(deal_in(Status::Scheduled), 1, true)],
            &[("retrying", 1)],
            deal_in(Status::Scheduled),
            Some(Status::Scheduled),
        ),
        sample(
            "after-release",
            "a failed check after the release: recorded, the operator is paged",
            &[check(deal_in(Status::CompletedReleased), 9, false)],
            &[("applied", 1)],
            deal_in(Status::CompletedReleased),
            released,
        ),
        sample(
            "bad-signature",
            "a forged result: parked, nothing read, nothing believed",
            &[forged(&good)],
            &[("parked", 1)],
            deal,
            verifying,
        ),
        sample(
            "malformed",
            "a final result that leaves out what it is held against: parked",
            std::slice::from_ref(&malformed),
            &[("parked", 1)],
            deal,
            verifying,
        ),
        sample(
            "mixed-batch",
            "forged, malformed, a check, the final result, unknown deal, repeated",
            &[
                forged(&good),
                malformed,
                check(deal, 1, true),
                good.clone(),
                check(UNKNOWN, 1, true),
                good.clone(),
            ],
            &[("parked", 2), ("applied", 2), ("retrying", 1), ("duplicate", 1)],
            deal,
            released,
        ),
        Sample::new(
            "verification-result",
            "retry-queue",
            "a final result that waited in the retry queue",
            retry_event("verification-result"),
            all_done(),
            deal,
            released,
        ),
    ]
}
