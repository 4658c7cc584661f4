//! The functions that apply worker results, as data: what they claim, from where, and how long they
//! are patient. The template is tested against this table.

/// A function that applies one type of worker result.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Folder, crate, binary and prefix of its queues.
    pub name: &'static str,
    pub event_type: &'static str,
    pub topic: &'static str,
    pub consumer_group: &'static str,
    pub timeout_secs: u32,
    /// Document 1's waits between attempts; there are as many retries as entries.
    pub backoff_secs: &'static [u32],
}

pub const DEPOSIT_CONFIRMED: Function = Function {
    name: "deposit-confirmed",
    event_type: "DEPOSIT_CONFIRMED",
    topic: "escrow.confirmations",
    consumer_group: "cg-deposit-handler.deposit-confirmed",
    timeout_secs: 60,
    backoff_secs: &[2, 4, 8, 16, 32],
};

pub const FUNCTIONS: &[&Function] = &[&DEPOSIT_CONFIRMED];

/// Whether a sibling handles this type on this topic. A function skips such a record; it is not its
/// business, and certainly not malformed.
pub fn is_claimed(topic: &str, event_type: &str) -> bool {
    FUNCTIONS.iter().any(|function| function.topic == topic && function.event_type == event_type)
}

/// Letters of these topics are about money: they page somebody and are kept until resolved.
pub fn is_money_topic(topic: &str) -> bool {
    topic.starts_with("escrow.") || topic.starts_with("payments.")
}
