//! Windows: half-open intervals of ledger time, aligned to the epoch.

use serde::{Deserialize, Serialize};

use crate::time::LedgerTime;

/// The length of a fixed window in ms: 1 s to 24 h, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct WindowLength(u64);

/// A window length outside 1 s to 24 h, or not in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a window of {ms} ms: a window has 1 s to 24 h, in whole seconds")]
pub struct WindowLengthError {
    /// What was asked for, in ms.
    pub ms: u64,
}

impl WindowLength {
    /// The length, if it is allowed.
    pub fn from_ms(ms: u64) -> Result<Self, WindowLengthError> {
        if (1_000..=86_400_000).contains(&ms) && ms.is_multiple_of(1_000) {
            Ok(Self(ms))
        } else {
            Err(WindowLengthError { ms })
        }
    }

    /// The length in ms, never 0.
    pub fn as_ms(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for WindowLength {
    type Error = WindowLengthError;
    fn try_from(ms: u64) -> Result<Self, WindowLengthError> {
        Self::from_ms(ms)
    }
}

impl From<WindowLength> for u64 {
    fn from(length: WindowLength) -> u64 {
        length.0
    }
}

/// The half-open interval `[start, end)` of ledger time. Its start is its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Window {
    /// The first ms that belongs to it.
    pub start: LedgerTime,
    /// The first ms that does not.
    pub end: LedgerTime,
}

impl Window {
    /// The window of `length` that holds `at`; windows are aligned to the epoch (D1: multiples of the length).
    pub fn containing(at: LedgerTime, length: WindowLength) -> Self {
        let start = LedgerTime(at.0 - at.0 % length.0);
        Self { start, end: start.saturating_add_ms(length.0) }
    }

    /// The window that starts where this one ends.
    #[must_use]
    pub fn next(self) -> Self {
        Self { start: self.end, end: self.end.saturating_add_ms(self.length_ms()) }
    }

    /// Its length in ms.
    pub fn length_ms(self) -> u64 {
        self.end.ms_since(self.start)
    }

    /// True if `at` lies in it.
    pub fn contains(self, at: LedgerTime) -> bool {
        self.start <= at && at < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_the_line_and_hold_their_start_but_not_their_end() {
        let minute = WindowLength::from_ms(60_000).unwrap();
        let w = Window::containing(LedgerTime(119_999), minute);
        assert_eq!((w.start, w.end), (LedgerTime(60_000), LedgerTime(120_000)));
        assert!(w.contains(w.start) && !w.contains(w.end));
        assert_eq!(w.next(), Window::containing(w.end, minute));
    }

    #[test]
    fn a_window_that_is_not_whole_seconds_or_out_of_range_is_refused() {
        for ms in [0, 1, 999, 1_500, 86_401_000, u64::MAX] {
            assert_eq!(WindowLength::from_ms(ms), Err(WindowLengthError { ms }));
        }
    }
}
