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
