//! What agents and operators reach over HTTP.

mod bundles;
mod sources;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use leasehold_protocol::bundle::BUNDLE_BYTES_MAX;
use leasehold_transport::health::{self, Metrics, Readiness};
use leasehold_transport::shutdown::Shutdown;
use leasehold_transport::{auth, problem};

use crate::settings::Settings;
use crate::state::Shared;

/// The largest acknowledgement, in bytes.
const ACK_LEN_MAX: usize = 16 * 1024;

/// What requests need.
#[derive(Debug, Clone)]
struct Context {
    shared: Arc<Shared>,
    shutdown: Shutdown,
}

/// Every route. Changes want the token, if there is one; reads are open on loopback and want it elsewhere.
pub(crate) fn router(
    settings: &Settings,
    shared: &Arc<Shared>,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
) -> Router {
    let context = Context { shared: Arc::clone(shared), shutdown };
    let token = settings.admin_token.clone();
    let read_token = token.clone().filter(|_| !settings.listen.ip().is_loopback());
    let reads = Router::new()
        .route("/v1/bundles", get(bundles::poll))
        .route("/v1/bundles/{version}", get(bundles::fetch))
        .route("/v1/keys", get(views::keys))
        .route("/v1/status", get(views::status))
        .layer(auth::require_token(read_token));
    let changes = Router::new()
        .route("/v1/bundles", post(sources::publish))
        .route("/v1/bundles:validate", post(sources::validate))
        .layer(DefaultBodyLimit::max(BUNDLE_BYTES_MAX))
        .route("/v1/acks", post(views::ack).layer(DefaultBodyLimit::max(ACK_LEN_MAX)))
        .layer(auth::require_token(token));
    let asked = Arc::clone(shared);
    let readiness: Arc<dyn Fn() -> Readiness + Send + Sync> = Arc::new(move || asked.readiness());
    problem::fallbacks(reads.merge(changes).with_state(context).merge(health::routes(readiness, metrics)))
}
