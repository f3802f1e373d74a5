//! Frames of acquires and settles.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use leasehold_ledger::{Command, Outcome};
use leasehold_protocol::lease::{
    AcquireAnswer, AcquireOutcome, FRAME_ITEMS_MAX, LeaseFrame, LeaseFrameAnswer,
};
use leasehold_protocol::{
    AgentId, Holder, Incarnation, InvalidField, Problem, ProblemKind, RegionId, Tokens,
};
use leasehold_transport::problem::{JsonBody, ProblemResponse, QueryParams};
use serde::Deserialize;
use tokio::time::timeout;

use super::unproposed;
use crate::node::Node;
use crate::proposer::{ProposeError, Reigning};
use crate::pushes::OpenError;

/// When an agent shall come back to a replica that takes no work now, in ms.
const RETRY_MS: u64 = 1_000;
/// How often a stream without news says that it lives.
const LIVES_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn frame(State(node): State<Arc<Node>>, JsonBody(frame): JsonBody<LeaseFrame>) -> Response {
    let faults = faults_of(&frame);
    if !faults.is_empty() {
        node.metrics.request("invalid");
        return ProblemResponse(Problem::invalid(faults)).into_response();
    }
    let LeaseFrame { holder, incarnation, rtt_ms, settles, acquires } = frame;
    let named: Vec<_> = acquires.iter().map(|acquire| (acquire.pool.clone(), acquire.seq)).collect();
    let settles = settles.into_iter().map(|settle| {
        let holder = holder.clone();
        Command::Settle { holder, incarnation, settle }
    });
    let acquires = acquires.into_iter().map(|acquire| {
        let holder = holder.clone();
        Command::Acquire { holder, incarnation, acquire }
    });
    let heard = Command::Hear { holder: holder.clone(), incarnation, rtt_ms };
    let commands = std::iter::once(heard).chain(settles).chain(acquires).collect();
    let outcomes = match node.proposer.propose(commands).await {
        Ok(outcomes) => {
            node.metrics.request("answered");
            node.metrics.outcomes(&outcomes);
            outcomes.into_iter().filter_map(acquired).collect()
        }
        // An answer and not a problem: the allocator is there, it only may not grant. A frame of settles alone gets
        // the problem, since an answer would say that they were taken in.
        Err(ProposeError::ClockUncertain { retry_ms }) if !named.is_empty() => {
            node.metrics.request("clock_uncertain");
            vec![AcquireOutcome::ClockUncertain { retry_ms }; named.len()]
        }
        Err(error @ ProposeError::Overloaded) => {
            return ProblemResponse(unproposed(&node, &error)).with_retry_after_ms(RETRY_MS);
        }
        Err(error) => return ProblemResponse(unproposed(&node, &error)).into_response(),
    };
    if outcomes.len() != named.len() {
        let detail = format!("{} acquires have {} outcomes", named.len(), outcomes.len());
        return ProblemResponse(Problem::new(ProblemKind::Internal, detail)).into_response();
    }
    let answers = named
        .into_iter()
        .zip(outcomes)
        .map(|((pool, seq), outcome)| AcquireAnswer { pool, seq, outcome })
        .collect();
    let bundle_version = node.machine.state().ledger.bundle_version();
    let pushes = node.pushes.take(&holder, incarnation);
    Json(LeaseFrameAnswer { answers, bundle_version, pushes }).into_response()
}

/// Who opens a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Listener {
    region: RegionId,
    agent: AgentId,
    incarnation: Incarnation,
}

/// A held-open answer: each line is a [`Push`](leasehold_protocol::lease::Push) in JSON; an empty line each second says
/// that the stream lives. It ends when this replica no longer leads, when a later life of the holder opens one, or when
/// the replica stops.
pub(super) async fn stream(
    State(node): State<Arc<Node>>,
    QueryParams(Listener { region, agent, incarnation }): QueryParams<Listener>,
) -> Response {
    if !matches!(node.proposer.reigning(), Reigning::Yes { .. }) {
        node.metrics.request("not_leader");
        return ProblemResponse(node.not_leader()).into_response();
    }
    let told = match node.pushes.open(&Holder { region, agent }, incarnation) {
        Ok(told) => told,
        Err(OpenError::Superseded { seen }) => {
            let detail = format!("life {seen} of this holder has a stream");
            return ProblemResponse(Problem::new(ProblemKind::Conflict, detail)).into_response();
        }
        Err(OpenError::TooMany) => {
            let detail = "no more streams can be held open here";
            return ProblemResponse(Problem::new(ProblemKind::Overloaded, detail))
                .with_retry_after_ms(RETRY_MS);
        }
    };
    let ended = Arc::clone(&node);
    let end = Box::pin(async move {
        tokio::select! {
            () = ended.proposer.until_reign_ends() => {}
            () = ended.shutdown.wait() => {}
        }
    });
    let lines = futures_util::stream::unfold((told, end), |(mut told, mut end)| async move {
        let line = tokio::select! {
            () = &mut end => return None,
            line = timeout(LIVES_EVERY, told.next_line()) => line,
        };
        match line {
            Ok(None) => None,
            Ok(Some(line)) => Some((Ok::<_, Infallible>(line), (told, end))),
            Err(_) => Some((Ok(Bytes::from_static(b"\n")), (told, end))),
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    (kind, Body::from_stream(lines)).into_response()
}

fn acquired(outcome: Outcome) -> Option<AcquireOutcome> {
    match outcome {
        Outcome::Acquired(acquired) => Some(acquired),
        Outcome::Settled(_) | Outcome::Activated(_) | Outcome::Noted => None,
    }
}

/// What is wrong with a frame beyond its shape.
fn faults_of(frame: &LeaseFrame) -> Vec<InvalidField> {
    let mut faults = Vec::new();
    let items = frame.settles.len().saturating_add(frame.acquires.len());
    if items > FRAME_ITEMS_MAX {
        let rule = format!("settles and acquires together are at most {FRAME_ITEMS_MAX}");
        return vec![InvalidField::new("acquires", items, rule)];
    }
    if frame.incarnation.0 == 0 {
        faults.push(InvalidField::new("incarnation", 0, "a life has a number from 1 on"));
    }
    let mut amount = |field: String, tokens: Tokens| {
        if tokens > Tokens::MAX {
            faults.push(InvalidField::new(field, tokens, format!("at most {} tokens", Tokens::MAX)));
        }
    };
    for (n, settle) in frame.settles.iter().enumerate() {
        amount(format!("settles[{n}].spent_total"), settle.spent_total);
        amount(format!("settles[{n}].returned_total"), settle.returned_total);
        amount(format!("settles[{n}].denied_total"), settle.denied_total);
    }
    for (n, acquire) in frame.acquires.iter().enumerate() {
        amount(format!("acquires[{n}].need"), acquire.need);
        amount(format!("acquires[{n}].least"), acquire.least);
        amount(format!("acquires[{n}].boundary"), acquire.boundary);
    }
    for (n, acquire) in frame.acquires.iter().enumerate() {
        if acquire.least > acquire.need {
            let rule = format!("at most `need`, which is {}", acquire.need);
            faults.push(InvalidField::new(format!("acquires[{n}].least"), acquire.least, rule));
        }
        if acquire.seq == 0 {
            faults.push(InvalidField::new(format!("acquires[{n}].seq"), 0, "counts from 1"));
        }
    }
    faults
}
