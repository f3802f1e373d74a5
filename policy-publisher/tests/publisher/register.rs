//! Stands in for the allocator's `/v1/policy`: the wire contract alone, with faults to order.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use leasehold_protocol::admin::PolicyView;
use leasehold_protocol::envelope::{ENVELOPE_BYTES_MAX, Envelope, digest};
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::{BundleVersion, Problem, ProblemKind};
use leasehold_transport::listen::{self, Listen};
use leasehold_transport::problem::{ProblemResponse, fallbacks};
use leasehold_transport::shutdown::{Shutdown, ShutdownTrigger};

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Normal,
    /// As a cluster without a leader.
    Down,
    /// Reads work; offers are answered as by a cluster without a leader.
    RefuseNow,
    /// Takes an offer and never answers it.
    ActivateAndFallSilent,
    /// Somebody else's offer is taken just before the next one.
    OvertakeNext,
    /// The key is not trusted.
    Distrust,
}

#[derive(Debug)]
struct Inner {
    view: PolicyView,
    mode: Mode,
}

type Shared = Arc<Mutex<Inner>>;

pub(crate) struct Register {
    pub(crate) url: String,
    inner: Shared,
    _trigger: ShutdownTrigger,
}

impl Register {
    pub(crate) async fn start() -> Self {
        let view = PolicyView { active_version: BundleVersion(0), active_digest: None };
        let inner: Shared = Arc::new(Mutex::new(Inner { view, mode: Mode::Normal }));
        let addr = "127.0.0.1:0".parse().unwrap();
        let listener = listen::bind(&Listen { addr, admin_token: None }).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/v1/policy", get(read).post(offer))
            .layer(DefaultBodyLimit::max(ENVELOPE_BYTES_MAX))
            .with_state(Arc::clone(&inner));
        let (trigger, shutdown) = Shutdown::new();
        tokio::spawn(listen::serve(listener, fallbacks(router), shutdown));
        Self { url, inner, _trigger: trigger }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.inner.lock().unwrap().mode = mode;
    }

    pub(crate) fn view(&self) -> PolicyView {
        self.inner.lock().unwrap().view.clone()
    }

    pub(crate) fn activate(&self, version: u64, digest: &str) {
        activate(&mut self.inner.lock().unwrap(), BundleVersion(version), digest.to_owned());
    }

    pub(crate) async fn until(&self, holds: impl Fn(&PolicyView) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !holds(&self.view()) {
            assert!(Instant::now() < deadline, "{:?}", self.view());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn activate(inner: &mut Inner, version: BundleVersion, digest: String) {
    inner.view = PolicyView { active_version: version, active_digest: Some(digest) };
}

fn problem(kind: ProblemKind) -> Response {
    ProblemResponse(Problem::new(kind, "by order of the test")).into_response()
}

async fn read(State(shared): State<Shared>) -> Response {
    let inner = shared.lock().unwrap();
    match inner.mode {
        Mode::Down => problem(ProblemKind::NotLeader),
        _ => Json(inner.view.clone()).into_response(),
    }
}

async fn offer(State(shared): State<Shared>, body: Bytes) -> Response {
    let envelope: Envelope = serde_json::from_slice(&body).unwrap();
    let payload = envelope.payload_bytes().unwrap();
    let (bundle, digest) = (CheckedBundle::from_bytes(&payload).unwrap(), digest(&payload));
    let falls_silent = {
        let mut inner = shared.lock().unwrap();
        let next = BundleVersion(inner.view.active_version.0 + 1);
        match inner.mode {
            Mode::Down | Mode::RefuseNow => return problem(ProblemKind::NotLeader),
            Mode::Distrust => return problem(ProblemKind::SignatureRefused),
            Mode::OvertakeNext => {
                activate(&mut inner, next, "theirs".to_owned());
                inner.mode = Mode::Normal;
            }
            Mode::Normal | Mode::ActivateAndFallSilent => {}
        }
        if inner.view.active_digest.as_ref() != Some(&digest) {
            if bundle.version.0 != inner.view.active_version.0 + 1 {
                return problem(ProblemKind::Conflict);
            }
            activate(&mut inner, bundle.version, digest);
        }
        inner.mode == Mode::ActivateAndFallSilent
    };
    if falls_silent {
        std::future::pending::<()>().await;
    }
    let view = shared.lock().unwrap().view.clone();
    Json(view).into_response()
}
