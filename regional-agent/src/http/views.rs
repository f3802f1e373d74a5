//! What an agent says of itself and of its policy.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use leasehold_admission::ParseError;
use leasehold_protocol::admin::AgentStatus;
use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::{Problem, ProblemKind};
use leasehold_transport::problem::{ProblemResponse, QueryParams};
use serde::Deserialize;

use crate::clock::{local_now, wall_now};
use crate::state::Agent;

/// The query of `GET /v1/explain`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    tenant: Option<String>,
    principal: Option<String>,
    source: Option<std::net::IpAddr>,
    route: String,
}

pub(super) async fn explain(
    State(agent): State<Arc<Agent>>,
    QueryParams(query): QueryParams<ExplainQuery>,
) -> Response {
    let asked = AdmitRequest {
        tenant: query.tenant,
        principal: query.principal,
        source: query.source,
        route: query.route,
        ..AdmitRequest::default()
    };
    let explained = agent.admission().explain(local_now(), wall_now(), &asked);
    match explained {
        Ok(explanation) => Json(explanation).into_response(),
        Err(ParseError::NoPolicy) => {
            let problem = Problem::new(ProblemKind::NoPolicy, "the agent has no policy to explain yet");
            ProblemResponse(problem).into_response()
        }
        Err(ParseError::Invalid(faults)) => ProblemResponse(Problem::invalid(faults)).into_response(),
    }
}

pub(super) async fn status(State(agent): State<Arc<Agent>>) -> Json<AgentStatus> {
    Json(agent.status())
}
