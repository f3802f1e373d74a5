//! The calls.

use std::fmt;
use std::time::Duration;

use leasehold_protocol::admin::{AgentStatus, Explanation};
use leasehold_protocol::admit::{
    AdmitBatch, AdmitRequest, BatchAnswer, Decision, Refusal, SlotAnswer, SlotRequest,
};
use leasehold_protocol::{DecisionId, Problem};
use reqwest::{RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;

use crate::backoff::Backoff;

/// How to reach an agent.
#[derive(Clone)]
pub struct ClientSettings {
    /// The deadline of one call in ms, the agent's hold included.
    pub deadline_ms: u64,
    /// The bearer token, where the agent wants one.
    pub token: Option<String>,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self { deadline_ms: 2_000, token: None }
    }
}

impl fmt::Debug for ClientSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "[redacted]");
        f.debug_struct("ClientSettings")
            .field("deadline_ms", &self.deadline_ms)
            .field("token", &token)
            .finish()
    }
}

/// An agent's answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go ahead.
    Allowed(Decision),
    /// A rule refused: answer 429.
    Denied(Box<Refusal>),
    /// It cannot be decided and the route fails closed, or there is no policy yet: answer 503.
    Undecided(Box<Refusal>),
}

impl Verdict {
    /// The wait in ms that a refusal names.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Allowed(_) => None,
            Self::Denied(refusal) | Self::Undecided(refusal) => refusal.decision.retry_after_ms,
        }
    }
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No connection, or no answer in time. Nothing is known: the request may have been counted.
    #[error("the agent at {url} does not answer: {reason}")]
    Unreachable {
        /// What was called.
        url: String,
        /// Why, in words.
        reason: String,
    },
    /// The agent refused the call itself, such as wrong input.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// An answer that is none of the agent's.
    #[error("{url} answered {status} with something else than expected: {reason}")]
    Unexpected {
        /// What was called.
        url: String,
        /// The HTTP status.
        status: u16,
        /// Why, in words.
        reason: String,
    },
    /// The client cannot be set up.
    #[error("cannot make requests: {0}")]
    Build(String),
}

/// A client of one agent. Cloning shares its connections.
#[derive(Debug, Clone)]
pub struct AgentClient {
    base: String,
    http: reqwest::Client,
    settings: ClientSettings,
}

impl AgentClient {
    /// A client of the agent at the base URL `base`.
    pub fn new(base: impl Into<String>, settings: ClientSettings) -> Result<Self, AgentError> {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_millis(settings.deadline_ms))
            .connect_timeout(Duration::from_millis(settings.deadline_ms.min(1_000)))
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(|e| AgentError::Build(e.to_string()))?;
        Ok(Self { base: base.into().trim_end_matches('/').to_owned(), http, settings })
    }

    /// One decision.
    pub async fn admit(&self, request: &AdmitRequest) -> Result<Verdict, AgentError> {
        let url = self.url("/v1/admit");
        let (status, bytes) = self.send(&url, self.http.post(&url).json(request)).await?;
        match status {
            StatusCode::OK => Ok(Verdict::Allowed(read(&url, status, &bytes)?)),
            StatusCode::TOO_MANY_REQUESTS => Ok(Verdict::Denied(read(&url, status, &bytes)?)),
            StatusCode::SERVICE_UNAVAILABLE => Ok(Verdict::Undecided(read(&url, status, &bytes)?)),
            _ => Err(refused(&url, status, &bytes)),
        }
    }

    /// One decision, asked again after refusals as `backoff` says. The last verdict counts.
    pub async fn admit_patiently(
        &self,
        request: &AdmitRequest,
        backoff: &Backoff,
    ) -> Result<Verdict, AgentError> {
        let mut attempt = 1;
        loop {
            let verdict = self.admit(request).await?;
            if matches!(verdict, Verdict::Allowed(_)) {
                return Ok(verdict);
            }
            // Without the system's random numbers the waits still grow; they only lose their jitter.
            let random = getrandom::u64().unwrap_or(0);
            let Some(wait) = backoff.wait_ms(attempt, verdict.retry_after_ms(), random) else {
                return Ok(verdict);
            };
            tokio::time::sleep(Duration::from_millis(wait)).await;
            attempt += 1;
        }
    }

    /// Up to 1,000 decisions, in order.
    pub async fn admit_batch(&self, requests: Vec<AdmitRequest>) -> Result<BatchAnswer, AgentError> {
        self.post("/v1/admit:batch", &AdmitBatch { requests }).await
    }

    /// Ends a slot of a concurrency rule. Ending it twice is harmless.
    pub async fn release(&self, decision: &DecisionId) -> Result<SlotAnswer, AgentError> {
        self.post("/v1/release", &SlotRequest { decision_id: decision.clone() }).await
    }

    /// Keeps a slot of a concurrency rule for another lifetime.
    pub async fn heartbeat(&self, decision: &DecisionId) -> Result<SlotAnswer, AgentError> {
        self.post("/v1/heartbeat", &SlotRequest { decision_id: decision.clone() }).await
    }

    /// Which rules apply to a request like this one, and why.
    pub async fn explain(&self, like: &AdmitRequest) -> Result<Explanation, AgentError> {
        let url = self.url("/v1/explain");
        let source = like.source.map(|ip| ip.to_string());
        let query: Vec<(&str, &str)> = [
            ("route", Some(like.route.as_str())),
            ("tenant", like.tenant.as_deref()),
            ("principal", like.principal.as_deref()),
            ("source", source.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .collect();
        self.answer(&url, self.http.get(&url).query(&query)).await
    }

    /// The agent's state.
    pub async fn status(&self) -> Result<AgentStatus, AgentError> {
        let url = self.url("/v1/status");
        self.answer(&url, self.http.get(&url)).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, AgentError> {
        let url = self.url(path);
        self.answer(&url, self.http.post(&url).json(body)).await
    }

    async fn answer<T: DeserializeOwned>(&self, url: &str, request: RequestBuilder) -> Result<T, AgentError> {
        let (status, bytes) = self.send(url, request).await?;
        if status.is_success() { read(url, status, &bytes) } else { Err(refused(url, status, &bytes)) }
    }

    async fn send(&self, url: &str, request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), AgentError> {
        let request = match &self.settings.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let unreachable = |e: reqwest::Error| {
            let reason = if e.is_timeout() { "the deadline passed".to_owned() } else { root_cause(&e) };
            AgentError::Unreachable { url: url.to_owned(), reason }
        };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(unreachable)?;
        Ok((status, bytes.to_vec()))
    }
}

fn read<T: DeserializeOwned>(url: &str, status: StatusCode, bytes: &[u8]) -> Result<T, AgentError> {
    serde_json::from_slice(bytes).map_err(|e| AgentError::Unexpected {
        url: url.to_owned(),
        status: status.as_u16(),
        reason: e.to_string(),
    })
}

fn refused(url: &str, status: StatusCode, bytes: &[u8]) -> AgentError {
    match read::<Problem>(url, status, bytes) {
        Ok(problem) => AgentError::Problem(Box::new(problem)),
        Err(e) => e,
    }
}

fn root_cause(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
