//! Leaders die, followers lag, disks are opened again.

use std::time::Duration;

use leasehold_protocol::Tokens;
use leasehold_protocol::admin::{PolicyView, PoolView};
use leasehold_protocol::lease::{AcquireOutcome, LeaseFrameAnswer};
use leasehold_transport::client::ClientError;

use crate::cluster::{Cluster, PATIENCE, acquire, frame};

fn granted(answer: &LeaseFrameAnswer) -> Tokens {
    match &answer.answers[0].outcome {
        AcquireOutcome::Lease(lease) => lease.granted_total,
        other => panic!("no lease: {other:?}"),
    }
}

/// Tokens that were granted and not given back, over all pools and windows.
fn sum(pools: &[PoolView]) -> Tokens {
    pools.iter().fold(Tokens::ZERO, |n, pool| n.saturating_add(pool.leased).saturating_add(pool.spent))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_stays_granted_through_a_new_leader_and_a_restart_of_all() {
    let mut cluster = Cluster::start().await;
    let before = cluster.frame(&frame("a", Vec::new(), vec![acquire("t-0", 1, 60)])).await;
    assert_eq!(granted(&before), Tokens(60));
    let old = cluster.leader().await;
    cluster.stop_replica(old).await;
    let new = cluster.leader().await;
    assert_ne!(new, old);
    let other = cluster.frame(&frame("b", Vec::new(), vec![acquire("t-0", 1, 60)])).await;
    assert_eq!(granted(&other), Tokens(40), "only what was left");
    cluster.start_replica(old).await;
    for n in 0..3 {
        cluster.stop_replica(n).await;
    }
    for n in 0..3 {
        cluster.start_replica(n).await;
    }
    let leader = cluster.leader().await;
    let policy: PolicyView =
        Cluster::http().get(&format!("{}/v1/policy", cluster.url(leader))).await.unwrap();
    assert_eq!(policy.active_version.0, 1);
    let third = cluster.frame(&frame("c", Vec::new(), vec![acquire("t-0", 1, 60)])).await;
    assert_eq!(granted(&third), Tokens(0));
    let repeated = cluster.frame(&frame("a", Vec::new(), vec![acquire("t-0", 1, 60)])).await;
    assert_eq!(granted(&repeated), Tokens(60), "a repetition after all that is still a repetition");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_not_ready_before_it_shows_what_it_had_when_it_stopped() {
    let mut cluster = Cluster::start().await;
    for n in 0..200 {
        let tenant = format!("t-{}", n % 20);
        cluster.frame(&frame(&format!("a-{n}"), Vec::new(), vec![acquire(&tenant, 1, 1)])).await;
    }
    let leader = cluster.leader().await;
    let wanted = sum(&cluster.pools(leader, 100).await);
    assert_eq!(wanted, Tokens(200));
    for n in 0..3 {
        // What a replica never had, it cannot show.
        let began = std::time::Instant::now();
        while sum(&cluster.pools(n, 100).await) != wanted {
            assert!(began.elapsed() < PATIENCE, "replica {n}");
        }
    }
    for _ in 0..3 {
        for n in 0..3 {
            cluster.stop_replica(n).await;
        }
        for n in 0..3 {
            cluster.start_replica(n).await;
        }
        for n in 0..3 {
            let began = std::time::Instant::now();
            while Cluster::http()
                .raw()
                .get(format!("{}/readyz", cluster.url(n)))
                .send()
                .await
                .unwrap()
                .status()
                != 200
            {
                assert!(began.elapsed() < PATIENCE, "replica {n}");
            }
            assert_eq!(sum(&cluster.pools(n, 100).await), wanted, "replica {n}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_away_for_longer_than_the_log_is_kept_comes_back_by_a_snapshot() {
    let mut cluster = Cluster::start_tuned(|settings| {
        settings.snapshot_after_entries = 20;
        settings.keep_entries = 5;
    })
    .await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    let had = cluster.view(away).await.last_log_index.unwrap();
    cluster.stop_replica(away).await;
    // Until the leader's log has no more what the replica lacks next.
    let began = std::time::Instant::now();
    let mut n = 0;
    let leader = loop {
        for _ in 0..30 {
            let tenant = format!("t-{}", n % 30);
            cluster.frame(&frame(&format!("a-{n}"), Vec::new(), vec![acquire(&tenant, 1, 1)])).await;
            n += 1;
        }
        let leader = cluster.leader().await;
        let view = cluster.view(leader).await;
        if view.purged_index.is_some_and(|purged| purged > had + 1) {
            break leader;
        }
        assert!(began.elapsed() < PATIENCE, "{view:?}");
    };
    let wanted = cluster.pools(leader, 100).await;
    assert_eq!(wanted.len(), 30);
    cluster.start_replica(away).await;
    let began = std::time::Instant::now();
    while cluster.pools(away, 100).await != wanted {
        assert!(began.elapsed() < PATIENCE, "{:?}", cluster.pools(away, 100).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let view = cluster.view(away).await;
    assert!(view.snapshot_index.is_some_and(|index| index > had), "{view:?}");
    // What came by snapshot is on the disk too.
    cluster.stop_replica(away).await;
    cluster.start_replica(away).await;
    let began = std::time::Instant::now();
    while cluster.pools(away, 100).await != wanted {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_names_the_leader_and_serves_reads_that_say_how_old_they_are() {
    let cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let url = format!("{}/v1/leases:frame", cluster.url(follower));
    let asked = frame("a", Vec::new(), vec![acquire("t-0", 1, 1)]);
    let error = Cluster::http().post::<_, LeaseFrameAnswer>(&url, &asked).await.unwrap_err();
    let ClientError::Problem(problem) = error else { panic!("{error}") };
    assert_eq!(problem.leader.as_deref(), Some(cluster.url(leader)));
    let page: serde_json::Value =
        Cluster::http().get(&format!("{}/v1/pools", cluster.url(follower))).await.unwrap();
    assert!(page["stale_ms"].as_u64().unwrap() < 10_000, "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_a_quorum_grants_nothing_and_says_that_it_is_not_ready() {
    let mut cluster = Cluster::start_tuned(|settings| settings.commit_deadline_ms = 500).await;
    let leader = cluster.leader().await;
    for n in (0..3).filter(|n| *n != leader) {
        cluster.stop_replica(n).await;
    }
    let url = format!("{}/v1/leases:frame", cluster.url(leader));
    let asked = frame("a", Vec::new(), vec![acquire("t-0", 1, 1)]);
    for probe in [asked, frame("a", Vec::new(), Vec::new())] {
        let error = Cluster::http().post::<_, LeaseFrameAnswer>(&url, &probe).await.unwrap_err();
        assert!(error.status().is_some_and(|status| status >= 503), "{error}");
    }
    let began = std::time::Instant::now();
    loop {
        let url = format!("{}/readyz", cluster.url(leader));
        let answer = Cluster::http().raw().get(url).send().await.unwrap();
        let is_503 = answer.status() == 503;
        let text = answer.text().await.unwrap();
        if is_503 {
            assert!(text.contains("has not answered") || text.contains("no leader"), "{text}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
