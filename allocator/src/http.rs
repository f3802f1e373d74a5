//! What agents, publisher and operators reach over HTTP.

mod leases;
mod policy;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use leasehold_protocol::envelope::ENVELOPE_BYTES_MAX;
use leasehold_protocol::{Problem, ProblemKind};
use leasehold_transport::health::{self, Metrics, Readiness};
use leasehold_transport::{auth, problem};

use crate::network;
use crate::node::Node;
use crate::proposer::ProposeError;

/// The largest frame, in bytes: some 1,000 items of 300 bytes.
const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Every route of a replica. Whatever changes something wants the token; reads want it only beyond loopback.
pub(crate) fn router(node: &Arc<Node>, metrics: Arc<Metrics>) -> Router {
    let token = node.settings.admin_token.clone();
    let read_token = token.clone().filter(|_| !node.settings.listen.ip().is_loopback());
    let changes = Router::new()
        .route("/v1/leases:frame", post(leases::frame).layer(DefaultBodyLimit::max(FRAME_BYTES_MAX)))
        .route("/v1/leases:stream", get(leases::stream))
        .route("/v1/policy", post(policy::activate).layer(DefaultBodyLimit::max(ENVELOPE_BYTES_MAX)))
        .merge(network::routes())
        .layer(auth::require_token(token));
    let reads = Router::new()
        .route("/v1/policy", get(policy::register))
        .route("/v1/cluster", get(views::cluster))
        .route("/v1/pools", get(views::pools))
        .route("/v1/leases", get(views::leases))
        .layer(auth::require_token(read_token));
    let asked = Arc::clone(node);
    let readiness: Arc<dyn Fn() -> Readiness + Send + Sync> = Arc::new(move || asked.readiness());
    let all = changes.merge(reads).with_state(Arc::clone(node));
    problem::fallbacks(all.merge(health::routes(readiness, metrics)))
}

/// The problem of commands without an outcome.
fn unproposed(node: &Node, error: &ProposeError) -> Problem {
    let (kind, result) = match error {
        ProposeError::NotLeader => {
            node.metrics.request("not_leader");
            return node.not_leader();
        }
        ProposeError::Overloaded => (ProblemKind::Overloaded, "overloaded"),
        ProposeError::Timeout => (ProblemKind::Timeout, "timeout"),
        ProposeError::ClockUncertain { .. } => (ProblemKind::Unavailable, "clock_uncertain"),
        ProposeError::Stopped(_) => (ProblemKind::Unavailable, "stopped"),
    };
    node.metrics.request(result);
    Problem::new(kind, error.to_string())
}
