//! Hosts the lease manager: steps it when it is due, sends its frames, feeds it the answers.

use std::sync::Arc;
use std::time::Duration;

use leasehold_admission::lease::{LeaseEffect, LeaseInput};
use leasehold_protocol::LocalTime;
use leasehold_protocol::lease::{LeaseFrame, LeaseFrameAnswer, Push};
use leasehold_protocol::machine::Machine as _;
use leasehold_transport::client::LeaderClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::clock::local_now;
use crate::state::Agent;

/// A step that changed nothing is not repeated sooner than this.
const STEP_GAP: Duration = Duration::from_millis(1);
/// The longest sleep: a clock that jumped while the machine slept is noticed by then.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long the last frames may take when the agent stops.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Runs until `stop` resolves, then gives back what was not spent.
pub(crate) async fn run(
    agent: Arc<Agent>,
    leader: LeaderClient,
    mut pushes: mpsc::Receiver<Push>,
    stop: impl Future<Output = ()>,
) {
    let mut sendings: JoinSet<LeaseInput> = JoinSet::new();
    let mut input = LeaseInput::Tick;
    tokio::pin!(stop);
    loop {
        let busy = step(&agent, &leader, &mut sendings, input);
        let sleep = until_due(&agent, busy);
        tokio::select! {
            () = &mut stop => break,
            Some(done) = sendings.join_next() => match done {
                Ok(answer) => input = answer,
                Err(e) => {
                    tracing::error!(error = %e, "a sending ended by itself");
                    input = LeaseInput::Tick;
                }
            },
            Some(push) = pushes.recv() => input = LeaseInput::Pushed(push),
            () = agent.lease_due.notified() => input = LeaseInput::Tick,
            () = tokio::time::sleep_until(sleep) => input = LeaseInput::Tick,
        }
    }
    if timeout(DRAIN_DEADLINE, drain(&agent, &leader, sendings)).await.is_err() {
        tracing::warn!(
            "the allocator did not take the unspent tokens back in time; they end with their window"
        );
    }
}

/// One step; true if it asked for anything.
fn step(
    agent: &Arc<Agent>,
    leader: &LeaderClient,
    sendings: &mut JoinSet<LeaseInput>,
    input: LeaseInput,
) -> bool {
    let effects = {
        let mut admission = agent.admission();
        let effects = admission.leases_mut().step(local_now(), input);
        agent.plan_lease_loop(admission.leases().next_wakeup());
        effects
    };
    let busy = !effects.then.is_empty();
    for effect in effects.then {
        match effect {
            LeaseEffect::Send { frame_id, frame } => {
                sendings.spawn(send(Arc::clone(agent), leader.clone(), frame_id, frame));
            }
            LeaseEffect::Changed => agent.changed.notify_waiters(),
            LeaseEffect::Superseded { seen } => {
                tracing::error!(holder = %agent.holder, ours = %agent.incarnation, %seen,
                    "another process leases under this agent's name; nothing will be leased by this one");
                agent.set_superseded();
                agent.changed.notify_waiters();
            }
        }
    }
    busy
}

fn until_due(agent: &Agent, busy: bool) -> Instant {
    let now = local_now();
    let due = agent.admission().leases().next_wakeup();
    let wait = due.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX));
    Instant::now() + if busy { wait } else { wait.max(STEP_GAP) }
}

/// Sends one frame. `sent` is read before it leaves: a lease's life counts from there.
async fn send(agent: Arc<Agent>, leader: LeaderClient, frame_id: u64, frame: LeaseFrame) -> LeaseInput {
    let deadline = Duration::from_millis(agent.settings.frame_deadline_ms);
    let sent: LocalTime = local_now();
    match timeout(deadline, leader.post::<LeaseFrame, LeaseFrameAnswer>("/v1/leases:frame", &frame)).await {
        Ok(Ok(answer)) => {
            agent.metrics.frame("answered");
            LeaseInput::Answered { sent, frame_id, answer }
        }
        Ok(Err(e)) => {
            agent.metrics.frame("failed");
            tracing::debug!(error = %e, "a lease frame failed");
            agent.note_frame_failure(e.to_string());
            LeaseInput::Failed { frame_id }
        }
        Err(_) => {
            agent.metrics.frame("timed_out");
            agent.note_frame_failure("the deadline passed".to_owned());
            LeaseInput::Failed { frame_id }
        }
    }
}

/// Gives back what was not spent; the rest runs out with its window. Twice: what was on its way when the agent was
/// stopped is there by the second time.
async fn drain(agent: &Arc<Agent>, leader: &LeaderClient, mut sendings: JoinSet<LeaseInput>) {
    for _ in 0..2 {
        let effects = agent.admission().leases_mut().step(local_now(), LeaseInput::Drain);
        for effect in effects.then {
            if let LeaseEffect::Send { frame_id, frame } = effect {
                sendings.spawn(send(Arc::clone(agent), leader.clone(), frame_id, frame));
            }
        }
        while let Some(done) = sendings.join_next().await {
            if let Ok(answer) = done {
                // Nothing is asked for any more, so what this step would send is not sent.
                let _ = agent.admission().leases_mut().step(local_now(), answer);
            }
        }
    }
}
