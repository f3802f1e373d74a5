//! The fixed window (D1), for rules that each agent counts for itself.
//!
//! State: a window's label and how much was used in it. Bound: the limit in each window, so up to twice the limit
//! around a boundary (20 + 20 in 0.2 s); that is the algorithm as defined. Error: none. Windows are aligned to the
//! epoch on this machine's wall clock; a clock set back stays in the window it was in and mints nothing.

use leasehold_protocol::{LedgerTime, Tokens, Window, WindowLength};

/// What was used in one window. A counter that is not stored has used nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCount {
    window: Window,
    used: Tokens,
}

impl WindowCount {
    /// Nothing used in the window that holds `at`.
    pub fn empty(length: WindowLength, at: LedgerTime) -> Self {
        Self { window: Window::containing(at, length), used: Tokens::ZERO }
    }

    /// The count at `at`: the same window's, or an empty one of the window that `at` lies in.
    #[must_use]
    pub fn at(self, length: WindowLength, at: LedgerTime) -> Self {
        if at < self.window.end && self.window.length_ms() == length.as_ms() {
            self
        } else {
            Self::empty(length, at)
        }
    }

    /// The count after `cost` under `limit`, or how long until the window ends, in ms: at least 1.
    pub fn take(self, limit: Tokens, cost: Tokens, at: LedgerTime) -> Result<Self, u64> {
        match self.used.checked_add(cost) {
            Some(used) if used <= limit => Ok(Self { used, ..self }),
            _ => Err(self.ms_until_end(at)),
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

    /// Its window.
    pub fn window(self) -> Window {
        self.window
    }

    /// Until its window ends, in ms: at least 1.
    pub fn ms_until_end(self, at: LedgerTime) -> u64 {
        self.window.end.ms_since(at).max(1)
    }

    /// The same use in the window of another length that holds `at`: nothing is forgotten.
    #[must_use]
    pub fn resized(self, old: WindowLength, new: WindowLength, at: LedgerTime) -> Self {
        let kept = self.at(old, at);
        if old == new { kept } else { Self { used: kept.used, ..Self::empty(new, at) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten_s() -> WindowLength {
        WindowLength::from_ms(10_000).unwrap()
    }

    fn pass(count: &mut WindowCount, at: u64, times: usize) -> usize {
        (0..times)
            .filter(|_| {
                let now = count.at(ten_s(), LedgerTime(at));
                now.take(Tokens(20), Tokens(1), LedgerTime(at)).map(|after| *count = after).is_ok()
            })
            .count()
    }

    #[test]
    fn twenty_and_twenty_around_a_boundary_are_forty_in_a_fifth_of_a_second() {
        let mut count = WindowCount::empty(ten_s(), LedgerTime(9_900));
        assert_eq!(pass(&mut count, 9_900, 30), 20);
        assert_eq!(pass(&mut count, 10_100, 30), 20);
    }

    #[test]
    fn the_wait_is_until_the_window_ends() {
        let full = WindowCount::empty(ten_s(), LedgerTime(12_500)).count(Tokens(20));
        assert_eq!(full.take(Tokens(20), Tokens(1), LedgerTime(12_500)), Err(7_500));
        assert_eq!(full.take(Tokens(20), Tokens(1), LedgerTime(19_999)), Err(1));
    }

    #[test]
    fn a_wall_clock_set_back_stays_in_its_window_and_mints_nothing() {
        let mut count = WindowCount::empty(ten_s(), LedgerTime(20_000));
        assert_eq!(pass(&mut count, 20_000, 20), 20);
        assert_eq!(pass(&mut count, 15_000, 20), 0);
        assert_eq!(pass(&mut count, 29_999, 20), 0);
        assert_eq!(pass(&mut count, 30_000, 20), 20);
    }

    #[test]
    fn a_cost_that_would_wrap_is_refused() {
        let some = WindowCount::empty(ten_s(), LedgerTime(0)).count(Tokens(3));
        assert_eq!(some.take(Tokens(20), Tokens(u64::MAX), LedgerTime(0)), Err(10_000));
        assert_eq!(some.count(Tokens(u64::MAX)).used(), Tokens(u64::MAX));
    }

    #[test]
    fn another_length_forgets_nothing_that_was_used() {
        let minute = WindowLength::from_ms(60_000).unwrap();
        let some = WindowCount::empty(ten_s(), LedgerTime(12_000)).count(Tokens(3));
        let resized = some.resized(ten_s(), minute, LedgerTime(13_000));
        assert_eq!((resized.used(), resized.window().end), (Tokens(3), LedgerTime(60_000)));
    }
}
