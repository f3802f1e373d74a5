//! First light: one tenant's limit holds in two regions, on real processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_gateway_client::{AgentClient, Verdict};
use leasehold_protocol::admit::{AdmitRequest, LimitState};

use crate::product::{Dev, PATIENCE, free_port_base, signal};

const ATLAS_LIMIT: u64 = 1_000;

/// What came of many requests, over all agents.
#[derive(Debug, Default)]
struct Tally {
    /// Atlas's admissions by window label.
    admitted: BTreeMap<String, u64>,
    denied: u64,
    /// 503 with what the agent still held for Atlas.
    undecided_with: Vec<u64>,
    unanswered: u64,
}

fn catalog(principal: String) -> AdmitRequest {
    AdmitRequest {
        tenant: Some("atlas".to_owned()),
        principal: Some(principal),
        route: "catalog".to_owned(),
        ..AdmitRequest::default()
    }
}

fn tenant_state(limits: &[LimitState]) -> Option<&LimitState> {
    limits.iter().find(|state| state.rule.as_str() == "P-TENANT")
}

/// Sends `count` requests to each agent over `span`, each from a principal of its own, and waits for all answers.
async fn flood(agents: &[AgentClient], name: &str, count: u32, span: Duration, tally: &Arc<Mutex<Tally>>) {
    const WORKERS: u32 = 16;
    let began = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for (place, agent) in agents.iter().enumerate() {
        for worker in 0..WORKERS {
            let (agent, tally, name) = (agent.clone(), Arc::clone(tally), name.to_owned());
            workers.spawn(async move {
                for n in (worker..count).step_by(WORKERS as usize) {
                    let due = began + span * n / count;
                    tokio::time::sleep_until(due.into()).await;
                    let answer = agent.admit(&catalog(format!("{name}-{place}-{n}"))).await;
                    note(&mut tally.lock().unwrap(), answer.ok());
                }
            });
        }
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
}

fn note(tally: &mut Tally, answer: Option<Verdict>) {
    match answer {
        Some(Verdict::Allowed(decision)) => {
            let state = tenant_state(&decision.limits).expect("every catalog decision names P-TENANT");
            let label = state.window_start.clone().expect("an admission has a window");
            *tally.admitted.entry(label).or_default() += 1;
        }
        Some(Verdict::Denied(_)) => tally.denied += 1,
        Some(Verdict::Undecided(refusal)) => {
            tally.undecided_with.push(tenant_state(&refusal.decision.limits).map_or(0, |s| s.remaining.0));
        }
        None => tally.unanswered += 1,
    }
}

fn assert_within_limit(tally: &Tally) {
    for (label, admitted) in &tally.admitted {
        assert!(*admitted <= ATLAS_LIMIT, "window {label} admitted {admitted}");
    }
    assert_eq!(tally.unanswered, 0);
}

/// Until Atlas's window ends, by what an agent says of it.
async fn window_rest(agent: &AgentClient) -> Duration {
    let verdict = agent.admit(&catalog("clock".to_owned())).await.unwrap();
    let limits = match &verdict {
        Verdict::Allowed(decision) => &decision.limits,
        Verdict::Denied(refusal) | Verdict::Undecided(refusal) => &refusal.decision.limits,
    };
    let rest = tenant_state(limits)
        .and_then(|state| state.reset_after_ms)
        .expect("a window that is open has an end");
    Duration::from_millis(rest)
}

/// `dev` with windows of ten seconds, so that many begin and end while something fails.
fn start_with_short_windows(folder: &std::path::Path) -> Dev {
    let northstar = include_str!("../../../docs/examples/northstar.yaml");
    let minute = "fixed_window: { limit: 60, window_s: 60 }";
    assert!(northstar.contains(minute));
    let policy = folder.join("short.yaml");
    std::fs::write(&policy, northstar.replace(minute, "fixed_window: { limit: 60, window_s: 10 }")).unwrap();
    Dev::start(folder, free_port_base(), &["--policy", policy.to_str().unwrap()])
}

/// Floods both agents in the background for `span`.
fn flooding(
    dev: &Dev,
    name: &'static str,
    count: u32,
    span: Duration,
) -> (tokio::task::JoinHandle<()>, Arc<Mutex<Tally>>) {
    let agents = [dev.agent(0), dev.agent(1)];
    let tally = Arc::new(Mutex::new(Tally::default()));
    let noted = Arc::clone(&tally);
    (tokio::spawn(async move { flood(&agents, name, count, span, &noted).await }), tally)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed_comes_back_as_another_life_and_its_tokens_are_not_spent_twice() {
    let folder = tempfile::tempdir().unwrap();
    let dev = start_with_short_windows(folder.path());
    let before = dev.agent(1).status().await.unwrap();
    let (asking, tally) = flooding(&dev, "k", 4_000, Duration::from_secs(20));
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let Ok(status) = dev.agent(1).status().await else { continue };
        signal(status.pid, "KILL");
    }
    asking.await.unwrap();
    let began = Instant::now();
    let after = loop {
        if let Ok(status) = dev.agent(1).status().await {
            break status;
        }
        assert!(began.elapsed() < PATIENCE, "the agent does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(after.incarnation > before.incarnation && after.pid != before.pid);
    let tally = tally.lock().unwrap();
    println!("{tally:?}");
    assert!(tally.admitted.len() >= 2 && tally.admitted.values().all(|n| *n <= ATLAS_LIMIT), "{tally:?}");
    assert!(tally.undecided_with.iter().all(|held| *held == 0), "{tally:?}");
    dev.interrupt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_paused_and_wakes_up_deposed_grants_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dev = start_with_short_windows(folder.path());
    let leader = dev.leader(0).await.expect("somebody leads");
    let (asking, tally) = flooding(&dev, "p", 4_000, Duration::from_secs(20));
    tokio::time::sleep(Duration::from_secs(3)).await;
    signal(leader.pid, "STOP");
    let began = Instant::now();
    while dev.leader(leader.term).await.is_none() {
        assert!(began.elapsed() < PATIENCE, "no new leader");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("a paused leader was replaced after {} ms", began.elapsed().as_millis());
    tokio::time::sleep(Duration::from_secs(4)).await;
    signal(leader.pid, "CONT");
    asking.await.unwrap();
    let tally = tally.lock().unwrap();
    println!("{tally:?}");
    assert_within_limit(&tally);
    assert!(tally.admitted.len() >= 2, "{tally:?}");
    assert!(tally.undecided_with.iter().all(|held| *held == 0), "{tally:?}");
    dev.interrupt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atlas_never_gets_more_than_its_limit_in_a_window_with_both_regions_flooding_over_a_boundary_and_a_dead_leader()
 {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(folder.path(), free_port_base(), &[]);
    let agents = [dev.agent(0), dev.agent(1)];
    let tally = Arc::new(Mutex::new(Tally::default()));

    // All of a window's tokens are used, wherever the demand is, and not one more.
    flood(&agents, "first", 1_500, Duration::from_secs(3), &tally).await;
    {
        let tally = tally.lock().unwrap();
        assert_within_limit(&tally);
        let most = tally.admitted.values().max().copied().unwrap_or(0);
        assert!(most >= ATLAS_LIMIT * 9 / 10, "only {most} of {ATLAS_LIMIT} were admitted: {tally:?}");
        assert_eq!(tally.undecided_with, [0_u64; 0], "nothing is lost, so everything can be decided");
    }

    // Over a boundary.
    let rest = window_rest(&agents[0]).await;
    tokio::time::sleep(rest.saturating_sub(Duration::from_secs(2))).await;
    let windows_before = tally.lock().unwrap().admitted.len();
    flood(&agents, "second", 1_500, Duration::from_secs(4), &tally).await;
    {
        let tally = tally.lock().unwrap();
        assert_within_limit(&tally);
        assert!(tally.admitted.len() > windows_before, "no window began: {tally:?}");
    }

    // The leader dies while both regions ask.
    let rest = window_rest(&agents[0]).await;
    tokio::time::sleep(rest + Duration::from_millis(300)).await;
    let leader = dev.leader(0).await.expect("somebody leads");
    let asking = {
        let (agents, tally) = (agents.clone(), Arc::clone(&tally));
        tokio::spawn(async move { flood(&agents, "third", 1_500, Duration::from_secs(8), &tally).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    signal(leader.pid, "KILL");
    let died = Instant::now();
    let next = loop {
        if let Some(view) = dev.leader(leader.term).await {
            break view;
        }
        assert!(died.elapsed() < PATIENCE, "no new leader");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!(
        "replica {} was killed, replica {} leads {} ms later",
        leader.node,
        next.node,
        died.elapsed().as_millis()
    );
    asking.await.unwrap();
    let tally = tally.lock().unwrap();
    println!("{tally:?}");
    assert_within_limit(&tally);
    assert!(tally.undecided_with.iter().all(|held| *held == 0), "503 although tokens were held: {tally:?}");

    // The books agree.
    let pools = dev.json(&["pools", "--all", "--tenant", "atlas", "-o", "json"]);
    for pool in pools["items"].as_array().unwrap() {
        let of = |name: &str| pool[name].as_u64().unwrap();
        assert_eq!(of("limit") + of("debt"), of("remaining") + of("leased") + of("spent"), "{pool}");
        let label = pool["window_start"].as_str().unwrap();
        let admitted = tally.admitted.get(label).copied().unwrap_or(0);
        assert!(admitted <= of("leased") + of("spent"), "{label}: {admitted} admitted, {pool}");
    }
    dev.interrupt();
}
