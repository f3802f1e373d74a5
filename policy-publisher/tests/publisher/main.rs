//! The publisher over real sockets, with a stand-in for the allocator's policy register.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod register;
mod running;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_protocol::admin::{AgentAck, PublisherStatus, RefusedBundle};
use leasehold_protocol::bundle::BUNDLE_BYTES_MAX;
use leasehold_protocol::envelope::{Envelope, digest};
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::publish::{Published, SigningKeys, Validated};
use leasehold_protocol::{AgentId, BundleVersion, ProblemKind, RegionId};
use leasehold_publisher::{Publisher, RunError, Settings};
use leasehold_transport::secret::Secret;
use reqwest::StatusCode;
use serde_json::{Value, json};

use self::register::{Mode, Register};
use self::running::{problem, settings, start};

const NORTHSTAR: &str = include_str!("../../../docs/examples/northstar.yaml");

/// Northstar with another maximum age, so that it is another policy.
fn source(max_age_s: u64) -> String {
    NORTHSTAR.replacen("max_age_s: 3600", &format!("max_age_s: {max_age_s}"), 1)
}

fn published(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("publisher/bundles")).unwrap().count()
}

#[tokio::test]
async fn a_source_becomes_a_signed_bundle_whose_exact_bytes_agents_fetch() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let first = publisher.publish(NORTHSTAR).await;
    assert_eq!(
        (first.version, first.previous_version, first.unchanged),
        (BundleVersion(1), BundleVersion(0), false)
    );
    assert_eq!(register.view().active_digest.as_ref(), Some(&first.digest));

    let newest = publisher.get("/v1/bundles?after=0&wait_ms=0").await;
    assert_eq!(newest.headers()["etag"], "\"1\"");
    let bytes = newest.bytes().await.unwrap();
    assert_eq!(publisher.get("/v1/bundles/1").await.bytes().await.unwrap(), bytes);
    let envelope: Envelope = serde_json::from_slice(&bytes).unwrap();
    let payload = publisher.trusted().await.open(&envelope).unwrap();
    assert_eq!(digest(&payload), first.digest);
    assert_eq!(CheckedBundle::from_bytes(&payload).unwrap().version, BundleVersion(1));

    assert_eq!(publisher.get("/v1/bundles?after=1").await.status(), StatusCode::NO_CONTENT);
    let second = publisher.publish(&source(60)).await;
    assert_eq!(second.version, BundleVersion(2));
    assert_eq!(second.changes, ["maximum age: 3600 s -> 60 s"]);
    assert_eq!(publisher.get("/v1/bundles/1").await.bytes().await.unwrap(), bytes);
    problem(publisher.get("/v1/bundles/3").await, StatusCode::NOT_FOUND).await;
    problem(publisher.get("/v1/bundles/x").await, StatusCode::BAD_REQUEST).await;
    let odd = problem(publisher.get("/v1/bundles?after=1&wait=3").await, StatusCode::BAD_REQUEST).await;
    assert!(odd.detail.unwrap().contains("`wait`"));
    publisher.stop().await;
}

#[tokio::test]
async fn a_source_that_says_what_is_active_mints_no_version() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let first = publisher.publish(NORTHSTAR).await;
    let answer = publisher.post("/v1/bundles", format!("# another comment\n{NORTHSTAR}")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let again: Published = answer.json().await.unwrap();
    assert!(again.unchanged);
    assert_eq!((again.version, &again.digest), (first.version, &first.digest));
    assert_eq!(register.view().active_version, BundleVersion(1));
    assert_eq!(published(dir.path()), 1);
    publisher.stop().await;
}

