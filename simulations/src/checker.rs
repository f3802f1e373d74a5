//! The observer outside the product: it counts what was really spent.

use std::collections::BTreeMap;

use leasehold_protocol::{LedgerTime, Tokens, Window};

/// What was seen, and the first thing that was wrong.
#[derive(Debug, Default)]
pub struct Checker {
    spent: BTreeMap<LedgerTime, u64>,
    limits: BTreeMap<LedgerTime, u64>,
    /// The first violation, in words.
    pub violation: Option<String>,
}

impl Checker {
    /// The highest limit that was in force at some time during a window bounds what may be admitted in it.
    pub fn limit_in_force(&mut self, window: Window, limit: Tokens) {
        let known = self.limits.entry(window.start).or_default();
        *known = (*known).max(limit.0);
    }

    /// A request was admitted by `window`'s label at a moment when the line read `line`.
    ///
    /// By label, without condition: no more than the limit. By time: not after the window's end on the line, and
    /// not before its start by more than `early_ms`, the longest message delay around a change of leader.
    pub fn admitted(&mut self, window: Window, cost: Tokens, line: LedgerTime, early_ms: u64) {
        let spent = self.spent.entry(window.start).or_default();
        *spent += cost.0;
        let limit = self.limits.get(&window.start).copied().unwrap_or(0);
        if *spent > limit {
            let text = format!("overshoot: {spent} admitted in window {}, limit {limit}", window.start);
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

    /// Tokens spent by window label.
    pub fn spent(&self) -> &BTreeMap<LedgerTime, u64> {
        &self.spent
    }
}
