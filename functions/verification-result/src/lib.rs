//! Decides what a verifier's report does to its deal. Only a final check that agrees with everything
//! stored about the post releases the escrow; any disagreement opens a dispute.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

use domain::deal::Deal;
use domain::decision::{Decision, Wait};
use domain::fact::Change;
use domain::filing::Filing;
use domain::message::{Kind, Message};
use domain::plan::{Plan, Step};
use domain::policy::{Moment, RETENTION_SECS, retention_begins};
use domain::release::release;
use domain::result::VerificationResult;
use domain::state::{Status, move_by};

pub fn decide(deal: &Deal, result: &VerificationResult, moment: &Moment<'_>) -> Decision {
    match deal.status {
        Status::Published => {
            Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED")
        }
        Status::Draft
        | Status::OfferPending
        | Status::Negotiating
        | Status::Accepted
        | Status::AwaitingPayment
        | Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled => Decision::not_ready(
            "DEAL_NOT_PUBLISHED",
            format!("the deal is {}", deal.status),
            Wait::Backoff,
        ),
        Status::DeliveryVerifying => verifying(deal, result, moment),
        Status::Disputed => {
            let told = format!("{} while the deal is disputed", words(deal, result));
            let messages = vec![Message::tell_operator(Kind::LateReport, told.as_str())];
            Decision::Apply(report(deal, result, &told, messages))
        }
        Status::CompletedReleased => match objection(deal, result) {
            None => skip(deal, result),
            Some(reason) => {
                let told = format!("{reason}, but the escrow was released already");
                let messages = vec![Message::tell_operator(Kind::ReleasedTooEarly, told.as_str())];
                Decision::Apply(report(deal, result, &told, messages))
            }
        },
        Status::Cancelled | Status::Refunded | Status::Expired => {
            if result.check.is_some() && objection(deal, result).is_none() {
                return skip(deal, result);
            }
            let told = format!("{} while the deal is {}", words(deal, result), deal.status);
            let messages = vec![Message::tell_operator(Kind::LateReport, told.as_str())];
            Decision::Apply(report(deal, result, &told, messages))
        }
    }
}

fn verifying(deal: &Deal, result: &VerificationResult, moment: &Moment<'_>) -> Decision {
    if let Some(reason) = objection(deal, result) {
        return Decision::Apply(dispute(deal, result, &reason, moment));
    }
    if result.check.is_some() {
        return Decision::Apply(report(deal, result, &words(deal, result), Vec::new()));
    }
    let Some(publication) = &deal.publication else {
        return Decision::refuse_critical("CORRUPT_DEAL", "the deal row has no publication");
    };
    let earliest = retention_begins(publication, deal.publish_at).plus_secs(RETENTION_SECS);
    if moment.recorded_at < earliest {
        let early = (earliest.as_millis() - moment.recorded_at.as_millis()) / 1000;
        let detail = format!("the final result came {early} s before 24 h had passed");
        return Decision::refuse_critical("TOO_EARLY", detail);
    }
    let Some(released) = release(deal, moment) else {
        return Decision::refuse_critical("CORRUPT_DEAL", "the deal row has no payout address");
    };
    let step = Step {
        event_type: "COMPLETED_RELEASED",
        to: Status::CompletedReleased,
        actor: None,
        changes: released.changes,
        postings: released.postings,
    };
    Decision::Apply(plan(deal, result, step, released.messages))
}

/// Why the report does not speak for the post that was paid for.
fn objection(deal: &Deal, result: &VerificationResult) -> Option<String> {
    if !result.verified {
        return Some(result.reason.clone().unwrap_or_else(|| "VERIFICATION_FAILED".to_owned()));
    }
    if let Some(failed @ 1..) = result.checks_failed {
        return Some(format!("CHECKS_FAILED: {failed}"));
    }
    if let Some(other) = result.channel.filter(|channel| *channel != deal.channel) {
        return Some(format!("OTHER_CHANNEL: {} instead of {}", other.0, deal.channel.0));
    }
    let publication = deal.publication.as_ref()?;
    if let Some(other) = result.message_id.filter(|id| *id != publication.message_id) {
        return Some(format!("OTHER_MESSAGE: {other} instead of {}", publication.message_id));
    }
    let edited =
        result.final_content_hash.as_ref().is_some_and(|hash| *hash != publication.content_hash);
    edited.then(|| "POST_EDITED".to_owned())
}

fn words(deal: &Deal, result: &VerificationResult) -> String {
    let what = match result.check {
        Some(number) => format!("check {number}"),
        None => "the final check".to_owned(),
    };
    match objection(deal, result) {
        None => format!("{what} passed"),
        Some(reason) => format!("{what} failed ({reason})"),
    }
}

fn dispute(deal: &Deal, result: &VerificationResult, reason: &str, moment: &Moment<'_>) -> Plan {
    let changes =
        vec![Change::Noted(reason.to_owned()), Change::Deadline(moment.deadline(Status::Disputed))];
    let notices = move_by(deal.status, "verification_failed")
        .and_then(|step| step.notices(deal, None, reason));
    let messages = notices.into_iter().chain([Message::dispute(reason)]).collect();
    plan(deal, result, Step::of_system("DISPUTED", Status::Disputed, changes), messages)
}

/// A fact without a move.
fn report(deal: &Deal, result: &VerificationResult, told: &str, messages: Vec<Message>) -> Plan {
    let changes = vec![Change::Noted(told.to_owned())];
    plan(deal, result, Step::of_system("VERIFICATION_REPORTED", deal.status, changes), messages)
}

fn plan(deal: &Deal, result: &VerificationResult, step: Step, messages: Vec<Message>) -> Plan {
    Plan {
        key: result.key(),
        fingerprint: result.fingerprint(),
        event_type: VerificationResult::EVENT_TYPE,
        deal: deal.id,
        steps: vec![step],
        messages,
    }
}

fn skip(deal: &Deal, result: &VerificationResult) -> Decision {
    Decision::File(Filing::skip(
        result.key(),
        result.fingerprint(),
        VerificationResult::EVENT_TYPE,
        deal.id,
    ))
}
