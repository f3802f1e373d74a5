//! What gateways and operators reach over HTTP.

mod admit;
mod fields;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use leasehold_transport::health::{self, Metrics, Readiness};
use leasehold_transport::{auth, problem};

use crate::state::Agent;

/// The largest body of one request, in bytes.
const BODY_LEN_MAX: usize = 64 * 1024;
/// The largest body of a batch, in bytes.
const BATCH_BODY_LEN_MAX: usize = 16 * 1024 * 1024;

/// Every route of an agent. The data path is open on loopback and wants the token elsewhere.
pub(crate) fn router(agent: &Arc<Agent>, metrics: Arc<Metrics>) -> Router {
    let token = agent.settings.admin_token.clone().filter(|_| !agent.settings.listen.ip().is_loopback());
    let data = Router::new()
        .route("/v1/admit", post(admit::admit))
        .route("/v1/release", post(admit::release))
        .route("/v1/heartbeat", post(admit::heartbeat))
        .route("/v1/explain", get(views::explain))
        .route("/v1/status", get(views::status))
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .route("/v1/admit:batch", post(admit::batch).layer(DefaultBodyLimit::max(BATCH_BODY_LEN_MAX)))
        .layer(auth::require_token(token))
        .with_state(Arc::clone(agent));
    let asked = Arc::clone(agent);
    let ready: Arc<dyn Fn() -> Readiness + Send + Sync> = Arc::new(move || asked.readiness());
    problem::fallbacks(data.merge(health::routes(ready, metrics)))
}
