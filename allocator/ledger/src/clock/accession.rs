//! How a new leader finds its place on the line: a pure decision over a quorum's answers.

use leasehold_protocol::LedgerTime;
use serde::{Deserialize, Serialize};

/// What a replica knows of the line (`GET /raft/line`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineAnswer {
    /// The last reign that it heard of; `null` if none ever.
    pub reign: Option<u64>,
    /// Where that reign's line is now, at least; `null` if this machine booted since.
    pub line: Option<LedgerTime>,
}

/// Where the line goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accession {
    /// From here, at once.
    From(LedgerTime),
    /// Nobody can say. Nothing may be granted for this long by the new leader's own clock, in ms; then the line goes on
    /// from the wall clock.
    AfterMs(u64),
}

/// Decides from a quorum's answers, the new leader's own included. `applied` is the ledger's time with every entry of
/// earlier reigns applied, `outstanding_ms` how long a lease can still be spent, `wall` the new leader's wall clock.
///
/// Every reign that granted anything was acknowledged by a quorum, and each member of it keeps the reign's number on its
/// disk. So the highest reign among a quorum's answers is the last that can have granted, and its largest estimate is
/// never ahead of that line.
pub fn accede(
    answers: &[LineAnswer],
    applied: LedgerTime,
    outstanding_ms: u64,
    wall: LedgerTime,
    drift_ppm: u32,
) -> Accession {
    let last_reign = answers.iter().filter_map(|answer| answer.reign).max();
    let line =
        (answers.iter()).filter(|answer| answer.reign == last_reign).filter_map(|answer| answer.line).max();
    match line {
        Some(line) => Accession::From(line.max(applied)),
        // Without a lease outside, a jump harms nobody.
        None if outstanding_ms == 0 => Accession::From(wall.max(applied)),
        None => {
            let stretch = outstanding_ms.saturating_mul(u64::from(drift_ppm)).div_ceil(1_000_000);
            // A ms more for what the line's stamps are rounded down by.
            Accession::AfterMs(outstanding_ms.saturating_add(stretch).saturating_add(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: LedgerTime = LedgerTime(1_000_000);

    fn answer(reign: Option<u64>, line: Option<u64>) -> LineAnswer {
        LineAnswer { reign, line: line.map(LedgerTime) }
    }

    fn decide(answers: &[LineAnswer], applied: u64, outstanding_ms: u64) -> Accession {
        accede(answers, LedgerTime(applied), outstanding_ms, WALL, 1_000)
    }

    #[test]
    fn the_last_reigns_largest_estimate_wins_and_an_older_reigns_line_does_not_count() {
        let answers = [answer(Some(2), Some(900)), answer(Some(3), Some(500)), answer(Some(3), Some(600))];
        assert_eq!(decide(&answers, 100, 5_000), Accession::From(LedgerTime(600)));
    }

    #[test]
    fn the_line_never_goes_on_behind_what_is_applied() {
        assert_eq!(decide(&[answer(Some(3), Some(500))], 700, 5_000), Accession::From(LedgerTime(700)));
    }

    #[test]
    fn when_those_who_knew_have_booted_since_every_lease_must_run_out_first() {
        let answers = [answer(Some(3), None), answer(Some(2), Some(900))];
        assert_eq!(decide(&answers, 100, 60_000), Accession::AfterMs(60_061));
        assert_eq!(decide(&answers, 100, 0), Accession::From(WALL));
        assert_eq!(decide(&answers, 2_000_000, 0), Accession::From(LedgerTime(2_000_000)));
    }

    #[test]
    fn a_new_cluster_starts_from_the_wall_clock() {
        assert_eq!(decide(&[answer(None, None), answer(None, None)], 0, 0), Accession::From(WALL));
    }
}
