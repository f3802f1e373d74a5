//! Tokens are granted once, however many ask and however often.

use std::sync::Arc;

use leasehold_protocol::lease::{AcquireOutcome, Lease, LeaseFrameAnswer, Push, Settle};
use leasehold_protocol::{Demand, Tokens};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, PATIENCE, acquire, frame, pool};

fn lease(answer: &LeaseFrameAnswer) -> &Lease {
    match &answer.answers[0].outcome {
        AcquireOutcome::Lease(lease) => lease,
        other => panic!("no lease: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_at_once_get_a_hundred_of_a_pool_of_a_hundred() {
    let cluster = Arc::new(Cluster::start().await);
    let mut asking = JoinSet::new();
    for n in 0..1_000 {
        let cluster = Arc::clone(&cluster);
        asking.spawn(async move {
            let answer =
                cluster.frame(&frame(&format!("a-{n}"), Vec::new(), vec![acquire("t-0", 1, 1)])).await;
            lease(&answer).granted_total.0
        });
    }
    let granted: u64 = asking.join_all().await.into_iter().sum();
    assert_eq!(granted, 100);
    for n in 0..3 {
        let pools = cluster.pools(n, 100).await;
        let pool = pools.iter().find(|p| p.tenant.as_ref().is_some_and(|t| t.as_str() == "t-0"));
        if let Some(pool) = pool {
            assert!(pool.leased.0 + pool.spent.0 <= 100, "{pool:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_frame_gets_the_same_lease_and_no_more_tokens() {
    let cluster = Cluster::start().await;
    let first = frame("a", Vec::new(), vec![acquire("t-0", 1, 30)]);
    let one = cluster.frame(&first).await;
    let again = cluster.frame(&first).await;
    assert_eq!((lease(&one).granted_total, lease(&again).granted_total), (Tokens(30), Tokens(30)));
    assert_eq!(lease(&again).remaining, Tokens(70));
    let back = Settle {
        pool: pool("t-0"),
        window_start: lease(&one).window.start,
        spent_total: Tokens(10),
        returned_total: Tokens(15),
        denied_total: Tokens(0),
        demand: Demand::default(),
    };
    let settle = frame("a", vec![back.clone(), back], vec![acquire("t-0", 2, 1)]);
    let settled = cluster.frame(&settle).await;
    assert_eq!(lease(&settled).remaining, Tokens(84), "15 came back once, 1 went out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_went_hungry_is_told_on_its_stream_what_another_gave_back() {
    let cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let url = format!("{}/v1/leases:stream?region=eu&agent=b&incarnation=1", cluster.url(leader));
    let mut lines = Cluster::http().lines(&url, PATIENCE).await.unwrap();
    // One holder has it all, so the other's acquire recalls and waits.
    let all = cluster.frame(&frame("a", Vec::new(), vec![acquire("t-0", 1, 100)])).await;
    assert_eq!(lease(&all).granted_total, Tokens(100));
    let none = cluster.frame(&frame("b", Vec::new(), vec![acquire("t-0", 1, 5)])).await;
    assert!(lease(&none).granted_total.is_zero() && lease(&none).supply.short);
    // It has no stream, so the recall comes with its next answer.
    let back = Settle {
        pool: pool("t-0"),
        window_start: lease(&all).window.start,
        spent_total: Tokens(10),
        returned_total: Tokens(40),
        denied_total: Tokens(0),
        demand: Demand::default(),
    };
    let recalled = cluster.frame(&frame("a", vec![back], Vec::new())).await;
    assert!(recalled.pushes.iter().any(|push| push.lease.supply.scarce), "{recalled:?}");
    let push: Push = loop {
        let line = lines.next().await.unwrap().unwrap();
        if !line.is_empty() {
            break serde_json::from_slice(&line).unwrap();
        }
    };
    assert_eq!((push.pool, push.lease.granted_total), (pool("t-0"), Tokens(5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_held_by_the_leader_alone_and_by_the_latest_life() {
    let cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let open = |n: usize, life: &str| {
        let url = format!("{}/v1/leases:stream?region=eu&agent=b&incarnation={life}", cluster.url(n));
        async move { Cluster::http().lines(&url, PATIENCE).await }
    };
    let mut lines = open(leader, "7").await.unwrap();
    assert_eq!(lines.next().await.unwrap().unwrap(), b"", "it says that it lives");
    assert_eq!(open(leader, "6").await.unwrap_err().status(), Some(409));
    assert_eq!(open(leader, "x").await.unwrap_err().status(), Some(400));
    assert_eq!(open((leader + 1) % 3, "7").await.unwrap_err().status(), Some(503));
    let _again = open(leader, "7").await.unwrap();
    while lines.next().await.unwrap().is_some() {}
}
