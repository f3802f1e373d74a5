//! Who asks for what, and how often.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_gateway_client::{AgentClient, Verdict};
use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::{RegionId, TenantId};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::board::Board;

/// Atlas's workers (D7).
const WORKERS: u64 = 50;
/// The reads of Birch's opening screen (D2).
const SCREEN_READS: u64 = 12;
/// How often Birch's app is opened somewhere.
const SCREEN_EVERY: Duration = Duration::from_secs(5);
/// How often Atlas starts an export, and how long one runs (D18).
const EXPORT_EVERY: Duration = Duration::from_secs(1);
const EXPORT_RUNS: Duration = Duration::from_secs(20);
/// Requests in flight at most: what an agent does not answer in time is not asked.
const IN_FLIGHT_MAX: usize = 256;

/// The running traffic; ends when it is dropped.
pub(super) struct Traffic {
    _tasks: JoinSet<()>,
}

struct Shared {
    agents: Vec<(RegionId, AgentClient)>,
    board: Arc<Mutex<Board>>,
    in_flight: Arc<Semaphore>,
}

impl Traffic {
    /// Starts it: Atlas asks `rate` times a second over all agents.
    pub(super) fn start(agents: Vec<(RegionId, AgentClient)>, rate: u32, board: Arc<Mutex<Board>>) -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let shared = Arc::new(Shared { agents, board, in_flight });
        let mut tasks = JoinSet::new();
        tasks.spawn(atlas(Arc::clone(&shared), rate));
        tasks.spawn(exports(Arc::clone(&shared)));
        tasks.spawn(birch(shared));
        Self { _tasks: tasks }
    }
}

/// Nine tenths in the first region, the rest spread over the others.
async fn atlas(shared: Arc<Shared>, rate: u32) {
    let tenant = id("atlas");
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for n in 0_u64.. {
        ticks.tick().await;
        let others = shared.agents.len().saturating_sub(1) as u64;
        let place = if n % 10 == 9 && others > 0 { 1 + (n / 10) % others } else { 0 };
        shared.ask(place, &tenant, format!("worker-{}", n % WORKERS), "catalog", 1);
    }
}

async fn birch(shared: Arc<Shared>) {
    let tenant = id("birch");
    let mut ticks = interval(SCREEN_EVERY);
    for n in 0_u64.. {
        ticks.tick().await;
        for _ in 0..SCREEN_READS {
            shared.ask(n % shared.agents.len() as u64, &tenant, format!("app-{}", n % 12), "catalog", 1);
        }
    }
}

/// Each export that is admitted runs for a while and then gives its slot back.
async fn exports(shared: Arc<Shared>) {
    let tenant = id("atlas");
    let mut ticks = interval(EXPORT_EVERY);
    loop {
        ticks.tick().await;
        let (shared, tenant) = (Arc::clone(&shared), tenant.clone());
        tokio::spawn(async move {
            let Some((region, agent)) = shared.agents.first() else { return };
            let request = request(&tenant, "nightly".to_owned(), "export");
            let answer = agent.admit(&request).await;
            let id = match &answer {
                Ok(Verdict::Allowed(decision)) => Some(decision.decision_id.clone()),
                _ => None,
            };
            shared.note(region, &tenant, 10, answer.ok());
            if let Some(id) = id {
                sleep(EXPORT_RUNS).await;
                // A slot that is not given back comes back by its expiry.
                let _ = agent.release(&id).await;
            }
        });
    }
}

impl Shared {
    /// One request, not waited for.
    fn ask(self: &Arc<Self>, place: u64, tenant: &TenantId, principal: String, route: &str, cost: u64) {
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else { return };
        let place = usize::try_from(place).unwrap_or(0);
        let (shared, tenant) = (Arc::clone(self), tenant.clone());
        let request = request(&tenant, principal, route);
        tokio::spawn(async move {
            let Some((region, agent)) = shared.agents.get(place) else { return };
            let answer = agent.admit(&request).await.ok();
            shared.note(region, &tenant, cost, answer);
            drop(permit);
        });
    }

    fn note(&self, region: &RegionId, tenant: &TenantId, cost: u64, answer: Option<Verdict>) {
        let mut board = self.board();
        match answer {
            Some(Verdict::Allowed(decision)) => board.allowed(tenant, region, cost, &decision),
            Some(Verdict::Denied(refusal)) => board.refused(tenant, &refusal.decision),
            Some(Verdict::Undecided(refusal)) => board.undecided(tenant, &refusal.decision),
            None => board.unanswered += 1,
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn request(tenant: &TenantId, principal: String, route: &str) -> AdmitRequest {
    AdmitRequest {
        tenant: Some(tenant.as_str().to_owned()),
        principal: Some(principal),
        route: route.to_owned(),
        ..AdmitRequest::default()
    }
}

fn id(text: &str) -> TenantId {
    TenantId::new(text).expect("a name of this file that follows the grammar")
}
