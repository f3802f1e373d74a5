//! Waits until every role works.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold_protocol::admin::{AgentStatus, PublisherStatus};
use leasehold_protocol::publish::{SigningKeys, Validated};
use leasehold_transport::client::HttpClient;
use leasehold_transport::secret::Secret;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::child::Child;
use crate::target::{DevRecord, RoleRecord};

const LOOK_EVERY: Duration = Duration::from_millis(50);
const CALL_DEADLINE: Duration = Duration::from_secs(1);
const VALIDATE_DEADLINE: Duration = Duration::from_secs(10);

/// The body of `/readyz`.
#[derive(Debug, Deserialize)]
struct ReadyAnswer {
    ready: bool,
}

/// The publisher's public key, once it answers.
pub(super) async fn public_key(
    url: &str,
    token: &Secret,
    children: &mut [Child],
    within: Duration,
) -> anyhow::Result<String> {
    let http = HttpClient::new(Some(token.clone()), CALL_DEADLINE)?;
    let deadline = Instant::now() + within;
    loop {
        let why = match http.get::<SigningKeys>(&format!("{url}/v1/keys")).await {
            Ok(keys) => match keys.keys.into_iter().next() {
                Some(key) => return Ok(key.public_key),
                None => "it has no key".to_owned(),
            },
            Err(e) => e.to_string(),
        };
        look(children, deadline, || format!("the publisher is not ready: {why}"))?;
        sleep(LOOK_EVERY).await;
    }
}

/// Says at once what is wrong with the first policy, where there is none yet: nobody could become ready with it.
pub(crate) async fn check_policy(url: &str, token: &Secret, file: &Path) -> anyhow::Result<()> {
    let http = HttpClient::new(Some(token.clone()), VALIDATE_DEADLINE)?;
    let status: PublisherStatus = http.get(&format!("{url}/v1/status")).await?;
    if status.released_version.0 > 0 {
        return Ok(());
    }
    let source =
        std::fs::read_to_string(file).with_context(|| format!("policy source {}", file.display()))?;
    let validate = format!("{url}/v1/bundles:validate");
    let valid = http.post_bytes::<Validated>(&validate, "application/yaml", source).await;
    valid.with_context(|| format!("policy source {}", file.display()))?;
    Ok(())
}

/// Returns once every role is ready and every agent enforces a policy.
pub(super) async fn wait(
    record: &DevRecord,
    token: &Secret,
    children: &mut [Child],
    within: Duration,
) -> anyhow::Result<()> {
    let http = HttpClient::new(Some(token.clone()), CALL_DEADLINE)?;
    let deadline = Instant::now() + within;
    for role in &record.roles {
        loop {
            let Some(why) = lacks(&http, role).await else { break };
            look(children, deadline, || format!("the {} {} is not ready: {why}", role.role, role.name))?;
            sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}

/// What a role lacks; `None` if it works.
async fn lacks(http: &HttpClient, role: &RoleRecord) -> Option<String> {
    let url = &role.url;
    if role.role == "agent" {
        match http.get::<AgentStatus>(&format!("{url}/v1/status")).await {
            Ok(status) if status.bundle_version.0 > 0 => {}
            Ok(_) => return Some("it has no policy yet".to_owned()),
            Err(e) => return Some(e.to_string()),
        }
    }
    match http.get::<ReadyAnswer>(&format!("{url}/readyz")).await {
        Ok(answer) if answer.ready => None,
        Ok(_) => Some("it says so".to_owned()),
        Err(e) => Some(e.to_string()),
    }
}

/// Fails if a process has ended or time is up.
fn look(children: &mut [Child], deadline: Instant, why: impl Fn() -> String) -> anyhow::Result<()> {
    if let Some(error) = children.iter_mut().find_map(Child::early_end) {
        return Err(error);
    }
    if Instant::now() >= deadline {
        bail!("{} (the logs are in the data directory, under logs)", why());
    }
    Ok(())
}
