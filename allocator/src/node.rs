//! What the tasks of one replica share.

use std::sync::Arc;

use leasehold_protocol::envelope::TrustedKeys;
use leasehold_protocol::{LocalTime, Problem, ProblemKind};
use leasehold_transport::clock::local_now;
use leasehold_transport::health::Readiness;
use leasehold_transport::shutdown::Shutdown;
use openraft::async_runtime::WatchReceiver as _;
use openraft::{Instant as _, RaftMetrics, ServerState};

use crate::machine::Machine;
use crate::metrics::AllocatorMetrics;
use crate::proposer::{Proposer, Reigning};
use crate::pushes::Pushes;
use crate::reign::Line;
use crate::settings::Settings;
use crate::store::Store;
use crate::types::{Raft, TypeConfig};

/// One replica.
pub(crate) struct Node {
    pub(crate) settings: Settings,
    pub(crate) raft: Raft,
    pub(crate) machine: Machine,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) shutdown: Shutdown,
    pub(crate) store: Store,
    pub(crate) line: Arc<Line>,
    pub(crate) proposer: Proposer,
    pub(crate) keys: TrustedKeys,
    pub(crate) metrics: AllocatorMetrics,
    pub(crate) started_at: LocalTime,
    /// The last entry that its log had when it started.
    pub(crate) had_index: Option<u64>,
}

impl Node {
    /// Raft's state now.
    pub(crate) fn raft_metrics(&self) -> RaftMetrics<TypeConfig> {
        self.raft.metrics().borrow_watched().clone()
    }

    /// A quorum or a leader that was heard longer ago than this, in ms, is gone.
    fn patience_ms(&self) -> u64 {
        self.settings.election_max_ms.saturating_mul(2)
    }

    /// Ms since this replica was last sure to be up to date: a leader's quorum, a follower's leader; since its start
    /// if it never was.
    pub(crate) fn stale_ms(&self) -> u64 {
        let metrics = self.raft_metrics();
        let age = if !self.is_restored(&metrics) {
            None
        } else if metrics.state == ServerState::Leader {
            metrics.last_quorum_acked.map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
        } else {
            self.line.heard_ms_ago()
        };
        age.unwrap_or_else(|| local_now().ms_since(self.started_at))
    }

    /// True once everything is applied that its log had when it started, save what another leader has cut off since: the
    /// ledger is in memory, so that before then it shows a past that this replica had left behind.
    fn is_restored(&self, metrics: &RaftMetrics<TypeConfig>) -> bool {
        let has = self.store.last_log_id().map(|id| id.index);
        metrics.last_applied.map(|id| id.index) >= self.had_index.min(has)
    }

    /// The base URL of the leader, if one is known and it is not this replica.
    pub(crate) fn leader_url(&self) -> Option<String> {
        let metrics = self.raft_metrics();
        let leader = metrics.current_leader.filter(|leader| *leader != self.settings.node_id.0)?;
        metrics.membership_config.get_node(&leader).map(|node| node.addr.clone())
    }

    /// The problem of a call that only the leader answers.
    pub(crate) fn not_leader(&self) -> Problem {
        let leader = self.leader_url();
        let detail = leader.as_ref().map_or_else(
            || "no leader is known now; one is elected within seconds if a quorum is up".to_owned(),
            |url| format!("the leader is {url}"),
        );
        Problem { leader, ..Problem::new(ProblemKind::NotLeader, detail) }
    }

    /// Whether requests should be sent here.
    pub(crate) fn readiness(&self) -> Readiness {
        let metrics = self.raft_metrics();
        let mut reasons = Vec::new();
        if let Err(e) = &metrics.running_state {
            reasons.push(format!("Raft has stopped: {e}"));
        }
        let leads = metrics.state == ServerState::Leader;
        if metrics.current_leader.is_none() {
            reasons.push("no leader is known".to_owned());
        } else if !self.is_restored(&metrics) {
            reasons.push("what its log had at its start is not applied yet".to_owned());
        } else if self.stale_ms() > self.patience_ms() {
            let who = if leads { "a quorum has not answered" } else { "the leader was not heard" };
            reasons.push(format!("{who} for {} ms", self.stale_ms()));
        }
        let ready = reasons.is_empty();
        if let (true, Reigning::Waiting { .. }) = (leads, self.proposer.reigning()) {
            reasons.push(
                "ledger time is uncertain after a loss of the quorum: nothing is granted yet".to_owned(),
            );
        }
        Readiness { ready, reasons }
    }
}
