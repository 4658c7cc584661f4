//! Reads an actor's command. The wrapping is the same by queue and by HTTP:
//! `{command_id, command, deal_id, actor_id, expected_version, terms_version?, payload}`.

use domain::command::{Action, ActorCommand, Reissued, Role};
use domain::deal::MAX_ADMINS;
use domain::ids::{ActorId, ChannelId, DealId};
use domain::key::Fingerprint;
use serde_json::Value;

use super::report::{Malformed, Payload};

const LONGEST_ID: usize = 100;
const LONGEST_TEXT: usize = 1000;
const LONGEST_REFERENCE: usize = 500;

pub fn read(body: &[u8]) -> Result<ActorCommand, Malformed> {
    let mut value: Value = serde_json::from_slice(body)
        .map_err(|error| Malformed(format!("the body is not JSON: {error}")))?;
    if !value.is_object() {
        return Err(Malformed("the body is no JSON object".to_owned()));
    }
    let payload = Payload::new(value["payload"].take());
    let action = read_action(&value, &payload)?;
    let actor = match (action.role(), value["actor_id"].as_i64()) {
        (_, Some(actor)) => Some(ActorId(actor)),
        (Role::System, None) => None,
        (Role::Member | Role::Operator, None) => {
            return Err(Malformed("actor_id is no whole number".to_owned()));
        }
    };
    // The system does not look at versions, and is no actor.
    let (actor, expected_version) = match action.role() {
        Role::System => (None, None),
        Role::Member | Role::Operator => (actor, Some(whole(&value, "expected_version")?)),
    };
    Ok(ActorCommand {
        id: command_id(&value)?,
        deal: deal_id(&value)?,
        actor,
        expected_version,
        action,
        fingerprint: fingerprint(body),
    })
}

/// The whole body, byte for byte: an id stands for one request.
fn fingerprint(body: &[u8]) -> Fingerprint {
    Fingerprint::of(&[("body", &hex::encode(body))])
}

fn command_id(value: &Value) -> Result<String, Malformed> {
    let id = value["command_id"].as_str().unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if id.is_empty() || id.len() > LONGEST_ID || !id.bytes().all(plain) {
        let what = format!("command_id is not 1 to {LONGEST_ID} letters, digits, or any of -_.:");
        return Err(Malformed(what));
    }
    Ok(id.to_owned())
}

fn deal_id(value: &Value) -> Result<DealId, Malformed> {
    let id = value["deal_id"].as_str().and_then(DealId::parse);
    id.ok_or_else(|| Malformed("deal_id is not a UUID".to_owned()))
}

fn whole(value: &Value, name: &str) -> Result<u64, Malformed> {
    let number = value[name].as_u64();
    number.ok_or_else(|| Malformed(format!("{name} is no whole number from 0 on")))
}

fn read_action(value: &Value, payload: &Payload) -> Result<Action, Malformed> {
    let name = value["command"].as_str().unwrap_or_default();
    let terms_version = || {
        let version = whole(value, "terms_version")?;
        u32::try_from(version).map_err(|_| Malformed("terms_version is too large".to_owned()))
    };
    let reason = || payload.short_text("reason", LONGEST_TEXT);
    Ok(match name {
        "create" => Action::Create {
            owner: ActorId(payload.id("owner_id")?),
            channel: ChannelId(payload.id("channel_id")?),
            price: payload.amount("price_nano")?,
        },
        "submit_offer" => Action::SubmitOffer,
        "cancel" => Action::Cancel,
        "counter_offer" => Action::CounterOffer {
            price: payload.amount("price_nano")?,
            payout_address: payload.optional("payout_address", Payload::address)?,
        },
        "accept" => Action::Accept {
            terms_version: terms_version()?,
            payout_address: payload.address("payout_address")?,
        },
        "reject" => Action::Reject,
        "withdraw" => Action::Withdraw,
        "agree" => Action::Agree {
            terms_version: terms_version()?,
            payout_address: payload.optional("payout_address", Payload::address)?,
        },
        "deposit_address_ready" => {
            Action::DepositAddressReady { address: payload.address("deposit_address")? }
        }
        "agree_cancel" => Action::AgreeCancel,
        "revoke_cancel" => Action::RevokeCancel,
        "submit_draft" => {
            Action::SubmitDraft { creative: payload.short_text("creative", LONGEST_REFERENCE)? }
        }
        "approve" => Action::Approve,
        "request_revision" => {
            Action::RequestRevision { comment: payload.short_text("comment", LONGEST_TEXT)? }
        }
        "dispute_quality" => Action::DisputeQuality { reason: reason()? },
        "schedule" => Action::Schedule { publish_at: payload.time("publish_at")? },
        "publish_now" => Action::PublishNow,
        "set_channel_admins" => Action::SetChannelAdmins { admins: read_admins(payload)? },
        "resolve_for_owner" => Action::ResolveForOwner { reason: reason()? },
        "resolve_for_advertiser" => Action::ResolveForAdvertiser { reason: reason()? },
        "open_dispute" => Action::OpenDispute { reason: reason()? },
        "reissue" => Action::Reissue(read_reissued(payload)?),
        _ => {
            let shown: String = name.chars().take(100).collect();
            return Err(Malformed(format!("command {shown:?} does not exist")));
        }
    })
}

