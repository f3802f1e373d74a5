//! `leasehold`: one binary that runs each role, all of them together, and the operator's commands.

mod args;
mod config;
mod demo;
mod dev;
mod ops;
mod output;
mod roles;
mod target;

use std::process::ExitCode;

use clap::Parser as _;
use leasehold_transport::telemetry;

use crate::args::{Cli, Command};
use crate::config::ConfigError;

/// Done.
const DONE: u8 = 0;
/// Refused or failed.
const FAILED: u8 = 1;
/// Wrong usage: an argument or a setting.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let is_role = matches!(cli.command, Command::Allocator(_) | Command::Publisher(_) | Command::Agent(_));
    telemetry::init(if is_role { telemetry::ROLE } else { telemetry::COMMAND });
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("leasehold: cannot start: {e}");
            return ExitCode::from(FAILED);
        }
    };
    let done = runtime.block_on(run(cli));
    // What still runs is cut: a role has ended its own work by now.
    runtime.shutdown_background();
    match done {
        Ok(true) => ExitCode::from(DONE),
        Ok(false) => ExitCode::from(FAILED),
        Err(e) => {
            eprintln!("leasehold: {}", in_one_line(&e));
            ExitCode::from(if is_usage(&e) { USAGE } else { FAILED })
        }
    }
}

/// An error with its causes, each said once.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said.extend([": ", &cause]);
        }
    }
    said.replace('\n', " ")
}

/// True if what was asked for or set cannot be right, whatever the world is like.
fn is_usage(error: &anyhow::Error) -> bool {
    use leasehold_agent::RunError as Agent;
    use leasehold_allocator::RunError as Allocator;
    use leasehold_publisher::RunError as Publisher;
    error.is::<ConfigError>()
        || matches!(error.downcast_ref(), Some(Allocator::Setting(_) | Allocator::Key(_)))
        || matches!(error.downcast_ref(), Some(Agent::Setting(_) | Agent::Key(_)))
        || matches!(error.downcast_ref(), Some(Publisher::Setting(_)))
}

/// True if all went well; false if it was said already what did not.
async fn run(cli: Cli) -> anyhow::Result<bool> {
    let layers = cli.layers;
    match cli.command {
        Command::Dev(args) => dev::run(&args, &layers).await,
        Command::Allocator(args) => roles::allocator(&args, &layers).await,
        Command::Publisher(args) => roles::publisher(&args, &layers).await,
        Command::Agent(args) => roles::agent(&args, &layers).await,
        Command::Demo(args) => demo::run(&args, &layers, cli.output).await,
        Command::Config(args) => config::show::run(&args, &layers, cli.output),
        Command::Status => ops::status::run(&layers, cli.output).await,
        Command::Pools(args) => ops::pools::run(&args, &layers, cli.output).await,
        Command::Leases(args) => ops::leases::run(&args, &layers, cli.output).await,
        Command::Explain(args) => ops::explain::run(&args, &layers, cli.output).await,
        Command::Bundle(args) => ops::bundle::run(args.command, &layers, cli.output).await,
    }
}
