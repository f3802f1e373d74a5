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

/// How long lines are read from one answer: then a new call shows that the other side still means us.
pub const LINES_MAX: Duration = Duration::from_hours(1);
/// The longest line, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

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
    deadline: Duration,
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
        Ok(Self { inner, token, deadline })
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

    /// Reads `url` as lines that come for as long as both sides like, but no longer than [`LINES_MAX`]. The deadline
    /// holds for the head alone; after `idle` without a byte the other side counts as gone.
    pub async fn lines(&self, url: &str, idle: Duration) -> Result<Lines, ClientError> {
        let request = self.authorized(self.inner.get(url)).timeout(LINES_MAX);
        let Ok(answer) = tokio::time::timeout(self.deadline, request.send()).await else {
            let reason = "the deadline passed".to_owned();
            return Err(ClientError::Unreachable { url: url.to_owned(), reason });
        };
        let answer = answer.map_err(|e| unreachable_error(url, &e))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(refusal(url, status, &body_of(url, answer).await?));
        }
        Ok(Lines { url: url.to_owned(), answer, idle, buffer: Vec::new() })
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

/// An answer that comes line by line.
#[derive(Debug)]
pub struct Lines {
    url: String,
    answer: Response,
    idle: Duration,
    /// Bytes of lines that have not been taken.
    buffer: Vec<u8>,
}

impl Lines {
    /// The next line without its end, perhaps empty; `None` once the other side has ended the answer.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end.saturating_add(1));
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                let reason = format!("a line of more than {LINE_BYTES_MAX} bytes");
                return Err(ClientError::Body { url: self.url.clone(), reason });
            }
            match tokio::time::timeout(self.idle, self.answer.chunk()).await {
                Ok(Ok(Some(bytes))) => self.buffer.extend_from_slice(&bytes),
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(e)) => return Err(unreachable_error(&self.url, &e)),
                Err(_) => {
                    let reason = format!("it was silent for {} ms", self.idle.as_millis());
                    return Err(ClientError::Unreachable { url: self.url.clone(), reason });
                }
            }
        }
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
