//! Allocator and publisher fail; the agent goes on as policy says.

use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use serde_json::json;

use crate::peers::{Agent, Mood, PATIENCE, Peers, ask, policy};

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
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    for _ in 0..50 {
        assert_eq!(agent.admit(&ask("checkout")).await.0, 200);
    }
    peers.allocator.set_mood(Mood::Silent);
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
async fn a_bundle_that_does_not_verify_is_refused_and_the_last_good_one_stays() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    let next = serde_json::to_vec(&policy(2, 10)).unwrap();
    let pretty = serde_json::to_vec_pretty(&policy(2, 10)).unwrap();
    let offers: [(&[u8], SigningKey); 3] = [
        (&next, SigningKey::from_bytes(&[6; 32])),
        (&pretty, crate::peers::key()),
        (b"{}", crate::peers::key()),
    ];
    for (payload, key) in offers {
        peers.publisher.acks.lock().unwrap().clear();
        peers.offer(2, payload, &key);
        let began = Instant::now();
        loop {
            let acks = peers.publisher.acks.lock().unwrap().clone();
            if let Some(ack) = acks.iter().find(|ack| ack.refused.is_some()) {
                assert_eq!(ack.active_version.0, 1);
                break;
            }
            assert!(began.elapsed() < PATIENCE, "the refusal is not reported");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(agent.status().await.bundle_version.0, 1);
    assert_eq!(agent.admit(&ask("checkout")).await.0, 200);
    peers.release(&policy(2, 1_000));
    agent.until_version(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_restarted_without_a_network_enforces_its_stored_bundle_unless_the_file_was_changed() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    peers.release(&policy(2, 1_000));
    agent.until_version(2).await;
    agent.stop().await;

    let mut alone = peers.settings("eu", folder.path());
    alone.allocators = vec!["http://127.0.0.1:1".to_owned()];
    alone.publisher = "http://127.0.0.1:1".to_owned();
    let agent = Agent::start(alone.clone()).await;
    assert_eq!(agent.status().await.bundle_version.0, 2);
    agent.stop().await;

    // An older bundle, rightly signed, is not taken: the floor survived.
    peers.offer(3, &serde_json::to_vec(&policy(1, 1_000)).unwrap(), &crate::peers::key());
    let agent = peers.agent("eu", folder.path()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(agent.status().await.bundle_version.0, 2);
    agent.stop().await;

    let file = folder.path().join("eu/bundle.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen('A', "B", 1)).unwrap();
    let agent = Agent::start(alone).await;
    assert_eq!(agent.status().await.bundle_version.0, 0);
    let (status, answer) = agent.admit(&ask("catalog")).await;
    assert_eq!((status, &answer["type"]), (503, &json!("urn:leasehold:problem:no-policy")));
}
