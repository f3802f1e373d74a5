//! `/livez`, `/readyz` and `/metrics`, the same on every role.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use leasehold_protocol::{Problem, ProblemKind};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};
use serde::Serialize;

use crate::problem::ProblemResponse;

/// Whether a role can do its work, and what it lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// True if requests should be sent here.
    pub ready: bool,
    /// What is missing, or worth knowing.
    pub reasons: Vec<String>,
}

/// A role's metrics.
pub struct Metrics {
    registry: Mutex<Registry>,
}

impl Metrics {
    /// Metrics with `leasehold_` before their names, and `leasehold_build_info` with the version and `role`.
    pub fn new(role: &str) -> Self {
        let mut registry = Registry::with_prefix("leasehold");
        let info: prometheus_client::metrics::family::Family<Vec<(String, String)>, Gauge> =
            prometheus_client::metrics::family::Family::default();
        let labels = vec![
            ("role".to_owned(), role.to_owned()),
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        info.get_or_create(&labels).set(1);
        registry.register("build_info", "The running version and role", info);
        Self { registry: Mutex::new(registry) }
    }

    /// Makes a metric visible under `leasehold_<name>`; counters get `_total` of their own.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).register(name, help, metric);
    }

    /// The OpenMetrics text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// The three routes. `ready` is asked each time.
pub fn routes(ready: Arc<dyn Fn() -> Readiness + Send + Sync>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route(
            "/readyz",
            get(async move || {
                let readiness = ready();
                let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                (status, Json(readiness))
            }),
        )
        .route("/metrics", get(async move || exposition(&metrics)))
}

fn exposition(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(e) => ProblemResponse(Problem::new(ProblemKind::Internal, e.to_string())).into_response(),
    }
}
