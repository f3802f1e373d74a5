//! The allocator: Raft replicas that own every pool.
//!
//! The shell around [`leasehold_ledger`]: it owns Raft, the disk, the sockets and the clocks of one replica, and decides
//! nothing about tokens. Requests become commands, many commands one log entry (`proposer`); an entry is durable on a
//! majority before any of its outcomes leaves (`store`, `machine`); the leader draws the line that windows live on
//! (`reign`).

mod http;
mod machine;
mod metrics;
mod network;
mod node;
mod proposer;
mod pushes;
mod reign;
mod settings;
mod store;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::envelope::{KeyError, TrustedKeys};
use leasehold_transport::client::{ClientError, HttpClient};
use leasehold_transport::clock::{boot_id, local_now};
use leasehold_transport::health::Metrics;
use leasehold_transport::listen::{self, Listen, ListenError};
use leasehold_transport::settings::SettingError;
use leasehold_transport::shutdown::{RoleFuture, Shutdown};
use leasehold_transport::takeover::take_over;
use openraft::async_runtime::WatchReceiver as _;
use openraft::impls::BasicNode;
use openraft::{Config, SnapshotPolicy};
use tokio::sync::watch;

use crate::machine::Machine;
use crate::metrics::AllocatorMetrics;
use crate::network::Network;
use crate::node::Node;
use crate::proposer::{Bounds, Proposer, Reigning};
use crate::pushes::Pushes;
use crate::reign::{Keeper, Line};
pub use crate::settings::{Member, Settings};
pub use crate::store::StoreError;
use crate::store::{Identity, Store};
use crate::types::Raft;

/// The deadline of a call to another replica that is not Raft's own.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How often gauges are brought up to date.
const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// Entries beyond those to be kept that are removed at once; fewer if fewer are kept, so that what is stored stays
/// within twice of what the setting says.
const PURGE_LEN: u64 = 256;

