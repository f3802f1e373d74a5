//! Calls that only the leader answers: find it, remember it, follow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leasehold_protocol::ProblemKind;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ClientError, HttpClient, Lines};

/// The pause after all replicas were asked in vain, before the second and last round.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// A client of a replicated service: a call goes to the replica that last answered as leader, then where that one
/// points, then to each other. Every replica is asked twice at most; no call is sent again after an answer that is
/// neither "not leader" nor "unreachable".
#[derive(Debug, Clone)]
pub struct LeaderClient {
    http: HttpClient,
    replicas: Arc<[String]>,
    last: Arc<AtomicUsize>,
}

impl LeaderClient {
    /// Calls the leader among the base URLs `replicas`.
    pub fn new(http: HttpClient, replicas: Vec<String>) -> Self {
        let replicas = replicas.into_iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
        Self { http, replicas, last: Arc::new(AtomicUsize::new(0)) }
    }

    /// Reads `path` from the leader.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.follow(path, |url| async move { self.http.get(&url).await }).await
    }

    /// Reads `path` from the leader line by line; see [`HttpClient::lines`].
    pub async fn lines(&self, path: &str, idle: Duration) -> Result<Lines, ClientError> {
        self.follow(path, |url| async move { self.http.lines(&url, idle).await }).await
    }

    /// Sends `body` to the leader. Only for calls that may arrive twice: one that got no answer is repeated.
    pub async fn post<B: Serialize + ?Sized + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| ClientError::Body {
            url: path.to_owned(),
            reason: format!("cannot be sent: {e}"),
        })?;
        let body = Bytes::from(body);
        self.follow(path, |url| {
            let body = body.clone();
            async move { self.http.post_bytes(&url, "application/json", body).await }
        })
        .await
    }

    async fn follow<T, F>(&self, path: &str, call: impl Fn(String) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let count = self.replicas.len();
        let mut at = self.last.load(Ordering::Relaxed);
        let mut asked = vec![0_u8; count];
        let mut last_error = ClientError::Build("no replica is configured".to_owned());
        for attempt in 0..count.saturating_mul(2) {
            if attempt == count {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
            let Some(base) = self.replicas.get(at) else { break };
            if let Some(times) = asked.get_mut(at) {
                *times = times.saturating_add(1);
            }
            // A caller that gives up while this waits has had no answer from here: the next call goes elsewhere.
            let unanswered = MoveOn { last: &self.last, to: least_asked(&asked, at).unwrap_or(0) };
            let answered = call(format!("{base}{path}")).await;
            unanswered.disarm();
            match answered {
                Ok(answer) => {
                    self.last.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) if moves_on(&error) => {
                    let pointed = pointed_at(&error).and_then(|url| self.position(url));
                    let round = u8::from(attempt.saturating_add(1) >= count);
                    at = pointed
                        .filter(|i| asked.get(*i).is_some_and(|times| *times <= round))
                        .or_else(|| least_asked(&asked, at))
                        .unwrap_or(0);
                    self.last.store(at, Ordering::Relaxed);
                    // What a replica says of itself is worth more than that another is not there.
                    if !matches!(error, ClientError::Unreachable { .. }) || !is_problem(&last_error) {
                        last_error = error;
                    }
                }
                Err(error) => {
                    self.last.store(at, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Err(last_error)
    }

    fn position(&self, url: &str) -> Option<usize> {
        let url = url.trim_end_matches('/');
        self.replicas.iter().position(|known| known == url)
    }
}

/// Points the next call at another replica when it is dropped armed.
struct MoveOn<'a> {
    last: &'a AtomicUsize,
    to: usize,
}

impl MoveOn<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for MoveOn<'_> {
    fn drop(&mut self) {
        self.last.store(self.to, Ordering::Relaxed);
    }
}

fn moves_on(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } => true,
        ClientError::Problem(problem) => problem.kind() == Some(ProblemKind::NotLeader),
        _ => false,
    }
}

fn is_problem(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(_))
}

fn pointed_at(error: &ClientError) -> Option<&str> {
    match error {
        ClientError::Problem(problem) => problem.leader.as_deref(),
        _ => None,
    }
}

/// The replica asked least so far, the next after `at` first.
fn least_asked(asked: &[u8], at: usize) -> Option<usize> {
    let count = asked.len();
    (1..=count).map(|step| (at + step) % count).min_by_key(|i| asked.get(*i).copied())
}
