//! How much a pool is asked for: soft state that sizes acquires and is never used for safety.

use leasehold_protocol::{LocalTime, Tokens};

/// Completed seconds that the mean looks back over.
const SECONDS: usize = 3;

/// Tokens asked for, by second of local time, whether or not they were admitted. It forecasts; no method yields
/// [`Tokens`], since a forecast may never be spent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Demand {
    second: u64,
    current: u64,
    past: [u64; SECONDS],
    last_at: Option<LocalTime>,
}

impl Demand {
    /// Notes a request of `cost`.
    pub(crate) fn note(&mut self, now: LocalTime, cost: Tokens) {
        self.roll(now);
        self.current = self.current.saturating_add(cost.0);
        self.last_at = Some(now);
    }

    /// Tokens a second: this second so far, or the mean of the last three, whichever is more. It rises with the
    /// first burst and falls within three seconds.
    pub(crate) fn rate_per_s(&mut self, now: LocalTime) -> u64 {
        self.roll(now);
        let mean = self.past.iter().fold(0_u64, |sum, n| sum.saturating_add(*n)).div_ceil(SECONDS as u64);
        self.current.max(mean)
    }

    /// The time since the last request, in ms; `None` if there never was one.
    pub(crate) fn idle_ms(&self, now: LocalTime) -> Option<u64> {
        self.last_at.map(|at| now.ms_since(at))
    }

    fn roll(&mut self, now: LocalTime) {
        let second = now.as_ms() / 1_000;
        let ahead = second.saturating_sub(self.second);
        for _ in 0..ahead.min(SECONDS as u64 + 1) {
            self.past.rotate_right(1);
            if let Some(first) = self.past.first_mut() {
                *first = self.current;
            }
            self.current = 0;
        }
        self.second = self.second.max(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_at_once_and_is_gone_four_seconds_after_the_last_request() {
        let mut demand = Demand::default();
        let at = LocalTime::from_ms;
        for ms in [10_000, 10_100, 10_200] {
            demand.note(at(ms), Tokens(10));
        }
        assert_eq!(demand.rate_per_s(at(10_300)), 30);
        assert_eq!(demand.rate_per_s(at(11_000)), 10);
        assert_eq!(demand.rate_per_s(at(13_999)), 10);
        assert_eq!(demand.rate_per_s(at(14_000)), 0);
        assert_eq!(demand.idle_ms(at(14_000)), Some(3_800));
        demand.note(at(12_000), Tokens(u64::MAX));
        assert_eq!(demand.rate_per_s(at(14_000)), u64::MAX, "an earlier time counts now, and nothing wraps");
    }
}
