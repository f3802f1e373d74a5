//! Follows the publisher: polls for a newer bundle, verifies it, keeps it, switches to it and says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::BundleVersion;
use leasehold_protocol::admin::{AgentAck, RefusedBundle};
use leasehold_protocol::envelope::{ENVELOPE_BYTES_MAX, TrustedKeys, digest};
use leasehold_transport::client::HttpClient;
use tokio::time::Instant;

use crate::clock::{local_now, wall_now};
use crate::policy_store::{PolicyStore, RefusedError, VerifiedBundle, verify};
use crate::state::Agent;

/// The first wait after a failed poll, in ms.
const BACKOFF_MIN_MS: u64 = 100;
/// Two polls begin no sooner after each other than this, however fast the publisher answers.
const POLL_GAP: Duration = Duration::from_millis(200);
/// How long an acknowledgement may take: the next poll waits for it.
const ACK_DEADLINE: Duration = Duration::from_secs(2);
/// The most refused digests remembered, so that each is warned of once.
const REFUSED_MAX: usize = 64;

/// The policy's follower.
pub(crate) struct PolicyLoop {
    agent: Arc<Agent>,
    http: HttpClient,
    keys: Arc<TrustedKeys>,
    store: Option<PolicyStore>,
    refused: Warned,
    /// The refusal to report until a newer bundle is in force.
    refusal: Option<RefusedBundle>,
    failures: u32,
}

/// The refused envelopes that were warned of, the newest last.
#[derive(Debug, Default)]
struct Warned(VecDeque<String>);

impl Warned {
    /// True the first time that it hears of `name`.
    fn is_news(&mut self, name: &str) -> bool {
        if self.0.iter().any(|known| known == name) {
            return false;
        }
        if self.0.len() >= REFUSED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(name.to_owned());
        true
    }
}

/// Why a poll brought nothing.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error("{0}")]
    Http(#[from] reqwest::Error),
    #[error("the publisher answered {0}")]
    Status(reqwest::StatusCode),
    #[error("the answer is larger than {ENVELOPE_BYTES_MAX} bytes")]
    TooLarge,
}

impl PolicyLoop {
    /// Follows with `http`, whose timeout is longer than a poll.
    pub(crate) fn new(agent: Arc<Agent>, http: HttpClient, keys: TrustedKeys, store: PolicyStore) -> Self {
        Self {
            agent,
            http,
            keys: Arc::new(keys),
            store: Some(store),
            refused: Warned::default(),
            refusal: None,
            failures: 0,
        }
    }

    /// Follows for ever.
    pub(crate) async fn run(mut self) {
        loop {
            let next = Instant::now() + POLL_GAP;
            match self.poll().await {
                Ok(offered) => {
                    // Something newer that was refused is no confirmation: what is in force is not the newest.
                    let is_newest = match offered {
                        Some(bytes) => self.take(bytes).await,
                        None => true,
                    };
                    if is_newest {
                        self.agent.confirm_policy(local_now());
                    }
                    self.acknowledge().await;
                    if is_newest {
                        if self.failures > 0 {
                            tracing::info!(publisher = %self.agent.settings.publisher, "the publisher answers again");
                        }
                        self.failures = 0;
                        tokio::time::sleep_until(next).await;
                        continue;
                    }
                }
                Err(e) if self.failures == 0 => {
                    tracing::warn!(publisher = %self.agent.settings.publisher, error = %e,
                        "the publisher does not answer; the last good bundle stays in force");
                }
                Err(e) => tracing::debug!(error = %e, "the publisher still does not answer"),
            }
            self.failures = self.failures.saturating_add(1);
            tokio::time::sleep(self.backoff()).await;
        }
    }

    fn backoff(&self) -> Duration {
        let full = BACKOFF_MIN_MS
            .saturating_mul(1 << self.failures.min(16))
            .min(self.agent.settings.poll_backoff_max_ms);
        Duration::from_millis(full / 2 + self.agent.random.up_to(full / 2))
    }

