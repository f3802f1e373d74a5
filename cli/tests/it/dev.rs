//! What `leasehold dev` promises: it starts, says so, keeps what it had, and leaves nothing behind.

use std::os::unix::fs::PermissionsExt as _;

use leasehold_gateway_client::Verdict;
use leasehold_protocol::admit::AdmitRequest;

use crate::product::{Dev, free_port_base};

fn ask(tenant: &str, route: &str) -> AdmitRequest {
    AdmitRequest {
        tenant: Some(tenant.to_owned()),
        principal: Some("u-17".to_owned()),
        route: route.to_owned(),
        ..AdmitRequest::default()
    }
}

/// Tokens that are spent, or may still be.
fn spent(dev: &Dev, tenant: &str) -> u64 {
    let pools = dev.json(&["pools", "--all", "--rule", "P-TENANT", "--tenant", tenant, "-o", "json"]);
    let items = pools["items"].as_array().unwrap().iter();
    items.map(|p| p["leased"].as_u64().unwrap() + p["spent"].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_says_ready_keeps_everything_through_kill_9_and_shows_what_is_going_on() {
    let folder = tempfile::tempdir().unwrap();
    let base = free_port_base();
    let dev = Dev::start(folder.path(), base, &["--regions", "eu,us,ap"]);
    for offset in [1, 2, 3, 10, 21, 22, 23] {
        let url = format!("http://127.0.0.1:{}", base + offset);
        assert!(dev.printed.contains(&url), "{url} is not in\n{}", dev.printed);
    }
    let data = folder.path().join("leasehold-data");
    let token = std::fs::read_to_string(data.join("admin.token")).unwrap();
    assert!(dev.printed.contains(token.trim()));
    for secret in ["admin.token", "publisher.key"] {
        let mode = std::fs::metadata(data.join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{secret} is readable by others");
    }
    for log in std::fs::read_dir(data.join("logs")).unwrap().flatten() {
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(!text.contains(token.trim()), "{} shows the token", log.path().display());
    }

    // A decision of each kind.
    let agent = dev.agent(2);
    for route in ["catalog", "checkout", "search", "GET /catalog"] {
        let verdict = agent.admit(&ask("birch", route)).await.unwrap();
        assert!(matches!(verdict, Verdict::Allowed(_)), "{route}: {verdict:?}");
    }
    let exports: Vec<Verdict> = {
        let mut answers = Vec::new();
        for n in 0..4 {
            let mut request = ask("birch", "export");
            request.principal = Some(format!("exporter-{n}"));
            answers.push(agent.admit(&request).await.unwrap());
        }
        answers
    };
    assert_eq!(exports.iter().filter(|v| matches!(v, Verdict::Allowed(_))).count(), 3, "{exports:?}");
    let Verdict::Denied(refusal) = &exports[3] else { panic!("the fourth export: {exports:?}") };
    assert_eq!(refusal.decision.denied_by.as_ref().unwrap().as_str(), "P-EXPORT");

    // What operators see.
    let status = dev.json(&["status", "-o", "json"]);
    assert_eq!(status["agents"].as_array().unwrap().len(), 3);
    assert_eq!(status["publisher"]["status"]["released_version"], 1);
    let explained =
        dev.json(&["explain", "catalog", "--tenant", "atlas", "--principal", "u-17", "-o", "json"]);
    assert_eq!(explained["rules"][1]["origin"]["plan"], "enterprise", "{explained}");
    let leases = dev.json(&["leases", "--tenant", "birch", "-o", "json"]);
    assert!(leases["items"].as_array().unwrap().iter().any(|l| l["holder"]["region"] == "ap"), "{leases}");
    for table in [&["status"][..], &["pools"], &["leases"], &["explain", "search", "--tenant", "birch"]] {
        let out = dev.command(table);
        assert!(out.status.success(), "{table:?}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(out.stdout.len() > 50, "{table:?} prints nothing");
    }
    let bundle = dev.json(&["bundle", "show"]);
    assert_eq!(bundle["version"], 1);

    // The reads, and three exports of ten.
    let asked = 35;
    let before = spent(&dev, "birch");
    assert!(before >= asked, "{before}");
    dev.kill();
    let dev = Dev::start(folder.path(), base, &["--regions", "eu,us,ap"]);
    assert_eq!(dev.json(&["bundle", "show"])["version"], 1, "the policy is kept, not published again");
    // The agents may have had the time to give back what they held, but what was spent stays so.
    let after = spent(&dev, "birch");
    assert!(after >= asked, "{after} of {before}: what was spent before the kill is forgotten");
    let verdict = dev.agent(0).admit(&ask("birch", "catalog")).await.unwrap();
    assert!(matches!(verdict, Verdict::Allowed(_)), "{verdict:?}");

    // A change of policy reaches every agent and the pools.
    let source = data.join("policy.yaml");
    let text = std::fs::read_to_string(&source).unwrap();
    assert!(text.contains("{ rule: P-TENANT, limit: 600 }"));
    std::fs::write(&source, text.replace("{ rule: P-TENANT, limit: 600 }", "{ rule: P-TENANT, limit: 700 }"))
        .unwrap();
    let published = dev.json(&["bundle", "publish", source.to_str().unwrap(), "-o", "json"]);
    assert_eq!(published["version"], 2, "{published}");
    let deadline = std::time::Instant::now() + crate::product::PATIENCE;
    loop {
        let status = dev.json(&["status", "-o", "json"]);
        let agents = status["agents"].as_array().unwrap().clone();
        if agents.iter().all(|a| a["status"]["bundle_version"] == 2) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    std::fs::write(&source, text.replace("limit: 600", "limit: -1")).unwrap();
    let refused = dev.command(&["bundle", "publish", source.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("-1") && said.lines().count() == 1, "{said}");
    dev.interrupt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_dev_leaves_nothing_and_the_demo_stays_within_the_limits() {
    let folder = tempfile::tempdir().unwrap();
    let base = free_port_base();
    let dev = Dev::start(folder.path(), base, &["--ephemeral"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "an ephemeral run writes nothing here");
    let data = dev.printed.lines().find_map(|line| line.strip_prefix("data")).unwrap().trim().to_owned();
    let data = data.split(" (").next().unwrap().to_owned();
    assert!(std::path::Path::new(&data).exists());
    let agents =
        format!("client.agents=[\"http://127.0.0.1:{}\", \"http://127.0.0.1:{}\"]", base + 21, base + 22);
    let shown = dev.json(&["demo", "--for", "3", "--rate", "50", "-o", "json", "--set", &agents]);
    let windows = shown["windows"].as_array().unwrap();
    let of = |name: &str| windows.iter().filter(|w| w["tenant"] == name).count();
    assert!(of("atlas") >= 1 && of("birch") >= 1, "{shown}");
    assert_eq!(shown["unanswered"], 0);
    dev.interrupt();
    assert!(!std::path::Path::new(&data).exists(), "{data} is still there");
}
