//! The observer outside the product: it counts what was really spent, over all agents and all their lives.
//!
//! It believes nothing that the cores say of themselves. Limits come from the bundles that were committed, the time
//! from the leader's line, a spend from the request that was let through.

use std::collections::BTreeMap;

use leasehold_protocol::{LedgerTime, Tokens, Window};

/// What was seen, and the first thing that was wrong.
#[derive(Debug, Default)]
pub struct Checker {
    spent: BTreeMap<LedgerTime, u64>,
    ends: BTreeMap<LedgerTime, LedgerTime>,
    /// How long before a window's start its tokens can be granted, in ms: the longest window there is.
    lead_ms: u64,
    wanted: BTreeMap<LedgerTime, u64>,
    limits: Vec<(LedgerTime, u64)>,
    /// The first violation, in words.
    pub violation: Option<String>,
}

impl Checker {
    /// Nothing seen. `lead_ms` is the longest window of the run.
    pub fn new(lead_ms: u64) -> Self {
        Self { lead_ms, ..Self::default() }
    }

    /// A bundle with `limit` became the policy when the ledger's time was `at`.
    pub fn limit_committed(&mut self, at: LedgerTime, limit: Tokens) {
        self.limits.push((at, limit.0));
    }

    /// The most that may be admitted by this label: the highest limit that was in force while tokens of the window
    /// could be granted, which is from the start of the window before it.
    pub fn limit_of(&self, window: Window) -> u64 {
        let from = LedgerTime(window.start.0.saturating_sub(self.lead_ms));
        self.limits_between(from, window.end).max().unwrap_or(0)
    }

    /// The limits in force at some time in `[from, to)`.
    fn limits_between(&self, from: LedgerTime, to: LedgerTime) -> impl Iterator<Item = u64> {
        let before = self.limits.iter().rev().find(|(at, _)| *at <= from);
        let during = self.limits.iter().filter(move |(at, _)| *at > from && *at < to);
        before.into_iter().chain(during).map(|(_, limit)| *limit)
    }

    /// A request for `cost` arrived while the line was in `window`.
    pub fn requested(&mut self, window: Window, cost: Tokens) {
        *self.wanted.entry(window.start).or_default() += cost.0;
    }

    /// A request was admitted by `window`'s label at a moment when the line read `line`.
    ///
    /// By label, without condition: no more than the limit. By time: not after the window's end on the line, and
    /// not before its start by more than `early_ms`, the longest message delay around a change of leader.
    pub fn admitted(&mut self, window: Window, cost: Tokens, line: LedgerTime, early_ms: u64) {
        let limit = self.limit_of(window);
        let spent = self.spent.entry(window.start).or_default();
        *spent += cost.0;
        if *spent > limit {
            let text = format!("overshoot: {spent} admitted in window {}, limit {limit}", window.start);
            self.violation.get_or_insert(text);
        }
        let end = *self.ends.entry(window.start).or_insert(window.end);
        let before = self.ends.range(..window.start).next_back();
        if end != window.end || before.is_some_and(|(_, end)| *end > window.start) {
            let text = format!("overlap: {} to {} and another window", window.start, window.end);
            self.violation.get_or_insert(text);
        }
        if line >= window.end {
            let text = format!("late: admitted by window {} when the line read {line}", window.start);
            self.violation.get_or_insert(text);
        }
        if line.saturating_add_ms(early_ms) < window.start {
            let text = format!("early: admitted by window {} when the line read {line}", window.start);
            self.violation.get_or_insert(text);
        }
    }

    /// Something else is wrong.
    pub fn fail(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// Of the whole windows in `[from, to)`: what was admitted, and what a single counter with no delay would have
    /// admitted, which is the demand up to the limit.
    pub fn efficiency(&self, from: LedgerTime, to: LedgerTime, length_ms: u64) -> (u64, u64) {
        let (mut admitted, mut ideal) = (0, 0);
        for (start, wanted) in self.wanted.range(from..to) {
            let window = Window { start: *start, end: start.saturating_add_ms(length_ms) };
            if window.end <= to {
                admitted += self.spent.get(start).copied().unwrap_or(0);
                let limit = self.limits_between(window.start, window.end).min().unwrap_or(0);
                ideal += limit.min(*wanted);
            }
        }
        (admitted, ideal)
    }

    /// Tokens spent by window label.
    pub fn spent(&self) -> &BTreeMap<LedgerTime, u64> {
        &self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Window = Window { start: LedgerTime(10_000), end: LedgerTime(20_000) };

    fn checker() -> Checker {
        let mut checker = Checker::new(10_000);
        checker.limit_committed(LedgerTime(1), Tokens(10));
        checker
    }

    fn verdict(checker: &Checker) -> &str {
        checker.violation.as_deref().unwrap_or("fine").split(':').next().unwrap_or_default()
    }

    #[test]
    fn one_token_above_the_limit_is_an_overshoot_whoever_spent_it() {
        let mut checker = checker();
        checker.admitted(W, Tokens(9), LedgerTime(10_000), 0);
        checker.admitted(W, Tokens(1), LedgerTime(19_999), 0);
        assert_eq!(verdict(&checker), "fine");
        checker.admitted(W, Tokens(1), LedgerTime(15_000), 0);
        assert_eq!(verdict(&checker), "overshoot");
    }

    #[test]
    fn a_spend_at_the_end_is_late_and_one_before_the_tolerance_is_early() {
        let mut late = checker();
        late.admitted(W, Tokens(1), W.end, 5);
        assert_eq!(verdict(&late), "late");
        let mut early = checker();
        early.admitted(W, Tokens(1), LedgerTime(9_995), 5);
        assert_eq!(verdict(&early), "fine");
        early.admitted(W, Tokens(1), LedgerTime(9_994), 5);
        assert_eq!(verdict(&early), "early");
    }

    #[test]
    fn two_windows_that_share_a_moment_or_a_label_are_an_overlap() {
        for other in [(10_000, 15_000), (15_000, 25_000)] {
            let mut checker = checker();
            checker.admitted(W, Tokens(1), LedgerTime(15_000), 0);
            assert_eq!(verdict(&checker), "fine");
            let other = Window { start: LedgerTime(other.0), end: LedgerTime(other.1) };
            checker.admitted(other, Tokens(1), LedgerTime(15_000), 10_000);
            assert_eq!(verdict(&checker), "overlap");
        }
    }

    #[test]
    fn a_lowered_limit_binds_the_windows_that_no_higher_one_could_have_granted_from() {
        let mut checker = checker();
        checker.limit_committed(LedgerTime(5_000), Tokens(3));
        checker.limit_committed(LedgerTime(15_000), Tokens(7));
        assert_eq!(checker.limit_of(W), 10, "leased ahead before 5,000");
        assert_eq!(checker.limit_of(W.next()), 7);
        checker.limit_committed(LedgerTime(25_000), Tokens(2));
        assert_eq!(checker.limit_of(W.next().next()), 7);
        assert_eq!(checker.limit_of(W.next().next().next()), 2);
    }

    #[test]
    fn what_was_asked_for_beyond_the_limit_is_not_owed() {
        let mut checker = checker();
        checker.requested(W, Tokens(50));
        checker.requested(W.next(), Tokens(4));
        checker.requested(W.next().next(), Tokens(1));
        checker.admitted(W, Tokens(8), LedgerTime(10_000), 0);
        assert_eq!(checker.efficiency(LedgerTime(10_000), LedgerTime(39_999), 10_000), (8, 14));
    }
}
