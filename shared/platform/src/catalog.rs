//! The functions as data: what they read, from where, and how long they are patient. The template is
//! tested against this table.

#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Folder, crate, binary and prefix of its queues.
    pub name: &'static str,
    pub sources: &'static [Source],
    /// A queue that it serves besides its own retry queue.
    pub queue: Option<&'static str>,
    pub timeout_secs: u32,
    /// Document 1's waits between attempts; there are as many retries as entries.
    pub backoff_secs: &'static [u32],
}

/// A Kafka topic, read in a consumer group of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    pub topic: &'static str,
    pub consumer_group: &'static str,
    /// The type that the function claims on this topic; absent where it reads everything.
    pub event_type: Option<&'static str>,
}

const fn claims(
    topic: &'static str,
    consumer_group: &'static str,
    event_type: &'static str,
) -> Source {
    Source { topic, consumer_group, event_type: Some(event_type) }
}

const fn reads_all(topic: &'static str, consumer_group: &'static str) -> Source {
    Source { topic, consumer_group, event_type: None }
}

pub const CONFIRMATIONS: &str = "escrow.confirmations";
pub const DELIVERY_RESULTS: &str = "delivery.results";
pub const RECONCILIATION_TRIGGERS: &str = "reconciliation.triggers";

pub const DEPOSIT_CONFIRMED: Function = Function {
    name: "deposit-confirmed",
    sources: &[claims(CONFIRMATIONS, "cg-deposit-handler.deposit-confirmed", "DEPOSIT_CONFIRMED")],
    queue: None,
    timeout_secs: 60,
    backoff_secs: &[2, 4, 8, 16, 32],
};

pub const PAYOUT_COMPLETED: Function = Function {
    name: "payout-completed",
    sources: &[claims(CONFIRMATIONS, "cg-deposit-handler.payout-completed", "PAYOUT_COMPLETED")],
    queue: None,
    timeout_secs: 120,
    backoff_secs: &[5, 10, 20],
};

pub const REFUND_COMPLETED: Function = Function {
    name: "refund-completed",
    sources: &[claims(CONFIRMATIONS, "cg-deposit-handler.refund-completed", "REFUND_COMPLETED")],
    queue: None,
    timeout_secs: 120,
    backoff_secs: &[5, 10, 20],
};

pub const PUBLICATION_RESULT: Function = Function {
    name: "publication-result",
    sources: &[claims(
        DELIVERY_RESULTS,
        "cg-delivery-handler.publication-result",
        "PUBLICATION_RESULT",
    )],
    queue: None,
    timeout_secs: 30,
    backoff_secs: &[2, 4, 8],
};

pub const VERIFICATION_RESULT: Function = Function {
    name: "verification-result",
    sources: &[claims(
        DELIVERY_RESULTS,
        "cg-delivery-handler.verification-result",
        "VERIFICATION_RESULT",
    )],
    queue: None,
    timeout_secs: 30,
    backoff_secs: &[60, 120, 240, 480, 960],
};

/// Document 1 gives it one retry and no wait.
pub const RECONCILIATION_RESULT: Function = Function {
    name: "reconciliation-result",
    sources: &[claims(
        RECONCILIATION_TRIGGERS,
        "cg-reconciliation.reconciliation-result",
        "RECONCILIATION_RESULT",
    )],
    queue: None,
    timeout_secs: 300,
    backoff_secs: &[0],
};

pub const UNCLAIMED_RESULTS: Function = Function {
    name: "unclaimed-results",
    sources: &[
        reads_all(CONFIRMATIONS, "cg-deposit-handler.unclaimed-results"),
        reads_all(DELIVERY_RESULTS, "cg-delivery-handler.unclaimed-results"),
        reads_all(RECONCILIATION_TRIGGERS, "cg-reconciliation.unclaimed-results"),
    ],
    queue: None,
    timeout_secs: 60,
    backoff_secs: &[],
};

/// A queue does not keep the order of what is sent to it: a command that is ahead waits a little.
pub const DEAL_TRANSITION: Function = Function {
    name: "deal-transition",
    sources: &[],
    queue: Some("deal-commands"),
    timeout_secs: 30,
    backoff_secs: &[1, 2, 4, 8, 16],
};

/// A bell is a hint: there is nothing of it to retry, and so no retry queue.
pub const OUTBOX_RELAY: Function = Function {
    name: "outbox-relay",
    sources: &[],
    queue: Some("outbox-doorbell.fifo"),
    timeout_secs: 60,
    backoff_secs: &[],
};

/// The functions that apply worker results.
pub const RESULT_FUNCTIONS: &[&Function] = &[
    &DEPOSIT_CONFIRMED,
    &PAYOUT_COMPLETED,
    &REFUND_COMPLETED,
    &PUBLICATION_RESULT,
    &VERIFICATION_RESULT,
    &RECONCILIATION_RESULT,
];

/// Claimed by a worker outside this project: whoever runs the reconciliation.
const CLAIMED_OUTSIDE: &[(&str, &str)] = &[(RECONCILIATION_TRIGGERS, "RECONCILIATION_TRIGGER")];

/// The function that handles this type on this topic.
pub fn claimant(topic: &str, event_type: &str) -> Option<&'static Function> {
    RESULT_FUNCTIONS.iter().copied().find(|function| {
        function
            .sources
            .iter()
            .any(|source| source.topic == topic && source.event_type == Some(event_type))
    })
}

/// Whether somebody handles this type on this topic. All others skip such a record; it is not their
/// business, and certainly not malformed.
pub fn is_claimed(topic: &str, event_type: &str) -> bool {
    CLAIMED_OUTSIDE.contains(&(topic, event_type)) || claimant(topic, event_type).is_some()
}

/// Letters of these topics are about money: they page somebody and are kept until resolved.
pub fn is_money_topic(topic: &str) -> bool {
    topic.starts_with("escrow.") || topic.starts_with("payments.")
}

impl Function {
    pub fn has_retry_queue(&self) -> bool {
        self.name != OUTBOX_RELAY.name
    }

    /// The type it claims, if it claims one.
    pub fn event_type(&self) -> Option<&'static str> {
        self.sources.iter().find_map(|source| source.event_type)
    }
}
