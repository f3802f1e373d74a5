//! What the tasks of one agent share: the core behind one lock, never held across a wait, and the signals around it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_admission::Admission;
use leasehold_admission::lease::{LeaseManager, LeaseSettings};
use leasehold_protocol::admin::AgentStatus;
use leasehold_protocol::machine::Machine as _;
use leasehold_protocol::{DecisionId, Holder, Incarnation, LocalTime};
use leasehold_transport::health::Readiness;
use tokio::sync::{Notify, Semaphore};

use crate::clock::{SplitMix64, local_now};
use crate::metrics::AgentMetrics;
use crate::settings::Settings;

/// No confirmation yet.
const NEVER: u64 = u64::MAX;

/// One agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) settings: Settings,
    pub(crate) holder: Holder,
    pub(crate) incarnation: Incarnation,
    pub(crate) metrics: AgentMetrics,
    pub(crate) random: SplitMix64,
    /// Tokens or words arrived: held requests look again.
    pub(crate) changed: Notify,
    /// The lease loop is due earlier than it planned.
    pub(crate) lease_due: Notify,
    /// Held requests.
    pub(crate) held: Semaphore,
    admission: Mutex<Admission>,
    started_at: LocalTime,
    decisions: AtomicU64,
    lease_planned: AtomicU64,
    policy_confirmed: AtomicU64,
    superseded: AtomicBool,
    frame_failure: Mutex<String>,
}

impl Agent {
    pub(crate) fn new(
        settings: Settings,
        holder: Holder,
        incarnation: Incarnation,
        metrics: AgentMetrics,
    ) -> Self {
        let started_at = local_now();
        let random =
            SplitMix64::new(incarnation.0 ^ started_at.0.rotate_left(32) ^ u64::from(std::process::id()));
        let lease_settings = LeaseSettings {
            drift_ppm: settings.drift_ppm,
            allocator_lost_ms: settings.allocator_lost_ms,
            pools_max: settings.pools_max,
            jitter_seed: random.next(),
            ..LeaseSettings::default()
        };
        let leases = LeaseManager::new(holder.clone(), incarnation, lease_settings);
        Self {
            admission: Mutex::new(Admission::new(settings.counters_max, leases)),
            changed: Notify::new(),
            lease_due: Notify::new(),
            held: Semaphore::new(settings.held_max),
            decisions: AtomicU64::new(0),
            lease_planned: AtomicU64::new(0),
            policy_confirmed: AtomicU64::new(NEVER),
            superseded: AtomicBool::new(false),
            frame_failure: Mutex::default(),
            settings,
            holder,
            incarnation,
            metrics,
            random,
            started_at,
        }
    }

