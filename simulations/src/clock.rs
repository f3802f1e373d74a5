//! A machine's clocks, each wrong in its own way.

use leasehold_protocol::{LedgerTime, LocalTime};

/// True time, in ns since the run began. No core ever sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrueTime(pub u64);

impl TrueTime {
    /// Later by `ms`.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0 + ms * 1_000_000)
    }

    /// Whole ms since the run began.
    pub fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// One machine's steady clock (an origin and a rate of its own) and its wall clock (an offset on top, which may jump).
#[derive(Debug, Clone, Copy)]
pub struct MachineClock {
    origin_ns: u64,
    rate_ppm: i64,
    wall_offset_ms: i64,
}

/// The wall clock's true reading when a run begins: some day in 2026, in ms since the Unix epoch.
pub const EPOCH_MS: u64 = 1_790_000_000_000;

impl MachineClock {
    /// A clock whose rate is off by `rate_ppm` and whose wall clock is off by `wall_offset_ms`.
    pub fn new(origin_ns: u64, rate_ppm: i64, wall_offset_ms: i64) -> Self {
        Self { origin_ns, rate_ppm, wall_offset_ms }
    }

    /// The steady clock at `now`.
    pub fn local(&self, now: TrueTime) -> LocalTime {
        let off = i128::from(now.0) * i128::from(self.rate_ppm) / 1_000_000;
        let ns = i128::from(self.origin_ns) + i128::from(now.0) + off;
        LocalTime(u64::try_from(ns).unwrap_or(0))
    }

    /// When the steady clock will show `local`, or a ns later; never before `now`.
    pub fn when(&self, local: LocalTime, now: TrueTime) -> TrueTime {
        let ns = i128::from(local.0) - i128::from(self.origin_ns);
        let truth = ns * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm)) + 2;
        TrueTime(u64::try_from(truth).unwrap_or(0)).max(now)
    }

    /// The wall clock at `now`.
    pub fn wall(&self, now: TrueTime) -> LedgerTime {
        let ms = i128::from(self.local(now).0.saturating_sub(self.origin_ns) / 1_000_000)
            + i128::from(EPOCH_MS)
            + i128::from(self.wall_offset_ms);
        LedgerTime(u64::try_from(ms).unwrap_or(0))
    }

    /// The wall clock jumps by `ms`, as when somebody sets it.
    pub fn jump_wall(&mut self, ms: i64) {
        self.wall_offset_ms += ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_inverted_to_within_a_few_ns() {
        for rate in [-240, 0, 240] {
            let clock = MachineClock::new(7_000, rate, 0);
            let at = TrueTime(123_456_789_012);
            let back = clock.when(clock.local(at), TrueTime(0));
            assert!(back.0.abs_diff(at.0) <= 4, "{back:?}");
            assert!(clock.local(back) >= clock.local(at));
        }
    }
}
