//! What a stranger may send: each is answered, none does harm.

use leasehold_protocol::lease::{LeaseFrameAnswer, Settle};
use leasehold_protocol::{Demand, Incarnation, LedgerTime, Problem, Tokens};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TOKEN, acquire, frame, pool};

async fn send(url: String, token: bool, body: reqwest::Body) -> (u16, Problem) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.post(url).header("content-type", "application/json").body(body);
    if token {
        request = request.bearer_auth(TOKEN);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_frame_is_refused_by_field_and_nothing_is_granted() {
    let cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let url = format!("{}/v1/leases:frame", cluster.url(leader));
    let refused = async |body: Value| {
        let (status, problem) = send(url.clone(), true, body.to_string().into()).await;
        assert_eq!(status, 400, "{problem:?}");
        (problem.errors.first().map(|e| e.field.clone()), problem.detail.unwrap_or_default())
    };
    let good = frame("a", Vec::new(), vec![acquire("t-0", 1, 1)]);
    let of = |change: fn(&mut leasehold_protocol::lease::LeaseFrame)| {
        let mut frame = good.clone();
        change(&mut frame);
        serde_json::to_value(frame).unwrap()
    };
    assert_eq!(refused(of(|f| f.acquires[0].seq = 0)).await.0.as_deref(), Some("acquires[0].seq"));
    assert_eq!(
        refused(of(|f| f.acquires[0].need = Tokens(u64::MAX))).await.0.as_deref(),
        Some("acquires[0].need")
    );
    assert_eq!(refused(of(|f| f.incarnation = Incarnation(0))).await.0.as_deref(), Some("incarnation"));
    let many = of(|f| f.acquires = (1..=1_001).map(|seq| acquire("t-0", seq, 1)).collect());
    assert_eq!(refused(many).await.0.as_deref(), Some("acquires"));
    let settle = of(|f| {
        f.settles = vec![Settle {
            pool: pool("t-0"),
            window_start: LedgerTime(0),
            spent_total: Tokens(u64::MAX),
            returned_total: Tokens(0),
            denied_total: Tokens(0),
            demand: Demand::default(),
        }];
    });
    assert_eq!(refused(settle).await.0.as_deref(), Some("settles[0].spent_total"));
    for body in [json!({}), json!([]), json!({"holder": {"region": "EU", "agent": "a"}}), json!(null)] {
        let (_, detail) = refused(body).await;
        assert!(!detail.is_empty());
    }
    let (status, _) = send(url.clone(), true, "{".into()).await;
    assert_eq!(status, 400);
    let (status, _) = send(url.clone(), true, "x".repeat(2 * 1024 * 1024).into()).await;
    assert_eq!(status, 413);
    let (status, _) = send(url.clone(), false, serde_json::to_string(&good).unwrap().into()).await;
    assert_eq!(status, 401);
    let answer: LeaseFrameAnswer = cluster.frame(&good).await;
    let answer = serde_json::to_value(answer).unwrap();
    assert_eq!(answer["answers"][0]["outcome"]["granted_total"], 1, "nothing was granted before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_no_replica_sent_is_refused_and_the_cluster_goes_on() {
    let cluster = Cluster::start().await;
    for path in ["append", "vote", "pre-vote", "snapshot"] {
        for n in 0..3 {
            let url = format!("{}/raft/{path}", cluster.url(n));
            let (status, _) = send(url.clone(), true, vec![0xc1; 1_000].into()).await;
            assert_eq!(status, 400, "{path}");
            let (status, _) = send(url, false, "x".into()).await;
            assert_eq!(status, 401, "{path}");
        }
    }
    let answer = cluster.frame(&frame("a", Vec::new(), vec![acquire("t-0", 1, 1)])).await;
    assert_eq!(answer.answers.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_hold_each_pool_once_and_a_wrong_query_is_refused() {
    let cluster = Cluster::start().await;
    for n in 0..30 {
        cluster.frame(&frame("a", Vec::new(), vec![acquire(&format!("t-{n}"), 1, 1)])).await;
    }
    let leader = cluster.leader().await;
    let all = cluster.pools(leader, 100).await;
    assert_eq!(all.len(), 30);
    assert_eq!(cluster.pools(leader, 7).await, all);
    for query in ["limit=0", "limit=1001", "limit=x", "state=ajar", "color=red", "rule=%7B"] {
        let url = format!("{}/v1/pools?{query}", cluster.url(leader));
        let error = Cluster::http().get::<Value>(&url).await.unwrap_err();
        assert_eq!(error.status(), Some(400), "{query}");
    }
}

#[tokio::test]
async fn a_directory_of_another_replica_is_refused_at_the_start() {
    let cluster = Cluster::start().await;
    let mut settings = cluster.settings(0);
    settings.listen = "127.0.0.1:0".parse().unwrap();
    settings.node_id = leasehold_protocol::NodeId(2);
    let (_trigger, shutdown) = leasehold_transport::shutdown::Shutdown::new();
    let error = leasehold_allocator::run(settings, shutdown).await.unwrap_err();
    assert!(error.to_string().contains("belongs to replica 1"), "{error}");
    assert!(cluster.folder().join("0/identity.json").exists());
}
