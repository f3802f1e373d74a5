//! Which processes run, where they listen and what each is told.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use leasehold_transport::takeover::take_over_within;

use crate::args::{DevArgs, Layers};

/// Allocator replicas.
const REPLICAS: u16 = 3;
/// The most regions: their ports lie between the first agent's and those kept for gRPC.
const REGIONS_MAX: usize = 50;
const PUBLISHER_OFFSET: u16 = 10;
const AGENT_OFFSET: u16 = 21;

/// One process.
#[derive(Debug, Clone)]
pub(super) struct Role {
    /// `allocator`, `publisher` or `agent`.
    pub kind: &'static str,
    /// The replica's number or the region; empty for the publisher.
    pub name: String,
    /// Where it is reached.
    pub url: String,
    /// Its port on loopback.
    pub port: u16,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it logs.
    pub log: std::path::PathBuf,
}

impl Role {
    /// For messages: `allocator 2`.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.kind, self.name).trim_end().to_owned()
    }
}

/// All processes, in the order of the table.
#[derive(Debug)]
pub(super) struct Plan {
    allocators: Vec<Role>,
    publisher: Role,
    agents: Vec<Role>,
}

impl Plan {
    /// The plan; an error is wrong usage.
    pub(super) fn new(args: &DevArgs, dir: &Path, policy: &Path, layers: &Layers) -> Result<Self, String> {
        let regions = &args.regions;
        if regions.is_empty() || regions.len() > REGIONS_MAX {
            return Err(format!("--regions: {} given; 1 to {REGIONS_MAX} are possible", regions.len()));
        }
        if let Some(twice) = regions.iter().find(|r| regions.iter().filter(|other| other == r).count() > 1) {
            return Err(format!("--regions: {twice} is given twice"));
        }
        let most = AGENT_OFFSET + u16::try_from(REGIONS_MAX).unwrap_or(u16::MAX);
        if args.port_base == 0 || args.port_base.checked_add(most).is_none() {
            return Err(format!("--port-base {}: 1 to {} are possible", args.port_base, u16::MAX - most));
        }
        let logs = dir.join("logs");
        let role = |role: &'static str, name: String, offset: u16, sets: Vec<String>| {
            let port = args.port_base + offset;
            let folder = if name.is_empty() { role.to_owned() } else { format!("{role}-{name}") };
            let mut args = vec![role.to_owned(), "--exit-with-parent".to_owned()];
            args.extend(["--listen".to_owned(), format!("{}:{port}", Ipv4Addr::LOCALHOST)]);
            args.extend(["--data-dir".to_owned(), dir.join(&folder).display().to_string()]);
            if let Some(file) = &layers.config {
                args.extend(["--config".to_owned(), file.display().to_string()]);
            }
            for set in layers.set.iter().chain(&sets) {
                args.extend(["--set".to_owned(), set.clone()]);
            }
            Role { kind: role, name, url: local(port), port, args, log: logs.join(format!("{folder}.log")) }
        };
        let replica_urls: Vec<String> = (1..=REPLICAS).map(|n| local(args.port_base + n)).collect();
        let members: Vec<String> = (1..=REPLICAS)
            .zip(&replica_urls)
            .map(|(n, url)| format!("{{node_id={n}, url={}}}", quoted(url)))
            .collect();
        let allocator_list = replica_urls.iter().map(|url| quoted(url)).collect::<Vec<_>>().join(", ");
        let publisher_url = local(args.port_base + PUBLISHER_OFFSET);