    /// The core. A check writes only what it has read whole, so a panic elsewhere leaves it usable.
    pub(crate) fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last frame that failed did.
    pub(crate) fn frame_failure(&self) -> String {
        self.frame_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes why a frame failed.
    pub(crate) fn note_frame_failure(&self, why: String) {
        *self.frame_failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// A new decision's name: `<agent>-<incarnation>-<count>`, the numbers in base 36.
    pub(crate) fn next_decision_id(&self) -> DecisionId {
        let count = self.decisions.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let text = format!("{}-{}-{}", self.holder.agent, Base36(self.incarnation.0), Base36(count));
        DecisionId::new(text)
            .expect("at most 36 + 2 + 26 bytes of the grammar: Settings::check bounds the agent's name")
    }

    /// Wakes the lease loop if `admission` wants it earlier than it planned.
    pub(crate) fn wake_lease_loop(&self, admission: &Admission) {
        if let Some(due) = admission.leases().next_wakeup()
            && due.0 < self.lease_planned.load(Ordering::Relaxed)
        {
            self.lease_planned.store(due.0, Ordering::Relaxed);
            self.lease_due.notify_one();
        }
    }

    /// The lease loop will look again at `due`. Called under the lock.
    pub(crate) fn plan_lease_loop(&self, due: Option<LocalTime>) {
        self.lease_planned.store(due.map_or(u64::MAX, |at| at.0), Ordering::Relaxed);
    }

    /// The publisher answered: what is in force was the newest then.
    pub(crate) fn confirm_policy(&self, now: LocalTime) {
        self.policy_confirmed.store(now.0, Ordering::Relaxed);
    }

    /// Ms since the publisher last answered; `None` if never in this life.
    pub(crate) fn policy_age_ms(&self, now: LocalTime) -> Option<u64> {
        let at = self.policy_confirmed.load(Ordering::Relaxed);
        (at != NEVER).then(|| now.ms_since(LocalTime(at)))
    }

    /// True if the policy in force is older than it allows. Before the publisher's first answer the age counts from
    /// the start.
    pub(crate) fn is_policy_stale(&self, admission: &Admission, now: LocalTime) -> bool {
        let age_ms = self.policy_age_ms(now).unwrap_or_else(|| now.ms_since(self.started_at));
        admission.policy().is_some_and(|p| age_ms > p.bundle().max_age_s.saturating_mul(1_000))
    }

    /// Another process has this agent's name and a later life.
    pub(crate) fn set_superseded(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }

    /// Ready when a policy is in force and no other process has this agent's name.
    pub(crate) fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        if self.admission().policy().is_none() {
            reasons.push("no policy bundle has been received yet".to_owned());
        }
        if self.superseded.load(Ordering::Relaxed) {
            reasons.push("another process leases under this agent's name".to_owned());
        }
        Readiness { ready: reasons.is_empty(), reasons }
    }

    /// The body of `GET /v1/status`.
    pub(crate) fn status(&self) -> AgentStatus {
        let now = local_now();
        let admission = self.admission();
        AgentStatus {
            region: self.holder.region.clone(),
            agent: self.holder.agent.clone(),
            pid: std::process::id(),
            incarnation: self.incarnation,
            bundle_version: admission.version(),
            bundle_age_ms: self.policy_age_ms(now),
            bundle_stale: self.is_policy_stale(&admission, now),
            allocator_age_ms: admission.leases().allocator_answered_at().map(|at| now.ms_since(at)),
            fallback_engaged: admission.leases().is_allocator_lost(now),
            leases: admission.leases().held_leases(now),
            counters: admission.counters().len() as u64,
            counters_max: admission.counters().len_max() as u64,
        }
    }
}

/// A number in base 36, lower case.
struct Base36(u64);

impl std::fmt::Display for Base36 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut digits = Vec::with_capacity(13);
        let mut rest = self.0;
        loop {
            let digit = u32::try_from(rest % 36).unwrap_or(0);
            digits.push(char::from_digit(digit, 36).unwrap_or('0'));
            rest /= 36;
            if rest == 0 {
                break;
            }
        }
        f.write_str(&digits.into_iter().rev().collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_protocol::AgentId;

    #[test]
    fn numbers_print_in_base_36() {
        assert_eq!(Base36(0).to_string(), "0");
        assert_eq!(Base36(35).to_string(), "z");
        assert_eq!(Base36(36).to_string(), "10");
        assert_eq!(Base36(u64::MAX).to_string(), "3w5e11264sgsf");
    }

    #[test]
    fn the_longest_agent_name_and_the_largest_numbers_still_make_a_decision_id() {
        let settings = Settings { agent: Some(AgentId::new("a".repeat(36)).unwrap()), ..Settings::default() };
        let holder = settings.holder().unwrap();
        let agent = Agent::new(settings, holder, Incarnation(u64::MAX), AgentMetrics::default());
        agent.decisions.store(u64::MAX - 1, Ordering::Relaxed);
        assert_eq!(agent.next_decision_id().as_str().len(), 64);
        assert_ne!(agent.next_decision_id(), agent.next_decision_id());
    }
}
