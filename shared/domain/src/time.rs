//! Points in time and spans, in whole milliseconds since the Unix epoch. The clock itself lives in
//! the platform: here time is always an argument.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    pub const fn plus_secs(self, secs: u32) -> Self {
        Self(self.0.saturating_add(secs as i64 * 1000))
    }

    pub const fn minus_secs(self, secs: u32) -> Self {
        Self(self.0.saturating_sub(secs as i64 * 1000))
    }

    pub fn plus(self, span: Duration) -> Self {
        let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How far two moments are apart, whichever comes first.
    pub const fn distance_ms(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }
}
