//! Allocator and publisher fail; the agent goes on as policy says.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::peers::{Agent, Mood, PATIENCE, Peers, ask};

async fn until_lost(agent: &Agent) {
    let began = Instant::now();
    while !agent.status().await.fallback_engaged {
        assert!(began.elapsed() < PATIENCE);
        // Something must be asked for before its silence says anything.
        agent.admit(&ask("export")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_allocator_is_silent_held_tokens_are_spent_then_the_fail_mode_speaks_and_it_comes_back() {
    spends_what_it_holds_then_fails_as_policy_says(Mood::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_allocator_is_overloaded_held_tokens_are_spent_then_the_fail_mode_speaks() {
    spends_what_it_holds_then_fails_as_policy_says(Mood::Overloaded).await;
}

async fn spends_what_it_holds_then_fails_as_policy_says(mood: Mood) {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    for _ in 0..50 {
        assert_eq!(agent.admit(&ask("checkout")).await.0, 200);
    }
    peers.allocator.set_mood(mood);
    let mut last = json!(null);
    let began = Instant::now();
    loop {
        let (status, answer) = agent.admit(&ask("checkout")).await;
        match status {
            200 => assert_eq!(answer["mode"], "normal"),
            // Not lost yet, but nothing is left: refused after the hold.
            429 => assert_eq!(answer["limits"][0]["remaining"], 0, "{answer}"),
            503 => {
                assert_eq!(answer["limits"][0]["remaining"], 0, "503 although tokens are held: {answer}");
                last = answer;
                break;
            }
            other => panic!("{other}: {answer}"),
        }
        assert!(began.elapsed() < PATIENCE);
    }
    assert_eq!(last["type"], "urn:leasehold:problem:fail-closed");
    let mut by_fallback = 0;
    loop {
        let (status, answer) = agent.admit(&ask("catalog")).await;
        if status != 200 {
            assert_eq!(status, 429, "{answer}");
            break;
        }
        assert_eq!(answer["mode"], "fallback");
        by_fallback += 1;
    }
    assert_eq!(by_fallback, 5, "the bounded route's bucket");
    peers.allocator.set_mood(Mood::Well);
    let began = Instant::now();
    while agent.admit(&ask("checkout")).await.0 != 200 {
        assert!(began.elapsed() < PATIENCE, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_allocator_is_a_fail_mode_and_never_a_pass() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    peers.allocator.set_mood(Mood::Overloaded);
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    until_lost(&agent).await;
    for _ in 0..20 {
        assert_eq!(agent.admit(&ask("checkout")).await.0, 503);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_stops_gives_back_what_it_has_not_spent() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    for _ in 0..20 {
        assert_eq!(agent.admit(&ask("checkout")).await.0, 200);
    }
    agent.stop().await;
    assert_eq!(peers.allocator.committed(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_of_one_name_the_older_leases_no_more_and_says_so() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let older = peers.agent("eu", &folder.path().join("older")).await;
    older.until_version(1).await;
    assert_eq!(older.admit(&ask("checkout")).await.0, 200);
    let newer = peers.agent("eu", &folder.path().join("newer")).await;
    newer.until_version(1).await;
    assert!(older.status().await.incarnation < newer.status().await.incarnation);
    assert_eq!(newer.admit(&ask("checkout")).await.0, 200);
    let began = Instant::now();
    while older.get("/readyz").await.0 != 503 {
        assert!(began.elapsed() < PATIENCE, "the older does not learn of it");
        older.admit(&ask("checkout")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(older.get("/readyz").await.1.contains("another process"));
    assert_eq!(older.admit(&ask("checkout")).await.0, 503);
    assert_eq!(newer.admit(&ask("checkout")).await.0, 200);
    newer.stop().await;
    older.stop().await;
}
