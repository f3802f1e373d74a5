//! Listens to what the allocator says unasked: one stream held open to the leader, opened again when it ends. It only
//! saves time: whatever is missed comes with the next answer.

use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::lease::Push;
use leasehold_transport::client::{ClientError, LeaderClient};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::state::Agent;

/// A stream that brings nothing for this long is dead: the leader writes each second.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// The shortest and the longest wait before the stream is opened again; it doubles in between, half of it jitter.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// A stream that lasted this long was good: the next wait is the shortest again.
const GOOD_AFTER: Duration = Duration::from_secs(5);

/// Runs until the lease loop is gone.
pub(crate) async fn run(agent: Arc<Agent>, leader: LeaderClient, pushes: mpsc::Sender<Push>) {
    let (region, name, life) = (&agent.holder.region, &agent.holder.agent, agent.incarnation);
    let path = format!("/v1/leases:stream?region={region}&agent={name}&incarnation={life}");
    let mut wait = WAIT_MIN;
    while !pushes.is_closed() {
        let began = Instant::now();
        let ended = listen(&agent, &leader, &path, &pushes).await;
        agent.metrics.stream_open(false);
        if let Err(e) = ended {
            tracing::debug!(error = %e, "no stream of pushes is open");
        }
        wait = if began.elapsed() >= GOOD_AFTER { WAIT_MIN } else { wait.saturating_mul(2).min(WAIT_MAX) };
        let half = u64::try_from(wait.as_millis() / 2).unwrap_or(u64::MAX);
        let jitter = agent.random.next().checked_rem(half.saturating_add(1)).unwrap_or(0);
        sleep(Duration::from_millis(half.saturating_add(jitter))).await;
    }
}

async fn listen(
    agent: &Agent,
    leader: &LeaderClient,
    path: &str,
    pushes: &mpsc::Sender<Push>,
) -> Result<(), ClientError> {
    let mut lines = leader.lines(path, IDLE_MAX).await?;
    agent.metrics.stream_open(true);
    while let Some(line) = lines.next().await? {
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Push>(&line) {
            Ok(push) => {
                agent.metrics.pushed();
                if pushes.send(push).await.is_err() {
                    break;
                }
            }
            // A later version may push what this one does not know.
            Err(e) => tracing::debug!(error = %e, "a push is not understood"),
        }
    }
    Ok(())
}
