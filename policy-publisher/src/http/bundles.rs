//! Released envelopes: the newest by long poll, any kept one by its version.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use leasehold_protocol::{BundleVersion, InvalidField, Problem, ProblemKind};
use leasehold_transport::problem::{ProblemResponse, QueryParams};
use serde::Deserialize;

use super::Context;
use crate::publish::blocking;
use crate::state::locked;

/// The longest a poll waits, in ms.
const WAIT_MS_MAX: u64 = 30_000;
/// When to come back if too many polls wait, in ms.
const OVERLOADED_RETRY_MS: u64 = 5_000;

/// The query of `GET /v1/bundles`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Poll {
    /// Only a version above this is an answer.
    #[serde(default)]
    after: BundleVersion,
    /// How long to wait for one, in ms; [`WAIT_MS_MAX`] at most.
    #[serde(default)]
    wait_ms: u64,
}

/// `GET /v1/bundles`: the newest release above `after`, as soon as there is one; 204 if none comes in time.
pub(super) async fn poll(
    State(context): State<Context>,
    QueryParams(Poll { after, wait_ms }): QueryParams<Poll>,
) -> Response {
    let shared = &context.shared;
    let mut current = shared.current.subscribe();
    let found = current.borrow_and_update().clone().filter(|r| r.release.version > after);
    if let Some(released) = found {
        return envelope(released.release.version, Bytes::clone(&released.envelope));
    }
    if wait_ms == 0 {
        return StatusCode::NO_CONTENT.into_response();
    }
    let Ok(_permit) = shared.waiters.try_acquire() else {
        let problem = Problem::new(ProblemKind::Overloaded, "as many polls as may wait are waiting");
        return ProblemResponse(problem).with_retry_after_ms(OVERLOADED_RETRY_MS);
    };
    let _waiting = shared.metrics.waiting();
    let wait = Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let newer = current.wait_for(|r| r.as_ref().is_some_and(|r| r.release.version > after));
    tokio::select! {
        found = newer => match found.ok().and_then(|r| r.clone()) {
            Some(released) => envelope(released.release.version, Bytes::clone(&released.envelope)),
            None => StatusCode::NO_CONTENT.into_response(),
        },
        () = tokio::time::sleep(wait) => StatusCode::NO_CONTENT.into_response(),
        () = context.shutdown.wait() => StatusCode::NO_CONTENT.into_response(),
    }
}

/// `GET /v1/bundles/{version}`: the exact bytes of a release that is kept.
pub(super) async fn fetch(State(context): State<Context>, Path(version): Path<String>) -> Response {
    match kept(&context, &version).await {
        Ok((version, bytes)) => envelope(version, bytes),
        Err(problem) => ProblemResponse(*problem).into_response(),
    }
}

async fn kept(context: &Context, version: &str) -> Result<(BundleVersion, Bytes), Box<Problem>> {
    let number = version.parse().map_err(|_| {
        Problem::invalid(vec![InvalidField::new("version", version.escape_debug(), "must be a whole number")])
    })?;
    let version = BundleVersion(number);
    let shared = &context.shared;
    if let Some(newest) = shared.newest().filter(|r| r.release.version == version) {
        return Ok((version, Bytes::clone(&newest.envelope)));
    }
    let gone = || {
        let detail = format!("version {version} was never released here, or is no longer kept");
        Problem::new(ProblemKind::NotFound, detail)
    };
    let release = shared.kept_version(version).ok_or_else(gone)?;
    let store = Arc::clone(&shared.store);
    let bytes = blocking(move || locked(&store).load(&release)).await?;
    // It may have been swept in between.
    Ok((version, bytes.map_err(|_| gone())?.into()))
}

fn envelope(version: BundleVersion, bytes: Bytes) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::ETAG, format!("\"{version}\""))];
    (headers, bytes).into_response()
}
