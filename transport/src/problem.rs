//! Problem documents on the wire (RFC 9457), and extractors whose rejections are problems.

use std::any::Any;

use axum::extract::rejection::{BytesRejection, JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use leasehold_protocol::{Problem, ProblemKind};
use serde::de::DeserializeOwned;
use tower_http::catch_panic::CatchPanicLayer;

/// A problem as a response: its status, `application/problem+json`.
#[derive(Debug, Clone)]
pub struct ProblemResponse(pub Problem);

impl ProblemResponse {
    /// The response with `Retry-After`, in whole seconds rounded up, at least 1.
    pub fn with_retry_after_ms(self, ms: u64) -> Response {
        let mut response = self.into_response();
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
        response
    }
}

impl From<Problem> for ProblemResponse {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self.0)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// A JSON body. What is wrong with it is answered as a problem: 400, or 413 where it is too large.
#[derive(Debug, Clone, Copy)]
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ProblemResponse;
    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemResponse> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(JsonRejection::BytesRejection(e)) => Err(ProblemResponse(unread(&e))),
            Err(JsonRejection::MissingJsonContentType(_)) => {
                Err(malformed("the body must be JSON: send `Content-Type: application/json`"))
            }
            Err(e) => {
                // The library's prefix says what kind it was; serde's part names field, line and column.
                let text = e.body_text();
                Err(malformed(text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest)))
            }
        }
    }
}

/// The problem of a body that could not be read: too large, or cut off.
pub fn unread(rejection: &BytesRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        Problem::new(ProblemKind::BodyTooLarge, rejection.body_text())
    } else {
        Problem::new(ProblemKind::MalformedBody, rejection.body_text())
    }
}

fn malformed(detail: &str) -> ProblemResponse {
    ProblemResponse(Problem::new(ProblemKind::MalformedBody, detail))
}

/// The query's parameters. What is wrong with them is answered as a problem: 400.
#[derive(Debug, Clone, Copy)]
pub struct QueryParams<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ProblemResponse;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(e) => Err(ProblemResponse(bad_query(&e))),
        }
    }
}

fn bad_query(rejection: &QueryRejection) -> Problem {
    let text = rejection.body_text();
    let detail = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest).to_owned();
    Problem::new(ProblemKind::InvalidInput, format!("query: {detail}"))
}

/// Adds what every router ends with: unknown paths, unknown methods and faults of ours as problems.
pub fn fallbacks(router: Router) -> Router {
    router
        .fallback(|request: Request| async move {
            let path: String = request.uri().path().chars().take(200).collect();
            ProblemResponse(Problem::new(ProblemKind::NotFound, format!("there is nothing at {path}")))
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let detail = format!("{} is not possible here", request.method());
            ProblemResponse(Problem::new(ProblemKind::MethodNotAllowed, detail))
        })
        .layer(CatchPanicLayer::custom(|panic: Box<dyn Any + Send>| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            tracing::error!(panic = text, "a request ended in a panic");
            let detail = "the request met a fault of ours; nothing else was affected";
            ProblemResponse(Problem::new(ProblemKind::Internal, detail)).into_response()
        }))
}
