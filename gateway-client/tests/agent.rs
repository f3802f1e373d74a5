//! The client against the agent's wire contract.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use leasehold_gateway_client::{AgentClient, AgentError, Backoff, ClientSettings, Verdict};
use leasehold_protocol::admit::{AdmitRequest, Decision, Mode, Refusal};
use leasehold_protocol::{BundleVersion, DecisionId, InvalidField, Problem, ProblemKind, RuleId};

fn decision(denied_by: Option<&str>, retry_after_ms: Option<u64>) -> Decision {
    Decision {
        decision_id: DecisionId::new("eu-1-a-1").unwrap(),
        bundle_version: BundleVersion(1),
        mode: Mode::Normal,
        denied_by: denied_by.map(|rule| RuleId::new(rule).unwrap()),
        retry_after_ms,
        limits: Vec::new(),
    }
}

fn refusal(kind: ProblemKind, retry_after_ms: u64) -> Refusal {
    Refusal { problem: Problem::new(kind, "no"), decision: decision(Some("P-READ"), Some(retry_after_ms)) }
}

async fn start(router: Router) -> AgentClient {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    AgentClient::new(url, ClientSettings::default()).unwrap()
}

#[tokio::test]
async fn each_status_is_its_own_verdict_and_bad_input_is_an_error_that_names_the_field() {
    let answers = async |axum::Json(asked): axum::Json<AdmitRequest>| match asked.route.as_str() {
        "allowed" => (StatusCode::OK, axum::Json(serde_json::to_value(decision(None, None)).unwrap())),
        "denied" => {
            let body = serde_json::to_value(refusal(ProblemKind::QuotaExceeded, 900)).unwrap();
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(body))
        }
        "closed" => {
            let body = serde_json::to_value(refusal(ProblemKind::FailClosed, 10)).unwrap();
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body))
        }
        _ => {
            let problem = Problem::invalid(vec![InvalidField::new("route", "x", "no such route")]);
            (StatusCode::BAD_REQUEST, axum::Json(serde_json::to_value(problem).unwrap()))
        }
    };
    let agent = start(Router::new().route("/v1/admit", post(answers))).await;
    let ask = |route: &str| AdmitRequest { route: route.to_owned(), ..AdmitRequest::default() };
    assert_eq!(agent.admit(&ask("allowed")).await.unwrap(), Verdict::Allowed(decision(None, None)));
    assert!(matches!(agent.admit(&ask("denied")).await.unwrap(), Verdict::Denied(_)));
    assert_eq!(agent.admit(&ask("denied")).await.unwrap().retry_after_ms(), Some(900));
    assert!(matches!(agent.admit(&ask("closed")).await.unwrap(), Verdict::Undecided(_)));
    let error = agent.admit(&ask("x")).await.unwrap_err();
    assert!(matches!(&error, AgentError::Problem(_)) && error.to_string().contains("`route`"), "{error}");
}

#[tokio::test]
async fn a_patient_caller_tries_again_until_it_is_allowed_or_out_of_attempts() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let answers = async move || {
        if count.fetch_add(1, Ordering::Relaxed) < 2 {
            let body = serde_json::to_value(refusal(ProblemKind::QuotaExceeded, 1)).unwrap();
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(body))
        } else {
            (StatusCode::OK, axum::Json(serde_json::to_value(decision(None, None)).unwrap()))
        }
    };
    let agent = start(Router::new().route("/v1/admit", post(answers))).await;
    let two = Backoff { attempts_max: 2, base_ms: 1, cap_ms: 1 };
    let request = AdmitRequest::default();
    assert!(matches!(agent.admit_patiently(&request, &two).await.unwrap(), Verdict::Denied(_)));
    assert!(matches!(agent.admit_patiently(&request, &two).await.unwrap(), Verdict::Allowed(_)));
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_an_error_that_says_where() {
    let agent = AgentClient::new("http://127.0.0.1:1", ClientSettings::default()).unwrap();
    let error = agent.status().await.unwrap_err();
    assert!(error.to_string().contains("http://127.0.0.1:1/v1/status"), "{error}");
}
