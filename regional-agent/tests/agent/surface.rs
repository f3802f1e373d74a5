//! What operators and proxies see of an agent, and what input it refuses.

use serde_json::{Value, json};

use crate::peers::{Agent, PATIENCE, Peers, ask, policy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_its_first_bundle_an_agent_is_alive_not_ready_and_decides_nothing() {
    let (peers, folder) = (Peers::without_policy().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    assert_eq!(agent.get("/livez").await.0, 200);
    let (status, body) = agent.get("/readyz").await;
    assert!(status == 503 && body.contains("no policy bundle"), "{status} {body}");
    let refused = agent.raw("/v1/admit", &serde_json::to_value(ask("checkout")).unwrap()).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (&body["type"], &body["bundle_version"]),
        (&json!("urn:leasehold:problem:no-policy"), &json!(0))
    );
    assert!(body["decision_id"].is_string() && body["limits"] == json!([]), "{body}");
    assert_eq!(agent.get("/v1/explain?route=checkout").await.0, 503);
    peers.release(&policy(1, 1_000));
    agent.until_version(1).await;
    assert_eq!(agent.get("/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_and_metrics_tell_what_applies_and_what_happened() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    assert_eq!(agent.admit(&ask("export")).await.0, 200);
    let (status, text) = agent.get("/v1/explain?tenant=atlas&route=GET%20/export").await;
    assert_eq!(status, 200, "{text}");
    let explained: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&explained["plan"], &explained["fail_mode"]), (&json!("p"), &json!("closed")));
    let slots = &explained["rules"][0];
    assert_eq!((&slots["rule"], &slots["remaining"]), (&json!("P-EXPORT"), &json!(2)));
    for (query, field) in [
        ("tenant=zeta&route=export", "tenant"),
        ("route=nowhere", "route"),
        ("tenant=atlas", "route"),
        ("route=export&colour=red", "colour"),
        ("route=export&source=here", "IP address"),
    ] {
        let (status, text) = agent.get(&format!("/v1/explain?{query}")).await;
        assert!(status == 400 && text.contains(field), "{query}: {text}");
    }
    for _ in 0..3 {
        agent.admit(&ask("export")).await;
    }
    let (_, metrics) = agent.get("/metrics").await;
    for line in [
        r#"leasehold_agent_decisions_total{rule="",outcome="allowed",mode="normal"} 3"#,
        r#"leasehold_agent_decisions_total{rule="P-EXPORT",outcome="denied",mode="normal"} 1"#,
        r#"leasehold_agent_bundles_total{result="activated"} 1"#,
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    assert!(!metrics.contains("u-"), "a principal is no label");
    let began = std::time::Instant::now();
    while agent.gauge("leasehold_agent_leases").await < 1.0 {
        assert!(began.elapsed() < PATIENCE, "the gauges stand still");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_cannot_be_read_and_a_path_that_is_not_there_are_problems() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    let post = |path: &str, kind: &str, body: String| {
        let request = agent.http.post(format!("{}{path}", agent.url));
        request.header("content-type", kind.to_owned()).body(body)
    };
    let json = "application/json";
    let large = format!(r#"{{"route": "{}"}}"#, "x".repeat(70_000));
    for (request, status, name) in [
        (post("/v1/admit", json, "{\"route\":".to_owned()), 400, "malformed-body"),
        (post("/v1/admit", json, String::new()), 400, "malformed-body"),
        (post("/v1/admit", "text/plain", "{}".to_owned()), 400, "malformed-body"),
        (post("/v1/admit", json, large.clone()), 413, "body-too-large"),
        (post("/v1/release", json, "{\"decision_id\": \"no such\"}".to_owned()), 400, "malformed-body"),
        (post("/v1/admit:batch", json, "{\"requests\": {}}".to_owned()), 400, "malformed-body"),
        (post("/v1/nothing", json, "{}".to_owned()), 404, "not-found"),
        (agent.http.get(format!("{}/v1/admit", agent.url)), 405, "method-not-allowed"),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{name}");
        assert_eq!(answer.status(), status, "{name}");
        let problem: Value = answer.json().await.unwrap();
        assert_eq!(problem["type"], format!("urn:leasehold:problem:{name}"), "{problem}");
    }
    // A batch may be as large as its requests are.
    let (status, answer) = agent
        .post("/v1/admit:batch", &json!({"requests": [serde_json::from_str::<Value>(&large).unwrap()]}))
        .await;
    assert_eq!((status, &answer["results"][0]["status"]), (200, &json!(400)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_without_a_tenant_learns_when_to_come_back_and_no_quota_by_its_fields() {
    let (peers, folder) = (Peers::without_policy().await, tempfile::tempdir().unwrap());
    let mut bundle = policy(1, 1_000);
    // The slots are one for all callers now, so that a stranger may ask.
    bundle.rules[0].key.clear();
    bundle.routes[2].rules.truncate(1);
    peers.release(&bundle);
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    for _ in 0..3 {
        let answer = agent.raw("/v1/admit", &json!({"route": "export"})).await;
        assert!(answer.status() == 200 && !answer.headers().contains_key("ratelimit"));
    }
    let refused = agent.raw("/v1/admit", &json!({"route": "export"})).await;
    assert_eq!(refused.status(), 429);
    let fields = refused.headers();
    assert!(fields.contains_key("retry-after"));
    assert!(!fields.contains_key("ratelimit") && !fields.contains_key("ratelimit-policy"));
    let known = agent.raw("/v1/admit", &json!({"route": "export", "tenant": "atlas"})).await;
    assert_eq!(known.headers()["ratelimit-policy"], "\"P-EXPORT\";q=3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_loopback_an_agent_wants_the_token_and_does_not_start_without_one() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let mut settings = peers.settings("eu", folder.path());
    settings.listen.set_ip([0, 0, 0, 0].into());
    let (_trigger, shutdown) = leasehold_transport::shutdown::Shutdown::new();
    let refused = leasehold_agent::run(settings.clone(), shutdown).await.unwrap_err();
    assert!(refused.to_string().contains("admin_token"), "{refused}");
    settings.admin_token = Some(leasehold_transport::secret::Secret::new("0123456789abcdef"));
    let agent = Agent::start(settings).await;
    let asked = agent.http.post(format!("{}/v1/admit", agent.url)).json(&ask("checkout"));
    let bare = asked.try_clone().unwrap().send().await.unwrap();
    assert_eq!(bare.status(), 401);
    let wrong = asked.try_clone().unwrap().bearer_auth("0123456789abcdee").send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    assert_ne!(asked.bearer_auth("0123456789abcdef").send().await.unwrap().status(), 401);
    assert_eq!(agent.get("/v1/status").await.0, 401);
    assert_eq!(agent.get("/livez").await.0, 200);
}
