//! The shared HTTP layer over real sockets.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use leasehold_protocol::{Problem, ProblemKind};
use leasehold_transport::auth;
use leasehold_transport::client::{ClientError, HttpClient, LeaderClient};
use leasehold_transport::health::{self, Metrics, Readiness};
use leasehold_transport::listen::{self, Listen};
use leasehold_transport::problem::{JsonBody, ProblemResponse, fallbacks};
use leasehold_transport::secret::Secret;
use leasehold_transport::shutdown::{Shutdown, ShutdownTrigger};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Echo {
    n: u64,
}

struct Server {
    url: String,
    _trigger: ShutdownTrigger,
}

async fn start(router: Router) -> Server {
    let addr: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = listen::bind(&Listen { addr, admin_token: None }).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (trigger, shutdown) = Shutdown::new();
    tokio::spawn(listen::serve(listener, fallbacks(router), shutdown));
    Server { url, _trigger: trigger }
}

fn client(token: Option<&str>) -> HttpClient {
    HttpClient::new(token.map(Secret::new), Duration::from_secs(2)).unwrap()
}

fn problem_of(error: ClientError) -> Problem {
    match error {
        ClientError::Problem(problem) => *problem,
        other => panic!("no problem: {other}"),
    }
}

#[tokio::test]
async fn whatever_is_wrong_with_a_request_is_answered_as_a_problem_that_says_what() {
    let router = Router::new()
        .route("/echo", post(async |JsonBody(echo): JsonBody<Echo>| axum::Json(echo)))
        .route("/fault", get(async || -> &'static str { panic!("on purpose") }));
    let server = start(router).await;
    let http = client(None);
    let echo: Echo = http.post(&format!("{}/echo", server.url), &Echo { n: 7 }).await.unwrap();
    assert_eq!(echo, Echo { n: 7 });

    let url = format!("{}/echo", server.url);
    let unknown = http.post::<_, Echo>(&url, &serde_json::json!({"n": 1, "m": 2})).await.unwrap_err();
    let unknown = problem_of(unknown);
    assert_eq!(unknown.kind(), Some(ProblemKind::MalformedBody));
    assert!(unknown.detail.unwrap().contains("unknown field `m`"));
    let kind = http.post_bytes::<Echo>(&url, "text/plain", "{}".to_owned()).await.unwrap_err();
    assert!(problem_of(kind).detail.unwrap().contains("application/json"));
    let nowhere = http.get::<Echo>(&format!("{}/nowhere", server.url)).await.unwrap_err();
    assert_eq!(problem_of(nowhere).kind(), Some(ProblemKind::NotFound));
    let method = http.get::<Echo>(&url).await.unwrap_err();
    assert_eq!(problem_of(method).kind(), Some(ProblemKind::MethodNotAllowed));
    let fault = http.get::<Echo>(&format!("{}/fault", server.url)).await.unwrap_err();
    assert_eq!(problem_of(fault).kind(), Some(ProblemKind::Internal));
    let large = "9".repeat(3 * 1024 * 1024);
    let large = http.post_bytes::<Echo>(&url, "application/json", large).await.unwrap_err();
    assert_eq!(problem_of(large).status, 413);
}

#[tokio::test]
async fn a_route_behind_a_token_answers_401_without_it() {
    let guarded =
        Router::new().route("/x", get(async || "1")).layer(auth::require_token(Some(Secret::new("t0ken"))));
    let server = start(guarded).await;
    let url = format!("{}/x", server.url);
    assert_eq!(client(Some("t0ken")).get::<u64>(&url).await.unwrap(), 1);
    for wrong in [None, Some("t0kem"), Some("")] {
        let refused = client(wrong).get::<u64>(&url).await.unwrap_err();
        assert_eq!(problem_of(refused).kind(), Some(ProblemKind::Unauthorized));
    }
}

#[tokio::test]
async fn health_says_why_it_is_not_ready_and_metrics_carry_the_role() {
    let metrics = Arc::new(Metrics::new("agent"));
    let counter = prometheus_client::metrics::counter::Counter::<u64>::default();
    metrics.register("frames", "Frames", counter.clone());
    counter.inc();
    let ready = Arc::new(|| Readiness { ready: false, reasons: vec!["no policy".to_owned()] });
    let server = start(health::routes(ready, metrics)).await;
    let raw = client(None);
    let answer = raw.raw().get(format!("{}/readyz", server.url)).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.text().await.unwrap().contains("no policy"));
    let text = raw.raw().get(format!("{}/metrics", server.url)).send().await.unwrap().text().await.unwrap();
    assert!(text.contains("leasehold_frames_total 1\n"), "{text}");
    assert!(text.contains("role=\"agent\"") && text.ends_with("# EOF\n"), "{text}");
}

fn follower(leader: Option<String>, asked: Arc<AtomicU32>) -> Router {
    Router::new().route(
        "/who",
        get(async move || {
            asked.fetch_add(1, Ordering::Relaxed);
            ProblemResponse(Problem { leader, ..Problem::new(ProblemKind::NotLeader, "ask the leader") })
        }),
    )
}

#[tokio::test]
async fn a_call_finds_the_leader_past_dead_and_following_replicas_and_goes_there_first_afterwards() {
    let leader = start(Router::new().route("/who", get(async || "3"))).await;
    let asked = Arc::new(AtomicU32::new(0));
    let following = start(follower(Some(leader.url.clone()), Arc::clone(&asked))).await;
    let dead = "http://127.0.0.1:1".to_owned();
    let calls = LeaderClient::new(client(None), vec![dead, following.url.clone(), leader.url.clone()]);
    for _ in 0..5 {
        assert_eq!(calls.get::<u64>("/who").await.unwrap(), 3);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn without_a_leader_each_replica_is_asked_twice_and_the_answer_says_so() {
    let (one, two) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let first = start(follower(None, Arc::clone(&one))).await;
    let second = start(follower(Some(first.url.clone()), Arc::clone(&two))).await;
    let calls = LeaderClient::new(client(None), vec![first.url.clone(), second.url.clone()]);
    let error = calls.get::<u64>("/who").await.unwrap_err();
    assert_eq!(problem_of(error).kind(), Some(ProblemKind::NotLeader));
    assert_eq!((one.load(Ordering::Relaxed), two.load(Ordering::Relaxed)), (2, 2));
}

#[tokio::test]
async fn a_caller_that_gives_up_on_a_silent_replica_asks_another_one_next() {
    let silent =
        start(Router::new().route("/who", get(async || -> &'static str { std::future::pending().await })));
    let silent = silent.await;
    let leader = start(Router::new().route("/who", get(async || "2"))).await;
    let calls = LeaderClient::new(client(None), vec![silent.url.clone(), leader.url.clone()]);
    assert!(tokio::time::timeout(Duration::from_millis(100), calls.get::<u64>("/who")).await.is_err());
    let second = tokio::time::timeout(Duration::from_secs(5), calls.get::<u64>("/who")).await.unwrap();
    assert_eq!(second.unwrap(), 2);
}

#[tokio::test]
async fn serving_ends_with_the_signal_also_when_the_trigger_is_dropped() {
    let addr: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = listen::bind(&Listen { addr, admin_token: None }).await.unwrap();
    let (trigger, shutdown) = Shutdown::new();
    let serving = tokio::spawn(listen::serve(listener, Router::new(), shutdown));
    drop(trigger);
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap().unwrap();
}
