//! Bundles come, are refused, survive.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use serde_json::json;

use crate::peers::{Agent, PATIENCE, Peers, ask, key, policy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_does_not_verify_is_refused_and_the_last_good_one_stays() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    let next = serde_json::to_vec(&policy(2, 10)).unwrap();
    let pretty = serde_json::to_vec_pretty(&policy(2, 10)).unwrap();
    let offers: [(&[u8], SigningKey); 3] =
        [(&next, SigningKey::from_bytes(&[6; 32])), (&pretty, key()), (b"{}", key())];
    for (payload, key) in offers {
        peers.publisher.acks.lock().unwrap().clear();
        peers.offer(2, payload, &key);
        until_refused(&peers, 1).await;
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
    let stored = std::fs::read(folder.path().join("eu/bundle.json")).unwrap();
    assert_eq!(stored, peers.publisher.newest.lock().unwrap().1, "the very bytes that came");

    let mut alone = peers.settings("eu", folder.path());
    alone.allocators = vec!["http://127.0.0.1:1".to_owned()];
    alone.publisher = "http://127.0.0.1:1".to_owned();
    let agent = Agent::start(alone.clone()).await;
    assert_eq!(agent.status().await.bundle_version.0, 2);
    agent.stop().await;

    // An older bundle, rightly signed, is not taken: the floor survived.
    peers.offer(3, &serde_json::to_vec(&policy(1, 1_000)).unwrap(), &key());
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
    agent.stop().await;

    // Without a bundle the floor alone stands against the older one; what was in force and what is newer are taken.
    peers.publisher.acks.lock().unwrap().clear();
    let agent = peers.agent("eu", folder.path()).await;
    until_refused(&peers, 0).await;
    assert_eq!(agent.status().await.bundle_version.0, 0);
    peers.offer(4, &serde_json::to_vec(&policy(2, 1_000)).unwrap(), &key());
    agent.until_version(2).await;
}

/// Until an agent that enforces `version` has reported a refusal.
async fn until_refused(peers: &Peers, version: u64) {
    let began = Instant::now();
    loop {
        let refusal = peers.publisher.acks.lock().unwrap().iter().find(|ack| ack.refused.is_some()).cloned();
        if let Some(ack) = refusal {
            assert_eq!(ack.active_version.0, version);
            return;
        }
        assert!(began.elapsed() < PATIENCE, "the refusal is not reported");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_bundle_of_the_version_in_force_changes_nothing_not_even_after_a_restart() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    peers.offer(9, &serde_json::to_vec(&policy(1, 77)).unwrap(), &key());
    tokio::time::sleep(Duration::from_millis(800)).await;
    agent.stop().await;
    let mut alone = peers.settings("eu", folder.path());
    alone.publisher = "http://127.0.0.1:1".to_owned();
    let agent = Agent::start(alone).await;
    let (status, explained) = agent.get("/v1/explain?tenant=atlas&route=checkout").await;
    assert!(status == 200 && explained.contains("1000 per 86400 s"), "{explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_answers_at_once_is_not_asked_in_a_tight_loop() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let mut settings = peers.settings("eu", folder.path());
    settings.poll_wait_ms = 0;
    let agent = Agent::start(settings).await;
    agent.until_version(1).await;
    let before = peers.publisher.polls.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let polls = peers.publisher.polls.load(Ordering::Relaxed) - before;
    assert!((1..=6).contains(&polls), "{polls} polls in a second");
    peers.release(&policy(2, 1_000));
    agent.until_version(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_swallows_acknowledgements_still_delivers_bundles() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    peers.publisher.is_deaf.store(true, Ordering::Relaxed);
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    peers.release(&policy(2, 1_000));
    let began = Instant::now();
    agent.until_version(2).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_offer_does_not_confirm_that_the_bundle_in_force_is_the_newest() {
    let (peers, folder) = (Peers::start().await, tempfile::tempdir().unwrap());
    let agent = peers.agent("eu", folder.path()).await;
    agent.until_version(1).await;
    peers.offer(2, b"{}", &key());
    until_refused(&peers, 1).await;
    let before = agent.status().await.bundle_age_ms.unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    let after = agent.status().await.bundle_age_ms.unwrap();
    assert!(after >= before + 900, "{before} ms, then {after} ms");
}
