//! How much a pool is asked for: soft state that sizes acquires and is never used for safety (ALGORITHM.md, 4.2).

use leasehold_protocol::demand::{Horizons, decay, forecast, real, whole};
use leasehold_protocol::{Demand, LedgerTime, LocalTime, Tokens};

/// Time constant of the middle rate, in seconds.
const MIDDLE_S: f64 = 4.0;
/// Time constant of the largest cost, in seconds.
const COST_S: f64 = 60.0;
/// A middle rate below this, in tokens a second, says nothing of its own spread.
const RATE_MIN: f64 = 0.05;
/// A window's start is over after this many seconds, or a tenth of the window.
const START_S: f64 = 1.0;

/// Rates of demand, admitted or not. No average is corrected for a cold start: the first region of a herd would claim
/// half of the pool.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    at: LocalTime,
    /// Tokens a second over about one second, four, and a third of the window.
    fast: f64,
    middle: f64,
    slow: f64,
    cost_max: f64,
    /// What the window's start took at once, as earlier windows say.
    boundary: f64,
    /// The same for one window, so far.
    start: Option<(LedgerTime, f64)>,
    /// Asked for while no window was known, and when first.
    unplaced: Option<(LocalTime, f64)>,
    last_at: Option<LocalTime>,
}

/// Where in its window a moment lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    /// The window's label.
    pub(crate) start: LedgerTime,
    /// When it began, by a perfect clock.
    pub(crate) began: LocalTime,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            at: LocalTime(0),
            fast: 0.0,
            middle: 0.0,
            slow: 0.0,
            cost_max: 0.0,
            boundary: 0.0,
            start: None,
            unplaced: None,
            last_at: None,
        }
    }
}

impl Signals {
    /// Notes a request of `cost`, in `phase` of its window if that is known.
    pub(crate) fn note(&mut self, now: LocalTime, cost: Tokens, phase: Option<Phase>, spans: Horizons) {
        self.pass(now, spans);
        let cost = real(cost.min(Tokens::MAX).0);
        self.fast += cost / spans.fast;
        self.middle += cost / MIDDLE_S;
        self.slow += cost / spans.sustained;
        self.cost_max = self.cost_max.max(cost);
        self.last_at = Some(now);
        match phase {
            None => {
                let first = self.unplaced.get_or_insert((now, 0.0));
                first.1 += cost;
            }
            Some(phase) => {
                self.enter(phase, spans);
                if seconds_since(now, phase.began) < start_s(spans)
                    && let Some((_, burst)) = &mut self.start
                {
                    *burst += cost;
                }
            }
        }
    }

    /// Lets time pass up to `now`.
    pub(crate) fn pass(&mut self, now: LocalTime, spans: Horizons) {
        let dt = seconds_since(now, self.at);
        if dt <= 0.0 {
            return;
        }
        self.at = now;
        self.fast *= decay(dt / spans.fast);
        self.middle *= decay(dt / MIDDLE_S);
        self.slow *= decay(dt / spans.sustained);
        self.cost_max *= decay(dt / COST_S);
    }

    /// The window is known now: what was asked for before counts for its start if it was then.
    pub(crate) fn place(&mut self, phase: Phase, spans: Horizons) {
        if let Some((first, cost)) = self.unplaced.take() {
            self.enter(phase, spans);
            if phase.began <= first.saturating_add_ms(1)
                && seconds_since(first, phase.began) < start_s(spans)
                && let Some((_, burst)) = &mut self.start
            {
                *burst += cost;
            }
        }
    }

    /// Goes on to another window; one without any request forgets what starts took.
    fn enter(&mut self, phase: Phase, spans: Horizons) {
        match self.start {
            Some((start, _)) if start >= phase.start => {}
            Some((start, _)) => {
                let gap = phase.start.ms_since(start);
                let is_next = gap <= whole(spans.window * 1_000.0);
                self.boundary = if is_next { self.boundary() } else { 0.0 };
                self.start = Some((phase.start, 0.0));
            }
            None => self.start = Some((phase.start, 0.0)),
        }
    }

    /// The sustained rate, in tokens a second; falls sooner than its average when a crowd leaves.
    pub(crate) fn sustained(&self) -> f64 {
        let spread = (self.middle.max(RATE_MIN) * self.cost() / (2.0 * MIDDLE_S)).sqrt();
        self.slow.min(self.middle + 2.0 * spread)
    }

    /// The largest cost of late, in tokens, at least 1.
    pub(crate) fn cost(&self) -> f64 {
        self.cost_max.max(1.0)
    }

    /// What the start of the next window will take at once, in tokens: no less than this one's did.
    pub(crate) fn boundary(&self) -> f64 {
        let burst = self.start.map_or(0.0, |(_, burst)| burst);
        f64::midpoint(self.boundary, burst).max(burst)
    }

    /// What a frame says of it.
    pub(crate) fn demand(&self) -> Demand {
        Demand::from_rates(self.fast, self.sustained())
    }