        let allocators = (1..=REPLICAS)
            .map(|n| {
                let sets = vec![
                    format!("allocator.node_id={n}"),
                    format!("allocator.members=[{}]", members.join(", ")),
                ];
                role("allocator", n.to_string(), n, sets)
            })
            .collect();
        let publisher = role(
            "publisher",
            String::new(),
            PUBLISHER_OFFSET,
            vec![
                format!("publisher.allocators=[{allocator_list}]"),
                format!(
                    "publisher.signing_key_file={}",
                    quoted(&dir.join("publisher.key").display().to_string())
                ),
                format!("publisher.bootstrap_policy={}", quoted(&policy.display().to_string())),
            ],
        );
        let agents = (AGENT_OFFSET..)
            .zip(regions)
            .map(|(offset, region)| {
                let sets = vec![
                    format!("agent.region={}", quoted(region.as_str())),
                    format!("agent.agent={}", quoted(&format!("{region}-1"))),
                    format!("agent.allocators=[{allocator_list}]"),
                    format!("agent.publisher={}", quoted(&publisher_url)),
                ];
                role("agent", region.to_string(), offset, sets)
            })
            .collect();
        Ok(Self { allocators, publisher, agents })
    }

    /// Every process.
    pub(super) fn roles(&self) -> impl Iterator<Item = &Role> {
        self.allocators.iter().chain([&self.publisher]).chain(&self.agents)
    }

    /// The publisher.
    pub(super) fn publisher(&self) -> Role {
        self.publisher.clone()
    }

    /// Refuses before anything is started if a port is taken.
    pub(super) async fn check_ports(&self, patience: Duration) -> anyhow::Result<()> {
        for role in self.roles() {
            let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, role.port));
            let is_in_use = |e: &io::Error| e.kind() == io::ErrorKind::AddrInUse;
            if let Err(e) = take_over_within(patience, bind, is_in_use).await {
                bail!(
                    "port {} for the {} is not free ({e}): give another --port-base",
                    role.port,
                    role.title()
                );
            }
        }
        Ok(())
    }
}

fn local(port: u16) -> String {
    format!("http://{}:{port}", Ipv4Addr::LOCALHOST)
}

/// A text that reads as a text whatever is in it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use leasehold_protocol::RegionId;

    use super::*;

    fn args(regions: &[&str], port_base: u16) -> DevArgs {
        DevArgs {
            data_dir: PathBuf::from("d"),
            ephemeral: false,
            port_base,
            regions: regions.iter().map(|r| RegionId::new(r).unwrap()).collect(),
            policy: None,
            demo: false,
        }
    }

    fn plan(regions: &[&str], port_base: u16) -> Result<Plan, String> {
        Plan::new(&args(regions, port_base), Path::new("d"), Path::new("p"), &Layers::default())
    }

    #[test]
    fn ports_are_those_of_the_documentation_and_move_with_the_base() {
        let ports: Vec<u16> = plan(&["eu", "us", "ap"], 7400).unwrap().roles().map(|r| r.port).collect();
        assert_eq!(ports, [7401, 7402, 7403, 7410, 7421, 7422, 7423]);
        assert_eq!(plan(&["eu"], 9000).unwrap().roles().last().unwrap().port, 9021);
    }

    #[test]
    fn regions_that_repeat_and_ports_beyond_the_last_are_refused() {
        assert!(plan(&["eu", "eu"], 7400).unwrap_err().contains("eu is given twice"));
        assert!(plan(&["eu"], 65_500).unwrap_err().contains("--port-base 65500"));
        assert!(plan(&[], 7400).is_err());
    }

    #[test]
    fn each_process_reads_the_settings_it_is_told() {
        for role in plan(&["eu", "us"], 7400).unwrap().roles() {
            let set = role.args.iter().zip(role.args.iter().skip(1)).filter(|(flag, _)| *flag == "--set");
            let layers = Layers { config: None, set: set.map(|(_, value)| value.clone()).collect() };
            let config = crate::config::load(&layers).unwrap();
            match (role.kind, role.name.as_str()) {
                ("allocator", name) => {
                    assert_eq!(config.allocator.node_id.to_string(), name);
                    assert_eq!(config.allocator.members.len(), 3);
                }
                ("agent", name) => assert_eq!(config.agent.region.as_str(), name),
                _ => assert_eq!(config.publisher.allocators.len(), 3),
            }
        }
    }
}
