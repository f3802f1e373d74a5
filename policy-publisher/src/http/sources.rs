//! Sources: published, or only checked.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_protocol::publish::{Published, Validated};
use leasehold_protocol::{BundleVersion, InvalidField, Problem, ProblemKind};
use leasehold_rollout::Source;
use leasehold_transport::problem::{ProblemResponse, unread};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::Context;
use crate::publish::{self, blocking};
use crate::read;

/// The deadline of a publish request, its place in the queue included.
const PUBLISH_DEADLINE: Duration = Duration::from_mins(1);
/// When to come back if too much is on its way, in ms.
const RETRY_MS: u64 = 1_000;

/// `POST /v1/bundles`: 201 with a new version, or 200 if the source says what is active.
pub(super) async fn publish(State(context): State<Context>, request: Request) -> Response {
    match published(&context, request).await {
        Ok(published) => {
            let status = if published.unchanged { StatusCode::OK } else { StatusCode::CREATED };
            let place = [(header::LOCATION, format!("/v1/bundles/{}", published.version))];
            (status, place, Json(published)).into_response()
        }
        Err(problem) => refusal(*problem),
    }
}

/// `POST /v1/bundles:validate`: what a source would change, and nothing happens.
pub(super) async fn validate(State(context): State<Context>, request: Request) -> Response {
    match validated(&context, request).await {
        Ok(validated) => Json(validated).into_response(),
        Err(problem) => refusal(*problem),
    }
}

fn refusal(problem: Problem) -> Response {
    match problem.kind() {
        Some(ProblemKind::Overloaded | ProblemKind::Unavailable) => {
            ProblemResponse(problem).with_retry_after_ms(RETRY_MS)
        }
        _ => ProblemResponse(problem).into_response(),
    }
}

async fn published(context: &Context, request: Request) -> Result<Published, Box<Problem>> {
    let expected = expected_version(request.headers())?;
    let source = match source_of(context, request).await {
        Ok(source) => source,
        Err(problem) => {
            context.shared.metrics.published("unreadable");
            return Err(problem);
        }
    };
    let (answer, answered) = oneshot::channel();
    let asked = publish::Request { source, expected, answer };
    context.shared.requests.try_send(asked).map_err(|e| match e {
        TrySendError::Full(_) => {
            Problem::new(ProblemKind::Overloaded, "as many sources as may wait are waiting")
        }
        TrySendError::Closed(_) => Problem::new(ProblemKind::Unavailable, "the publisher is ending"),
    })?;
    match tokio::time::timeout(PUBLISH_DEADLINE, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Problem::new(ProblemKind::Unavailable, "the publisher is ending").into()),
        Err(_) => {
            let detail = "it may still be published: see GET /v1/status";
            Err(Problem::new(ProblemKind::Timeout, detail).into())
        }
    }
}

async fn validated(context: &Context, request: Request) -> Result<Validated, Box<Problem>> {
    let source = source_of(context, request).await?;
    let newest = context.shared.newest();
    let compared_with = newest.as_ref().map_or(BundleVersion(0), |r| r.release.version);
    let checked = blocking(move || publish::check(&source, newest.as_ref().map(|r| &r.bundle))).await?;
    let (comparison, unchanged) = checked?;
    Ok(Validated {
        valid: true,
        compared_with,
        unchanged,
        changes: comparison.changes,
        warnings: comparison.warnings,
    })
}

/// Reads the body, which may be large: only so many at once.
async fn source_of(context: &Context, request: Request) -> Result<Source, Box<Problem>> {
    let Ok(permit) = Arc::clone(&context.shared.readers).try_acquire_owned() else {
        let detail = "as many sources as may be read at once are being read";
        return Err(Problem::new(ProblemKind::Overloaded, detail).into());
    };
    content_type(request.headers())?;
    let text = Bytes::from_request(request, &()).await.map_err(|e| unread(&e))?;
    let read = blocking(move || {
        let read = read::source(&text);
        // Only now: the work goes on although the caller may be gone.
        drop(permit);
        read
    });
    Ok(read.await??)
}

/// YAML or JSON, and said so: a web page cannot send these to a loopback address without being asked first.
fn content_type(headers: &HeaderMap) -> Result<(), Box<Problem>> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" | "application/json" => {
            Ok(())
        }
        _ => {
            let detail =
                format!("content type {kind:?}: send `Content-Type: application/yaml` or `application/json`");
            Err(Problem::new(ProblemKind::MalformedBody, detail).into())
        }
    }
}

/// The version in `If-Match`; `None` if there is none, or `*`.
fn expected_version(headers: &HeaderMap) -> Result<Option<BundleVersion>, Box<Problem>> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or("").trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text.trim_matches('"').parse().map_err(|_| bad_match(value))?;
    Ok(Some(BundleVersion(number)))
}

fn bad_match(value: &HeaderValue) -> Problem {
    let shown = String::from_utf8_lossy(value.as_bytes());
    let rule = "must be the active version in quotes, such as \"7\", or *";
    Problem::invalid(vec![InvalidField::new("If-Match", shown.escape_debug(), rule)])
}
