//! What a holder forecasts of its own demand: rates that size leases and decide nothing.
//!
//! Every function here uses addition, multiplication, division and square roots alone, which IEEE 754 defines to the
//! bit: two replicas, or a simulation on another machine, come to the same size (decision record 5).

use serde::{Deserialize, Serialize};

/// Spans and parts that sizing follows, for one length of window (ALGORITHM.md, 4.5). All spans in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Horizons {
    /// The window.
    pub window: f64,
    /// How far ahead a grant looks while there is plenty.
    pub plenty: f64,
    /// How far ahead while tokens are scarce, and what a holder keeps after a recall.
    pub scarce: f64,
    /// The end of a window, in which idle agents give back to the last token.
    pub tail: f64,
    /// The time constant of the sustained rate.
    pub sustained: f64,
    /// The time constant of the fast rate, and the longest burst it stands for.
    pub fast: f64,
    /// How long before the window's end the next one is asked for, without the spread.
    pub lead: f64,
}

impl Horizons {
    /// For a window of `window_ms`.
    pub fn of(window_ms: u64) -> Self {
        let window = seconds(window_ms);
        Self {
            window,
            plenty: 15.0_f64.min(window / 4.0),
            scarce: 4.0_f64.min(window / 15.0),
            tail: 5.0_f64.min(window / 12.0),
            sustained: (window / 3.0).clamp(1.0, 20.0),
            fast: 1.0,
            lead: 2.0_f64.min(window / 2.0),
        }
    }
}

/// A holder's demand for one pool: two rates, in millitokens a second. Soft state: no method yields
/// [`Tokens`](crate::Tokens), since a forecast may never be spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Over about the last second.
    pub fast_mtps: u64,
    /// Over about the last twenty seconds; falls sooner when a crowd leaves.
    pub sustained_mtps: u64,
}

impl Demand {
    /// From rates in tokens a second. What is no positive number counts as none.
    pub fn from_rates(fast: f64, sustained: f64) -> Self {
        Self { fast_mtps: whole(fast * 1_000.0), sustained_mtps: whole(sustained * 1_000.0) }
    }

    /// Tokens a second over about the last second.
    pub fn fast(self) -> f64 {
        real(self.fast_mtps) / 1_000.0
    }

    /// Tokens a second over about the last twenty.
    pub fn sustained(self) -> f64 {
        real(self.sustained_mtps) / 1_000.0
    }
}

/// Tokens that rates `fast` and `sustained`, in tokens a second, ask for over `span` seconds: the sustained rate all
/// along, what the fast one is above it for a second at most (ALGORITHM.md, 4.2: F).
pub fn forecast(fast: f64, sustained: f64, span: f64) -> f64 {
    sustained * span + (fast - sustained).max(0.0) * span.clamp(0.0, 1.0)
}

/// `e^-x` for `x` of 0 or more, to about 10 digits; 1 for anything else.
///
/// ```
/// use leasehold_protocol::demand::decay;
/// for x in [0.0_f64, 1e-6, 0.3, 0.693, 1.0, 5.5, 40.0] {
///     assert!((decay(x) / (-x).exp() - 1.0).abs() < 1e-9);
/// }
/// assert_eq!(decay(1e9), 0.0);
/// assert_eq!(decay(f64::NAN), 1.0);
/// ```
pub fn decay(x: f64) -> f64 {
    if x > 700.0 {
        return 0.0;
    }
    if x.is_nan() || x <= 0.0 {
        return 1.0;
    }
    // e^-x = 2^-k * e^-r with r below ln 2, and e^-r by its series.
    let k = whole(x / std::f64::consts::LN_2);
    let r = x - real(k) * std::f64::consts::LN_2;
    let mut series = 1.0;
    for n in [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        series = 1.0 - r / n * series;
    }
    series * f64::from_bits(1_023_u64.saturating_sub(k).max(1) << 52)
}

/// A span of `ms` in seconds.
pub fn seconds(ms: u64) -> f64 {
    real(ms) / 1_000.0
}

/// A count as a real number; above 2^53 the nearest one.
#[expect(clippy::cast_precision_loss, reason = "a forecast needs no more than 53 bits")]
pub fn real(count: u64) -> f64 {
    count as f64
}

/// The whole part of a real number; 0 for a negative one or none, the largest count for one beyond it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as is said")]
pub fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_counts_a_burst_for_a_second_at_most() {
        for (fast, sustained, span, wanted) in
            [(10.0, 2.0, 0.5, 5.0), (10.0, 2.0, 1.0, 10.0), (10.0, 2.0, 10.0, 28.0), (1.0, 2.0, 10.0, 20.0)]
        {
            assert!((forecast(fast, sustained, span) - wanted).abs() < 1e-12);
        }
    }

    #[test]
    fn rates_that_are_no_number_count_as_none_and_large_ones_saturate() {
        assert_eq!(Demand::from_rates(f64::NAN, -1.0), Demand::default());
        assert_eq!(Demand::from_rates(f64::INFINITY, 0.0015).sustained_mtps, 1);
        assert_eq!(Demand::from_rates(f64::INFINITY, 0.0).fast_mtps, u64::MAX);
    }

    #[test]
    fn spans_shrink_with_the_window() {
        let minute = Horizons::of(60_000);
        assert_eq!((minute.plenty, minute.scarce, minute.tail, minute.lead), (15.0, 4.0, 5.0, 2.0));
        let second = Horizons::of(1_000);
        assert!(second.plenty <= 0.25 && second.lead <= 0.5 && second.sustained >= 1.0);
        assert_eq!(Horizons::of(86_400_000), Horizons { window: 86_400.0, ..minute });
    }
}
