//! Samples of `deal-transition`: by queue, by HTTP and by the operators' route.

use domain::ids::DealId;
use domain::state::Status;
use serde_json::{Value, json};

use super::{Sample, UNKNOWN, all_done, deal_in, retry_event};
use crate::deals::{self, ADVERTISER, OPERATOR, OWNER, STRANGER};
use crate::records::{command, http_event, signed_attributes, sqs_event, sqs_event_with};

const QUEUE: &str = "escrow-deal-commands";

/// The command of the retry-queue sample.
pub fn submit_offer() -> String {
    let deal = deal_in(Status::Draft);
    command("sample-submit", "submit_offer", deal, ADVERTISER.0, 1, json!({})).to_string()
}

fn http(status: u16, body: &Value) -> Value {
    platform::wire::http::answer(status, body)
}

pub fn all() -> Vec<Sample> {
    let sample = |case, shows, event, answer, deal: DealId, ends_in| {
        Sample::new("deal-transition", case, shows, event, answer, deal, Some(ends_in))
    };
    let queued = |case, shows, bodies: &[Value], deal: DealId, ends_in| {
        let bodies: Vec<String> = bodies.iter().map(Value::to_string).collect();
        sample(case, shows, sqs_event(QUEUE, &bodies), all_done(), deal, ends_in)
    };
    let draft = deal_in(Status::Draft);
    let offered = deal_in(Status::OfferPending);
    let accepted = deal_in(Status::Accepted);
    let funded = deal_in(Status::Funded);
    let disputed = deal_in(Status::Disputed);
    let submit = command("sample-submit", "submit_offer", draft, ADVERTISER.0, 1, json!({}));
    let create = command(
        "sample-create",
        "create",
        UNKNOWN,
        ADVERTISER.0,
        0,
        json!({"owner_id": OWNER.0, "channel_id": deals::CHANNEL.0, "price_nano": 1_000_000_000}),
    );
    let accept = command(
        "sample-accept",
        "accept",
        offered,
        OWNER.0,
        2,
        json!({"terms_version": 1, "payout_address": deals::payout_address().to_friendly(true)}),
    );
    let own_terms = command(
        "sample-own-terms",
        "accept",
        offered,
        ADVERTISER.0,
        2,
        json!({"terms_version": 1, "payout_address": deals::payout_address().to_friendly(true)}),
    );
    let cancel = command("sample-cancel", "cancel", funded, ADVERTISER.0, 5, json!({}));
    let by_stranger = command("sample-stranger", "cancel", draft, STRANGER.0, 1, json!({}));
    let no_such = command("sample-fly", "fly", draft, ADVERTISER.0, 1, json!({}));
    let resolve = command(
        "sample-resolve",
        "resolve_for_advertiser",
        disputed,
        OPERATOR.0,
        11,
        json!({"reason": "the post was deleted after an hour"}),
    );
    let ready = json!({
        "command_id": "sample-address", "command": "deposit_address_ready",
        "deal_id": accepted.to_string(),
        "payload": {"deposit_address": deals::deposit_address().to_friendly(false)},
    })
    .to_string();
    let signed = signed_attributes("ton-deposit-watcher", &ready);
    let forged = signed_attributes("ton-deposit-watcher", "another body");
    vec![
        queued("create", "a new deal: DRAFT", &[create], UNKNOWN, Status::Draft),
        queued(
            "submit-offer",
            "an actor's command by queue: DRAFT → OFFER_PENDING",
            std::slice::from_ref(&submit),
            draft,
            Status::OfferPending,
        ),
        queued(
            "duplicate",
            "the same command twice: one effect",
            &[submit.clone(), submit.clone()],
            draft,
            Status::OfferPending,
        ),
        queued(
            "accept",
            "the owner accepts and names the payout address; a deposit address is commanded",
            &[accept],
            offered,
            Status::Accepted,
        ),
        queued(
            "refused",
            "cancelling a funded deal alone: an answer (COMMAND_REFUSED), no dead letter",
            std::slice::from_ref(&cancel),
            funded,
            Status::Funded,
        ),
        queued(
            "malformed",
            "a command that does not exist: parked",
            std::slice::from_ref(&no_such),
            draft,
            Status::Draft,
        ),
        queued(
            "not-a-party",
            "a command of somebody who is no party: parked",
            std::slice::from_ref(&by_stranger),
            draft,
            Status::Draft,
        ),
        queued(
            "operator-by-queue",
            "an operator's command on the queue: parked, it has a route of its own",
            std::slice::from_ref(&resolve),
            disputed,
            Status::Disputed,
        ),
        queued(
            "mixed-batch",
            "malformed, good, a stranger's, refused, repeated",
            &[no_such, submit.clone(), by_stranger, cancel.clone(), submit.clone()],
            draft,
            Status::OfferPending,
        ),
        sample(
            "deposit-address",
            "the worker's answer, signed in the message attributes: ACCEPTED → AWAITING_PAYMENT",
            sqs_event_with(QUEUE, &[(ready.clone(), signed)]),
            all_done(),
            accepted,
            Status::AwaitingPayment,
        ),
        sample(
            "bad-signature",
            "the same with a forged signature: parked",
            sqs_event_with(QUEUE, &[(ready, forged)]),
            all_done(),
            accepted,
            Status::Accepted,
        ),
        sample(
            "retry-queue",
            "a command that waited in the retry queue until its deal was there",
            retry_event("deal-transition"),
            all_done(),
            draft,
            Status::OfferPending,
        ),
        sample(
            "http-submit-offer",
            "the same command by HTTP: 200 with status and version",
            http_event(false, draft, &submit),
            http(200, &json!({"result": "APPLIED", "status": "OFFER_PENDING", "version": 2})),
            draft,
            Status::OfferPending,
        ),
        sample(
            "http-refused",
            "a refused command by HTTP: 409 with status and version",
            http_event(false, funded, &cancel),
            http(
                409,
                &json!({"error": "ILLEGAL_MOVE", "detail": "cancel does not apply to a deal that is FUNDED", "status": "FUNDED", "version": 5}),
            ),
            funded,
            Status::Funded,
        ),
        sample(
            "http-own-terms",
            "whoever proposed the terms cannot accept them: 409",
            http_event(false, offered, &own_terms),
            http(
                409,
                &json!({"error": "OWN_TERMS", "detail": "whoever proposed the terms cannot accept them", "status": "OFFER_PENDING", "version": 2}),
            ),
            offered,
            Status::OfferPending,
        ),
        sample(
            "http-operator-resolves",
            "an operator resolves a dispute: REFUNDED, the refund is ordered",
            http_event(true, disputed, &resolve),
            http(200, &json!({"result": "APPLIED", "status": "REFUNDED", "version": 12})),
            disputed,
            Status::Refunded,
        ),
        sample(
            "http-operator-elsewhere",
            "an operator's command on the members' route: 403",
            http_event(false, disputed, &resolve),
            http(
                403,
                &json!({"error": "NOT_AUTHORISED", "detail": "resolve_for_advertiser is an operator's command and has a route of its own"}),
            ),
            disputed,
            Status::Disputed,
        ),
    ]
}
