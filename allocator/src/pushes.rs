//! What holders are told unasked: over one stream that each holds open, else with its next answer.
//!
//! Whatever is lost here costs time and never tokens: a grant stands in the ledger, and the next answer brings its total.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use leasehold_ledger::{Command, Notice};
use leasehold_protocol::lease::Push;
use leasehold_protocol::{Holder, Incarnation, PoolKey};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics::AllocatorMetrics;
use crate::node::Node;
use crate::proposer::Reigning;

/// Streams that are held open here at once.
const STREAMS_MAX: usize = 4_096;
/// Pushes that one stream queues; what comes on top is kept for the next answer.
const QUEUE_LEN: usize = 1_024;
/// Holders without a stream for whom something is kept, and pools of each.
const KEPT_HOLDERS_MAX: usize = 4_096;
const KEPT_POOLS_MAX: usize = 256;
/// How often those that went hungry are looked at.
const FEED_EVERY: Duration = Duration::from_millis(100);

/// The near ends of all streams, and what is kept for holders without one.
#[derive(Debug)]
pub(crate) struct Pushes {
    state: Mutex<State>,
    metrics: AllocatorMetrics,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<Holder, Stream>,
    kept: BTreeMap<Holder, BTreeMap<PoolKey, Push>>,
    opened: u64,
}

#[derive(Debug)]
struct Stream {
    id: u64,
    incarnation: Incarnation,
    to: mpsc::Sender<Push>,
}

/// Why no stream is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// A later life of the holder has one.
    Superseded {
        /// Which.
        seen: Incarnation,
    },
    /// More are not held.
    TooMany,
}

impl Pushes {
    pub(crate) fn new(metrics: AllocatorMetrics) -> Self {
        Self { state: Mutex::default(), metrics }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Streams that are open.
    pub(crate) fn streams_len(&self) -> usize {
        self.state().streams.len()
    }

    /// Tells each holder what it is to be told, or keeps it. Never waits.
    pub(crate) fn tell(&self, notices: Vec<Notice>) {
        if notices.is_empty() {
            return;
        }
        let mut state = self.state();
        for Notice { holder, push } in notices {
            let stream = state.streams.get(&holder).filter(|s| s.incarnation == push.incarnation);
            let is_sent = stream.is_some_and(|stream| stream.to.try_send(push.clone()).is_ok());
            let result = if is_sent {
                "sent"
            } else if state.keep(holder, push) {
                "kept"
            } else {
                "dropped"
            };
            self.metrics.push(result);
        }
    }

    /// Opens the stream of a holder's life; it takes the place of an earlier one and begins with what was kept.
    pub(crate) fn open(
        self: &Arc<Self>,
        holder: &Holder,
        incarnation: Incarnation,
    ) -> Result<Told, OpenError> {
        let mut state = self.state();
        if let Some(seen) =
            state.streams.get(holder).map(|s| s.incarnation).filter(|seen| *seen > incarnation)
        {
            return Err(OpenError::Superseded { seen });
        }
        if state.streams.len() >= STREAMS_MAX && !state.streams.contains_key(holder) {
            return Err(OpenError::TooMany);
        }
        state.opened = state.opened.saturating_add(1);
        let id = state.opened;
        let kept = state.take(holder, incarnation).into();
        let (to, from) = mpsc::channel(QUEUE_LEN);
        state.streams.insert(holder.clone(), Stream { id, incarnation, to });
        Ok(Told { kept, from, id, holder: holder.clone(), pushes: Arc::clone(self) })
    }

    /// What was kept for a holder's life, at most once.
    pub(crate) fn take(&self, holder: &Holder, incarnation: Incarnation) -> Vec<Push> {
        self.state().take(holder, incarnation)
    }
}

impl State {
    /// Keeps the newest word on each pool. False if there is no room.
    fn keep(&mut self, holder: Holder, push: Push) -> bool {
        if self.kept.len() >= KEPT_HOLDERS_MAX && !self.kept.contains_key(&holder) {
            return false;
        }
        let pools = self.kept.entry(holder).or_default();
        if pools.len() >= KEPT_POOLS_MAX && !pools.contains_key(&push.pool) {
            return false;
        }
        pools.insert(push.pool.clone(), push);
        true
    }