    /// The newest envelope above the version in force, if the publisher has one within the wait.
    async fn poll(&self) -> Result<Option<Vec<u8>>, PollError> {
        let after = self.agent.admission().version();
        let wait_ms = self.agent.settings.poll_wait_ms;
        let url = format!(
            "{}/v1/bundles?after={after}&wait_ms={wait_ms}",
            self.agent.settings.publisher.trim_end_matches('/')
        );
        let mut ask = self.http.raw().get(url);
        if let Some(token) = &self.agent.settings.admin_token {
            ask = ask.bearer_auth(token.expose());
        }
        let mut answer = ask.send().await?;
        match answer.status() {
            reqwest::StatusCode::NO_CONTENT => return Ok(None),
            reqwest::StatusCode::OK => {}
            status => return Err(PollError::Status(status)),
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            if bytes.len().saturating_add(chunk.len()) > ENVELOPE_BYTES_MAX {
                return Err(PollError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Some(bytes))
    }

    /// Verifies, keeps and switches; false if the last good bundle stays.
    async fn take(&mut self, bytes: Vec<u8>) -> bool {
        let name = digest(&bytes);
        let keys = Arc::clone(&self.keys);
        let in_force = self.agent.admission().version();
        let Some(mut store) = self.store.take() else { return false };
        let done = tokio::task::spawn_blocking(move || {
            let kept = verify(&keys, bytes)
                .and_then(|verified| store.admit(verified, in_force))
                .map(|verified| (store.keep(&verified), verified));
            (store, kept)
        })
        .await;
        let kept = match done {
            Ok((store, kept)) => {
                self.store = Some(store);
                kept
            }
            // `verify` catches panics, so this is the runtime's end.
            Err(_) => Err(RefusedError::Fault),
        };
        match kept {
            Ok((Ok(()), verified)) => self.switch(verified),
            Ok((Err(e), verified)) => {
                tracing::error!(version = %verified.bundle.version, error = %e,
                    "the bundle verifies but cannot be stored; the last good one stays in force");
                self.agent.metrics.bundle("not_stored");
                false
            }
            Err(e @ RefusedError::NotNewer { .. }) => {
                self.agent.metrics.bundle("not_higher");
                tracing::debug!(error = %e, "a bundle that is not newer was offered");
                false
            }
            Err(e) => {
                self.refuse(&name, &e);
                false
            }
        }
    }

    fn switch(&mut self, verified: VerifiedBundle) -> bool {
        let agent = &self.agent;
        let mut admission = agent.admission();
        match admission.activate(local_now(), wall_now(), verified.bundle, verified.digest) {
            Ok(version) => {
                agent.wake_lease_loop(&admission);
                drop(admission);
                agent.changed.notify_waiters();
                agent.metrics.bundle("activated");
                tracing::info!(%version, "a new bundle is in force");
                self.refusal = None;
                true
            }
            Err(e) => {
                drop(admission);
                agent.metrics.bundle("not_higher");
                tracing::debug!(error = %e, "a bundle that is not newer was offered");
                false
            }
        }
    }

    /// Counts every refusal and warns of each digest once.
    fn refuse(&mut self, name: &str, error: &RefusedError) {
        self.agent.metrics.bundle("refused");
        if self.refused.is_news(name) {
            tracing::warn!(envelope = %name, error = %error,
                "a bundle is refused; the last good one stays in force");
        }
        let reason = error.to_string().chars().take(500).collect();
        self.refusal = Some(RefusedBundle { version: error.version(), reason });
    }

    /// Tells the publisher what is in force and what was refused.
    async fn acknowledge(&self) {
        let agent = &self.agent;
        let ack = AgentAck {
            region: agent.holder.region.clone(),
            agent: agent.holder.agent.clone(),
            active_version: agent.admission().version(),
            refused: self.refusal.clone(),
        };
        if ack.active_version == BundleVersion(0) && ack.refused.is_none() {
            return;
        }
        let url = format!("{}/v1/acks", agent.settings.publisher.trim_end_matches('/'));
        let mut tell = self.http.raw().post(url).timeout(ACK_DEADLINE).json(&ack);
        if let Some(token) = &agent.settings.admin_token {
            tell = tell.bearer_auth(token.expose());
        }
        match tell.send().await {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => tracing::debug!(status = %answer.status(), "the acknowledgement was not taken"),
            Err(e) => tracing::debug!(error = %e, "the acknowledgement did not arrive"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_envelope_is_warned_of_once_and_the_memory_of_it_is_bounded() {
        let mut warned = Warned::default();
        assert_eq!([warned.is_news("a"), warned.is_news("a"), warned.is_news("a")], [true, false, false]);
        for n in 0..REFUSED_MAX - 1 {
            assert!(warned.is_news(&n.to_string()));
        }
        assert!(!warned.is_news("a"));
        assert!(warned.is_news("one more"), "the oldest makes room, not the newest");
        assert!(!warned.is_news("one more") && warned.is_news("a"));
        assert_eq!(warned.0.len(), REFUSED_MAX);
    }
}
