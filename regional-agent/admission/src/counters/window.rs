//! The fixed window (D1), for rules that each agent counts for itself.
//!
//! State: a window's label and how much was used in it. Bound: the limit in each window, so up to twice the limit
//! around a boundary (20 + 20 in 0.2 s); that is the algorithm as defined. Error: none. Windows are aligned to the
//! epoch on this machine's wall clock. A clock set back stays in the window it was in and mints nothing; one that was
//! far ahead for a moment locks nobody out, since no window outlives twice its length by the clock that never steps.

use leasehold_protocol::{LedgerTime, LocalTime, Tokens, Window, WindowLength};

/// What was used in one window. A counter that is not stored has used nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCount {
    window: Window,
    used: Tokens,
    /// When its counting began. A wall clock that runs right leaves the window within its length from here, so twice
    /// the length is never reached by it.
    since: LocalTime,
}

impl WindowCount {
    /// Nothing used in the window that holds `at`.
    pub fn empty(length: WindowLength, at: LedgerTime, now: LocalTime) -> Self {
        Self { window: Window::containing(at, length), used: Tokens::ZERO, since: now }
    }

    /// The count at `at`: the same window's, or an empty one of the window that `at` lies in.
    #[must_use]
    pub fn at(self, length: WindowLength, at: LedgerTime, now: LocalTime) -> Self {
        if !self.is_over(at, now) && self.window.length_ms() == length.as_ms() {
            self
        } else {
            Self::empty(length, at, now)
        }
    }

    /// True once it says nothing any more.
    pub fn is_over(self, at: LedgerTime, now: LocalTime) -> bool {
        self.window.end <= at || self.outlived_at() <= now
    }

    /// How long it may still last at most, in ms.
    pub fn lasts_ms(self, at: LedgerTime, now: LocalTime) -> u64 {
        self.window.end.ms_since(at).min(self.outlived_at().ms_since(now))
    }

    fn outlived_at(self) -> LocalTime {
        self.since.saturating_add_ms(self.window.length_ms().saturating_mul(2))
    }

    /// The count after `cost` under `limit`, or how long until the window ends, in ms: at least 1.
    pub fn take(self, limit: Tokens, cost: Tokens, at: LedgerTime, now: LocalTime) -> Result<Self, u64> {
        match self.used.checked_add(cost) {
            Some(used) if used <= limit => Ok(Self { used, ..self }),
            _ => Err(self.ms_until_end(at, now)),
        }
    }

    /// The count after `cost` under no limit.
    #[must_use]
    pub fn count(self, cost: Tokens) -> Self {
        Self { used: self.used.saturating_add(cost), ..self }
    }

    /// What was used.
    pub fn used(self) -> Tokens {
        self.used
    }

    /// Until its window ends, in ms: at least 1.
    pub fn ms_until_end(self, at: LedgerTime, now: LocalTime) -> u64 {
        self.lasts_ms(at, now).max(1)
    }

    /// The same use in the window of another length that holds `at`: nothing is forgotten.
    #[must_use]
    pub fn resized(self, old: WindowLength, new: WindowLength, at: LedgerTime, now: LocalTime) -> Self {
        let kept = self.at(old, at, now);
        if old == new { kept } else { Self { used: kept.used, ..Self::empty(new, at, now) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten_s() -> WindowLength {
        WindowLength::from_ms(10_000).unwrap()
    }

    /// The clock that never steps, in ms.
    fn local(ms: u64) -> LocalTime {
        LocalTime::from_ms(ms)
    }

    /// How many of `times` pass when the wall clock says `at` and the other one `now`, both in ms.
    fn pass_at(count: &mut WindowCount, at: u64, now: u64, times: usize) -> usize {
        (0..times)
            .filter(|_| {
                let then = count.at(ten_s(), LedgerTime(at), local(now));
                let after = then.take(Tokens(20), Tokens(1), LedgerTime(at), local(now));
                after.map(|after| *count = after).is_ok()
            })
            .count()
    }

    fn pass(count: &mut WindowCount, at: u64, times: usize) -> usize {
        pass_at(count, at, at, times)
    }

    fn empty(at: u64) -> WindowCount {
        WindowCount::empty(ten_s(), LedgerTime(at), local(at))
    }

    #[test]
    fn twenty_and_twenty_around_a_boundary_are_forty_in_a_fifth_of_a_second() {
        let mut count = empty(9_900);
        assert_eq!(pass(&mut count, 9_900, 30), 20);
        assert_eq!(pass(&mut count, 10_100, 30), 20);
    }

    #[test]
    fn the_wait_is_until_the_window_ends() {
        let full = empty(12_500).count(Tokens(20));
        let wait = |at: u64| full.take(Tokens(20), Tokens(1), LedgerTime(at), local(at));
        assert_eq!(wait(12_500), Err(7_500));
        assert_eq!(wait(19_999), Err(1));
    }

    #[test]
    fn a_wall_clock_set_back_stays_in_its_window_and_mints_nothing() {
        let mut count = empty(20_000);
        assert_eq!(pass_at(&mut count, 20_000, 20_000, 20), 20);
        assert_eq!(pass_at(&mut count, 15_000, 20_001, 20), 0);
        assert_eq!(pass_at(&mut count, 29_999, 35_000, 20), 0);
        assert_eq!(pass_at(&mut count, 30_000, 35_001, 20), 20);
    }

    #[test]
    fn a_wall_clock_that_was_a_year_ahead_for_a_moment_locks_nobody_out() {
        const YEAR_MS: u64 = 31_536_000_000;
        let mut count = empty(20_000);
        assert_eq!(pass_at(&mut count, 20_000 + YEAR_MS, 20_000, 20), 20);
        assert_eq!(pass_at(&mut count, 21_000, 21_000, 20), 0, "the jump back mints nothing");
        let refused = count.take(Tokens(20), Tokens(1), LedgerTime(21_000), local(21_000));
        assert_eq!(refused, Err(19_000), "the wait is what it will be, not a year");
        assert_eq!(pass_at(&mut count, 39_999, 39_999, 20), 0);
        assert_eq!(pass_at(&mut count, 40_000, 40_000, 30), 20, "twice its length after its start");
        assert_eq!(pass_at(&mut count, 49_999, 49_999, 30), 0);
    }

    #[test]
    fn a_cost_that_would_wrap_is_refused() {
        let some = empty(0).count(Tokens(3));
        assert_eq!(some.take(Tokens(20), Tokens(u64::MAX), LedgerTime(0), local(0)), Err(10_000));
        assert_eq!(some.count(Tokens(u64::MAX)).used(), Tokens(u64::MAX));
    }

    #[test]
    fn another_length_forgets_nothing_that_was_used() {
        let minute = WindowLength::from_ms(60_000).unwrap();
        let some = empty(12_000).count(Tokens(3));
        let resized = some.resized(ten_s(), minute, LedgerTime(13_000), local(13_000));
        let left = resized.ms_until_end(LedgerTime(13_000), local(13_000));
        assert_eq!((resized.used(), left), (Tokens(3), 47_000));
    }
}