    fn take(&mut self, holder: &Holder, incarnation: Incarnation) -> Vec<Push> {
        let kept = self.kept.remove(holder).unwrap_or_default();
        kept.into_values().filter(|push| push.incarnation == incarnation).collect()
    }
}

/// The far end of a stream. Dropping it closes the stream.
#[derive(Debug)]
pub(crate) struct Told {
    kept: VecDeque<Push>,
    from: mpsc::Receiver<Push>,
    id: u64,
    holder: Holder,
    pushes: Arc<Pushes>,
}

impl Told {
    /// The next push as a line of JSON; `None` once another stream took this one's place. May be dropped while it
    /// waits: nothing is lost.
    pub(crate) async fn next_line(&mut self) -> Option<Bytes> {
        let push = match self.kept.pop_front() {
            Some(push) => push,
            None => self.from.recv().await?,
        };
        // These types have no map with keys that are no strings, so JSON takes them all.
        let mut line = serde_json::to_vec(&push).unwrap_or_default();
        line.push(b'\n');
        Some(Bytes::from(line))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let mut state = self.pushes.state();
        if state.streams.get(&self.holder).is_some_and(|stream| stream.id == self.id) {
            state.streams.remove(&self.holder);
        }
    }
}

/// While this replica leads: gives what comes back to those that went hungry.
pub(crate) async fn feed(node: Arc<Node>) {
    let mut ticks = interval(FEED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let leads = matches!(node.proposer.reigning(), Reigning::Yes { .. });
        if !leads || !node.machine.state().ledger.could_feed() {
            continue;
        }
        if let Err(e) = node.proposer.propose(vec![Command::Feed]).await {
            tracing::debug!(error = %e, "those that went hungry are fed later");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_protocol::lease::{Lease, Supply};
    use leasehold_protocol::{AgentId, LedgerTime, RegionId, RuleId, Tokens, Window};

    fn holder() -> Holder {
        Holder { region: RegionId::new("eu").unwrap(), agent: AgentId::new("eu-1").unwrap() }
    }

    fn notice(incarnation: u64, rule: &str, version: u64) -> Notice {
        let lease = Lease {
            window: Window { start: LedgerTime(0), end: LedgerTime(60_000) },
            starts_in_ms: 0,
            expires_in_ms: 1,
            granted_total: Tokens(version),
            spent_total: Tokens(0),
            returned_total: Tokens(0),
            limit: Tokens(9),
            remaining: Tokens(0),
            outstanding: Tokens(0),
            version,
            supply: Supply::default(),
        };
        let pool = PoolKey { rule: RuleId::new(rule).unwrap(), tenant: None };
        Notice { holder: holder(), push: Push { incarnation: Incarnation(incarnation), pool, lease } }
    }

    fn pushes() -> Arc<Pushes> {
        Arc::new(Pushes::new(AllocatorMetrics::default()))
    }

    async fn version_of(told: &mut Told) -> u64 {
        let line = told.next_line().await.unwrap();
        assert!(line.ends_with(b"\n"));
        serde_json::from_slice::<Push>(&line).unwrap().lease.version
    }

    #[tokio::test]
    async fn a_stream_begins_with_the_newest_that_was_kept_for_its_life() {
        let pushes = pushes();
        pushes.tell(vec![notice(1, "A", 1), notice(2, "A", 2), notice(2, "A", 3), notice(2, "B", 4)]);
        let mut told = pushes.open(&holder(), Incarnation(2)).unwrap();
        pushes.tell(vec![notice(2, "A", 5)]);
        assert_eq!([version_of(&mut told).await, version_of(&mut told).await], [3, 4]);
        assert_eq!(version_of(&mut told).await, 5);
        assert_eq!(pushes.take(&holder(), Incarnation(2)), []);
    }

    #[tokio::test]
    async fn a_later_stream_takes_the_place_and_an_earlier_life_gets_none() {
        let pushes = pushes();
        let mut first = pushes.open(&holder(), Incarnation(2)).unwrap();
        let second = pushes.open(&holder(), Incarnation(2)).unwrap();
        assert_eq!(first.next_line().await, None);
        drop(first);
        assert_eq!(pushes.streams_len(), 1, "the second one's place is its own");
        assert_eq!(
            pushes.open(&holder(), Incarnation(1)).unwrap_err(),
            OpenError::Superseded { seen: Incarnation(2) }
        );
        drop(second);
        assert_eq!(pushes.streams_len(), 0);
    }

    #[tokio::test]
    async fn what_a_full_stream_does_not_take_is_kept_and_what_is_kept_is_bounded() {
        let pushes = pushes();
        let _told = pushes.open(&holder(), Incarnation(1)).unwrap();
        for n in 0..2_000 {
            pushes.tell(vec![notice(1, &format!("R-{n}"), 1)]);
        }
        assert_eq!(pushes.take(&holder(), Incarnation(1)).len(), KEPT_POOLS_MAX);
        assert_eq!(pushes.take(&holder(), Incarnation(1)).len(), 0);
    }
}