#[tokio::test]
async fn a_poll_wakes_when_a_bundle_is_released_and_ends_with_the_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let poll = |after: u64| {
        let url = format!("{}/v1/bundles?after={after}&wait_ms=30000", publisher.url);
        tokio::spawn(publisher.http.get(url).send())
    };
    let waiting = poll(0);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    publisher.publish(NORTHSTAR).await;
    let woken = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap();
    assert_eq!((woken.status(), &woken.headers()["etag"]), (StatusCode::OK, &"\"1\"".parse().unwrap()));

    let empty = Instant::now();
    assert_eq!(publisher.get("/v1/bundles?after=1&wait_ms=200").await.status(), StatusCode::NO_CONTENT);
    assert!(empty.elapsed() >= Duration::from_millis(200));

    let last = poll(1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let asked = Instant::now();
    publisher.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(4));
    assert_eq!(last.await.unwrap().unwrap().status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn polls_beyond_the_bound_are_told_to_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(Settings { waiters_max: 1, ..settings(dir.path(), &register) }).await;
    let url = format!("{}/v1/bundles?after=0&wait_ms=30000", publisher.url);
    let waiting = tokio::spawn(publisher.http.get(&url).send());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let refused = publisher.get("/v1/bundles?after=0&wait_ms=30000").await;
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(problem(refused, StatusCode::SERVICE_UNAVAILABLE).await.kind(), Some(ProblemKind::Overloaded));
    publisher.stop().await;
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn what_was_released_is_there_after_a_restart_without_the_allocator() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    publisher.publish(NORTHSTAR).await;
    publisher.publish(&source(60)).await;
    let before = publisher.get("/v1/bundles?after=0").await.bytes().await.unwrap();
    let keys: SigningKeys = publisher.read("/v1/keys").await;
    publisher.kill().await;
    register.set(Mode::Down);
    let publisher = start(settings(dir.path(), &register)).await;
    assert_eq!(publisher.get("/v1/bundles?after=0").await.bytes().await.unwrap(), before);
    assert_eq!(publisher.get("/v1/bundles/1").await.status(), StatusCode::OK);
    assert_eq!(publisher.read::<SigningKeys>("/v1/keys").await, keys);
    publisher.stop().await;
}

#[tokio::test]
async fn a_crash_between_activation_and_release_is_settled_by_asking() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    register.set(Mode::ActivateAndFallSilent);
    let (http, url) = (publisher.http.clone(), format!("{}/v1/bundles", publisher.url));
    let lost = tokio::spawn(http.post(url).header("content-type", "application/yaml").body(NORTHSTAR).send());
    register.until(|view| view.active_version == BundleVersion(1)).await;
    assert_eq!(publisher.status().await.released_version, BundleVersion(0));
    publisher.kill().await;
    drop(lost);

    register.set(Mode::Normal);
    let publisher = start(settings(dir.path(), &register)).await;
    let status = publisher.eventually("released", |s| s.released_version == BundleVersion(1)).await;
    assert_eq!(status.released_digest, register.view().active_digest);
    assert_eq!(status.notes, Vec::<String>::new());
    let envelope: Envelope = publisher.read("/v1/bundles/1").await;
    assert!(publisher.trusted().await.open(&envelope).is_ok());
    publisher.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_lost_is_asked_for_until_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    register.set(Mode::RefuseNow);
    let unknown = publisher.refused(NORTHSTAR, StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(unknown.detail.unwrap().contains("version 1 is signed and kept"));
    let status = publisher.status().await;
    assert_eq!(status.notes, ["version 1 is signed and waits for the allocator to accept it"]);
    assert_eq!(
        publisher.refused(&source(60), StatusCode::CONFLICT).await.kind(),
        Some(ProblemKind::Conflict)
    );
    register.set(Mode::Normal);
    let status = publisher.eventually("released", |s| s.released_version == BundleVersion(1)).await;
    assert_eq!(status.notes, Vec::<String>::new());
    publisher.stop().await;
}

#[tokio::test]
async fn nothing_is_minted_while_the_allocator_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    register.set(Mode::Down);
    let publisher = start(settings(dir.path(), &register)).await;
    let refused = publisher.refused(NORTHSTAR, StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(refused.detail.unwrap().contains("nothing was changed"));
    assert_eq!(published(dir.path()), 0);
    let ready: Value = publisher.read("/readyz").await;
    assert_eq!(
        ready,
        json!({"ready": true, "reasons": ["no bundle is released yet", "the allocator's register is not known yet"]})
    );
    publisher.stop().await;
}

