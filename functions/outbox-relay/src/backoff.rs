//! How long a message that failed by its own fault waits: document 3's exponential backoff with up to a
//! tenth of jitter.

use std::time::Duration;

use crate::config::Retries;

/// `retries` is how often it was tried again before.
pub fn delay(settings: &Retries, retries: u32) -> Duration {
    let base = settings.base.saturating_mul(2_u32.saturating_pow(retries));
    let delay = base.min(settings.longest);
    let most_ms = u64::try_from(delay.as_millis() / 10).unwrap_or(u64::MAX);
    delay + Duration::from_millis(fastrand::u64(0..=most_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_the_longest_and_a_tenth_more() {
        let second = Duration::from_secs(1);
        let settings = Retries { max: 5, base: second, longest: 60 * second };
        for (retries, secs) in [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (40, 60)] {
            for _ in 0..20 {
                let delay = delay(&settings, retries);
                let (least, most) = (secs * second, secs * second + secs * second / 10);
                assert!((least..=most).contains(&delay), "{retries}: {delay:?}");
            }
        }
    }
}
