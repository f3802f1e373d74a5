//! The regional agent: spends leases locally, answers gateways.
//!
//! The shell around [`leasehold_admission`]: it owns the sockets, clocks, tasks and files of one agent, and decides
//! nothing. Three tasks share one core behind one lock that is never held across a wait: the HTTP service, the lease
//! loop, and the policy loop. A fourth listens to the allocator on behalf of the lease loop.

mod clock;
mod durable;
mod hold;
mod http;
mod lease_loop;
mod metrics;
mod policy_loop;
mod policy_store;
mod push_loop;
mod settings;
mod state;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::envelope::{KeyError, TrustedKeys};
use leasehold_transport::client::{ClientError, HttpClient, LeaderClient};
use leasehold_transport::health::Metrics;
use leasehold_transport::listen::{self, Listen, ListenError};
use leasehold_transport::settings::SettingError;
use leasehold_transport::shutdown::{RoleFuture, Shutdown};
use leasehold_transport::takeover::take_over;
use tokio::sync::mpsc;

use crate::clock::{local_now, wall_now};
use crate::durable::DataDir;
use crate::metrics::AgentMetrics;
use crate::policy_loop::PolicyLoop;
use crate::policy_store::{PolicyStore, VerifiedBundle};
pub use crate::settings::Settings;
use crate::state::Agent;

/// What a poll may take longer than the wait it asks for.
const POLL_SLACK: Duration = Duration::from_secs(10);
/// How often idle counters are swept and gauges brought up to date.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Pushes that wait for the lease loop; the stream is read no faster.
const PUSHES_QUEUED_MAX: usize = 256;
/// How many due counters a sweep looks at.
const SWEEP_LOOKS_MAX: usize = 4_096;

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting cannot be right.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A trusted key cannot be used.
    #[error("setting `trusted_keys`: {0}")]
    Key(#[from] KeyError),
    /// The data directory cannot be used.
    #[error("data directory {path}: {source}", path = path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It cannot make requests.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Serving ended by itself.
    #[error("serving: {0}")]
    Serve(#[from] std::io::Error),
    /// Nothing leases any more: a fault of ours. A new life is better than one that can only refuse.
    #[error("the lease loop ended by itself: {0}")]
    LeaseLoop(tokio::task::JoinError),
}

/// Runs an agent until `shutdown`; then it gives back the tokens that it has not spent.
pub fn run(settings: Settings, shutdown: Shutdown) -> RoleFuture<RunError> {
    Box::pin(live(settings, shutdown))
}

async fn live(settings: Settings, shutdown: Shutdown) -> Result<(), RunError> {
    settings.check()?;
    let keys = TrustedKeys::parse(&settings.trusted_keys, settings.trusted_threshold)?;
    let in_dir = |source| RunError::DataDir { path: settings.data_dir.clone(), source };
    let opened =
        take_over(|| DataDir::open(&settings.data_dir), |e| e.kind() == io::ErrorKind::AddrInUse).await;
    let dir = opened.map_err(in_dir)?;
    let incarnation = dir.next_incarnation(wall_now().0).map_err(in_dir)?;
    let (store, stored) = PolicyStore::open(dir, &keys).map_err(in_dir)?;
    let token = settings.admin_token.clone();
    let frames = HttpClient::new(token.clone(), Duration::from_millis(settings.frame_deadline_ms))?;
    let polls = HttpClient::new(
        token.clone(),
        Duration::from_millis(settings.poll_wait_ms).saturating_add(POLL_SLACK),
    )?;
    let leader = LeaderClient::new(frames, settings.allocators.clone());
    let listener = listen::bind(&Listen { addr: settings.listen, admin_token: token }).await?;

    let holder = settings.holder()?;
    let metrics = Arc::new(Metrics::new("agent"));
    let own = AgentMetrics::default();
    own.register(&metrics);
    let agent = Arc::new(Agent::new(settings, holder, incarnation, own));
    if let Some(stored) = stored {
        activate_stored(&agent, stored);
    }
    tracing::info!(holder = %agent.holder, incarnation = %agent.incarnation, listen = %agent.settings.listen,
        bundle = %agent.admission().version(), "the agent starts");

    let (stop_leasing, leasing_stops) = tokio::sync::oneshot::channel::<()>();
    let (tell, told) = mpsc::channel(PUSHES_QUEUED_MAX);
    let listening = tokio::spawn(push_loop::run(Arc::clone(&agent), leader.clone(), tell));
    let mut leases = tokio::spawn(lease_loop::run(Arc::clone(&agent), leader, told, async {
        // A dropped sender stops it too.
        let _ = leasing_stops.await;
    }));
    let policy = tokio::spawn(PolicyLoop::new(Arc::clone(&agent), polls, keys, store).run());
    let sweeps = tokio::spawn(sweep(Arc::clone(&agent)));
    let served = tokio::select! {
        served = listen::serve(listener, http::router(&agent, metrics), shutdown) => Ok(served),
        Err(e) = &mut leases => Err(RunError::LeaseLoop(e)),
    };
    for task in [policy, sweeps, listening] {
        task.abort();
        // Waited for, since the data directory stays locked until the follower is gone.
        drop(task.await);
    }
    let served = served?;
    // Requests are answered by now, so what is held is not needed any more.
    drop(stop_leasing);
    leases.await.map_err(RunError::LeaseLoop)?;
    tracing::info!(holder = %agent.holder, "the agent has stopped");
    Ok(served?)
}

fn activate_stored(agent: &Agent, stored: VerifiedBundle) {
    let activated = agent.admission().activate(local_now(), wall_now(), stored.bundle, stored.digest);
    match activated {
        Ok(version) => tracing::info!(%version, "the stored bundle is in force"),
        Err(e) => tracing::warn!(error = %e, "the stored bundle is not put in force"),
    }
}

/// Lets memory fall although no request comes, keeps the gauges fresh, and says once when a fail mode engages or ends.
async fn sweep(agent: Arc<Agent>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut was_lost, mut was_stale) = (false, false);
    loop {
        ticks.tick().await;
        let now = local_now();
        let (is_lost, is_stale) = {
            let mut admission = agent.admission();
            admission.counters_mut().sweep(now, wall_now(), SWEEP_LOOKS_MAX);
            agent.metrics.refresh(&agent, &admission);
            (admission.leases().is_allocator_lost(now), agent.is_policy_stale(&admission, now))
        };
        match (was_lost, is_lost) {
            (false, true) => tracing::warn!(last_failure = %agent.frame_failure(),
                "the allocator counts as lost: held tokens are spent, then each route's fail mode decides"),
            (true, false) => tracing::info!("the allocator answers again"),
            _ => {}
        }
        if is_stale && !was_stale {
            tracing::warn!(
                "the policy is past its maximum age and nobody has confirmed it; it stays in force"
            );
        }
        (was_lost, was_stale) = (is_lost, is_stale);
    }
}
