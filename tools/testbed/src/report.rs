//! Rows for a person's eyes.

use std::collections::BTreeSet;

use domain::deal::Deal;
use domain::fact::Fact;
use domain::money::{NANO_PER_TON, Nano};
use platform::clock;
use serde_json::Value;

use crate::published::Record;

/// `1.5 TON`, exactly.
pub fn ton(amount: Nano) -> String {
    let nano = i128::from(amount.get());
    let (sign, nano) = if nano < 0 { ("-", -nano) } else { ("", nano) };
    let (whole, rest) = (nano / i128::from(NANO_PER_TON), nano % i128::from(NANO_PER_TON));
    let rest = format!("{rest:09}");
    let rest = rest.trim_end_matches('0');
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{rest} TON")
}

pub fn deal(deal: &Deal) -> String {
    let mut text = format!("deal {}  {}  version {}\n", deal.id, deal.status, deal.version);
    text += &balances(deal);
    for (name, at) in [("deadline", deal.deadline_at), ("settle by", deal.settlement_due_at)] {
        if let Some(at) = at {
            text += &format!("  {name:<11} {}\n", clock::to_text(at));
        }
    }
    for deposit in &deal.deposits {
        let tx = deposit.tx.to_string();
        let (amount, returned) = (ton(deposit.amount), ton(deposit.returned));
        text += &format!("  deposit     {}…  {amount}, returned {returned}\n", &tx[..12]);
    }
    text
}

/// What a deal owes and is owed.
pub fn balances(deal: &Deal) -> String {
    let mut text = String::new();
    let balances = [
        ("price", deal.terms.price),
        ("escrow", deal.escrow),
        ("payable", deal.payable),
        ("refundable", deal.refundable),
    ];
    for (name, amount) in balances {
        text += &format!("  {name:<11} {}\n", ton(amount));
    }
    for order in &deal.refunds {
        let state = if order.settled.is_some() { "settled" } else { "open" };
        text += &format!("  refund {:<4} {}  {state}\n", order.number, ton(order.amount));
    }
    text
}

pub fn journal(facts: &[Fact]) -> String {
    let mut text = String::from("journal\n");
    text.extend(facts.iter().map(fact));
    text
}

pub fn fact(fact: &Fact) -> String {
    let from = fact.from.map_or("-", |status| status.name());
    let (word, to) = (fact.event_type, fact.to.name());
    let mut text = format!("  {:>3}  {word:<18} {from} → {to}\n", fact.seq);
    for posting in &fact.postings {
        let account = posting.account.to_string();
        text += &format!("         {account:<50} {:>18}\n", ton(posting.amount));
    }
    text
}

pub fn outbox(rows: &[Value]) -> String {
    let mut text = String::from("outbox, what this event has to say\n");
    if rows.is_empty() {
        text += "  nothing\n";
    }
    for row in rows {
        for message in row["messages"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let field = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
            text +=
                &format!("  {:<20} {:<20} {}\n", field("topic"), field("type"), field("payload"));
        }
    }
    text
}

/// What was published, a line each; what came again is told once.
pub fn published(records: &[Record]) -> String {
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    for record in records.iter().filter(|record| seen.insert(record.event_id())) {
        let body = record.json();
        let seq = record.headers.get("seq").map(String::as_str).unwrap_or_default();
        let kind = body["event_type"].as_str().unwrap_or_default();
        let payload = &body["payload"];
        let told = match (&payload["to_status"], &payload["recipients"], &payload["amount_nano"]) {
            (Value::String(to), Value::Null, _) => format!("→ {to}"),
            (_, Value::Array(recipients), _) => recipients.iter().map(recipient).collect(),
            (_, _, Value::Number(nano)) => {
                format!("{} ", ton(Nano::new(nano.as_i64().unwrap_or_default())))
            }
            _ => String::new(),
        };
        text += &format!("{:<20} {seq:>3}  {kind:<24} {told}\n", record.topic);
    }
    text
}

fn recipient(recipient: &Value) -> String {
    match recipient["user_id"].as_i64() {
        Some(user) => format!("to {user} "),
        None => "to the operator ".to_owned(),
    }
}

pub fn letters(rows: &[Value]) -> String {
    let mut text = String::from("letters, records that wait\n");
    let letters = rows.iter().filter(|row| row["letter_id"].is_string());
    if letters.clone().count() == 0 {
        text += "  none\n";
    }
    for row in letters {
        let field = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let state = row["closed_as"].as_str().unwrap_or("open");
        let (place, class, error) = (field("place"), field("class"), field("error"));
        let origin = format!("{}@{}", field("topic"), field("offset"));
        text += &format!("  {state:<9} {place:<6} {origin:<26} {class}: {error}\n");
    }
    text
}

pub fn reconciliations(rows: &[Value]) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|row| row["checks"].is_array()) {
        let name = row["pk"].as_str().unwrap_or_default().trim_start_matches("recon#");
        text += &format!("reconciliation {name}\n");
        for check in row["checks"].as_array().into_iter().flatten() {
            let field = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
            text += &format!("  {:<18} {} {}\n", field("name"), field("status"), field("details"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_to_the_nanoton() {
        let cases = [
            (0, "0 TON"),
            (1, "0.000000001 TON"),
            (1_500_000_000, "1.5 TON"),
            (-1_000_000_000, "-1 TON"),
            (i64::MIN, "-9223372036.854775808 TON"),
        ];
        for (nano, expected) in cases {
            assert_eq!(ton(Nano::new(nano)), expected);
        }
    }
}
