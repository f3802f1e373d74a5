//! Frames of acquires and settles.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use leasehold_ledger::{Command, Outcome};
use leasehold_protocol::lease::{
    AcquireAnswer, AcquireOutcome, FRAME_ITEMS_MAX, LeaseFrame, LeaseFrameAnswer,
};
use leasehold_protocol::{InvalidField, Problem, ProblemKind, Tokens};
use leasehold_transport::problem::{JsonBody, ProblemResponse};

use super::unproposed;
use crate::node::Node;
use crate::proposer::ProposeError;

/// When an agent shall come back to a replica that takes no work now, in ms.
const RETRY_MS: u64 = 1_000;

pub(super) async fn frame(State(node): State<Arc<Node>>, JsonBody(frame): JsonBody<LeaseFrame>) -> Response {
    let faults = faults_of(&frame);
    if !faults.is_empty() {
        node.metrics.request("invalid");
        return ProblemResponse(Problem::invalid(faults)).into_response();
    }
    let LeaseFrame { holder, incarnation, settles, acquires } = frame;
    let named: Vec<_> = acquires.iter().map(|acquire| (acquire.pool.clone(), acquire.seq)).collect();
    let settles = settles.into_iter().map(|settle| {
        let holder = holder.clone();
        Command::Settle { holder, incarnation, settle }
    });
    let acquires = acquires.into_iter().map(|acquire| {
        let holder = holder.clone();
        Command::Acquire { holder, incarnation, acquire }
    });
    let outcomes = match node.proposer.propose(settles.chain(acquires).collect()).await {
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
    Json(LeaseFrameAnswer { answers, bundle_version }).into_response()
}

fn acquired(outcome: Outcome) -> Option<AcquireOutcome> {
    match outcome {
        Outcome::Acquired(acquired) => Some(acquired),
        Outcome::Settled(_) | Outcome::Activated(_) => None,
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
    }
    for (n, acquire) in frame.acquires.iter().enumerate() {
        amount(format!("acquires[{n}].need"), acquire.need);
        amount(format!("acquires[{n}].want"), acquire.want);
    }
    for (n, acquire) in frame.acquires.iter().enumerate() {
        if acquire.seq == 0 {
            faults.push(InvalidField::new(format!("acquires[{n}].seq"), 0, "counts from 1"));
        }
    }
    faults
}