    /// Tokens that `span` seconds will ask for.
    pub(crate) fn forecast(&self, span: f64) -> f64 {
        forecast(self.fast, self.sustained(), span)
    }

    /// Tokens below which more is asked for: what a round trip of `rtt_ms` uses up, and from afar one and a half
    /// standard deviations on top.
    pub(crate) fn low_water(&self, rtt_ms: u64) -> f64 {
        let span = 1.3 * real(rtt_ms) / 1_000.0 + 0.010;
        let used = self.fast.max(self.sustained()) * span;
        let mark = if rtt_ms < NEAR_MS { used } else { used + 1.5 * (used * self.cost()).sqrt() };
        if self.cost_max > 1.5 { mark.max(self.cost_max) } else { mark }
    }

    /// The time since the last request, in ms; `None` if there never was one.
    pub(crate) fn idle_ms(&self, now: LocalTime) -> Option<u64> {
        self.last_at.map(|at| now.ms_since(at))
    }
}

/// A round trip shorter than this, in ms, is one within the region.
const NEAR_MS: u64 = 5;

fn start_s(spans: Horizons) -> f64 {
    START_S.min(spans.window / 10.0)
}

/// Seconds from `earlier` to `now`; 0 if it is later.
fn seconds_since(now: LocalTime, earlier: LocalTime) -> f64 {
    real(now.0.saturating_sub(earlier.0)) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;

    fn at(ms: u64) -> LocalTime {
        LocalTime::from_ms(1_000_000 + ms)
    }

    fn phase(window: u64) -> Phase {
        Phase { start: LedgerTime(window * MINUTE_MS), began: at(window * MINUTE_MS) }
    }

    fn asked(per_s: u64, from_ms: u64, to_ms: u64, signals: &mut Signals) {
        for ms in (from_ms..to_ms).step_by(usize::try_from(1_000 / per_s).unwrap()) {
            signals.note(at(ms), Tokens(1), Some(phase(ms / MINUTE_MS)), Horizons::of(MINUTE_MS));
        }
    }

    #[test]
    fn a_steady_rate_is_found_and_one_that_stops_is_gone_within_seconds() {
        let (mut signals, spans) = (Signals::default(), Horizons::of(MINUTE_MS));
        asked(20, 0, 50_000, &mut signals);
        assert!((18.0..=22.0).contains(&signals.sustained()) && (18.0..=22.0).contains(&signals.fast));
        signals.pass(at(60_000), spans);
        assert!(signals.fast < 0.1 && signals.sustained() < 5.0);
        signals.pass(at(80_000), spans);
        assert!(signals.sustained() < 0.5);
    }

    #[test]
    fn a_cold_start_claims_little() {
        let mut signals = Signals::default();
        asked(50, 0, 1_000, &mut signals);
        assert!(signals.sustained() < 3.0, "{}", signals.sustained());
    }

    #[test]
    fn what_a_start_took_is_expected_of_the_next_one_until_a_window_is_idle() {
        let mut signals = Signals::default();
        asked(50, 0, 1_000, &mut signals);
        assert!((signals.boundary() - 50.0).abs() < 1.0);
        asked(50, MINUTE_MS, MINUTE_MS + 500, &mut signals);
        assert!((37.0..=39.0).contains(&signals.boundary()), "{}", signals.boundary());
        asked(1, 3 * MINUTE_MS + 30_000, 3 * MINUTE_MS + 40_000, &mut signals);
        assert!(signals.boundary() < 1e-9);
    }

    #[test]
    fn requests_before_the_first_answer_count_for_the_start_if_they_were_there() {
        let spans = Horizons::of(MINUTE_MS);
        for (from, burst) in [(10, 30.0), (20_000, 0.0)] {
            let mut signals = Signals::default();
            for n in 0..30 {
                signals.note(at(from + n), Tokens(1), None, spans);
            }
            signals.place(phase(0), spans);
            assert!((signals.boundary() - burst).abs() < 1e-9);
        }
    }

    #[test]
    fn the_mark_is_what_a_round_trip_uses_and_no_less_than_the_largest_cost() {
        let mut signals = Signals::default();
        asked(20, 0, 50_000, &mut signals);
        assert!((0.1..=0.5).contains(&signals.low_water(1)));
        assert!((4.0..=6.5).contains(&signals.low_water(100)));
        signals.note(at(50_000), Tokens(10), None, Horizons::of(MINUTE_MS));
        assert!(signals.low_water(1) >= 10.0);
    }

    #[test]
    fn absurd_costs_and_times_stay_numbers() {
        let (mut signals, spans) = (Signals::default(), Horizons::of(MINUTE_MS));
        for ms in [5, 0, 100, u64::MAX / 2_000_000] {
            signals.note(at(ms), Tokens(u64::MAX), None, spans);
            assert!(signals.forecast(10.0).is_finite() && signals.low_water(u64::MAX).is_finite());
        }
    }
}
