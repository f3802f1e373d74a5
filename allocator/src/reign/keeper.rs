//! Follows Raft: when this replica becomes leader it finds its place on the line, when it is no leader any more it
//! stops drawing it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_transport::client::HttpClient;
use leasehold_transport::clock::wall_now;
use openraft::async_runtime::WatchReceiver as _;
use openraft::{ReadPolicy, ServerState};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Accession, Line, LineAnswer, accede};
use crate::machine::Machine;
use crate::proposer::Reigning;
use crate::types::Raft;

/// How long the others may take to say what they know of the line.
const ASK_DEADLINE: Duration = Duration::from_millis(250);
/// The pause before an attempt that failed is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What the keeper needs.
pub(crate) struct Keeper {
    pub(crate) raft: Raft,
    pub(crate) machine: Machine,
    pub(crate) line: Arc<Line>,
    pub(crate) http: HttpClient,
    pub(crate) reigning: watch::Sender<Reigning>,
}

/// Why a leader does not draw the line yet.
#[derive(Debug, thiserror::Error)]
enum AccessionError {
    #[error("leadership cannot be confirmed: {0}")]
    Unconfirmed(String),
    #[error("{known} of the {needed} members that make a quorum say what they know of the line")]
    NoQuorum { known: usize, needed: usize },
    #[error("the line's record cannot be stored: {0}")]
    Store(#[from] std::io::Error),
}

impl Keeper {
    /// Runs until Raft ends.
    pub(crate) async fn run(self) {
        let mut metrics = self.raft.metrics();
        loop {
            let leads = self.reign_led();
            match leads {
                None => {
                    self.line.end();
                    self.reigning.send_replace(Reigning::No);
                }
                Some(reign) if self.line.drawn_reign() == Some(reign) => {}
                Some(reign) => {
                    self.line.end();
                    self.reigning.send_replace(Reigning::Beginning);
                    tokio::select! {
                        () = self.accede_until_done(reign) => continue,
                        () = self.until_changed(reign) => continue,
                    }
                }
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// The term that this replica leads in.
    fn reign_led(&self) -> Option<u64> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        (metrics.state == ServerState::Leader).then_some(metrics.current_term)
    }

    /// Returns once this replica does not lead in `reign` any more.
    async fn until_changed(&self, reign: u64) {
        let mut metrics = self.raft.metrics();
        while self.reign_led() == Some(reign) {
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    async fn accede_until_done(&self, reign: u64) {
        let mut said = false;
        loop {
            match self.accede(reign).await {
                Ok(()) => return,
                Err(e) if !said => {
                    said = true;
                    tracing::warn!(reign, error = %e, "this replica leads but cannot place itself in time yet");
                }
                Err(e) => tracing::debug!(reign, error = %e, "still not placed in time"),
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn accede(&self, reign: u64) -> Result<(), AccessionError> {
        // A quorum confirms this reign, and everything of earlier reigns is applied here.
        self.raft
            .ensure_linearizable(ReadPolicy::ReadIndex)
            .await
            .map_err(|e| AccessionError::Unconfirmed(e.to_string()))?;
        let answers = self.ask().await?;
        let (applied, outstanding_ms) = {
            let state = self.machine.state();
            (state.ledger.now(), state.ledger.outstanding_span_ms())
        };
        let base = match accede(&answers, applied, outstanding_ms, wall_now(), self.line.drift_ppm()) {
            Accession::From(base) => base,
            Accession::AfterMs(ms) => {
                tracing::warn!(
                    reign,
                    wait_ms = ms,
                    "no quorum knows the line: nothing is granted until every lease has ended"
                );
                let until = Instant::now() + Duration::from_millis(ms);
                self.reigning.send_replace(Reigning::Waiting { until });
                tokio::time::sleep_until(until).await;
                wall_now().max(applied)
            }
        };
        self.line.begin(reign, base).await?;
        self.reigning.send_replace(Reigning::Yes { reign });
        tracing::info!(reign, ledger_time = %base, "this replica leads");
        Ok(())
    }

    /// What a quorum knows of the line, this replica included.
    async fn ask(&self) -> Result<Vec<LineAnswer>, AccessionError> {
        let membership = self.raft.metrics().borrow_watched().membership_config.clone();
        let own = *self.raft.node_id();
        let mut asking = JoinSet::new();
        for (id, node) in membership.nodes().filter(|(id, _)| **id != own) {
            let (id, http) = (*id, self.http.clone());
            let url = format!("{}/raft/line", node.addr.trim_end_matches('/'));
            asking.spawn(async move {
                let answer = timeout(ASK_DEADLINE, http.get::<LineAnswer>(&url)).await;
                answer.ok().and_then(Result::ok).map(|answer| (id, answer))
            });
        }
        let mut answers = vec![(own, self.line.answer())];
        answers.extend(asking.join_all().await.into_iter().flatten());
        // In a joint configuration each of the two sets needs its own majority.
        for voters in membership.get_joint_config() {
            let known = answers.iter().filter(|(id, _)| voters.contains(id)).count();
            let needed = voters.len() / 2 + 1;
            if known < needed {
                return Err(AccessionError::NoQuorum { known, needed });
            }
        }
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}
