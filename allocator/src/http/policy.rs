//! The policy register: which bundle the ledger enforces, and the way to the next.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use leasehold_ledger::{ActivateOutcome, Command, Outcome};
use leasehold_protocol::admin::PolicyView;
use leasehold_protocol::envelope::{Envelope, digest};
use leasehold_protocol::policy::{BundleError, CheckedBundle};
use leasehold_protocol::{Problem, ProblemKind};
use leasehold_transport::problem::{JsonBody, ProblemResponse};

use super::unproposed;
use crate::node::Node;

/// Verifies a signed bundle and makes it the ledger's policy, if its version is the next one.
pub(super) async fn activate(
    State(node): State<Arc<Node>>,
    JsonBody(envelope): JsonBody<Envelope>,
) -> Response {
    let (bundle, digest) = match verify(&node, &envelope) {
        Ok(verified) => verified,
        Err(problem) => return ProblemResponse(*problem).into_response(),
    };
    let command = Command::ActivateBundle { bundle: Box::new(bundle.into_inner()), digest };
    let outcomes = match node.proposer.propose(vec![command]).await {
        Ok(outcomes) => outcomes,
        Err(error) => return ProblemResponse(unproposed(&node, &error)).into_response(),
    };
    match outcomes.first() {
        Some(Outcome::Activated(ActivateOutcome::Active { version })) => {
            tracing::info!(%version, "a bundle is the ledger's policy now");
            Json(view(&node)).into_response()
        }
        Some(Outcome::Activated(ActivateOutcome::AlreadyActive { .. })) => Json(view(&node)).into_response(),
        Some(Outcome::Activated(ActivateOutcome::Conflict { active, .. })) => {
            let detail = format!("the active bundle is {active}: only the next version can follow");
            ProblemResponse(Problem::new(ProblemKind::Conflict, detail)).into_response()
        }
        _ => {
            let detail = "an activation has no outcome";
            ProblemResponse(Problem::new(ProblemKind::Internal, detail)).into_response()
        }
    }
}

fn verify(node: &Node, envelope: &Envelope) -> Result<(CheckedBundle, String), Box<Problem>> {
    let payload = (node.keys.open(envelope))
        .map_err(|e| Box::new(Problem::new(ProblemKind::SignatureRefused, e.to_string())))?;
    let bundle = CheckedBundle::from_bytes(&payload).map_err(|e| {
        let text = e.to_string();
        match e {
            BundleError::Invalid(errors) => {
                Problem { errors, ..Problem::new(ProblemKind::PolicyRefused, text) }
            }
            _ => Problem::new(ProblemKind::PolicyRefused, text),
        }
    })?;
    Ok((bundle, digest(&payload)))
}

/// The register, as applied here.
pub(super) async fn register(State(node): State<Arc<Node>>) -> Json<PolicyView> {
    Json(view(&node))
}

fn view(node: &Node) -> PolicyView {
    let state = node.machine.state();
    PolicyView {
        active_version: state.ledger.bundle_version(),
        active_digest: state.ledger.bundle_digest().map(str::to_owned),
    }
}
