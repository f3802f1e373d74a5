//! Decisions over HTTP: one, many, and the end of a slot.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_admission::verdict::whole_seconds;
use leasehold_admission::{Report, Verdict};
use leasehold_protocol::admit::{
    AdmitBatch, AdmitRequest, BATCH_LEN_MAX, BatchAnswer, BatchResult, Decision, Mode, Refusal, SlotAnswer,
    SlotRequest,
};
use leasehold_protocol::{BundleVersion, DecisionId, InvalidField, Problem, ProblemKind};
use leasehold_transport::problem::{JsonBody, ProblemResponse};

use super::fields;
use crate::clock::local_now;
use crate::hold::Looked;
use crate::state::Agent;

/// The wait that an agent without a policy names, in ms.
const NO_POLICY_RETRY_MS: u64 = 1_000;

/// A verdict on the wire.
enum Answer {
    Decision(Decision),
    Refusal(Box<Refusal>),
    Problem(Problem),
}

pub(super) async fn admit(
    State(agent): State<Arc<Agent>>,
    JsonBody(asked): JsonBody<AdmitRequest>,
) -> Response {
    // What a caller without a tenant may learn is when to come back, and no quota (D8).
    let known_caller = asked.tenant.is_some();
    let id = agent.next_decision_id();
    let deadline = agent.hold_until();
    let verdict = match agent.look(asked, &id) {
        Looked::Done(verdict) => verdict,
        Looked::Held(request, waiting) => agent.hold(&request, waiting, &id, deadline).await,
    };
    respond(answer(&agent, verdict, id), known_caller)
}

pub(super) async fn batch(
    State(agent): State<Arc<Agent>>,
    JsonBody(batch): JsonBody<AdmitBatch>,
) -> Response {
    if batch.requests.len() > BATCH_LEN_MAX {
        let rule = format!("at most {BATCH_LEN_MAX} requests");
        let fault = InvalidField::new("requests", batch.requests.len(), rule);
        return ProblemResponse(Problem::invalid(vec![fault])).into_response();
    }
    let deadline = agent.hold_until();
    // All get their first look before any is held, so that one acquire carries the need of all.
    let looked: Vec<(DecisionId, Looked)> = batch
        .requests
        .into_iter()
        .map(|asked| {
            let id = agent.next_decision_id();
            let looked = agent.look(asked, &id);
            (id, looked)
        })
        .collect();
    let mut results = Vec::with_capacity(looked.len());
    for (id, looked) in looked {
        let verdict = match looked {
            Looked::Done(verdict) => verdict,
            Looked::Held(request, waiting) => agent.hold(&request, waiting, &id, deadline).await,
        };
        results.push(result(answer(&agent, verdict, id)));
    }
    Json(BatchAnswer { results }).into_response()
}

pub(super) async fn release(
    State(agent): State<Arc<Agent>>,
    JsonBody(slot): JsonBody<SlotRequest>,
) -> Json<SlotAnswer> {
    let held = agent.admission().release(&slot.decision_id, local_now());
    Json(SlotAnswer { decision_id: slot.decision_id, held })
}

pub(super) async fn heartbeat(
    State(agent): State<Arc<Agent>>,
    JsonBody(slot): JsonBody<SlotRequest>,
) -> Json<SlotAnswer> {
    let held = agent.admission().heartbeat(&slot.decision_id, local_now());
    Json(SlotAnswer { decision_id: slot.decision_id, held })
}

fn answer(agent: &Agent, verdict: Verdict, id: DecisionId) -> Answer {
    agent.metrics.decided(&verdict);
    match verdict {
        Verdict::Allowed(report) => Answer::Decision(report.into_decision(id, 0)),
        Verdict::Denied(report) => {
            let detail = denial_in_words(&report);
            refusal(agent, report, id, Problem::new(ProblemKind::QuotaExceeded, detail))
        }
        Verdict::FailClosed(report) => {
            let detail = undecided_in_words(&report);
            refusal(agent, report, id, Problem::new(ProblemKind::FailClosed, detail))
        }
        Verdict::Invalid(faults) => Answer::Problem(Problem::invalid(faults)),
        Verdict::Wait(_) => {
            Answer::Problem(Problem::new(ProblemKind::Internal, "a held request was not decided"))
        }
        Verdict::NoPolicy => {
            let detail = "the agent has not received a policy bundle since it was set up";
            let decision = Decision {
                decision_id: id,
                bundle_version: BundleVersion(0),
                mode: Mode::Normal,
                denied_by: None,
                retry_after_ms: Some(NO_POLICY_RETRY_MS + agent.random.up_to(NO_POLICY_RETRY_MS)),
                limits: Vec::new(),
            };
            Answer::Refusal(Box::new(Refusal {
                problem: Problem::new(ProblemKind::NoPolicy, detail),
                decision,
            }))
        }
    }
}

fn refusal(agent: &Agent, report: Report, id: DecisionId, problem: Problem) -> Answer {
    let jitter_ms = agent.random.up_to(report.spread_ms);
    Answer::Refusal(Box::new(Refusal { problem, decision: report.into_decision(id, jitter_ms) }))
}

/// The limit of all regions together, never this region's share of it.
fn denial_in_words(report: &Report) -> String {
    let Some(rule) = &report.denied_by else { return "refused".to_owned() };
    match report.limits.iter().find(|state| &state.rule == rule) {
        Some(state) => match state.window_s {
            Some(window_s) => format!("rule {rule} refused: its limit is {} per {window_s} s", state.limit),
            None => format!("rule {rule} refused: its limit is {} at once", state.limit),
        },
        None => format!("rule {rule} refused"),
    }
}

fn undecided_in_words(report: &Report) -> String {
    let rules: Vec<String> = report
        .undecided
        .iter()
        .map(|(rule, condition)| format!("{rule} ({})", condition.as_str().replace('_', " ")))
        .collect();
    format!("cannot be decided now: {}", rules.join(", "))
}

fn respond(answer: Answer, known_caller: bool) -> Response {
    match answer {
        Answer::Decision(decision) => {
            let mut response = Json(&decision).into_response();
            if known_caller {
                fields::add(response.headers_mut(), &decision.limits);
            }
            response
        }
        Answer::Refusal(refusal) => {
            let status =
                StatusCode::from_u16(refusal.problem.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            let mut response = (status, Json(&refusal)).into_response();
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
            if let Some(ms) = refusal.decision.retry_after_ms {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(ms)));
            }
            if known_caller {
                fields::add(headers, &refusal.decision.limits);
            }
            response
        }
        Answer::Problem(problem) => ProblemResponse(problem).into_response(),
    }
}

fn result(answer: Answer) -> BatchResult {
    let (status, body) = match answer {
        Answer::Decision(decision) => (200, serde_json::to_value(decision)),
        Answer::Refusal(refusal) => (refusal.problem.status, serde_json::to_value(refusal)),
        Answer::Problem(problem) => (problem.status, serde_json::to_value(problem)),
    };
    match body {
        Ok(body) => BatchResult { status, body },
        Err(e) => BatchResult { status: 500, body: serde_json::Value::String(e.to_string()) },
    }
}
