//! Decides what a publisher's report does to its deal. A success goes through PUBLISHED to
//! DELIVERY_VERIFYING at once; a failure is counted, and the third one opens a dispute.

// A new state must make every decision that does not know it fail to compile.
#![warn(clippy::wildcard_enum_match_arm)]

use domain::deal::{Deal, MAX_PUBLICATION_FAILURES, Publication};
use domain::decision::Decision;
use domain::fact::Change;
use domain::filing::Filing;
use domain::ids::ChannelId;
use domain::message::{Command, Kind, Message, Recipient, both_parties};
use domain::plan::{Plan, Step};
use domain::policy::{Moment, RETENTION_SECS, retention_begins};
use domain::result::{PublicationOutcome, PublicationResult};
use domain::state::{Status, move_by};

pub fn decide(deal: &Deal, result: &PublicationResult, moment: &Moment<'_>) -> Decision {
    if deal.status == Status::Published {
        return corrupt();
    }
    match &result.outcome {
        PublicationOutcome::Succeeded { publication, channel } => {
            succeeded(deal, result, publication, *channel, moment)
        }
        PublicationOutcome::Failed { error, details, .. } => {
            let told =
                if details.is_empty() { error.clone() } else { format!("{error}: {details}") };
            failed(deal, result, &told, moment)
        }
    }
}

fn succeeded(
    deal: &Deal,
    result: &PublicationResult,
    publication: &Publication,
    channel: ChannelId,
    moment: &Moment<'_>,
) -> Decision {
    // The deal remembers longer than the key does.
    if let Some(known) = &deal.publication {
        let same = known.message_id == publication.message_id
            && known.content_hash == publication.content_hash
            && channel == deal.channel;
        if same {
            return Decision::Duplicate;
        }
        let detail = format!("the deal was published as message {}", known.message_id);
        return Decision::refuse_critical("CONFLICT", detail);
    }
    let nobody_asked_yet = deal.status < Status::Published && deal.publish_at.is_none();
    if publication.published_at > moment.recorded_at && !nobody_asked_yet {
        let detail = "payload.published_at is later than the record that reports it";
        return Decision::refuse("PUBLISHED_IN_FUTURE", detail);
    }
    match deal.status {
        Status::Published => corrupt(),
        Status::Draft
        | Status::OfferPending
        | Status::Negotiating
        | Status::Accepted
        | Status::AwaitingPayment => nobody_asked(deal),
        Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled => {
            if deal.publish_at.is_none() {
                return nobody_asked(deal);
            }
            if channel == deal.channel {
                Decision::Apply(publish(deal, result, publication, moment))
            } else {
                let reason =
                    format!("published in channel {} instead of {}", channel.0, deal.channel.0);
                Decision::Apply(dispute(deal, result, Vec::new(), &reason, moment))
            }
        }
        Status::DeliveryVerifying | Status::CompletedReleased => {
            let detail = format!("the deal is {} without a publication", deal.status);
            Decision::refuse_critical("CONFLICT", detail)
        }
        Status::Disputed | Status::Cancelled | Status::Refunded | Status::Expired => {
            let changes = vec![Change::Published(publication.clone())];
            let told = format!(
                "message {} was published in channel {} while the deal is {}",
                publication.message_id, channel.0, deal.status
            );
            Decision::Apply(report(deal, result, changes, &told))
        }
    }
}

