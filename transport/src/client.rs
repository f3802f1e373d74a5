//! Clients: HTTP/2 in the clear with a deadline on every call, problems read back, and the leader followed.

mod leader;

use std::time::Duration;

use bytes::Bytes;
use leasehold_protocol::Problem;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::secret::Secret;

pub use leader::LeaderClient;

/// How long a connection may take to open.
const CONNECT_DEADLINE: Duration = Duration::from_millis(500);
/// A connection that answers no ping for this long is dropped.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_DEADLINE: Duration = Duration::from_secs(2);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why a call brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection, or no answer in time.
    #[error("{url} does not answer: {reason}")]
    Unreachable {
        /// What was called.
        url: String,
        /// Why, in words.
        reason: String,
    },
    /// The answer is a problem.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The answer is an error without a problem document.
    #[error("{url} answered {status}")]
    Status {
        /// What was called.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The answer is not what the call returns.
    #[error("{url} answered something else than expected: {reason}")]
    Body {
        /// What was called.
        url: String,
        /// Why, in words.
        reason: String,
    },
    /// The client cannot be set up.
    #[error("cannot make requests: {0}")]
    Build(String),
}

impl ClientError {
    /// The HTTP status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => Some(problem.status),
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// A client of one token. Cloning shares its connections.
#[derive(Debug, Clone)]
pub struct HttpClient {
    inner: reqwest::Client,
    token: Option<Secret>,
}

impl HttpClient {
    /// A client that sends `token` and gives each call `deadline`, the body included.
    pub fn new(token: Option<Secret>, deadline: Duration) -> Result<Self, ClientError> {
        let inner = reqwest::Client::builder()
            .http2_prior_knowledge()
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_DEADLINE)
            .connect_timeout(CONNECT_DEADLINE)
            .timeout(deadline)
            .tcp_nodelay(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| ClientError::Build(in_full(&e)))?;
        Ok(Self { inner, token })
    }

    /// The client below, for calls whose bodies are not JSON. It sends no token by itself.
    pub fn raw(&self) -> &reqwest::Client {
        &self.inner
    }

    /// The same request with the token.
    pub fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        }
    }

    /// Reads `url`.
    pub async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, ClientError> {
        self.send(url, self.inner.get(url)).await
    }

    /// Sends `body` as JSON to `url`.
    pub async fn post<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        url: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.send(url, self.inner.post(url).json(body)).await
    }

    /// Sends `bytes` with their content type to `url`.
    pub async fn post_bytes<T: DeserializeOwned>(
        &self,
        url: &str,
        content_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<T, ClientError> {
        let request =
            self.inner.post(url).header(reqwest::header::CONTENT_TYPE, content_type).body(bytes.into());
        self.send(url, request).await
    }

    async fn send<T: DeserializeOwned>(&self, url: &str, request: RequestBuilder) -> Result<T, ClientError> {
        let answer = self.authorized(request).send().await.map_err(|e| unreachable_error(url, &e))?;
        let status = answer.status();
        let bytes = body_of(url, answer).await?;
        if !status.is_success() {
            return Err(refusal(url, status, &bytes));
        }
        serde_json::from_slice(&bytes)
            .map_err(|e| ClientError::Body { url: url.to_owned(), reason: e.to_string() })
    }
}

fn refusal(url: &str, status: StatusCode, bytes: &[u8]) -> ClientError {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => ClientError::Problem(Box::new(problem)),
        Err(_) => ClientError::Status { url: url.to_owned(), status: status.as_u16() },
    }
}

async fn body_of(url: &str, mut answer: Response) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|e| unreachable_error(url, &e))? {
        if bytes.len().saturating_add(chunk.len()) > ANSWER_BYTES_MAX {
            let reason = format!("more than {ANSWER_BYTES_MAX} bytes");
            return Err(ClientError::Body { url: url.to_owned(), reason });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn unreachable_error(url: &str, error: &reqwest::Error) -> ClientError {
    ClientError::Unreachable { url: url.to_owned(), reason: in_full(error) }
}

/// An error with its causes but without the URL, which the caller names itself.
fn in_full(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "the deadline passed".to_owned();
    }
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
