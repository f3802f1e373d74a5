//! Decides requests: at once where the core can, after a bounded hold where leased tokens are on their way.

use std::sync::Arc;
use std::time::Duration;

use leasehold_admission::{ParseError, Request, Verdict, Waiting};
use leasehold_protocol::DecisionId;
use leasehold_protocol::admit::AdmitRequest;
use tokio::time::Instant;

use crate::clock::{local_now, wall_now};
use crate::state::Agent;

/// A request after its first look.
pub(crate) enum Looked {
    /// Decided.
    Done(Verdict),
    /// To be held.
    Held(Box<Request>, Waiting),
}

impl Agent {
    /// The first look at a request, under one lock.
    pub(crate) fn look(&self, asked: AdmitRequest, id: &DecisionId) -> Looked {
        let (now, unix) = (local_now(), wall_now());
        let mut admission = self.admission();
        let request = match admission.parse(unix, asked) {
            Ok(request) => request,
            Err(ParseError::NoPolicy) => return Looked::Done(Verdict::NoPolicy),
            Err(ParseError::Invalid(faults)) => return Looked::Done(Verdict::Invalid(faults)),
        };
        let verdict = admission.check(now, unix, &request, id);
        self.wake_lease_loop(&admission);
        match verdict {
            Verdict::Wait(waiting) => Looked::Held(Box::new(request), waiting),
            verdict => Looked::Done(verdict),
        }
    }

    /// When a request that arrives now is held no longer.
    pub(crate) fn hold_until(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.settings.hold_ms)
    }

    /// Holds a request until its tokens arrive, or until `deadline`. Where too many are held, decides at once.
    pub(crate) async fn hold(
        self: &Arc<Self>,
        request: &Request,
        waiting: Waiting,
        id: &DecisionId,
        deadline: Instant,
    ) -> Verdict {
        let Ok(_permit) = self.held.try_acquire() else {
            return self.look_last(request, id);
        };
        let began = Instant::now();
        let mut wait = WaitGuard::start(self, waiting);
        let verdict = loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listening starts before the look, so that no change falls between the two.
            changed.as_mut().enable();
            match self.look_again(request, id) {
                Verdict::Wait(waiting) => wait.replace(waiting),
                verdict => break verdict,
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(deadline) => {
                    break self.look_last(request, id);
                }
            }
        };
        drop(wait);
        self.metrics.held_for(began.elapsed());
        verdict
    }

    fn look_again(&self, request: &Request, id: &DecisionId) -> Verdict {
        let mut admission = self.admission();
        let verdict = admission.check_again(local_now(), wall_now(), request, id);
        self.wake_lease_loop(&admission);
        verdict
    }

    fn look_last(&self, request: &Request, id: &DecisionId) -> Verdict {
        let mut admission = self.admission();
        let verdict = admission.check_last(local_now(), wall_now(), request, id);
        self.wake_lease_loop(&admission);
        verdict
    }
}

/// A held request's need, known to the lease manager while the value lives: also when its client goes away.
struct WaitGuard<'a> {
    agent: &'a Arc<Agent>,
    waiting: Waiting,
}

impl<'a> WaitGuard<'a> {
    fn start(agent: &'a Arc<Agent>, waiting: Waiting) -> Self {
        let mut admission = agent.admission();
        admission.start_wait(local_now(), &waiting);
        agent.wake_lease_loop(&admission);
        drop(admission);
        Self { agent, waiting }
    }

