//! Ledger time at a replica: the line while it leads, an estimate of the line while it follows (DESIGN: "Time without
//! synchronised clocks"; docs/decisions/0002-durations-not-times.md).
//!
//! An estimate belongs to a reign (a Raft term) and replaces that of an older reign. It is durable before the reign's
//! first append is acknowledged, so that of any quorum one member knows the last reign that can have granted.

mod keeper;

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_ledger::clock::{Accession, LeaderLine, LineAnswer, LineEstimate, accede};
use leasehold_protocol::{LedgerTime, LocalTime};
use leasehold_transport::clock::{local_now, wall_now};
use serde::{Deserialize, Serialize};

use crate::store::Store;

pub(crate) use keeper::Keeper;

/// The record's name in the store.
const RECORD: &str = "line";

/// What survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineRecord {
    /// The reign that the estimate belongs to.
    reign: u64,
    /// The boot in which its local times mean something.
    boot_id: Option<String>,
    estimate: LineEstimate,
}

/// This replica's knowledge of the line.
#[derive(Debug)]
pub(crate) struct Line {
    store: Store,
    boot_id: Option<String>,
    drift_ppm: u32,
    state: Mutex<State>,
    /// One record is written at a time.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The last reign known of, and what is known of its line; `None`: it was, but in another boot of this machine.
    known: Option<(u64, Option<LineEstimate>)>,
    /// The reign whose record is durable.
    durable: Option<u64>,
    /// While this replica leads and its line is drawn.
    leading: Option<(u64, LeaderLine)>,
    /// When a leader was last heard.
    heard: Option<LocalTime>,
}

