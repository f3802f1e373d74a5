//! Which command ids of one holder have been seen, in 24 bytes.

use leasehold_protocol::LedgerTime;
use serde::{Deserialize, Serialize};

/// How far back a number can still be told apart from one never seen. An agent has four acquires of one pool in
/// flight at most (ALGORITHM.md, 4.5), so sixteen times that is ample.
const SPAN: u64 = 64;

/// The highest number seen and which of the 63 before it were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequences {
    high: u64,
    seen: u64,
    /// When it last saw a command.
    pub(crate) active_at: LedgerTime,
}

impl Sequences {
    /// Nothing seen.
    pub(crate) fn new(active_at: LedgerTime) -> Self {
        Self { high: 0, seen: 0, active_at }
    }

    /// Notes `seq`. True if it is seen for the first time; false for a repetition and for one too old to tell.
    pub(crate) fn is_first(&mut self, seq: u64) -> bool {
        if seq > self.high {
            let ahead = seq - self.high;
            self.seen = if ahead >= SPAN { 0 } else { self.seen << ahead };
            self.seen |= 1;
            self.high = seq;
            return true;
        }
        let back = self.high - seq;
        if back >= SPAN || self.seen & (1 << back) != 0 {
            return false;
        }
        self.seen |= 1 << back;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_first_once_in_any_order_and_too_old_is_never_first() {
        let mut s = Sequences::new(LedgerTime(0));
        for seq in [1, 3, 2, 66, 5, 64] {
            assert!(s.is_first(seq), "{seq}");
            assert!(!s.is_first(seq), "{seq} again");
        }
        assert!(!s.is_first(2), "64 behind the highest");
        assert!(s.is_first(1_000));
        assert!(!s.is_first(66));
        assert!(s.is_first(999));
    }
}
