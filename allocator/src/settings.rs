//! What a deployment may set of an allocator replica.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use leasehold_protocol::NodeId;
use leasehold_protocol::time::DRIFT_PPM_DEFAULT;
use leasehold_transport::secret::Secret;
use leasehold_transport::settings::{SettingError, some, within};
use serde::{Deserialize, Serialize};

/// The most members of a cluster.
const MEMBERS_MAX: usize = 9;

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number; never given to another disk.
    pub node_id: NodeId,
    /// Where the others and the agents reach it: what a follower names when it is asked for the leader.
    pub url: String,
}

/// A replica's settings. All spans in ms.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Which of the members it is.
    pub node_id: NodeId,
    /// The cluster's name; a data directory and the messages between replicas carry it.
    pub cluster: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where its log, vote and snapshots are.
    pub data_dir: PathBuf,
    /// The members at the cluster's formation. The one with the lowest number forms it.
    pub members: Vec<Member>,
    /// The bearer token of all roles; required when it listens beyond loopback.
    pub admin_token: Option<Secret>,
    /// Public keys that may sign bundles, 32 bytes in base64 each.
    pub trusted_keys: Vec<String>,
    /// How many of them must sign.
    pub trusted_threshold: usize,
    /// How often a leader is heard at least.
    pub heartbeat_ms: u64,
    /// A follower that hears nothing stands for election after this, at the earliest.
    pub election_min_ms: u64,
    /// And at the latest. A failover takes about two of these.
    pub election_max_ms: u64,
    /// The bound on the rate error between any two clocks, in parts per million; the same at every role.
    pub drift_ppm: u32,
    /// How long a command may take to be committed; then its outcome is unknown and it may be repeated.
    pub commit_deadline_ms: u64,
    /// Requests that may wait for the log; beyond it a request is refused as overloaded.
    pub queue_len_max: usize,
    /// The most commands in one log entry.
    pub batch_len_max: usize,
    /// The most log entries on their way at once.
    pub entries_in_flight: usize,
    /// A snapshot is made after so many log entries.
    pub snapshot_after_entries: u64,
    /// Log entries kept behind a snapshot, for followers that lag.
    pub keep_entries: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node_id: NodeId(1),
            cluster: "leasehold".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7401)),
            data_dir: PathBuf::from("leasehold-data/allocator"),
            members: vec![Member { node_id: NodeId(1), url: "http://127.0.0.1:7401".to_owned() }],
            admin_token: None,
            trusted_keys: Vec::new(),
            trusted_threshold: 1,
            heartbeat_ms: 100,
            election_min_ms: 400,
            election_max_ms: 800,
            drift_ppm: DRIFT_PPM_DEFAULT,
            commit_deadline_ms: 2_000,
            queue_len_max: 4_096,
            batch_len_max: 1_024,
            entries_in_flight: 4,
            snapshot_after_entries: 20_000,
            keep_entries: 10_000,
        }
    }
}

impl Settings {
    /// The first setting that cannot be right, if any.
    pub fn check(&self) -> Result<(), SettingError> {
        let refused = |field, value: String, rule: &str| Err(SettingError::new(field, value, rule));
        let ids: BTreeSet<NodeId> = self.members.iter().map(|member| member.node_id).collect();
        if ids.len() != self.members.len() {
            return refused("members", format!("{:?}", self.members), "no two members share a number");
        }
        within("members", self.members.len() as u64, 1, MEMBERS_MAX as u64)?;
        if !ids.contains(&self.node_id) {
            return refused("node_id", self.node_id.to_string(), "must be one of `members`");
        }
        if let Some(bad) = self.members.iter().find(|member| !member.url.starts_with("http://")) {
            return refused("members", bad.url.clone(), "a member's URL begins with http://");
        }
        some("trusted_keys", self.trusted_keys.len())?;
        if self.cluster.is_empty() || self.cluster.len() > 64 {
            return refused("cluster", self.cluster.clone(), "must have 1 to 64 bytes");
        }
        within("heartbeat_ms", self.heartbeat_ms, 10, 60_000)?;
        within("election_min_ms", self.election_min_ms, self.heartbeat_ms.saturating_mul(2), 600_000)?;
        within("election_max_ms", self.election_max_ms, self.election_min_ms.saturating_add(1), 600_000)?;
        within("drift_ppm", u64::from(self.drift_ppm), 0, 100_000)?;
        within("commit_deadline_ms", self.commit_deadline_ms, 1, 60_000)?;
        within("queue_len_max", self.queue_len_max as u64, 1, 1_000_000)?;
        within("batch_len_max", self.batch_len_max as u64, 1, 100_000)?;
        within("entries_in_flight", self.entries_in_flight as u64, 1, 64)?;
        within("snapshot_after_entries", self.snapshot_after_entries, 10, 100_000_000)?;
        within("keep_entries", self.keep_entries, 0, 100_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_must_be_a_member_and_no_number_is_given_twice() {
        let member = |n| Member { node_id: NodeId(n), url: format!("http://h{n}:1") };
        let settings = Settings {
            members: vec![member(1), member(2)],
            node_id: NodeId(3),
            trusted_keys: vec!["k".to_owned()],
            ..Settings::default()
        };
        assert_eq!(settings.check().unwrap_err().field, "node_id");
        let settings = Settings { members: vec![member(1), member(1)], ..settings };
        assert_eq!(settings.check().unwrap_err().field, "members");
        let settings = Settings { members: vec![member(1), member(3)], ..settings };
        assert_eq!(settings.check(), Ok(()));
        let settings = Settings { election_min_ms: 100, ..settings };
        assert_eq!(
            settings.check().unwrap_err().to_string(),
            "setting `election_min_ms` = 100: must be 200 to 600000"
        );
    }
}