impl Line {
    /// What the store knows of it.
    pub(crate) fn open(store: Store, boot_id: Option<String>, drift_ppm: u32) -> std::io::Result<Self> {
        let record: Option<LineRecord> = store.record(RECORD)?;
        let known = record.map(|record| {
            let same_boot = boot_id.is_some() && record.boot_id == boot_id;
            (record.reign, Some(record.estimate).filter(|_| same_boot))
        });
        let durable = known.as_ref().map(|(reign, _)| *reign);
        let state = Mutex::new(State { known, durable, ..State::default() });
        Ok(Self { store, boot_id, drift_ppm, state, writing: tokio::sync::Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bound on the rate error between clocks, in parts per million.
    pub(crate) fn drift_ppm(&self) -> u32 {
        self.drift_ppm
    }

    /// The line's reading now, if this replica draws the line of `reign`.
    pub(crate) fn stamp(&self, reign: u64) -> Option<LedgerTime> {
        let mut state = self.state();
        let (drawn, line) = state.leading.as_mut()?;
        if *drawn != reign {
            return None;
        }
        let now = local_now();
        let stamp = line.stamp(now, wall_now());
        state.learn(reign, stamp, now, self.drift_ppm);
        Some(stamp)
    }

    /// The reign whose line this replica draws.
    pub(crate) fn drawn_reign(&self) -> Option<u64> {
        self.state().leading.as_ref().map(|(reign, _)| *reign)
    }

    /// Begins to draw the line of `reign` from `base`; the record is durable when this returns.
    pub(crate) async fn begin(&self, reign: u64, base: LedgerTime) -> std::io::Result<()> {
        let now = local_now();
        self.state().learn(reign, base, now, self.drift_ppm);
        self.make_durable(reign).await?;
        self.state().leading = Some((reign, LeaderLine::start(base, now, self.drift_ppm)));
        Ok(())
    }

    /// Draws no line any more.
    pub(crate) fn end(&self) {
        self.state().leading = None;
    }

    /// Takes in a stamp that the leader of `reign` sent and that arrived at `received`; durable when this returns if
    /// it is the reign's first.
    pub(crate) async fn observe(
        &self,
        reign: u64,
        stamp: LedgerTime,
        received: LocalTime,
    ) -> std::io::Result<()> {
        self.state().learn(reign, stamp, received, self.drift_ppm);
        self.make_durable(reign).await
    }

    /// A leader was heard just now.
    pub(crate) fn hear(&self) {
        self.state().heard = Some(local_now());
    }

    /// Ms since a leader was heard.
    pub(crate) fn heard_ms_ago(&self) -> Option<u64> {
        self.state().heard.map(|at| local_now().ms_since(at))
    }

    /// Where the line is now, at least, as far as this replica knows.
    pub(crate) fn now(&self) -> Option<LedgerTime> {
        self.answer().line
    }

    /// What this replica tells a new leader.
    pub(crate) fn answer(&self) -> LineAnswer {
        let state = self.state();
        LineAnswer {
            reign: state.known.as_ref().map(|(reign, _)| *reign),
            line: state.known.as_ref().and_then(|(_, estimate)| estimate.map(|e| e.at(local_now()))),
        }
    }

    async fn make_durable(&self, reign: u64) -> std::io::Result<()> {
        if self.state().durable == Some(reign) {
            return Ok(());
        }
        let _one = self.writing.lock().await;
        let record = {
            let state = self.state();
            if state.durable >= Some(reign) {
                return Ok(());
            }
            match &state.known {
                Some((reign, Some(estimate))) => {
                    LineRecord { reign: *reign, boot_id: self.boot_id.clone(), estimate: *estimate }
                }
                _ => return Ok(()),
            }
        };
        self.store.put_record(RECORD, &record).await?;
        self.state().durable = Some(record.reign);
        Ok(())
    }
}

impl State {
    fn learn(&mut self, reign: u64, stamp: LedgerTime, received: LocalTime, drift_ppm: u32) {
        match &mut self.known {
            Some((known, _)) if *known > reign => {}
            Some((known, Some(estimate))) if *known == reign => estimate.observe(stamp, received),
            _ => self.known = Some((reign, Some(LineEstimate::new(stamp, received, drift_ppm)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Identity, StoreError};
    use leasehold_protocol::NodeId;
    use leasehold_transport::takeover::take_over;

    /// Opens the store, once whoever had it open is gone.
    async fn store(dir: &std::path::Path) -> Store {
        let identity = Identity::new("test", NodeId(1));
        let is_in_use = |e: &StoreError| matches!(e, StoreError::InUse { .. });
        take_over(|| Store::open(dir, &identity), is_in_use).await.unwrap()
    }

    #[tokio::test]
    async fn a_restart_on_the_same_boot_keeps_the_line_and_on_another_only_the_reign() {
        let folder = tempfile::tempdir().unwrap();
        let first = Line::open(store(folder.path()).await, Some("boot".to_owned()), 1_000).unwrap();
        assert_eq!(first.answer(), LineAnswer { reign: None, line: None });
        first.observe(3, LedgerTime(50_000), local_now()).await.unwrap();
        let told = first.answer().line.unwrap();
        assert!(told >= LedgerTime(50_000) && told < LedgerTime(60_000));
        drop(first);
        let again = Line::open(store(folder.path()).await, Some("boot".to_owned()), 1_000).unwrap();
        assert!(again.answer().line.unwrap() >= LedgerTime(50_000));
        drop(again);
        let other = Line::open(store(folder.path()).await, Some("other".to_owned()), 1_000).unwrap();
        assert_eq!(other.answer(), LineAnswer { reign: Some(3), line: None });
    }

    #[tokio::test]
    async fn a_later_reign_replaces_the_line_even_if_it_is_behind_and_an_earlier_one_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let line = Line::open(store(folder.path()).await, None, 1_000).unwrap();
        line.observe(3, LedgerTime(90_000), local_now()).await.unwrap();
        line.observe(4, LedgerTime(50_000), local_now()).await.unwrap();
        line.observe(3, LedgerTime(95_000), local_now()).await.unwrap();
        let answer = line.answer();
        assert_eq!(answer.reign, Some(4));
        assert!(answer.line.unwrap() < LedgerTime(60_000));
    }

    #[tokio::test]
    async fn only_the_reign_that_is_drawn_is_stamped() {
        let folder = tempfile::tempdir().unwrap();
        let line = Line::open(store(folder.path()).await, None, 1_000).unwrap();
        assert_eq!(line.stamp(7), None);
        line.begin(7, LedgerTime(1_000)).await.unwrap();
        assert!(line.stamp(7).unwrap() >= LedgerTime(1_000));
        assert_eq!(line.stamp(8), None);
        line.end();
        assert_eq!(line.stamp(7), None);
    }
}