    fn replace(&mut self, waiting: Waiting) {
        if waiting != self.waiting {
            let mut admission = self.agent.admission();
            admission.end_wait(&self.waiting);
            admission.start_wait(local_now(), &waiting);
            self.agent.wake_lease_loop(&admission);
            self.waiting = waiting;
        }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.agent.admission().end_wait(&self.waiting);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_admission::lease::{LeaseEffect, LeaseInput};
    use leasehold_protocol::machine::Machine as _;
    use leasehold_protocol::policy::CheckedBundle;
    use leasehold_protocol::{Incarnation, Tokens};

    use super::*;
    use crate::metrics::AgentMetrics;
    use crate::settings::Settings;

    /// One leased rule on one route.
    const POLICY: &str = r#"{
        "format": 1, "version": 1, "issued_at_ms": 0, "max_age_s": 60,
        "rules": [{
            "id": "P-GLOBAL", "key": [], "enforcement": "leased", "fallback": {"kind": "refuse"},
            "algorithm": {"kind": "fixed_window", "limit": {"kind": "limited", "tokens": 100}, "window_ms": 60000}
        }],
        "plans": [], "tenants": [], "overrides": [],
        "routes": [{"id": "r", "pattern": "GET /r", "weight": 7, "rules": ["P-GLOBAL"],
            "fail_mode": {"kind": "closed"}}]
    }"#;

    fn agent() -> Arc<Agent> {
        let settings = Settings { hold_ms: 60_000, ..Settings::default() };
        let holder = settings.holder().unwrap();
        let agent = Arc::new(Agent::new(settings, holder, Incarnation(1), AgentMetrics::default()));
        let bundle = CheckedBundle::new(serde_json::from_str(POLICY).unwrap()).unwrap();
        agent.admission().activate(local_now(), wall_now(), bundle, "d".to_owned()).unwrap();
        agent
    }

    /// What the next frame asks for those who wait.
    fn needed(agent: &Agent) -> Option<Tokens> {
        let effects = agent.admission().leases_mut().step(local_now(), LeaseInput::Tick);
        effects.then.into_iter().find_map(|effect| match effect {
            LeaseEffect::Send { frame, .. } => frame.acquires.first().map(|acquire| acquire.need),
            _ => None,
        })
    }

    /// Asks, waits for 20 ms, and goes away if `leaves`; what the lease manager is told to need then.
    async fn needed_after(leaves: bool) -> Option<Tokens> {
        let agent = agent();
        let id = agent.next_decision_id();
        let asked = AdmitRequest { route: "r".to_owned(), ..AdmitRequest::default() };
        let Looked::Held(request, waiting) = agent.look(asked, &id) else { panic!("it should be held") };
        let deadline = agent.hold_until();
        let mut held = Box::pin(agent.hold(&request, waiting, &id, deadline));
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut held).await.is_err());
        if leaves {
            drop(held);
            assert_eq!(agent.held.available_permits(), agent.settings.held_max);
        }
        needed(&agent)
    }

    #[tokio::test]
    async fn the_need_of_a_held_request_is_asked_for_until_its_client_goes_away() {
        assert_eq!(needed_after(false).await, Some(Tokens(7)));
        assert_eq!(needed_after(true).await, Some(Tokens(0)), "the forecast alone is left");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_change_between_two_looks_is_not_lost() {
        for _ in 0..50 {
            let agent = agent();
            let id = agent.next_decision_id();
            let asked = AdmitRequest { route: "r".to_owned(), ..AdmitRequest::default() };
            let Looked::Held(request, waiting) = agent.look(asked, &id) else { panic!("it should be held") };
            let teller = Arc::clone(&agent);
            let telling = tokio::spawn(async move {
                // The route is gone: whoever hears of it has an answer.
                let mut next: leasehold_protocol::bundle::Bundle = serde_json::from_str(POLICY).unwrap();
                next.version = leasehold_protocol::BundleVersion(2);
                next.routes[0].id = leasehold_protocol::RouteId::new("s").unwrap();
                let bundle = CheckedBundle::new(next).unwrap();
                teller.admission().activate(local_now(), wall_now(), bundle, "d".to_owned()).unwrap();
                teller.changed.notify_waiters();
            });
            let deadline = agent.hold_until();
            let verdict =
                tokio::time::timeout(Duration::from_secs(20), agent.hold(&request, waiting, &id, deadline));
            assert!(matches!(verdict.await.unwrap(), Verdict::Invalid(_)));
            telling.await.unwrap();
        }
    }
}
