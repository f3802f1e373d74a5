//! What a deployment may set of an agent.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use leasehold_protocol::time::DRIFT_PPM_DEFAULT;
use leasehold_protocol::{AgentId, Holder, RegionId};
use leasehold_transport::secret::Secret;
use leasehold_transport::settings::{SettingError, some, within};
use serde::{Deserialize, Serialize};

/// The longest agent name, in bytes: a decision id holds it, two numbers and two dashes in 64.
const AGENT_LEN_MAX: usize = 36;
/// The longest hold, in ms.
const HOLD_MS_MAX: u64 = 5_000;

/// The agent's settings. All spans in ms.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The region it serves.
    pub region: RegionId,
    /// Its name, stable over restarts; `<region>-1` if not given.
    pub agent: Option<AgentId>,
    /// Where gateways reach it.
    pub listen: SocketAddr,
    /// Where its policy and its incarnation survive a restart.
    pub data_dir: PathBuf,
    /// Base URLs of the allocator's replicas.
    pub allocators: Vec<String>,
    /// The publisher's base URL.
    pub publisher: String,
    /// The bearer token of all roles; required when it listens beyond loopback.
    pub admin_token: Option<Secret>,
    /// Public keys that may sign bundles, 32 bytes in base64 each.
    pub trusted_keys: Vec<String>,
    /// How many of them must sign.
    pub trusted_threshold: usize,
    /// How long a request is held for leased tokens on their way.
    pub hold_ms: u64,
    /// The most requests held at once; beyond it a request is decided without a hold.
    pub held_max: usize,
    /// The allocator counts as lost when nothing it was asked has been answered for this long.
    pub allocator_lost_ms: u64,
    /// The bound on the rate error between any two clocks, in parts per million.
    pub drift_ppm: u32,
    /// The most counters and slots in memory; keys that name a source get half of them at most.
    pub counters_max: usize,
    /// The most leased pools in memory.
    pub pools_max: usize,
    /// The deadline of one lease frame.
    pub frame_deadline_ms: u64,
    /// How long one poll for a newer bundle may wait at the publisher; at most 30 s.
    pub poll_wait_ms: u64,
    /// The longest wait between two failed polls; it doubles up to here, with jitter.
    pub poll_backoff_max_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: RegionId::new("eu").expect("two letters follow the grammar"),
            agent: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7421)),
            data_dir: PathBuf::from("leasehold-data/agent"),
            allocators: (7401..=7403).map(|port| format!("http://127.0.0.1:{port}")).collect(),
            publisher: "http://127.0.0.1:7410".to_owned(),
            admin_token: None,
            trusted_keys: Vec::new(),
            trusted_threshold: 1,
            hold_ms: 150,
            held_max: 8_192,
            allocator_lost_ms: 1_000,
            drift_ppm: DRIFT_PPM_DEFAULT,
            counters_max: 1_000_000,
            pools_max: 100_000,
            frame_deadline_ms: 800,
            poll_wait_ms: 20_000,
            poll_backoff_max_ms: 10_000,
        }
    }
}

impl Settings {
    /// Who holds the leases of an agent with these settings.
    pub fn holder(&self) -> Result<Holder, SettingError> {
        let refused = |value: &str, rule: String| SettingError::new("agent", value, rule);
        let agent = if let Some(agent) = &self.agent {
            agent.clone()
        } else {
            let text = format!("{}-1", self.region);
            AgentId::new(&text).map_err(|e| refused(&text, e.to_string()))?
        };
        if agent.as_str().len() > AGENT_LEN_MAX {
            return Err(refused(agent.as_str(), format!("at most {AGENT_LEN_MAX} bytes")));
        }
        Ok(Holder { region: self.region.clone(), agent })
    }

    /// The first setting that cannot be right, if any.
    pub fn check(&self) -> Result<(), SettingError> {
        self.holder()?;
        some("allocators", self.allocators.len())?;
        some("trusted_keys", self.trusted_keys.len())?;
        for url in &self.allocators {
            base_url("allocators", url)?;
        }
        base_url("publisher", &self.publisher)?;
        within("hold_ms", self.hold_ms, 0, HOLD_MS_MAX)?;
        within("allocator_lost_ms", self.allocator_lost_ms, 1, 600_000)?;
        within("drift_ppm", u64::from(self.drift_ppm), 0, 100_000)?;
        within("counters_max", self.counters_max as u64, 1, 1_000_000_000)?;
        within("pools_max", self.pools_max as u64, 1, 10_000_000)?;
        within("held_max", self.held_max as u64, 0, 1_000_000)?;
        within("frame_deadline_ms", self.frame_deadline_ms, 1, 60_000)?;
        within("poll_wait_ms", self.poll_wait_ms, 0, 30_000)?;
        within("poll_backoff_max_ms", self.poll_backoff_max_ms, 100, 600_000)
    }
}

/// Refuses what no request could be sent to: better now than a failed frame at a time.
fn base_url(field: &'static str, text: &str) -> Result<(), SettingError> {
    let is_base = reqwest::Url::parse(text).is_ok_and(|url| {
        url.scheme() == "http" && url.has_host() && url.query().is_none() && url.fragment().is_none()
    });
    if is_base {
        Ok(())
    } else {
        Err(SettingError::new(field, text, "must be a base URL such as http://10.0.0.7:7401"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_named_after_its_region_unless_told_otherwise() {
        let mut settings = Settings { region: RegionId::new("us").unwrap(), ..Settings::default() };
        assert_eq!(settings.holder().unwrap().to_string(), "us/us-1");
        settings.agent = Some(AgentId::new("a".repeat(37)).unwrap());
        assert_eq!(settings.check().unwrap_err().field, "agent");
    }

    #[test]
    fn a_setting_out_of_range_is_named_with_its_range() {
        let settings =
            Settings { trusted_keys: vec!["k".to_owned()], poll_wait_ms: 30_001, ..Settings::default() };
        let error = settings.check().unwrap_err();
        assert_eq!(error.to_string(), "setting `poll_wait_ms` = 30001: must be 0 to 30000");
    }

    #[test]
    fn an_address_that_is_no_url_is_refused_before_anything_is_sent_to_it() {
        let with = |url: &str| Settings {
            trusted_keys: vec!["k".to_owned()],
            allocators: vec!["http://a:7401/".to_owned(), url.to_owned()],
            ..Settings::default()
        };
        assert_eq!(with("http://[::1]:7402").check(), Ok(()));
        for wrong in ["", "10.0.0.7:7401", "localhost:7401", "https://a", "http://", "http://a?b=c"] {
            assert_eq!(with(wrong).check().unwrap_err().field, "allocators", "{wrong:?}");
        }
        let publisher = Settings { publisher: "nowhere".to_owned(), ..with("http://a") };
        assert_eq!(publisher.check().unwrap_err().field, "publisher");
    }
}