/// Why a replica does not run, or runs no longer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting cannot be right.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A trusted key cannot be used.
    #[error("setting `trusted_keys`: {0}")]
    Key(#[from] KeyError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It cannot make requests.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Raft does not start, or has stopped: a storage error, or a bug.
    #[error("Raft has stopped: {0}")]
    Raft(String),
    /// Serving ended by itself.
    #[error("serving: {0}")]
    Serve(#[from] std::io::Error),
}

/// Runs a replica until `shutdown`.
pub fn run(settings: Settings, shutdown: Shutdown) -> RoleFuture<RunError> {
    Box::pin(live(settings, shutdown))
}

async fn live(settings: Settings, shutdown: Shutdown) -> Result<(), RunError> {
    settings.check()?;
    let keys = TrustedKeys::parse(&settings.trusted_keys, settings.trusted_threshold)?;
    let token = settings.admin_token.clone();
    let http = HttpClient::new(token.clone(), CALL_DEADLINE)?;
    let listener = listen::bind(&Listen { addr: settings.listen, admin_token: token }).await?;

    let identity = Identity::new(&settings.cluster, settings.node_id);
    let is_in_use = |e: &StoreError| matches!(e, StoreError::InUse { .. });
    let store = take_over(|| Store::open(&settings.data_dir, &identity), is_in_use).await?;
    let line = Line::open(store.clone(), boot_id(), settings.drift_ppm)?;
    let line = Arc::new(line);
    let had_index = store.last_log_id().map(|id| id.index);
    let metrics = Arc::new(Metrics::new("allocator"));
    let own = AllocatorMetrics::default();
    own.register(&metrics);
    let pushes = Arc::new(Pushes::new(own.clone()));
    let machine = Machine::new(store.clone(), Arc::clone(&pushes));
    let network = Network::new(http.clone(), &settings.cluster, Arc::clone(&line));
    let config = raft_config(&settings)?;
    let raft = Raft::new(settings.node_id.0, config, network, store.clone(), machine.clone())
        .await
        .map_err(|e| RunError::Raft(e.to_string()))?;

    let (reigning, reigning_now) = watch::channel(Reigning::No);
    let bounds = Bounds {
        queue_len_max: settings.queue_len_max,
        batch_len_max: settings.batch_len_max,
        entries_in_flight: settings.entries_in_flight,
        deadline: Duration::from_millis(settings.commit_deadline_ms),
    };
    let (proposer, queue) = Proposer::new(bounds, reigning_now);
    let node = Arc::new(Node {
        raft: raft.clone(),
        machine: machine.clone(),
        pushes,
        shutdown: shutdown.clone(),
        store,
        line: Arc::clone(&line),
        proposer,
        keys,
        metrics: own.clone(),
        started_at: local_now(),
        had_index,
        settings,
    });
    tracing::info!(node_id = %node.settings.node_id, listen = %node.settings.listen, "the replica starts");

    let keeper = Keeper { raft: raft.clone(), machine, line: Arc::clone(&line), http, reigning };
    let tasks = [
        tokio::spawn(keeper.run()),
        tokio::spawn(proposer::drive(queue, raft.clone(), line, bounds, own)),
        tokio::spawn(form(Arc::clone(&node))),
        tokio::spawn(refresh(Arc::clone(&node))),
        tokio::spawn(pushes::feed(Arc::clone(&node))),
    ];
    let served = tokio::select! {
        served = listen::serve(listener, http::router(&node, metrics), shutdown) => served.map_err(RunError::Serve),
        reason = stopped(&raft) => Err(RunError::Raft(reason)),
    };
    for task in tasks {
        task.abort();
    }
    if let Err(e) = raft.shutdown().await {
        tracing::warn!(error = %e, "Raft did not end by itself");
    }
    tracing::info!(node_id = %node.settings.node_id, "the replica has stopped");
    served
}

fn raft_config(settings: &Settings) -> Result<Arc<Config>, RunError> {
    let config = Config {
        cluster_name: settings.cluster.clone(),
        heartbeat_interval: settings.heartbeat_ms,
        election_timeout_min: settings.election_min_ms,
        election_timeout_max: settings.election_max_ms,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(settings.snapshot_after_entries),
        max_in_snapshot_log_to_keep: settings.keep_entries,
        purge_batch_size: settings.keep_entries.clamp(1, PURGE_LEN),
        // A whole snapshot travels in one request.
        install_snapshot_timeout: 60_000,
        // A replica that was cut off does not unseat the leader when it is back.
        enable_pre_vote: Some(true),
        // The ledger is in memory: a leader that restarts must be elected anew.
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    config.validate().map(Arc::new).map_err(|e| RunError::Raft(e.to_string()))
}

/// The member with the lowest number forms the cluster, once.
async fn form(node: Arc<Node>) {
    let lowest = node.settings.members.iter().map(|member| member.node_id).min();
    if lowest != Some(node.settings.node_id) {
        return;
    }
    match node.raft.is_initialized().await {
        Ok(false) => {}
        Ok(true) => return,
        Err(e) => return tracing::error!(error = %e, "whether the cluster exists cannot be said"),
    }
    let members: BTreeMap<u64, BasicNode> = (node.settings.members.iter())
        .map(|member| (member.node_id.0, BasicNode { addr: member.url.trim_end_matches('/').to_owned() }))
        .collect();
    match node.raft.initialize(members).await {
        Ok(()) => tracing::info!(members = node.settings.members.len(), "the cluster is formed"),
        Err(e) => tracing::warn!(error = %e, "the cluster is not formed by this replica"),
    }
}

/// Returns when Raft has stopped by itself, with why.
async fn stopped(raft: &Raft) -> String {
    let mut metrics = raft.metrics();
    loop {
        if let Err(e) = &metrics.borrow_watched().running_state {
            return e.to_string();
        }
        if metrics.changed().await.is_err() {
            return "its task has ended".to_owned();
        }
    }
}

async fn refresh(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(REFRESH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        node.metrics.refresh(&node);
    }
}
