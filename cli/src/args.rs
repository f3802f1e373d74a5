//! What the command line takes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold_protocol::{BundleVersion, NodeId, RegionId};

/// Multi-region quotas without overshoot: an allocator, regional agents and a policy publisher.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Where settings come from.
    #[command(flatten)]
    pub layers: Layers,
    /// How to print: a table for people, or the API's own JSON.
    #[arg(short = 'o', long = "output", global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The layers of settings above the defaults: a file, `LEASEHOLD_*` variables, flags; the later wins.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Layers {
    /// Settings file (TOML) [default: ./leasehold.toml if it exists]
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_CONFIG")]
    pub config: Option<PathBuf>,
    /// One setting, such as `agent.hold_ms=100`; may be given more than once
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine: three allocator replicas, a publisher, one agent a region
    Dev(DevArgs),
    /// Run one allocator replica
    Allocator(AllocatorArgs),
    /// Run the policy publisher
    Publisher(RoleArgs),
    /// Run a regional agent
    Agent(AgentArgs),
    /// Drive Atlas's and Birch's traffic at running agents and draw what is admitted
    Demo(DemoArgs),
    /// Show the effective settings and where each comes from
    Config(ConfigArgs),
    /// Show every role's state; exits with 1 if one does not answer
    Status,
    /// Show pools: limit, remaining, leased and spent tokens of each window
    Pools(PoolsArgs),
    /// Show leases: who holds how many tokens of which window
    Leases(LeasesArgs),
    /// Show which rules apply to a request, why, and what is left
    Explain(ExplainArgs),
    /// Publish, check and fetch policy bundles
    Bundle(BundleArgs),
}

/// `leasehold dev`
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Where everything is kept; survives Ctrl-C, kill -9 and restart
    #[arg(long, value_name = "DIR", default_value = "leasehold-data")]
    pub data_dir: PathBuf,
    /// Keep everything in a temporary directory that goes with the command
    #[arg(long, conflicts_with = "data_dir")]
    pub ephemeral: bool,
    /// Ports are this plus 1-3 (allocator), 10 (publisher), 21 and up (agents)
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    pub port_base: u16,
    /// One agent for each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "eu,us")]
    pub regions: Vec<RegionId>,
    /// Policy source that is published when there is no policy yet [default: the Northstar example]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Drive the demo's traffic too
    #[arg(long)]
    pub demo: bool,
}

/// What each role takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct RoleArgs {
    /// Where it listens, such as 127.0.0.1:7401; beyond loopback an admin token is needed
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Where it keeps what must survive a restart
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

/// `leasehold allocator`
#[derive(Debug, Args)]
pub(crate) struct AllocatorArgs {
    /// What each role takes.
    #[command(flatten)]
    pub role: RoleArgs,
    /// Which of the members this replica is
    #[arg(long, value_name = "N", value_parser = parse_number::<NodeId>)]
    pub node_id: Option<NodeId>,
}

/// `leasehold agent`
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// What each role takes.
    #[command(flatten)]
    pub role: RoleArgs,
    /// The region it serves
    #[arg(long, value_name = "NAME")]
    pub region: Option<RegionId>,
}

/// `leasehold demo`
#[derive(Debug, Default, Args)]
pub(crate) struct DemoArgs {
    /// End after so many seconds [default: at Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS")]
    pub for_s: Option<u64>,
    /// Atlas's demand over all regions, in requests a second
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
}

/// `leasehold config`
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// What to do with the settings.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// `leasehold config ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the effective values with their origin; secrets are not shown
    Show {
        /// Only settings whose name begins so, such as `agent`
        #[arg(value_name = "PREFIX")]
        prefix: Option<String>,
    },
}

/// `leasehold pools`
#[derive(Debug, Args)]
pub(crate) struct PoolsArgs {
    /// Only this rule
    #[arg(long)]
    pub rule: Option<String>,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Closed windows too
    #[arg(long)]
    pub all: bool,
}

/// `leasehold leases`
#[derive(Debug, Args)]
pub(crate) struct LeasesArgs {
    /// Only this rule
    #[arg(long)]
    pub rule: Option<String>,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
}

/// `leasehold explain`
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The route's id, or its pattern such as `GET /catalog`
    pub route: String,
    /// The tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// The identity inside the tenant
    #[arg(long)]
    pub principal: Option<String>,
    /// The client's address
    #[arg(long)]
    pub source: Option<IpAddr>,
    /// Ask the agent of this region [default: the first]
    #[arg(long)]
    pub region: Option<RegionId>,
}

/// `leasehold bundle`
#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// What to do with bundles.
    #[command(subcommand)]
    pub command: BundleCommand,
}

/// `leasehold bundle ...`
#[derive(Debug, Subcommand)]
pub(crate) enum BundleCommand {
    /// Compile, sign and release a policy source
    Publish {
        /// The source, YAML or JSON; `-` reads standard input
        file: PathBuf,
    },
    /// Say what is wrong or suspicious about a policy source; publish nothing
    Validate {
        /// The source, YAML or JSON; `-` reads standard input
        file: PathBuf,
    },
    /// Make the publisher's signing key if there is none, and print its public half for `trusted_keys`
    Key {
        /// Where the private key is kept; only its owner can read it
        file: PathBuf,
    },
    /// Print a released bundle's content
    Show {
        /// Its version [default: the newest]
        #[arg(value_parser = parse_number::<BundleVersion>)]
        version: Option<BundleVersion>,
    },
}

/// A newtype over a number.
fn parse_number<T: FromNumber>(text: &str) -> Result<T, std::num::ParseIntError> {
    text.parse().map(T::from_number)
}

trait FromNumber {
    fn from_number(number: u64) -> Self;
}

impl FromNumber for NodeId {
    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl FromNumber for BundleVersion {
    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