#[tokio::test]
async fn a_publisher_that_is_overtaken_reports_it_and_never_releases_its_draft() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    publisher.publish(NORTHSTAR).await;
    register.set(Mode::OvertakeNext);
    let conflict = publisher.refused(&source(60), StatusCode::CONFLICT).await;
    assert!(conflict.detail.unwrap().contains("another publisher came first: version 2 is active"));
    let status = publisher.status().await;
    assert_eq!(status.released_version, BundleVersion(1));
    assert!(status.notes[0].contains("version 2, which was not published here"), "{:?}", status.notes);
    assert_eq!(published(dir.path()), 1);

    let stale = publisher.http.post(format!("{}/v1/bundles", publisher.url));
    let stale = stale.header("content-type", "application/yaml").header("if-match", "\"1\"").body(source(60));
    problem(stale.send().await.unwrap(), StatusCode::CONFLICT).await;

    let above = publisher.publish(&source(60)).await;
    assert_eq!(above.version, BundleVersion(3));
    assert!(above.warnings[0].contains("not published here"), "{:?}", above.warnings);
    assert_eq!(publisher.status().await.notes, Vec::<String>::new());
    publisher.stop().await;
}

#[tokio::test]
async fn an_empty_store_says_so_and_mints_above_the_allocators_version() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    register.activate(7, "elsewhere");
    let bootstrap = dir.path().join("northstar.yaml");
    std::fs::write(&bootstrap, NORTHSTAR).unwrap();
    let with_bootstrap = Settings { bootstrap_policy: Some(bootstrap), ..settings(dir.path(), &register) };
    let publisher = start(with_bootstrap).await;
    let says = |s: &PublisherStatus| s.notes.iter().any(|n| n.contains("this publisher's store holds none"));
    publisher.eventually("says so", says).await;
    let ready: Value = publisher.read("/readyz").await;
    assert!(ready["reasons"].to_string().contains("version 7"), "{ready}");
    assert_eq!(publisher.publish(NORTHSTAR).await.version, BundleVersion(8));
    publisher.stop().await;
}

#[tokio::test]
async fn a_replica_that_is_behind_or_gone_does_not_hide_what_the_others_have_applied() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = [Register::start().await, Register::start().await, Register::start().await];
    replicas[1].activate(7, "elsewhere");
    replicas[2].set(Mode::Down);
    let allocators = replicas.iter().map(|r| r.url.clone()).collect();
    let publisher = start(Settings { allocators, ..settings(dir.path(), &replicas[0]) }).await;
    publisher.eventually("sees 7", |s| s.notes.iter().any(|n| n.contains("version 7"))).await;
    replicas[0].set(Mode::Down);
    let refused = publisher.refused(NORTHSTAR, StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(refused.detail.unwrap().contains("nothing was changed"));
    publisher.stop().await;
}

#[tokio::test]
async fn the_bootstrap_policy_is_published_as_soon_as_an_allocator_answers() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    register.set(Mode::Down);
    let bootstrap = dir.path().join("northstar.yaml");
    std::fs::write(&bootstrap, NORTHSTAR).unwrap();
    let with_bootstrap =
        Settings { bootstrap_policy: Some(bootstrap.clone()), ..settings(dir.path(), &register) };
    let publisher = start(with_bootstrap.clone()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(publisher.status().await.released_version, BundleVersion(0));
    register.set(Mode::Normal);
    publisher.eventually("bootstrapped", |s| s.released_version == BundleVersion(1)).await;
    publisher.stop().await;

    std::fs::write(&bootstrap, source(60)).unwrap();
    let publisher = start(with_bootstrap).await;
    assert!(
        publisher.eventually("in step", |s| s.notes.is_empty()).await.released_version == BundleVersion(1)
    );
    assert_eq!(register.view().active_version, BundleVersion(1));
    publisher.stop().await;
}

