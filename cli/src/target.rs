//! Whom the operator's commands talk to: as configured, else a running `leasehold dev`, else its default ports.

use std::path::Path;
use std::time::Duration;

use leasehold_gateway_client::{AgentClient, ClientSettings};
use leasehold_transport::client::{ClientError, HttpClient, LeaderClient};
use leasehold_transport::secret::Secret;
use serde::{Deserialize, Serialize};

use crate::args::Layers;
use crate::config::{self, ConfigError};

/// What `leasehold dev` writes into its data directory.
pub(crate) const DEV_FILE: &str = "dev.json";
/// The deadline of one call.
const DEADLINE: Duration = Duration::from_secs(3);
/// The deadline of a publication: it waits for a commit.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(30);

/// A running `leasehold dev`, for other commands and for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DevRecord {
    /// The process id of the command itself.
    pub pid: u32,
    /// Every role, in the order of the table.
    pub roles: Vec<RoleRecord>,
    /// Where the admin token is.
    pub admin_token_file: std::path::PathBuf,
}

/// One role of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RoleRecord {
    /// `allocator`, `publisher` or `agent`.
    pub role: String,
    /// The replica's number or the region.
    pub name: String,
    /// Its base URL.
    pub url: String,
    /// Its process id; 0 while it is being started again.
    pub pid: u32,
}

impl DevRecord {
    /// The base URLs of a role.
    fn urls(&self, role: &str) -> Vec<String> {
        self.roles.iter().filter(|r| r.role == role).map(|r| r.url.clone()).collect()
    }
}

/// Whom to talk to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Base URLs of the allocator's replicas.
    pub allocators: Vec<String>,
    /// The publisher's base URL.
    pub publisher: String,
    /// Base URLs of the agents.
    pub agents: Vec<String>,
    token: Option<Secret>,
}

impl Target {
    /// The target of these layers.
    pub(crate) fn new(layers: &Layers) -> Result<Self, ConfigError> {
        let config = config::load(layers)?;
        let dev = read_dev(Path::new("leasehold-data"));
        let dev_urls = |role: &str| dev.as_ref().map(|d| d.urls(role));
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        let token = config.admin_token.or_else(|| {
            let file = &dev.as_ref()?.admin_token_file;
            config::read_token(file).ok()
        });
        Ok(Self {
            allocators: (config.client.allocators)
                .or_else(|| dev_urls("allocator"))
                .unwrap_or_else(|| vec![local(7401), local(7402), local(7403)]),
            publisher: (config.client.publisher)
                .or_else(|| dev_urls("publisher").and_then(|urls| urls.into_iter().next()))
                .unwrap_or_else(|| local(7410)),
            agents: (config.client.agents)
                .or_else(|| dev_urls("agent"))
                .unwrap_or_else(|| vec![local(7421), local(7422)]),
            token,
        })
    }

    /// The target that a `leasehold dev` of this process started.
    pub(crate) fn of_dev(record: &DevRecord, token: Secret) -> Self {
        Self {
            allocators: record.urls("allocator"),
            publisher: record.urls("publisher").into_iter().next().unwrap_or_default(),
            agents: record.urls("agent"),
            token: Some(token),
        }
    }

    /// A client for reads.
    pub(crate) fn http(&self) -> Result<HttpClient, ClientError> {
        HttpClient::new(self.token.clone(), DEADLINE)
    }

    /// A client for publications.
    pub(crate) fn patient_http(&self) -> Result<HttpClient, ClientError> {
        HttpClient::new(self.token.clone(), PUBLISH_DEADLINE)
    }

    /// A client of whichever allocator replica answers: any serves reads.
    pub(crate) fn allocator(&self) -> Result<LeaderClient, ClientError> {
        Ok(LeaderClient::new(self.http()?, self.allocators.clone()))
    }

    /// Clients of the agents.
    pub(crate) fn agent_clients(&self) -> anyhow::Result<Vec<AgentClient>> {
        let token = self.token.as_ref().map(|t| t.expose().to_owned());
        let settings = ClientSettings { token, ..ClientSettings::default() };
        let clients = self.agents.iter().map(|url| AgentClient::new(url.clone(), settings.clone()));
        Ok(clients.collect::<Result<_, _>>()?)
    }
}

fn read_dev(folder: &Path) -> Option<DevRecord> {
    let bytes = std::fs::read(folder.join(DEV_FILE)).ok()?;
    serde_json::from_slice(&bytes).ok()
}
