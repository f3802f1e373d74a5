//! Runs one role in this process until a signal.

use std::sync::Arc;

use anyhow::Context as _;
use leasehold_transport::shutdown::{Shutdown, ShutdownTrigger};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{AgentArgs, AllocatorArgs, Layers, RoleArgs};
use crate::config::Settings;

pub(crate) async fn allocator(args: &AllocatorArgs, layers: &Layers) -> anyhow::Result<bool> {
    let settings = role_settings("allocator", &args.role, layers)?
        .with_flag("--node-id", "allocator.node_id", args.node_id)
        .extract()?
        .allocator;
    leasehold_allocator::run(settings, until_signal(args.role.exit_with_parent)?)
        .await
        .context("allocator")?;
    Ok(true)
}

pub(crate) async fn publisher(args: &RoleArgs, layers: &Layers) -> anyhow::Result<bool> {
    let settings = role_settings("publisher", args, layers)?.extract()?.publisher;
    leasehold_publisher::run(settings, until_signal(args.exit_with_parent)?).await.context("publisher")?;
    Ok(true)
}

pub(crate) async fn agent(args: &AgentArgs, layers: &Layers) -> anyhow::Result<bool> {
    let settings = role_settings("agent", &args.role, layers)?
        .with_flag("--region", "agent.region", args.region.as_ref())
        .extract()?
        .agent;
    leasehold_agent::run(settings, until_signal(args.role.exit_with_parent)?).await.context("agent")?;
    Ok(true)
}

fn role_settings(role: &str, args: &RoleArgs, layers: &Layers) -> anyhow::Result<Settings> {
    Ok(Settings::new(layers)?.with_flag("--listen", &format!("{role}.listen"), args.listen).with_flag(
        "--data-dir",
        &format!("{role}.data_dir"),
        args.data_dir.as_ref(),
    ))
}

/// Resolves at SIGINT, SIGTERM or, if asked, at the end of standard input. A second signal ends the process at once.
pub(crate) fn until_signal(exit_with_parent: bool) -> anyhow::Result<Shutdown> {
    let (trigger, shutdown) = Shutdown::new();
    let trigger = Arc::new(trigger);
    if exit_with_parent {
        end_with_stdin(Arc::clone(&trigger));
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        let mut given = false;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if given {
                eprintln!("leasehold: ended at once by a second signal");
                std::process::exit(130);
            }
            given = true;
            trigger.trigger();
        }
    });
    Ok(shutdown)
}

/// Gives the signal when standard input ends: whoever holds its other end is gone.
fn end_with_stdin(trigger: Arc<ShutdownTrigger>) {
    std::thread::spawn(move || {
        let mut nowhere = std::io::sink();
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut nowhere);
        trigger.trigger();
    });
}
