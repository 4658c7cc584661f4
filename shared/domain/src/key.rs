//! Idempotency keys (document 1's formats) and fingerprints. A key names an effect; a fingerprint
//! covers the identity fields of the report that caused it, so that a second report of the same
//! effect is a duplicate and one with other content a conflict.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::ton::TxHash;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    text: String,
    moves_money: bool,
}

impl Key {
    pub fn deposit(tx: TxHash) -> Self {
        Self { text: format!("deposit:{tx}"), moves_money: true }
    }

    /// A key for a fact that moves no money, such as an actor's command.
    pub fn command(command_id: &str) -> Self {
        Self { text: format!("cmd:{command_id}"), moves_money: false }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Such a key never expires: delivered again after any time, it is still a duplicate.
    pub fn moves_money(&self) -> bool {
        self.moves_money
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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
