//! Identifiers as values. A deal id is a UUID; an event id is a ULID whose randomness is derived
//! from what it names, so that the same fact at the same moment has the same id on every attempt.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::time::Timestamp;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DealId(u128);

impl DealId {
    /// Reads the canonical 8-4-4-4-12 form, in either case.
    pub fn parse(text: &str) -> Option<Self> {
        let groups: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        if lengths != [8, 4, 4, 4, 12] {
            return None;
        }
        let digits = groups.concat();
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Self)
    }

    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }
}

impl fmt::Display for DealId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_uuid(f, self.0)
    }
}

impl fmt::Debug for DealId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(u128);

impl EventId {
    /// The id of the `index`-th thing that the fact `seq` of an aggregate brought about: index 0 is
    /// the fact itself, the others are its messages.
    pub fn derive(at: Timestamp, aggregate: &str, seq: u64, index: u32) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(aggregate.as_bytes());
        hasher.update([0]);
        hasher.update(seq.to_be_bytes());
        hasher.update(index.to_be_bytes());
        let digest = hasher.finalize();
        let mut bytes = [0u8; 16];
        bytes[..6].copy_from_slice(&at.as_millis().to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&digest[..10]);
        Self(u128::from_be_bytes(bytes))
    }

    /// Reads the 26 characters of a ULID.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 26 {
            return None;
        }
        let mut value: u128 = 0;
        for (position, byte) in text.bytes().enumerate() {
            let digit = ALPHABET.iter().position(|letter| *letter == byte)? as u128;
            if position == 0 && digit > 7 {
                return None;
            }
            value = (value << 5) | digit;
        }
        Some(Self(value))
    }

    /// The same 128 bits in the form that document 4 wants for `deal_events.event_id`.
    pub fn as_uuid(self) -> String {
        struct Uuid(u128);
        impl fmt::Display for Uuid {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_uuid(f, self.0)
            }
        }
        Uuid(self.0).to_string()
    }
}

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut letters = [0u8; 26];
        for (position, letter) in letters.iter_mut().rev().enumerate() {
            *letter = ALPHABET[(self.0 >> (5 * position)) as usize & 31];
        }
        f.write_str(std::str::from_utf8(&letters).expect("the alphabet is ASCII"))
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_uuid(f: &mut fmt::Formatter<'_>, value: u128) -> fmt::Result {
    let digits = format!("{value:032x}");
    write!(
        f,
        "{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}

/// A user of the marketplace (Telegram user ids are 64-bit integers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorId(pub i64);

/// A Telegram channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deal_id_is_read_in_either_case_and_printed_in_lower_case() {
        let id = DealId::parse("550E8400-e29b-41d4-a716-446655440000").unwrap();
        assert_eq!(id.to_string(), "550e8400-e29b-41d4-a716-446655440000");
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in [
            "",
            "550e8400e29b41d4a716446655440000",
            "550e8400-e29b-41d4-a716-44665544000",
            "550e8400-e29b-41d4-a716-4466554400000",
            "+50e8400-e29b-41d4-a716-446655440000",
            "zzze8400-e29b-41d4-a716-446655440000",
            "550e8400-e29b-41d4-a7164-46655440000",
        ] {
            assert_eq!(DealId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_event_id_is_a_ulid_with_its_time_in_front() {
        let at = Timestamp::from_millis(1_469_918_176_385);
        let id = EventId::derive(at, "deal", 1, 0);
        // The time part of the ULID specification's own example.
        assert!(id.to_string().starts_with("01ARYZ6S41"), "{id}");
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        assert_eq!(id, EventId::derive(at, "deal", 1, 0));
        assert_ne!(id, EventId::derive(at, "deal", 1, 1));
        assert_ne!(id, EventId::derive(at, "deal", 2, 0));
        assert_eq!(id.as_uuid().len(), 36);
    }

    #[test]
    fn a_ulid_above_128_bits_or_with_foreign_letters_is_refused() {
        assert!(EventId::parse("7ZZZZZZZZZZZZZZZZZZZZZZZZZ").is_some());
        for text in ["8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "01ARYZ6S41TSV4RRFFQ69G5FAI", "01ARYZ6S41"] {
            assert_eq!(EventId::parse(text), None, "{text}");
        }
    }
}
