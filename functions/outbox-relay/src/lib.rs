//! The outbox relay: publishes what was committed to Kafka, at least once, never an aggregate's later
//! message before an earlier one on the same topic, until the broker has acknowledged it.

pub mod config;
pub mod order;
pub mod envelope;
pub mod login;
pub mod producer;
pub mod backoff;
pub mod dead_letter;
pub mod pass;
pub mod relay;
pub mod bell;
