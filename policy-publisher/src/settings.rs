//! What a deployment may set of the publisher.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use leasehold_transport::secret::Secret;
use leasehold_transport::settings::{SettingError, some, within};
use serde::{Deserialize, Serialize};

/// The publisher's settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where agents and operators reach it.
    pub listen: SocketAddr,
    /// Where released bundles survive a restart.
    pub data_dir: PathBuf,
    /// Base URLs of the allocator's replicas.
    pub allocators: Vec<String>,
    /// The bearer token of all roles; required when it listens beyond loopback.
    pub admin_token: Option<Secret>,
    /// The signing key: 32 bytes in base64, readable by its owner alone; made if it does not exist.
    /// `<data_dir>/signing.key` if not given.
    pub signing_key_file: Option<PathBuf>,
    /// A policy source that is published if the allocator has no policy yet.
    pub bootstrap_policy: Option<PathBuf>,
    /// The deadline of one call to the allocator, in ms.
    pub allocator_deadline_ms: u64,
    /// The most polls for newer bundles that wait at once; beyond it a poll is answered 503.
    pub waiters_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7410)),
            data_dir: PathBuf::from("leasehold-data/publisher"),
            allocators: (7401..=7403).map(|port| format!("http://127.0.0.1:{port}")).collect(),
            admin_token: None,
            signing_key_file: None,
            bootstrap_policy: None,
            allocator_deadline_ms: 3_000,
            waiters_max: 10_000,
        }
    }
}

impl Settings {
    /// Where the signing key is.
    pub fn signing_key_path(&self) -> PathBuf {
        self.signing_key_file.clone().unwrap_or_else(|| self.data_dir.join("signing.key"))
    }

    /// The first setting that cannot be right, if any.
    pub fn check(&self) -> Result<(), SettingError> {
        some("allocators", self.allocators.len())?;
        within("allocator_deadline_ms", self.allocator_deadline_ms, 1, 60_000)?;
        within("waiters_max", self.waiters_max as u64, 1, 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_out_of_range_is_named_with_its_range() {
        assert_eq!(Settings::default().check(), Ok(()));
        let error = Settings { waiters_max: 0, ..Settings::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "setting `waiters_max` = 0: must be 1 to 1000000");
    }

    #[test]
    fn the_key_lies_in_the_data_directory_unless_told_otherwise() {
        let settings = Settings { data_dir: "d".into(), ..Settings::default() };
        assert_eq!(settings.signing_key_path(), PathBuf::from("d/signing.key"));
    }
}
