//! The one place that reads the clock, and the wire form of time: RFC 3339 in UTC with milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

use domain::time::Timestamp;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What lies before 1970 or has a year of five digits is no time of ours: it would not be read back
/// from what `to_text` writes.
const YEAR_10000_MS: i64 = 253_402_300_800_000;

#[expect(clippy::disallowed_methods, reason = "this is that one place")]
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Fixed width, so that texts sort as times do.
pub fn to_text(at: Timestamp) -> String {
    let nanos = i128::from(at.as_millis()) * 1_000_000;
    let Ok(date) = OffsetDateTime::from_unix_timestamp_nanos(nanos) else {
        return format!("{}ms", at.as_millis());
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        date.hour(),
        date.minute(),
        date.second(),
        date.millisecond()
    )
}

pub fn from_text(text: &str) -> Option<Timestamp> {
    let nanos = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
    let millis = i64::try_from(nanos.div_euclid(1_000_000)).ok()?;
    (0..YEAR_10000_MS).contains(&millis).then(|| Timestamp::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_in_fixed_width_and_read_back() {
        let at = Timestamp::from_millis(1_736_949_600_007);
        assert_eq!(to_text(at), "2025-01-15T14:00:00.007Z");
        assert_eq!(from_text("2025-01-15T14:00:00.007Z"), Some(at));
        assert_eq!(from_text("2025-01-15T16:00:00.007123+02:00"), Some(at));
        assert_eq!(from_text("yesterday"), None);
    }

    #[test]
    fn a_time_that_would_not_be_read_back_is_refused() {
        let edges = ["1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"];
        for text in edges {
            assert_eq!(from_text(text).map(to_text).as_deref(), Some(text));
        }
        let beyond = [
            "1969-12-31T23:59:59.999Z",
            "0000-01-01T00:30:00+01:00",
            "9999-12-31T23:59:59-23:59",
            "1970-01-01T00:30:00+01:00",
        ];
        for text in beyond {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
