//! Tokens are granted once, however many ask and however often.

use std::sync::Arc;

use leasehold_protocol::Tokens;
use leasehold_protocol::lease::{AcquireOutcome, Lease, LeaseFrameAnswer, Settle};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, acquire, frame, pool};

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
    };
    let settle = frame("a", vec![back.clone(), back], vec![acquire("t-0", 2, 1)]);
    let settled = cluster.frame(&settle).await;
    assert_eq!(lease(&settled).remaining, Tokens(84), "15 came back once, 1 went out");
}
