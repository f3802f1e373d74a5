//! `leasehold dev`: every role on this machine, each as a process of its own, started again when it dies.

mod child;
mod plan;
mod ready;

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold_transport::files;
use leasehold_transport::secret::Secret;
use leasehold_transport::takeover::PATIENCE;

use crate::args::{DemoArgs, DevArgs, Layers, Output};
use crate::config::{self, ConfigError};
use crate::dev::child::{Child, Event};
use crate::dev::plan::Plan;
use crate::output;
use crate::roles::until_signal;
use crate::target::{DEV_FILE, DevRecord, RoleRecord, Target};

/// The policy that is published when there is none yet and no other is named.
const NORTHSTAR: &str = include_str!("../../docs/examples/northstar.yaml");
/// How long everything may take to become ready.
const READY_DEADLINE: Duration = Duration::from_mins(1);
/// What a token begins with, so that people and scanners know it.
const TOKEN_PREFIX: &str = "lhadm_";

pub(crate) async fn run(args: &DevArgs, layers: &Layers) -> anyhow::Result<bool> {
    let temporary = if args.ephemeral { Some(tempfile::tempdir()?) } else { None };
    let dir = temporary.as_ref().map_or(args.data_dir.as_path(), tempfile::TempDir::path);
    fs::create_dir_all(dir).with_context(|| format!("data directory {}", dir.display()))?;
    let dir = dir.canonicalize()?;
    let _lock = lock(&dir)?;
    // A setting that cannot be used is said here once, not by each process.
    config::load(layers)?;
    let policy = policy_file(args, &dir)?;
    let token = token(&dir.join("admin.token"))?;
    let plan = Plan::new(args, &dir, &policy, layers).map_err(ConfigError::Layers)?;
    // The record of a `dev` that was killed: its processes end by themselves, and may still be at it.
    let patience = if dir.join(DEV_FILE).exists() { PATIENCE } else { Duration::ZERO };
    plan.check_ports(patience).await?;

    let shutdown = until_signal(false)?;
    let mut fleet = Fleet::new(plan, dir.clone(), policy, token.clone());
    let started = tokio::select! {
        started = fleet.start() => started,
        () = shutdown.wait() => Ok(()),
    };
    if let Err(e) = started {
        fleet.stop().await;
        return Err(e);
    }
    if !fleet.is_ready {
        fleet.stop().await;
        return Ok(true);
    }
    announce(&fleet.record(), &dir, &token, args.ephemeral);
    let target = Target::of_dev(&fleet.record(), token);
    tokio::select! {
        () = shutdown.wait() => {}
        () = fleet.supervise() => {}
        shown = crate::demo::drive(&DemoArgs { for_s: None, rate: 30 }, &target, Output::Table), if args.demo => {
            shown?;
        }
    }
    eprintln!("stopping");
    fleet.stop().await;
    Ok(true)
}

/// All processes of one `dev`.
struct Fleet {
    plan: Plan,
    dir: PathBuf,
    policy: PathBuf,
    token: Secret,
    children: Vec<Child>,
    record: Arc<Mutex<DevRecord>>,
    is_ready: bool,
}

impl Fleet {
    fn new(plan: Plan, dir: PathBuf, policy: PathBuf, token: Secret) -> Self {
        let roles = plan.roles().map(|role| RoleRecord {
            role: role.kind.to_owned(),
            name: role.name.clone(),
            url: role.url.clone(),
            pid: 0,
        });
        let record = DevRecord {
            pid: std::process::id(),
            roles: roles.collect(),
            admin_token_file: dir.join("admin.token"),
        };
        let record = Arc::new(Mutex::new(record));
        Self { plan, dir, policy, token, children: Vec::new(), record, is_ready: false }
    }