#[tokio::test]
async fn a_bootstrap_policy_that_is_wrong_is_said_and_does_not_end_the_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let bootstrap = dir.path().join("bad.yaml");
    std::fs::write(&bootstrap, source(0)).unwrap();
    let with_bootstrap = Settings { bootstrap_policy: Some(bootstrap), ..settings(dir.path(), &register) };
    let publisher = start(with_bootstrap).await;
    let says =
        |s: &PublisherStatus| s.notes.iter().any(|n| n.contains("bootstrap") && n.contains("max_age_s"));
    publisher.eventually("says so", says).await;
    assert_eq!(publisher.publish(NORTHSTAR).await.version, BundleVersion(1));
    publisher.stop().await;
}

#[tokio::test]
async fn a_bad_source_is_refused_with_every_fault_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let bad = source(0).replacen("limit: 40000", "limit: 0", 1).replacen("plan: standard", "plan: silver", 1);
    for path in ["/v1/bundles", "/v1/bundles:validate"] {
        let refused =
            problem(publisher.post(path, bad.clone()).await, StatusCode::UNPROCESSABLE_ENTITY).await;
        assert_eq!(refused.kind(), Some(ProblemKind::PolicyRefused));
        let fields: Vec<_> = refused.errors.iter().map(|e| (e.field.as_str(), e.value.as_str())).collect();
        for expected in
            [("max_age_s", "0"), ("rules[4].fixed_window.limit", "0"), ("tenants[1].plan", "silver")]
        {
            assert!(fields.contains(&expected), "{fields:?}");
        }
    }
    let malformed = NORTHSTAR.replacen("limit: 20", "limit: twenty", 1);
    let refused = publisher.refused(&malformed, StatusCode::BAD_REQUEST).await;
    assert_eq!(refused.kind(), Some(ProblemKind::MalformedBody));
    assert_eq!(refused.errors[0].field, "rules[0].fixed_window.limit");
    assert!(refused.detail.unwrap().contains("line"));
    assert_eq!(register.view().active_version, BundleVersion(0));
    publisher.stop().await;
}

#[tokio::test]
async fn a_source_is_checked_and_compared_without_being_published() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    publisher.publish(NORTHSTAR).await;
    let changed = NORTHSTAR.replacen("limit: 600", "limit: 60", 1);
    let validated: Validated = publisher.post("/v1/bundles:validate", changed).await.json().await.unwrap();
    assert_eq!((validated.compared_with, validated.unchanged), (BundleVersion(1), false));
    assert_eq!(validated.changes[0], "P-TENANT for tenant birch: 600 -> 60 per 60 s (-90 %)");
    let same: Validated = publisher.post("/v1/bundles:validate", NORTHSTAR).await.json().await.unwrap();
    assert!(same.unchanged && same.changes.is_empty());
    assert_eq!(register.view().active_version, BundleVersion(1));
    publisher.stop().await;
}

#[tokio::test]
async fn a_source_is_refused_by_size_and_by_content_type_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let large = publisher.post("/v1/bundles", vec![b'#'; BUNDLE_BYTES_MAX + 1]).await;
    let large = problem(large, StatusCode::PAYLOAD_TOO_LARGE).await;
    assert_eq!(large.kind(), Some(ProblemKind::BodyTooLarge));
    let form = publisher.http.post(format!("{}/v1/bundles", publisher.url)).body(NORTHSTAR);
    let form = problem(form.send().await.unwrap(), StatusCode::BAD_REQUEST).await;
    assert!(form.detail.unwrap().contains("application/yaml"));
    publisher.stop().await;
}

#[tokio::test]
async fn a_refusal_of_the_allocator_is_passed_on_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    register.set(Mode::Distrust);
    let refused = publisher.refused(NORTHSTAR, StatusCode::UNPROCESSABLE_ENTITY).await;
    assert_eq!(refused.kind(), Some(ProblemKind::SignatureRefused));
    assert!(refused.detail.unwrap().starts_with("version 1 is withdrawn: the allocator refuses it"));
    assert_eq!(published(dir.path()), 0);
    register.set(Mode::Normal);
    assert_eq!(publisher.publish(NORTHSTAR).await.version, BundleVersion(1));
    publisher.stop().await;
}

