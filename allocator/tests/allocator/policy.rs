//! Only what is signed, whole and next becomes the ledger's policy.

use ed25519_dalek::SigningKey;
use leasehold_protocol::admin::PolicyView;
use leasehold_protocol::envelope::{Envelope, digest};
use leasehold_protocol::{Problem, ProblemKind, Tokens};
use leasehold_transport::client::ClientError;

use crate::cluster::{Cluster, acquire, bundle, frame, signing_key};

fn problem(error: ClientError) -> Problem {
    match error {
        ClientError::Problem(problem) => *problem,
        other => panic!("no problem: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_is_not_signed_not_canonical_or_not_next_changes_nothing() {
    let cluster = Cluster::start().await;
    let send = async |bytes: &[u8], key: &SigningKey| {
        cluster.client().post::<_, PolicyView>("/v1/policy", &Envelope::sign(bytes, &[key])).await
    };
    let next = serde_json::to_vec(&bundle(2, 50)).unwrap();
    let stranger = problem(send(&next, &SigningKey::from_bytes(&[9; 32])).await.unwrap_err());
    assert_eq!(stranger.kind(), Some(ProblemKind::SignatureRefused));
    let pretty = serde_json::to_vec_pretty(&bundle(2, 50)).unwrap();
    let second = problem(send(&pretty, &signing_key()).await.unwrap_err());
    assert_eq!(second.kind(), Some(ProblemKind::PolicyRefused));
    let mut wrong = bundle(2, 50);
    wrong.routes[0].rules.push(leasehold_protocol::RuleId::new("P-NONE").unwrap());
    let wrong = problem(send(&serde_json::to_vec(&wrong).unwrap(), &signing_key()).await.unwrap_err());
    assert_eq!(wrong.kind(), Some(ProblemKind::PolicyRefused));
    assert!(wrong.errors.iter().any(|e| e.value.contains("P-NONE")), "{wrong:?}");
    for version in [1, 3, u64::MAX] {
        let bytes = serde_json::to_vec(&bundle(version, 51)).unwrap();
        let conflict = problem(send(&bytes, &signing_key()).await.unwrap_err());
        assert_eq!(conflict.kind(), Some(ProblemKind::Conflict), "version {version}");
    }
    let view = send(&next, &signing_key()).await.unwrap();
    assert_eq!((view.active_version.0, view.active_digest), (2, Some(digest(&next))));
    assert_eq!(send(&next, &signing_key()).await.unwrap().active_version.0, 2, "a repetition is no conflict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_lowered_below_what_is_leased_shows_as_debt_and_grants_nothing() {
    let cluster = Cluster::start().await;
    cluster.frame(&frame("a", Vec::new(), vec![acquire("t-0", 1, 80)])).await;
    cluster.activate(&bundle(2, 50)).await.unwrap();
    let leader = cluster.leader().await;
    let pool = cluster.pools(leader, 10).await.remove(0);
    assert_eq!((pool.limit, pool.debt, pool.remaining), (Some(Tokens(50)), Tokens(30), Tokens(0)));
    let more = cluster.frame(&frame("b", Vec::new(), vec![acquire("t-0", 1, 1)])).await;
    assert_eq!(serde_json::to_value(&more).unwrap()["answers"][0]["outcome"]["granted_total"], 0);
    cluster.activate(&bundle(3, 200)).await.unwrap();
    let more = cluster.frame(&frame("b", Vec::new(), vec![acquire("t-0", 2, 100)])).await;
    assert_eq!(
        serde_json::to_value(&more).unwrap()["answers"][0]["outcome"]["granted_total"],
        101,
        "the higher limit fed it the 1 that it went hungry for"
    );
}
