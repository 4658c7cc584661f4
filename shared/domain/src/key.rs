//! Idempotency keys (document 1's formats) and fingerprints. A key names an effect; a fingerprint
//! covers the identity fields of the report that caused it, so that a second report of the same
//! effect is a duplicate and one with other content a conflict.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::ids::DealId;
use crate::ton::TxHash;

/// Names an effect. A key is kept for ever if its plan moved money, else for thirty days.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    pub fn deposit(tx: TxHash) -> Self {
        Self(format!("deposit:{tx}"))
    }

    pub fn payout(deal: DealId) -> Self {
        Self(format!("payout:{deal}"))
    }

    /// Document 1's key for a deal's first refund; later ones have their number.
    pub fn refund(deal: DealId, number: u32) -> Self {
        match number {
            1 => Self(format!("refund:{deal}")),
            _ => Self(format!("refund:{deal}:{number}")),
        }
    }

    /// Written by a success alone, so that no failure can burn it.
    pub fn publication(deal: DealId) -> Self {
        Self(format!("publish:{deal}"))
    }

    /// `which` is the worker's number of the attempt, or the beginning of the report's hash.
    pub fn failed_publication(deal: DealId, which: &str) -> Self {
        Self(format!("publish:{deal}:failed:{which}"))
    }

    /// A check's, or the final result's, which has no number.
    pub fn verification(deal: DealId, check: Option<u32>) -> Self {
        match check {
            Some(number) => Self(format!("verify:{deal}:{number}")),
            None => Self(format!("verify:{deal}:final")),
        }
    }

    pub fn reconciliation(trigger_id: &str) -> Self {
        Self(format!("recon:{trigger_id}"))
    }

    pub fn command(command_id: &str) -> Self {
        Self(format!("cmd:{command_id}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 over named identity fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Lengths go into the hash, so that no two field lists can run together.
    pub fn of(fields: &[(&str, &str)]) -> Self {
        let mut hasher = Sha256::new();
        for (name, value) in fields {
            for text in [name, value] {
                hasher.update((text.len() as u64).to_be_bytes());
                hasher.update(text.as_bytes());
            }
        }
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_boundaries_are_part_of_a_fingerprint() {
        let one = Fingerprint::of(&[("a", "bc")]);
        assert_ne!(one, Fingerprint::of(&[("ab", "c")]));
        assert_ne!(one, Fingerprint::of(&[("a", "b"), ("", "c")]));
        assert_eq!(one, Fingerprint::of(&[("a", "bc")]));
    }
}