    fn record(&self) -> DevRecord {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts the publisher first, since the others must know its public key; then the rest; waits until each works.
    async fn start(&mut self) -> anyhow::Result<()> {
        let publisher = self.plan.publisher();
        self.spawn(publisher.clone(), &[])?;
        let key = ready::public_key(&publisher.url, &self.token, &mut self.children, READY_DEADLINE).await?;
        ready::check_policy(&publisher.url, &self.token, &self.policy).await?;
        let others: Vec<plan::Role> = self.plan.roles().filter(|r| r.kind != "publisher").cloned().collect();
        for role in others {
            let trusted = format!("{}.trusted_keys=[\"{key}\"]", role.kind);
            self.spawn(role, &[trusted])?;
        }
        ready::wait(&self.record(), &self.token, &mut self.children, READY_DEADLINE).await?;
        self.is_ready = true;
        Ok(())
    }

    fn spawn(&mut self, role: plan::Role, more: &[String]) -> anyhow::Result<()> {
        let (record, file) = (Arc::clone(&self.record), self.dir.join(DEV_FILE));
        let name = (role.kind, role.name.clone());
        let note_pid = move |pid: u32| {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(one) = record.roles.iter_mut().find(|r| r.role == name.0 && r.name == name.1) {
                one.pid = pid;
            }
            // Only for other commands to read; without it they fall back to the default ports.
            let text = serde_json::to_vec_pretty(&*record).unwrap_or_default();
            if let Err(e) = files::replace(&file, &text) {
                tracing::warn!(error = %e, "dev.json cannot be written");
            }
        };
        self.children.push(Child::spawn(role, more, &self.token, note_pid)?);
        Ok(())
    }

    /// Says what dies and comes back; ends never.
    async fn supervise(&mut self) {
        let events: Vec<_> = self.children.iter_mut().map(Child::take_events).collect();
        let mut reporters = tokio::task::JoinSet::new();
        for mut events in events.into_iter().flatten() {
            reporters.spawn(async move {
                while let Some(event) = events.recv().await {
                    match event {
                        Event::Ended { name, how } => eprintln!("{name} ended ({how}); starting it again"),
                        Event::Started { name, pid } => eprintln!("{name} runs again, pid {pid}"),
                        Event::NotStarted { name, why } => eprintln!("{name} cannot be started: {why}"),
                    }
                }
            });
        }
        std::future::pending::<()>().await;
    }

    /// Agents first, so that they give their tokens back; the allocator last.
    async fn stop(&mut self) {
        for role in ["agent", "publisher", "allocator"] {
            let (these, rest): (Vec<Child>, Vec<Child>) =
                std::mem::take(&mut self.children).into_iter().partition(|child| child.role() == role);
            self.children = rest;
            let mut stopping = tokio::task::JoinSet::new();
            for child in these {
                stopping.spawn(child.stop());
            }
            while stopping.join_next().await.is_some() {}
        }
        // Left over, it would only send other commands to ports where nobody is.
        drop(fs::remove_file(self.dir.join(DEV_FILE)));
    }
}

fn announce(record: &DevRecord, dir: &Path, token: &Secret, ephemeral: bool) {
    let mut table = output::table(["ROLE", "", "URL", "PID"]);
    for role in &record.roles {
        table.add_row([role.role.clone(), role.name.clone(), role.url.clone(), role.pid.to_string()]);
    }
    output::print_table(&table);
    let kept = if ephemeral { " (goes with this command)" } else { "" };
    output::print(&format!(
        "\ndata         {}{kept}\nadmin token  {}\n\nready\n",
        dir.display(),
        token.expose()
    ));
}

/// One `dev` a directory.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join("dev.lock"))?;
    if file.try_lock().is_err() {
        bail!("another `leasehold dev` uses {}: stop it, or give another --data-dir", dir.display());
    }
    Ok(file)
}

/// The source that is published first: a copy in the data directory, so that it can be edited there.
fn policy_file(args: &DevArgs, dir: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.policy {
        return path.canonicalize().with_context(|| format!("--policy {}", path.display()));
    }
    let path = dir.join("policy.yaml");
    if !path.exists() {
        files::replace(&path, NORTHSTAR.as_bytes())?;
    }
    Ok(path)
}

/// The stored token, or a new one; readable by its owner alone.
fn token(path: &Path) -> anyhow::Result<Secret> {
    if path.exists() {
        return Ok(config::read_token(path)?);
    }
    let mut bytes = [0_u8; 24];
    getrandom::fill(&mut bytes).context("the system gives no random numbers")?;
    let token = bytes.iter().fold(TOKEN_PREFIX.to_owned(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.token");
        let first = token(&path).unwrap();
        assert!(first.expose().starts_with("lhadm_") && first.expose().len() == 54);
        assert_eq!(token(&path).unwrap(), first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_data_directory_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        assert!(lock(folder.path()).unwrap_err().to_string().contains("--data-dir"));
        drop(first);
        assert!(lock(folder.path()).is_ok());
    }
}
