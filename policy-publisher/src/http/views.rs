//! What the publisher says of itself, and what agents say to it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use leasehold_protocol::admin::{AgentAck, PublisherStatus};
use leasehold_protocol::policy::TEXT_LEN_MAX;
use leasehold_protocol::publish::SigningKeys;
use leasehold_protocol::{InvalidField, Problem};
use leasehold_transport::problem::{JsonBody, ProblemResponse};

use super::Context;

/// `GET /v1/keys`.
pub(super) async fn keys(State(context): State<Context>) -> Json<SigningKeys> {
    Json(SigningKeys { keys: vec![context.shared.key.clone()] })
}

/// `GET /v1/status`.
pub(super) async fn status(State(context): State<Context>) -> Json<PublisherStatus> {
    Json(context.shared.status())
}

/// `POST /v1/acks`: 204.
pub(super) async fn ack(State(context): State<Context>, JsonBody(ack): JsonBody<AgentAck>) -> Response {
    let reason = ack.refused.as_ref().map_or("", |refused| refused.reason.as_str());
    // Counted in characters, as agents shorten it.
    if reason.chars().count() > TEXT_LEN_MAX {
        let rule = format!("at most {TEXT_LEN_MAX} characters");
        let fault = InvalidField::new("refused.reason", reason, rule);
        return ProblemResponse(Problem::invalid(vec![fault])).into_response();
    }
    context.shared.note_ack(ack);
    StatusCode::NO_CONTENT.into_response()
}
