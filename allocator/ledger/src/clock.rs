//! Ledger time without synchronised clocks (DESIGN.md, section 4): the leader's line, and what a replica knows of it.
//!
//! Both are pure: the host reads its own clock and passes the value in.

mod accession;

use leasehold_protocol::{LedgerTime, LocalTime};
use serde::{Deserialize, Serialize};

pub use accession::{Accession, LineAnswer, accede};

const NS_PER_MS: u128 = 1_000_000;
const PPM: u128 = 1_000_000;

/// The line as its leader draws it: it advances by the leader's own steady clock and follows its wall clock by
/// slewing alone, at half the drift margin at most. It never steps and never runs backwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderLine {
    line_ns: u128,
    at: LocalTime,
    slew_ppm: u128,
}

impl LeaderLine {
    /// The line from `base` on, starting `now`. `drift_ppm` is the margin that leases keep, in parts per million;
    /// half of it is the most that the line's rate may differ from the leader's clock.
    pub fn start(base: LedgerTime, now: LocalTime, drift_ppm: u32) -> Self {
        Self { line_ns: u128::from(base.0) * NS_PER_MS, at: now, slew_ppm: u128::from(drift_ppm / 2) }
    }

    /// The line's reading at `now`, when the wall clock shows `wall`. A `now` earlier than an earlier one stands
    /// still.
    pub fn stamp(&mut self, now: LocalTime, wall: LedgerTime) -> LedgerTime {
        let elapsed = u128::from(now.0.saturating_sub(self.at.0));
        self.at = self.at.max(now);
        let most = elapsed * self.slew_ppm / PPM;
        let plain = self.line_ns + elapsed;
        let wall_ns = u128::from(wall.0) * NS_PER_MS;
        self.line_ns = if wall_ns >= plain {
            plain + most.min(wall_ns - plain)
        } else {
            plain - most.min(plain - wall_ns)
        };
        LedgerTime(u64::try_from(self.line_ns / NS_PER_MS).unwrap_or(u64::MAX))
    }
}

/// What a replica knows of the line: a lower estimate from the stamps it received, each counted on by its own
/// clock less the drift margin. It is never ahead of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineEstimate {
    stamp: LedgerTime,
    received: LocalTime,
    drift_ppm: u32,
}

impl LineEstimate {
    /// From a first stamp, received at `received` on the replica's own clock.
    pub fn new(stamp: LedgerTime, received: LocalTime, drift_ppm: u32) -> Self {
        Self { stamp, received, drift_ppm }
    }

    /// Takes another stamp in, and keeps whichever says more.
    pub fn observe(&mut self, stamp: LedgerTime, received: LocalTime) {
        if stamp >= self.at(received) {
            self.stamp = stamp;
            self.received = received;
        }
    }

    /// The line is at least here at `now`.
    pub fn at(&self, now: LocalTime) -> LedgerTime {
        let elapsed = u128::from(now.0.saturating_sub(self.received.0));
        let cut = (elapsed * u128::from(self.drift_ppm)).div_ceil(PPM);
        let ms = elapsed.saturating_sub(cut) / NS_PER_MS;
        self.stamp.saturating_add_ms(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// When the stamp that it rests on was received, on the replica's own clock.
    pub fn received(&self) -> LocalTime {
        self.received
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wall_clock_that_is_minutes_wrong_moves_the_line_slowly_and_never_in_a_step() {
        let mut line = LeaderLine::start(LedgerTime(1_000_000), LocalTime::from_ms(0), 1_000);
        let ahead = LedgerTime(1_000_000 + 300_000);
        assert_eq!(line.stamp(LocalTime::from_ms(10_000), ahead), LedgerTime(1_010_005));
        let behind = LedgerTime(0);
        assert_eq!(line.stamp(LocalTime::from_ms(20_000), behind), LedgerTime(1_020_000));
        assert_eq!(
            line.stamp(LocalTime::from_ms(15_000), behind),
            LedgerTime(1_020_000),
            "its clock stands still"
        );
    }

    proptest! {
        #[test]
        fn a_line_is_monotonic_and_its_rate_stays_within_half_the_drift(
            steps in prop::collection::vec((0_u64..5_000_000_000, any::<u32>()), 1..50)
        ) {
            let mut line = LeaderLine::start(LedgerTime(1_000_000_000), LocalTime(0), 1_000);
            let (mut now, mut last) = (LocalTime(0), LedgerTime(1_000_000_000));
            for (ns, wall) in steps {
                now = LocalTime(now.0 + ns);
                let stamp = line.stamp(now, LedgerTime(u64::from(wall)));
                prop_assert!(stamp >= last);
                last = stamp;
                let ran = now.as_ms();
                prop_assert!(stamp.0.abs_diff(1_000_000_000 + ran) <= ran / 2_000 + 1);
            }
        }

        #[test]
        fn an_estimate_is_never_ahead_of_the_line_and_never_goes_back(
            stamps in prop::collection::vec((0_u64..2_000, 0_u64..5_000, -900_i64..900), 1..40)
        ) {
            // The line is true time; each stamp takes a delay to arrive; the replica's clock runs off by some ppm.
            let mut estimate: Option<LineEstimate> = None;
            let (mut truth, mut local, mut last) = (10_000_u64, 0_u64, LedgerTime(0));
            for (wait, delay, ppm) in stamps {
                let ns = i128::from(wait + delay) * 1_000_000;
                let stamp = LedgerTime(truth + wait);
                truth += wait + delay;
                local += u64::try_from(ns + ns * i128::from(ppm) / 1_000_000).unwrap();
                let now = LocalTime(local);
                let e = estimate.get_or_insert(LineEstimate::new(stamp, now, 1_000));
                e.observe(stamp, now);
                prop_assert!(e.at(now).0 <= truth, "{:?} > {truth}", e.at(now));
                prop_assert!(e.at(now) >= last);
                last = e.at(now);
            }
        }
    }
}
