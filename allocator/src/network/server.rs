//! The receiving side.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use leasehold_protocol::{Problem, ProblemKind};
use leasehold_transport::clock::local_now;
use leasehold_transport::problem::{ProblemResponse, unread};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CONTENT_TYPE, MESSAGE_BYTES_MAX, Message, SnapshotMessage};
use crate::node::Node;
use crate::types::{Snapshot, TypeConfig};

/// A body as it came, or why it did not.
type Body = Result<Bytes, BytesRejection>;

/// `/raft/...`
pub(crate) fn routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/raft/append", post(append))
        .route("/raft/vote", post(vote))
        .route("/raft/pre-vote", post(pre_vote))
        .route("/raft/snapshot", post(snapshot))
        .route("/raft/line", get(line))
        .layer(DefaultBodyLimit::max(MESSAGE_BYTES_MAX))
}

async fn append(State(node): State<Arc<Node>>, body: Body) -> Response {
    let received = local_now();
    let message: Message<AppendEntriesRequest<TypeConfig>> = match read(&node, body) {
        Ok(message) => message,
        Err(problem) => return ProblemResponse(*problem).into_response(),
    };
    let reign = message.body.vote.leader_id().term;
    let answer = match node.raft.append_entries(message.body).await {
        Ok(answer) => answer,
        Err(e) => return fault(&e),
    };
    if matches!(answer, AppendEntriesResponse::HigherVote(_)) {
        // A leader that is none any more; its line says nothing.
        return written(&answer);
    }
    node.line.hear();
    if let Some(stamp) = message.stamp
        && let Err(e) = node.line.observe(reign, stamp, received).await
    {
        return fault(&e);
    }
    written(&answer)
}

async fn vote(State(node): State<Arc<Node>>, body: Body) -> Response {
    match read::<VoteRequest<TypeConfig>>(&node, body) {
        Ok(message) => {
            node.raft.vote(message.body).await.map_or_else(|e| fault(&e), |answer| written(&answer))
        }
        Err(problem) => ProblemResponse(*problem).into_response(),
    }
}

async fn pre_vote(State(node): State<Arc<Node>>, body: Body) -> Response {
    match read::<VoteRequest<TypeConfig>>(&node, body) {
        Ok(message) => {
            node.raft.pre_vote(message.body).await.map_or_else(|e| fault(&e), |answer| written(&answer))
        }
        Err(problem) => ProblemResponse(*problem).into_response(),
    }
}

async fn snapshot(State(node): State<Arc<Node>>, body: Body) -> Response {
    let message: Message<SnapshotMessage> = match read(&node, body) {
        Ok(message) => message,
        Err(problem) => return ProblemResponse(*problem).into_response(),
    };
    let SnapshotMessage { vote, meta, bytes } = message.body;
    let taken = node.raft.install_full_snapshot(vote, Snapshot { meta, snapshot: bytes }).await;
    node.line.hear();
    taken.map_or_else(|e| fault(&e), |answer| written(&answer))
}

/// What this replica knows of ledger time, for a new leader.
async fn line(State(node): State<Arc<Node>>) -> Response {
    Json(node.line.answer()).into_response()
}

fn read<T: DeserializeOwned>(node: &Node, body: Body) -> Result<Message<T>, Box<Problem>> {
    let bytes = body.map_err(|e| Box::new(unread(&e)))?;
    let message: Message<T> = rmp_serde::from_slice(&bytes).map_err(|e| {
        let detail = format!("not a message between replicas: {e}");
        Box::new(Problem::new(ProblemKind::MalformedBody, detail))
    })?;
    if message.cluster != node.settings.cluster || message.to != node.settings.node_id.0 {
        let detail = format!(
            "this is replica {} of cluster {:?}; the message is for replica {} of {:?}",
            node.settings.node_id, node.settings.cluster, message.to, message.cluster
        );
        return Err(Box::new(Problem::new(ProblemKind::Conflict, detail)));
    }
    Ok(message)
}

fn written(answer: &impl Serialize) -> Response {
    match rmp_serde::to_vec_named(answer) {
        Ok(bytes) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], bytes).into_response(),
        Err(e) => fault(&e),
    }
}

fn fault(error: &impl std::error::Error) -> Response {
    ProblemResponse(Problem::new(ProblemKind::Internal, error.to_string())).into_response()
}
