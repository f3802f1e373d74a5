//! What a run came to, against a counter at home that nobody is away from.

use std::collections::BTreeMap;

use super::{Run, Trace, WINDOWS};

/// Sums over one run, or over many.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Tokens admitted.
    pub admitted: u64,
    /// Tokens that the demand up to the limit of each window comes to.
    pub ideal: u64,
    /// Requests that the oracle admits, first come, first served.
    pub oracle: u64,
    /// Those of them that were refused.
    pub false_denials: u64,
    /// Requests admitted.
    pub requests: u64,
    /// Those of them that were held for more than 2 ms.
    pub waited: u64,
    /// Messages to or from the allocator.
    pub calls: u64,
    /// The most tokens above the limit in any window.
    pub overshoot: u64,
    /// What the region that fared worst got of its max-min fair part, summed over windows.
    pub fairness: f64,
    /// Windows.
    pub windows: u64,
}

/// Adds up.
pub type Sum = Score;

impl Score {
    /// Compares `run` with the oracle.
    pub fn of(trace: &Trace, run: &Run) -> Self {
        let mut score = Self { calls: run.calls, windows: WINDOWS, ..Self::default() };
        let mut left = vec![trace.limit; usize::try_from(WINDOWS).unwrap_or(0)];
        let mut demand: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut got: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let outcomes = run.admitted.iter().zip(&run.waited);
        for (request, (admitted, waited)) in trace.requests.iter().zip(outcomes) {
            let window = request.window();
            let add = |to: &mut BTreeMap<u64, Vec<u64>>, window: u64| {
                let sums = to.entry(window).or_insert_with(|| vec![0; trace.regions]);
                if let Some(sum) = sums.get_mut(request.region) {
                    *sum += request.cost;
                }
            };
            add(&mut demand, window);
            let left = usize::try_from(window).ok().and_then(|at| left.get_mut(at));
            let by_oracle = left.is_some_and(|left| match left.checked_sub(request.cost) {
                Some(rest) => {
                    *left = rest;
                    true
                }
                None => false,
            });
            score.oracle += u64::from(by_oracle);
            score.false_denials += u64::from(by_oracle && admitted.is_none());
            if let Some(window) = admitted {
                add(&mut got, *window);
                // What came too late for the last window of the run is no gain.
                score.admitted += if *window < WINDOWS { request.cost } else { 0 };
                score.requests += 1;
                score.waited += u64::from(*waited > 2_000_000);
            }
        }
        for (window, demand) in &demand {
            score.ideal += demand.iter().sum::<u64>().min(trace.limit);
            let nothing = vec![0; trace.regions];
            score.fairness += least_part(trace.limit, demand, got.get(window).unwrap_or(&nothing));
        }
        let sums = got.values().map(|got| got.iter().sum::<u64>());
        score.overshoot = sums.map(|sum| sum.saturating_sub(trace.limit)).max().unwrap_or(0);
        score
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.ideal += other.ideal;
        self.oracle += other.oracle;
        self.false_denials += other.false_denials;
        self.requests += other.requests;
        self.waited += other.waited;
        self.calls += other.calls;
        self.overshoot = self.overshoot.max(other.overshoot);
        self.fairness += other.fairness;
        self.windows += other.windows;
    }

    /// Admitted / min(limit, demand).
    pub fn efficiency(&self) -> f64 {
        part(self.admitted, self.ideal)
    }

    /// Requests that the oracle admits and the policy refused, of a thousand that the oracle admits.
    pub fn false_denials_per_1k(&self) -> f64 {
        1_000.0 * part(self.false_denials, self.oracle)
    }

    /// Messages for a thousand admitted requests.
    pub fn calls_per_1k(&self) -> f64 {
        1_000.0 * part(self.calls, self.requests)
    }

    /// Admitted requests that were held for more than 2 ms, in percent.
    pub fn waited_percent(&self) -> f64 {
        100.0 * part(self.waited, self.requests)
    }

    /// Of its max-min fair part, what the worst-off region got, on average over windows.
    pub fn least_fair(&self) -> f64 {
        self.fairness / real(self.windows.max(1))
    }
}

/// The least that a region got of its max-min fair part.
fn least_part(limit: u64, demand: &[u64], got: &[u64]) -> f64 {
    let (mut low, mut high) = (0.0, real(limit));
    for _ in 0..60 {
        let level = f64::midpoint(low, high);
        let dealt: f64 = demand.iter().map(|demand| real(*demand).min(level)).sum();
        if dealt > real(limit) { high = level } else { low = level }
    }
    let parts = demand.iter().zip(got).filter(|(demand, _)| **demand > 0);
    parts.map(|(demand, got)| real(*got) / real(*demand).min(high)).fold(1.0, f64::min)
}

fn part(of: u64, whole: u64) -> f64 {
    real(of) / real(whole.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::Request;
    use super::*;

    #[test]
    fn the_oracle_is_first_come_first_served_and_the_fair_level_fills_the_limit() {
        let ask = |at, region| Request { at, region, cost: 1 };
        let trace = Trace { regions: 2, limit: 2, requests: vec![ask(1, 0), ask(2, 0), ask(3, 1)] };
        let run = Run { admitted: vec![Some(0), None, Some(0)], waited: vec![0, 0, 5_000_000], calls: 4 };
        let score = Score::of(&trace, &run);
        assert_eq!((score.admitted, score.ideal, score.oracle, score.false_denials), (2, 2, 2, 1));
        assert_eq!((score.requests, score.waited, score.overshoot), (2, 1, 0));
        assert!((least_part(2, &[2, 1], &[1, 1]) - 1.0).abs() < 1e-9);
        assert!((least_part(2, &[2, 1], &[2, 0])).abs() < 1e-9);
    }
}