#[tokio::test]
async fn the_key_is_for_its_owner_alone_and_an_exposed_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let settings = settings(dir.path(), &register);
    start(settings.clone()).await.stop().await;
    let path = settings.signing_key_path();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = Publisher::bind(settings.clone()).await.unwrap_err();
    assert!(matches!(error, RunError::Key(_)) && error.to_string().contains("0640"), "{error}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let publisher = Publisher::bind(settings.clone()).await.unwrap();
    let shown = format!("{publisher:?}");
    let secret = std::fs::read_to_string(&path).unwrap();
    assert!(shown.contains("[redacted]") && !shown.contains(secret.trim()), "{shown}");
    assert!(matches!(Publisher::bind(settings).await, Err(RunError::Store(_))));
}

#[tokio::test]
async fn agents_words_are_shown_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let ack = |n: u32, version: u64, refused: Option<&str>| AgentAck {
        region: RegionId::new("eu").unwrap(),
        agent: AgentId::new(format!("eu-{n}")).unwrap(),
        active_version: BundleVersion(version),
        refused: refused.map(|r| RefusedBundle { version: Some(BundleVersion(9)), reason: r.to_owned() }),
    };
    let send = async |ack: &AgentAck| {
        let request = publisher.http.post(format!("{}/v1/acks", publisher.url)).json(ack);
        request.send().await.unwrap().status()
    };
    assert_eq!(send(&ack(1, 1, None)).await, StatusCode::NO_CONTENT);
    assert_eq!(send(&ack(2, 1, None)).await, StatusCode::NO_CONTENT);
    let refusing = ack(1, 2, Some("weak"));
    assert_eq!(send(&refusing).await, StatusCode::NO_CONTENT);
    assert_eq!(send(&ack(3, 1, Some(&"x".repeat(501)))).await, StatusCode::BAD_REQUEST);
    assert_eq!(publisher.status().await.agents, [refusing, ack(2, 1, None)]);
    let metrics = publisher.get("/metrics").await.text().await.unwrap();
    for line in [
        "leasehold_publisher_agents{version=\"1\"} 1",
        "leasehold_publisher_agents{version=\"2\"} 1",
        "leasehold_publisher_released_version 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    publisher.publish(NORTHSTAR).await;
    let metrics = publisher.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("leasehold_publisher_publishes_total{result=\"published\"} 1"), "{metrics}");
    assert!(metrics.contains("leasehold_publisher_in_step 1"), "{metrics}");
    publisher.stop().await;
}

#[tokio::test]
async fn changes_want_the_token_and_reads_on_loopback_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let token = Some(Secret::new("0123456789abcdef"));
    let publisher = start(Settings { admin_token: token, ..settings(dir.path(), &register) }).await;
    for path in ["/v1/bundles", "/v1/bundles:validate", "/v1/acks"] {
        problem(publisher.post(path, NORTHSTAR).await, StatusCode::UNAUTHORIZED).await;
    }
    let request =
        publisher.http.post(format!("{}/v1/bundles", publisher.url)).bearer_auth("0123456789abcdef");
    let request = request.header("content-type", "application/yaml").body(NORTHSTAR);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::CREATED);
    assert_eq!(publisher.get("/v1/bundles/1").await.status(), StatusCode::OK);
    assert_eq!(publisher.status().await.released_version, BundleVersion(1));
    publisher.stop().await;
}

#[tokio::test]
async fn a_released_bundle_that_rots_is_said_and_not_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let register = Register::start().await;
    let publisher = start(settings(dir.path(), &register)).await;
    let first = publisher.publish(NORTHSTAR).await;
    publisher.stop().await;
    let path = dir.path().join(format!("publisher/bundles/1-{}.json", first.digest));
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    std::fs::write(&path, &bytes).unwrap();
    let publisher = start(settings(dir.path(), &register)).await;
    let status = publisher.eventually("says so", |s| s.notes.iter().any(|n| n.contains("damaged"))).await;
    assert_eq!(status.released_version, BundleVersion(0));
    assert_eq!(publisher.get("/v1/bundles?after=0").await.status(), StatusCode::NO_CONTENT);
    assert_eq!(publisher.publish(NORTHSTAR).await.version, BundleVersion(2));
    assert_eq!(publisher.status().await.notes, Vec::<String>::new());
    publisher.stop().await;
}
