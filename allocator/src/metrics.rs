//! What a replica measures. Labels are bounded: outcomes alone, never a tenant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_ledger::{Outcome, SettleOutcome};
use leasehold_protocol::lease::AcquireOutcome;
use leasehold_transport::health::Metrics;
use openraft::ServerState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::node::Node;

/// What came of something.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The replica's metrics. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct AllocatorMetrics {
    entries: Family<ResultLabel, Counter>,
    entry_commands: Histogram,
    entry_requests: Histogram,
    commit_seconds: Histogram,
    acquires: Family<ResultLabel, Counter>,
    settles: Family<ResultLabel, Counter>,
    requests: Family<ResultLabel, Counter>,
    pushes: Family<ResultLabel, Counter>,
    streams: Gauge,
    queue: Gauge,
    term: Gauge,
    is_leader: Gauge,
    applied: Gauge,
    pools: Gauge,
    leases: Gauge,
    syncs: Gauge,
    sync_seconds: Gauge<f64, AtomicU64>,
    stale_seconds: Gauge<f64, AtomicU64>,
    line_ahead_seconds: Gauge<f64, AtomicU64>,
}

impl Default for AllocatorMetrics {
    fn default() -> Self {
        Self {
            entries: Family::default(),
            entry_commands: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            entry_requests: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            commit_seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 13)),
            acquires: Family::default(),
            settles: Family::default(),
            requests: Family::default(),
            pushes: Family::default(),
            streams: Gauge::default(),
            queue: Gauge::default(),
            term: Gauge::default(),
            is_leader: Gauge::default(),
            applied: Gauge::default(),
            pools: Gauge::default(),
            leases: Gauge::default(),
            syncs: Gauge::default(),
            sync_seconds: Gauge::default(),
            stale_seconds: Gauge::default(),
            line_ahead_seconds: Gauge::default(),
        }
    }
}

impl AllocatorMetrics {
    /// Makes the metrics visible.
    pub(crate) fn register(&self, to: &Metrics) {
        to.register("allocator_entries", "Log entries proposed here, by result", self.entries.clone());
        to.register("allocator_entry_commands", "Commands in an entry", self.entry_commands.clone());
        to.register("allocator_entry_requests", "Requests in an entry", self.entry_requests.clone());
        to.register(
            "allocator_commit_seconds",
            "From proposing an entry to its outcomes",
            self.commit_seconds.clone(),
        );
        to.register("allocator_acquires", "Acquires answered here, by outcome", self.acquires.clone());
        to.register("allocator_settles", "Settles answered here, by outcome", self.settles.clone());
        to.register("allocator_requests", "Requests for the log, by result", self.requests.clone());
        to.register(
            "allocator_pushes",
            "What holders were told unasked: on a stream, kept for their next answer, or dropped",
            self.pushes.clone(),
        );
        to.register("allocator_streams", "Streams that agents hold open", self.streams.clone());
        to.register("allocator_queue_requests", "Requests that wait for the log", self.queue.clone());
        to.register("allocator_term", "The Raft term", self.term.clone());
        to.register("allocator_is_leader", "1 if this replica leads", self.is_leader.clone());
        to.register("allocator_applied_index", "The last applied log entry", self.applied.clone());
        to.register("allocator_pools", "Pools in the ledger", self.pools.clone());
        to.register("allocator_leases", "Leases of open windows", self.leases.clone());
        to.register("allocator_syncs", "How often writes were made durable in this life", self.syncs.clone());
        to.register("allocator_sync_seconds", "Time spent in that", self.sync_seconds.clone());
        to.register(
            "allocator_stale_seconds",
            "Since a quorum or the leader was heard, or since the start",
            self.stale_seconds.clone(),
        );
        to.register(
            "allocator_line_ahead_seconds",
            "Ledger time less this machine's wall clock",
            self.line_ahead_seconds.clone(),
        );
    }

    /// An entry of so many requests and commands is proposed.
    pub(crate) fn batch(&self, requests: usize, commands: usize) {
        self.entry_requests.observe(f64::from(u32::try_from(requests).unwrap_or(u32::MAX)));
        self.entry_commands.observe(f64::from(u32::try_from(commands).unwrap_or(u32::MAX)));
    }

    /// An entry's outcomes are known, or not in time.
    pub(crate) fn committed(&self, ok: bool, after: Duration) {
        let result = if ok { "committed" } else { "failed" };
        self.entries.get_or_create(&ResultLabel { result }).inc();
        self.commit_seconds.observe(after.as_secs_f64());
    }

    /// A request for the log was answered so.
    pub(crate) fn request(&self, result: &'static str) {
        self.requests.get_or_create(&ResultLabel { result }).inc();
    }

    /// These outcomes go out.
    pub(crate) fn outcomes(&self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome {
                Outcome::Acquired(acquired) => {
                    let result = match acquired {
                        AcquireOutcome::Lease(_) => "lease",
                        AcquireOutcome::StaleIncarnation { .. } => "stale_incarnation",
                        AcquireOutcome::UnknownPool => "unknown_pool",
                        AcquireOutcome::ClockUncertain { .. } => "clock_uncertain",
                    };
                    self.acquires.get_or_create(&ResultLabel { result }).inc();
                }
                Outcome::Settled(settled) => {
                    let result = match settled {
                        SettleOutcome::Applied { .. } => "applied",
                        SettleOutcome::Over => "over",
                        SettleOutcome::Impossible { .. } => "impossible",
                    };
                    self.settles.get_or_create(&ResultLabel { result }).inc();
                }
                Outcome::Activated(_) | Outcome::Noted => {}
            }
        }
    }

    /// Something that a holder is to be told went this way.
    pub(crate) fn push(&self, result: &'static str) {
        self.pushes.get_or_create(&ResultLabel { result }).inc();
    }

    /// Brings the gauges up to date.
    pub(crate) fn refresh(&self, node: &Node) {
        let raft = node.raft_metrics();
        self.streams.set(whole(node.pushes.streams_len() as u64));
        self.queue.set(whole(node.proposer.queue_len() as u64));
        self.term.set(whole(raft.current_term));
        self.is_leader.set(i64::from(raft.state == ServerState::Leader));
        self.applied.set(raft.last_applied.map_or(-1, |id| whole(id.index)));
        let (pools, leases) = {
            let state = node.machine.state();
            (state.ledger.pools_len(), state.ledger.leases_len())
        };
        self.pools.set(whole(pools as u64));
        self.leases.set(whole(leases as u64));
        let stats = node.store.writer_stats();
        self.syncs.set(whole(stats.syncs.load(Ordering::Relaxed)));
        self.sync_seconds.set(Duration::from_micros(stats.sync_us.load(Ordering::Relaxed)).as_secs_f64());
        self.stale_seconds.set(Duration::from_millis(node.stale_ms()).as_secs_f64());
        if let Some(line) = node.line.now() {
            let wall = leasehold_transport::clock::wall_now();
            let ahead = Duration::from_millis(line.ms_since(wall)).as_secs_f64();
            let behind = Duration::from_millis(wall.ms_since(line)).as_secs_f64();
            self.line_ahead_seconds.set(ahead - behind);
        }
    }
}

fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
