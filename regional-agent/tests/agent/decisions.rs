//! What gateways see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::peers::{Agent, Mood, PATIENCE, Peers, ask, policy, policy_by};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_request_is_held_until_its_tokens_arrive_and_is_admitted() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    let (status, decision) = agent.admit(&ask("checkout")).await;
    assert_eq!((status, &decision["mode"], &decision["denied_by"]), (200, &json!("normal"), &Value::Null));
    assert_eq!(decision["limits"][0]["limit"], 1_000, "the limit of all regions, not a share");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_regions_asked_three_thousand_times_at_once_admit_the_limit_and_not_one_more() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agents = [peers.agent("eu", folder.path()).await, peers.agent("us", folder.path()).await];
    for agent in &agents {
        agent.until_version(1).await;
    }
    let agents = Arc::new(agents);
    let mut asking = JoinSet::new();
    for worker in 0..60 {
        let agents: Arc<[Agent; 2]> = Arc::clone(&agents);
        asking.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..50 {
                answers.push(agents[worker % 2].admit(&ask("checkout")).await);
            }
            answers
        });
    }
    let mut admitted = 0;
    for (status, answer) in asking.join_all().await.into_iter().flatten() {
        match status {
            200 => admitted += 1,
            429 => assert!(answer["retry_after_ms"].as_u64().unwrap() > 0, "{answer}"),
            other => panic!("{other}: {answer}"),
        }
    }
    assert!((950..=1_000).contains(&admitted), "{admitted} were admitted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_ends_of_windows_each_label_admits_its_limit_and_not_one_more() {
    const LIMIT: u64 = 300;
    let (peers, folder) = (Peers::without_policy().await, tempfile::tempdir().unwrap());
    peers.release(&policy_by(1, LIMIT, 2_000));
    let agents = [peers.agent("eu", folder.path()).await, peers.agent("us", folder.path()).await];
    for agent in &agents {
        agent.until_version(1).await;
    }
    let agents = Arc::new(agents);
    let until = Instant::now() + Duration::from_secs(7);
    let mut asking = JoinSet::new();
    for worker in 0..8 {
        let agents: Arc<[Agent; 2]> = Arc::clone(&agents);
        asking.spawn(async move {
            let mut labels = Vec::new();
            while Instant::now() < until {
                let (status, answer) = agents[worker % 2].admit(&ask("checkout")).await;
                match status {
                    200 => labels.push(answer["limits"][0]["window_start"].as_str().unwrap().to_owned()),
                    429 => {}
                    other => panic!("{other}: {answer}"),
                }
            }
            labels
        });
    }
    let mut admitted: BTreeMap<String, u64> = BTreeMap::new();
    for label in asking.join_all().await.into_iter().flatten() {
        *admitted.entry(label).or_default() += 1;
    }
    assert!(admitted.values().all(|n| *n <= LIMIT), "{admitted:?}");
    assert!(admitted.len() >= 3 && admitted.values().sum::<u64>() > LIMIT, "{admitted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_takes_433_ms_refuses_softly_at_first_and_is_hidden_by_prefetch_afterwards() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    peers.allocator.set_mood(Mood::Slow(433));
    let mut settings = peers.settings("eu", folder.path());
    settings.frame_deadline_ms = 2_000;
    let agent = Agent::start(settings).await;
    agent.until_version(1).await;
    let (status, answer) = agent.admit(&ask("checkout")).await;
    assert_eq!((status, &answer["denied_by"]), (429, &json!("P-TENANT")), "{answer}");
    let mut statuses = Vec::new();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        statuses.push(agent.admit(&ask("checkout")).await.0);
    }
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    let late = &statuses[60..];
    assert!(late.iter().filter(|status| **status == 200).count() >= 38, "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_answered_in_order_and_slots_are_released_once() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    let mut requests: Vec<Value> = (0..4).map(|_| serde_json::to_value(ask("export")).unwrap()).collect();
    requests.push(json!({"route": "nowhere"}));
    requests.push(serde_json::to_value(ask("catalog")).unwrap());
    let (status, answer) = agent.post("/v1/admit:batch", &json!({"requests": requests})).await;
    assert_eq!(status, 200);
    let statuses: Vec<u64> =
        answer["results"].as_array().unwrap().iter().map(|r| r["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 400, 200]);
    let id = &answer["results"][0]["body"]["decision_id"];
    let body = json!({"decision_id": id});
    assert_eq!(agent.post("/v1/heartbeat", &body).await.1["held"], true);
    assert_eq!(agent.post("/v1/release", &body).await.1["held"], true);
    assert_eq!(agent.post("/v1/release", &body).await.1["held"], false);
    assert_eq!(agent.post("/v1/heartbeat", &body).await.1["held"], false);
    assert_eq!(agent.admit(&ask("export")).await.0, 200);
    let many: Vec<Value> = vec![json!({"route": "catalog"}); 1_001];
    let (status, problem) = agent.post("/v1/admit:batch", &json!({"requests": many})).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!("requests")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_input_is_a_problem_that_names_the_field_and_a_refusal_says_when_to_come_back() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    for (body, word) in [
        (json!({"tenant": "atlas", "route": "catalog", "colour": 1}), "colour"),
        (json!({"tenant": "atlas"}), "route"),
        (json!({"tenant": "atlas", "route": "catalog", "cost": -1}), "-1"),
        (json!({"tenant": "atlas", "route": "catalog", "cost": 1.5}), "1.5"),
        (json!({"tenant": "atlas", "route": "catalog", "cost": 0}), "cost"),
        (json!({"tenant": "zeta", "route": "catalog"}), "tenant"),
        (json!({"route": "catalog"}), "tenant"),
        (json!([]), "expected"),
    ] {
        let (status, problem) = agent.post("/v1/admit", &body).await;
        assert_eq!(status, 400, "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{body}: {problem}");
    }
    for _ in 0..3 {
        assert_eq!(agent.admit(&ask("export")).await.0, 200);
    }
    let refused = agent.raw("/v1/admit", &serde_json::to_value(ask("export")).unwrap()).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let seconds: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(refused.headers()["ratelimit"].to_str().unwrap().contains("\"P-EXPORT\";r=0"));
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["denied_by"], "P-EXPORT");
    assert_eq!(seconds, body["retry_after_ms"].as_u64().unwrap().div_ceil(1_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_refusals_at_once_name_different_waits_and_none_below_the_honest_one() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = Arc::new(peers.agent("eu", folder.path()).await);
    agent.until_version(1).await;
    for _ in 0..3 {
        assert_eq!(agent.admit(&ask("export")).await.0, 200);
    }
    let mut asking = JoinSet::new();
    for _ in 0..20 {
        let agent = Arc::clone(&agent);
        asking.spawn(async move { agent.admit(&ask("export")).await });
    }
    let answers = asking.join_all().await;
    assert!(answers.iter().all(|(status, _)| *status == 429), "{answers:?}");
    let waits: BTreeSet<u64> = answers.iter().map(|(_, a)| a["retry_after_ms"].as_u64().unwrap()).collect();
    assert!(waits.len() > 10 && waits.iter().all(|ms| (1_000..=2_000).contains(ms)), "{waits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_requests_of_a_batch_are_held_together_and_not_one_after_the_other() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    peers.allocator.set_mood(Mood::Silent);
    let mut settings = peers.settings("eu", folder.path());
    (settings.hold_ms, settings.allocator_lost_ms) = (500, 60_000);
    let agent = Agent::start(settings).await;
    agent.until_version(1).await;
    let requests: Vec<Value> = (0..20).map(|_| serde_json::to_value(ask("checkout")).unwrap()).collect();
    let began = Instant::now();
    let (_, answer) = agent.post("/v1/admit:batch", &json!({"requests": requests})).await;
    let took = began.elapsed();
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["status"] == 429), "{answer}");
    assert!((Duration::from_millis(500)..Duration::from_secs(5)).contains(&took), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_is_held_no_longer() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    peers.allocator.set_mood(Mood::Silent);
    let mut settings = peers.settings("eu", folder.path());
    (settings.hold_ms, settings.allocator_lost_ms) = (5_000, 60_000);
    let agent = Agent::start(settings).await;
    agent.until_version(1).await;
    let request = agent.http.post(format!("{}/v1/admit", agent.url)).json(&ask("checkout"));
    let asking = tokio::spawn(request.send());
    let gauge = "leasehold_agent_held_requests";
    let began = Instant::now();
    while agent.gauge(gauge).await < 1.0 {
        assert!(began.elapsed() < Duration::from_secs(4), "it is not held");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    asking.abort();
    while agent.gauge(gauge).await > 0.0 {
        assert!(began.elapsed() < Duration::from_secs(4), "it is still held");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_more_may_be_held_a_request_is_decided_at_once_and_tokens_come_for_the_next() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let mut settings = peers.settings("eu", folder.path());
    (settings.hold_ms, settings.held_max) = (5_000, 0);
    let agent = Agent::start(settings).await;
    agent.until_version(1).await;
    let began = Instant::now();
    let (status, answer) = agent.admit(&ask("checkout")).await;
    assert_eq!((status, &answer["denied_by"]), (429, &json!("P-TENANT")), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(4), "it was held");
    while agent.admit(&ask("checkout")).await.0 != 200 {
        assert!(began.elapsed() < PATIENCE, "its demand was not heard");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_pushed_let_requests_through_that_an_empty_pool_refused() {
    let (peers, folder) = (Peers::without_policy().await, tempfile::tempdir().unwrap());
    peers.release(&policy(1, 10));
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    let began = Instant::now();
    while agent.gauge("leasehold_agent_push_stream_open").await < 1.0 {
        assert!(began.elapsed() < PATIENCE, "no stream is open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(agent.admit(&ask("checkout")).await.0, 200);
    assert_eq!(agent.admit(&ask("export")).await.0, 429, "9 are left and it costs 10");
    // The allocator alone hears of a higher limit, and feeds whoever went hungry.
    peers.allocator.activate(&policy(2, 50));
    while agent.gauge("leasehold_agent_pushes_total").await < 1.0 {
        assert!(began.elapsed() < PATIENCE, "nothing was pushed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(agent.admit(&ask("export")).await.0, 200);
    agent.stop().await;
}