fn failed(deal: &Deal, result: &PublicationResult, error: &str, moment: &Moment<'_>) -> Decision {
    match deal.status {
        Status::Published => corrupt(),
        Status::Draft
        | Status::OfferPending
        | Status::Negotiating
        | Status::Accepted
        | Status::AwaitingPayment => nobody_asked(deal),
        Status::Funded
        | Status::CreativeSubmitted
        | Status::CreativeApproved
        | Status::Scheduled => {
            if deal.publish_at.is_none() {
                return nobody_asked(deal);
            }
            let failures = deal.publication_failures + 1;
            if failures >= MAX_PUBLICATION_FAILURES {
                let reason = format!("the publication failed {failures} times, last: {error}");
                let changes = vec![Change::PublicationFailed];
                return Decision::Apply(dispute(deal, result, changes, &reason, moment));
            }
            Decision::Apply(count(deal, result, failures, error))
        }
        Status::DeliveryVerifying | Status::CompletedReleased => Decision::File(Filing::skip(
            result.key(),
            result.fingerprint(),
            PublicationResult::EVENT_TYPE,
            deal.id,
        )),
        Status::Disputed | Status::Cancelled | Status::Refunded | Status::Expired => {
            let told = format!("the publication failed while the deal is {}: {error}", deal.status);
            Decision::Apply(report(deal, result, Vec::new(), &told))
        }
    }
}

fn publish(
    deal: &Deal,
    result: &PublicationResult,
    publication: &Publication,
    moment: &Moment<'_>,
) -> Plan {
    let until = retention_begins(publication, deal.publish_at).plus_secs(RETENTION_SECS);
    let verify = Command::StartVerification { publication: publication.clone(), until };
    let published = vec![Change::Published(publication.clone())];
    let deadline = vec![Change::Deadline(moment.deadline(Status::DeliveryVerifying))];
    plan(
        deal,
        result,
        vec![
            Step::of_system("PUBLISHED", Status::Published, published),
            Step::of_system("DELIVERY_VERIFYING", Status::DeliveryVerifying, deadline),
        ],
        vec![Message::Command(verify)],
    )
}

fn count(deal: &Deal, result: &PublicationResult, failures: u32, error: &str) -> Plan {
    let changes = vec![Change::PublicationFailed, Change::Noted(error.to_owned())];
    let mut told = both_parties(deal);
    told.push(Recipient::Operator);
    let text = format!("publication {failures} of {MAX_PUBLICATION_FAILURES} failed: {error}");
    let messages = vec![Message::notify(Kind::PublicationFailed, told, text)];
    plan(deal, result, vec![Step::of_system("PUBLICATION_FAILED", deal.status, changes)], messages)
}

fn dispute(
    deal: &Deal,
    result: &PublicationResult,
    mut changes: Vec<Change>,
    reason: &str,
    moment: &Moment<'_>,
) -> Plan {
    changes.push(Change::Noted(reason.to_owned()));
    changes.push(Change::Deadline(moment.deadline(Status::Disputed)));
    let notices =
        move_by(deal.status, "open_dispute").and_then(|step| step.notices(deal, None, reason));
    let messages = notices.into_iter().chain([Message::dispute(reason)]).collect();
    plan(deal, result, vec![Step::of_system("DISPUTED", Status::Disputed, changes)], messages)
}

/// A fact without a move, for the operator to see.
fn report(deal: &Deal, result: &PublicationResult, mut changes: Vec<Change>, told: &str) -> Plan {
    changes.push(Change::Noted(told.to_owned()));
    let messages = vec![Message::tell_operator(Kind::LateReport, told)];
    plan(
        deal,
        result,
        vec![Step::of_system("PUBLICATION_REPORTED", deal.status, changes)],
        messages,
    )
}

fn plan(deal: &Deal, result: &PublicationResult, steps: Vec<Step>, messages: Vec<Message>) -> Plan {
    Plan {
        key: result.key(),
        fingerprint: result.fingerprint(),
        event_type: PublicationResult::EVENT_TYPE,
        deal: deal.id,
        steps,
        messages,
    }
}

fn nobody_asked(deal: &Deal) -> Decision {
    let detail = format!("nobody commanded a publication: the deal is {}", deal.status);
    Decision::refuse("PUBLICATION_NOT_COMMANDED", detail)
}

fn corrupt() -> Decision {
    Decision::refuse_critical("CORRUPT_DEAL", "the deal row rests in PUBLISHED")
}
