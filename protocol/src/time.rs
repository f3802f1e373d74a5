//! Two kinds of time that do not convert into each other, and the drift margin between them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The drift margin assumed between any two clocks, in parts per million: a thousandth (DESIGN.md, section 4).
pub const DRIFT_PPM_DEFAULT: u32 = 1_000;

/// A point of the one line that windows live on, in ms since the Unix epoch. The allocator's log decides it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LedgerTime(pub u64);

/// A text that names no point since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an RFC 3339 time since 1970, such as 2030-01-31T00:00:00Z")]
pub struct TimeTextError;

impl LedgerTime {
    /// Later by `ms`, or the last point there is.
    #[must_use]
    pub fn saturating_add_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Ms since `earlier`, 0 if `earlier` is later.
    pub fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point that an RFC 3339 text names, whatever its offset, rounded down to the ms.
    pub fn from_rfc3339(text: &str) -> Result<Self, TimeTextError> {
        let at = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| TimeTextError)?;
        u64::try_from(at.timestamp_millis()).map(Self).map_err(|_| TimeTextError)
    }

    /// As RFC 3339 in UTC with ms.
    pub fn to_rfc3339(self) -> String {
        i64::try_from(self.0).ok().and_then(chrono::DateTime::from_timestamp_millis).map_or_else(
            || "beyond-the-calendar".to_owned(),
            |t| t.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        )
    }
}

impl fmt::Display for LedgerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_rfc3339())
    }
}

/// A point of one machine's own clock, in ns since an origin of its choice. The clock never steps and keeps
/// counting while the machine sleeps. Two machines' values mean nothing to each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LocalTime(pub u64);

impl LocalTime {
    /// The point `ms` after the origin.
    pub fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Whole ms since the origin, rounded down.
    pub fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Later by `span`, or the last point there is.
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Later by `ms`, or the last point there is.
    #[must_use]
    pub fn saturating_add_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// The time since `earlier`, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole ms since `earlier`, rounded down; 0 if `earlier` is later.
    pub fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }

    /// The end of a span of `ms` that another clock measures, counted from here, so that it is never later than
    /// the true end: `self + ms * (1 - drift)`.
    #[must_use]
    pub fn plus_shrunk(self, ms: u64, drift_ppm: u32) -> Self {
        let ns = u128::from(ms) * 1_000_000;
        let cut = (ns * u128::from(drift_ppm)).div_ceil(1_000_000);
        Self(self.0.saturating_add(u64::try_from(ns.saturating_sub(cut)).unwrap_or(u64::MAX)))
    }

    /// The end of a span of `ms` that another clock measures, counted from here, so that it is never earlier than
    /// the true end: `self + ms * (1 + drift)`.
    #[must_use]
    pub fn plus_stretched(self, ms: u64, drift_ppm: u32) -> Self {
        let ns = u128::from(ms) * 1_000_000;
        let more = (ns * u128::from(drift_ppm)).div_ceil(1_000_000);
        Self(self.0.saturating_add(u64::try_from(ns + more).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_shrinks_and_stretches_by_the_drift_rounded_to_the_safe_side() {
        let at = LocalTime::from_ms(5);
        assert_eq!(at.plus_shrunk(60_000, 1_000), LocalTime::from_ms(5 + 59_940));
        assert_eq!(at.plus_stretched(60_000, 1_000), LocalTime::from_ms(5 + 60_060));
        assert_eq!(at.plus_shrunk(1, 1), LocalTime(at.0 + 999_999));
        assert_eq!(LocalTime(u64::MAX).plus_stretched(u64::MAX, 1_000), LocalTime(u64::MAX));
    }

    #[test]
    fn ledger_time_is_read_at_any_offset_and_only_with_one() {
        assert_eq!(LedgerTime::from_rfc3339("1970-01-01T01:00:01.5+01:00"), Ok(LedgerTime(1_500)));
        for bad in ["", "1970-01-01", "1970-01-01T00:00:00", "1969-12-31T23:59:59Z", "tomorrow"] {
            assert_eq!(LedgerTime::from_rfc3339(bad), Err(TimeTextError), "{bad:?}");
        }
    }

    #[test]
    fn ledger_time_prints_as_rfc_3339_and_never_panics() {
        assert_eq!(LedgerTime(1_500).to_string(), "1970-01-01T00:00:01.500Z");
        assert_eq!(LedgerTime(u64::MAX).to_string(), "beyond-the-calendar");
    }
}