fn read_admins(payload: &Payload) -> Result<Vec<ActorId>, Malformed> {
    let mut admins: Vec<ActorId> = payload.ids("admin_ids")?.into_iter().map(ActorId).collect();
    admins.sort_unstable();
    admins.dedup();
    if admins.len() > MAX_ADMINS {
        return Err(Malformed(format!("payload.admin_ids has more than {MAX_ADMINS} entries")));
    }
    Ok(admins)
}

fn read_reissued(payload: &Payload) -> Result<Reissued, Malformed> {
    match payload.text("what")? {
        "payout" => Ok(Reissued::Payout),
        "refund" => Ok(Reissued::Refund(payload.count("number")?)),
        _ => Err(Malformed("payload.what is neither payout nor refund".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(command: &str, payload: Value) -> Value {
        json!({
            "command_id": "c-1", "command": command, "actor_id": 7, "expected_version": 3,
            "terms_version": 2, "deal_id": "550e8400-e29b-41d4-a716-446655440000",
            "payload": payload,
        })
    }

    fn refusal(body: &Value) -> String {
        read(body.to_string().as_bytes()).unwrap_err().0
    }

    #[test]
    fn a_command_is_read_with_its_content() {
        let address = "0:".to_owned() + &"ab".repeat(32);
        let value = body("accept", json!({"payout_address": address, "later": 1}));
        let command = read(value.to_string().as_bytes()).unwrap();
        assert_eq!((command.id.as_str(), command.expected_version), ("c-1", Some(3)));
        assert_eq!(command.actor, Some(ActorId(7)));
        let Action::Accept { terms_version: 2, payout_address } = command.action else { panic!() };
        assert_eq!(payout_address.to_string(), address);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut anonymous = body("cancel", json!({}));
        anonymous["actor_id"] = Value::Null;
        let mut spaced = body("cancel", json!({}));
        spaced["command_id"] = "a b".into();
        let mut blind = body("cancel", json!({}));
        blind["expected_version"] = json!(1.0);
        let cases = [
            (json!([]), "no JSON object"),
            (body("fly", json!({})), "command \"fly\" does not exist"),
            (anonymous, "actor_id"),
            (spaced, "command_id"),
            (blind, "expected_version"),
            (body("create", json!({"owner_id": 1, "channel_id": 2})), "payload.price_nano"),
            (body("accept", json!({"payout_address": "EQabc"})), "payload.payout_address"),
            (body("schedule", json!({"publish_at": "soon"})), "payload.publish_at"),
            (body("submit_draft", json!({"creative": " "})), "payload.creative"),
            (body("resolve_for_owner", json!({})), "payload.reason"),
            (body("reissue", json!({"what": "all"})), "payload.what"),
            (body("set_channel_admins", json!({"admin_ids": [1, "2"]})), "payload.admin_ids"),
        ];
        for (value, what) in cases {
            let told = refusal(&value);
            assert!(told.contains(what), "{value}: {told}");
        }
    }

    #[test]
    fn the_system_is_no_actor_and_looks_at_no_version() {
        let address = "0:".to_owned() + &"cd".repeat(32);
        let value = body("deposit_address_ready", json!({"deposit_address": address}));
        let command = read(value.to_string().as_bytes()).unwrap();
        assert_eq!((command.actor, command.expected_version), (None, None));
    }
}
