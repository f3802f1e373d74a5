//! One process: started, watched, started again.

use std::fs::{self, OpenOptions};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leasehold_transport::secret::Secret;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};

use super::plan::Role;

/// The first and the longest pause before a process is started again; it doubles while the process dies young.
const RESTART_MIN: Duration = Duration::from_millis(200);
const RESTART_MAX: Duration = Duration::from_secs(5);
/// A process that ran this long has not died young.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// How long a process may take to end before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(8);
/// A log that is longer at the start is set aside, in bytes.
const LOG_LEN_MAX: u64 = 16 * 1024 * 1024;
/// Events nobody reads are dropped beyond this many.
const EVENTS_MAX: usize = 64;
/// How the line begins that a role ends with when it fails.
const ERROR_PREFIX: &str = "leasehold: ";

/// What happens to a process.
#[derive(Debug)]
pub(super) enum Event {
    /// It ended although it should not.
    Ended {
        /// Which.
        name: String,
        /// How.
        how: String,
    },
    /// It runs again.
    Started {
        /// Which.
        name: String,
        /// Its new process id.
        pid: u32,
    },
    /// It could not be started; tried again later.
    NotStarted {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
}

/// A watched process.
#[derive(Debug)]
pub(super) struct Child {
    role: Role,
    stop: oneshot::Sender<()>,
    watch: tokio::task::JoinHandle<()>,
    events: Option<mpsc::Receiver<Event>>,
}

impl Child {
    /// Starts the process and watches it. `note_pid` hears of each new process id.
    pub(super) fn spawn(
        role: Role,
        more: &[String],
        token: &Secret,
        note_pid: impl Fn(u32) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut args = role.args.clone();
        for set in more {
            args.extend(["--set".to_owned(), set.clone()]);
        }
        let start = Start { role: role.clone(), args, token: token.clone() };
        let process = start.start().with_context(|| format!("the {} cannot be started", role.title()))?;
        note_pid(process.id().unwrap_or(0));
        let (stop, stopped) = oneshot::channel();
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let watch = tokio::spawn(watch(start, process, stopped, sender, note_pid));
        Ok(Self { role, stop, watch, events: Some(events) })
    }

    /// Which role it runs.
    pub(super) fn role(&self) -> &'static str {
        self.role.kind
    }

    /// Its events, the first time.
    pub(super) fn take_events(&mut self) -> Option<mpsc::Receiver<Event>> {
        self.events.take()
    }

    /// The error that it ended with before it ever worked: what it said last.
    pub(super) fn early_end(&mut self) -> Option<anyhow::Error> {
        match self.events.as_mut()?.try_recv().ok()? {
            Event::Ended { name, how } => {
                let said = last_words(&self.role);
                Some(anyhow::anyhow!("the {name} ended ({how}): {said}"))
            }
            Event::NotStarted { name, why } => Some(anyhow::anyhow!("the {name} cannot be started: {why}")),
            Event::Started { .. } => None,
        }
    }

    /// Lets it end by itself, kills it if it does not.
    pub(super) async fn stop(self) {
        // An error means that the watcher is gone, and the process with it.
        let _ = self.stop.send(());
        if let Err(e) = self.watch.await {
            tracing::error!(error = %e, "a watcher ended by itself");
        }
    }
}

/// How to start a process, again and again.
struct Start {
    role: Role,
    args: Vec<String>,
    token: Secret,
}

impl Start {
    fn start(&self) -> std::io::Result<tokio::process::Child> {
        if let Some(folder) = self.role.log.parent() {
            fs::create_dir_all(folder)?;
        }
        if fs::metadata(&self.role.log).is_ok_and(|m| m.len() > LOG_LEN_MAX) {
            fs::rename(&self.role.log, self.role.log.with_extension("log.old"))?;
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.role.log)?;
        Command::new(std::env::current_exe()?)
            .args(&self.args)
            // Not an argument: other users can read those.
            .env("LEASEHOLD_ADMIN_TOKEN", self.token.expose())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C on the terminal reaches `dev` alone, which ends its processes in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }
}

async fn watch(
    start: Start,
    mut process: tokio::process::Child,
    mut stopped: oneshot::Receiver<()>,
    events: mpsc::Sender<Event>,
    note_pid: impl Fn(u32) + Send,
) {
    let name = start.role.title();
    let mut pause = RESTART_MIN;
    loop {
        let since = Instant::now();
        // Waiting would close it, and its end asks the process to end.
        let stdin = process.stdin.take();
        let how = tokio::select! {
            ended = process.wait() => in_words(ended),
            _ = &mut stopped => {
                drop(stdin);
                return end(process, &name).await;
            }
        };
        note_pid(0);
        // A full queue means that nobody reads; the process is started again all the same.
        let _ = events.try_send(Event::Ended { name: name.clone(), how });
        pause = if since.elapsed() > HEALTHY_AFTER { RESTART_MIN } else { (pause * 2).min(RESTART_MAX) };
        process = loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = &mut stopped => return,
            }
            match start.start() {
                Ok(process) => break process,
                Err(e) => {
                    let _ = events.try_send(Event::NotStarted { name: name.clone(), why: e.to_string() });
                    pause = (pause * 2).min(RESTART_MAX);
                }
            }
        };
        let pid = process.id().unwrap_or(0);
        note_pid(pid);
        let _ = events.try_send(Event::Started { name: name.clone(), pid });
    }
}

/// Waits for a process that was asked to end, and kills it if it does not.
async fn end(mut process: tokio::process::Child, name: &str) {
    if tokio::time::timeout(STOP_DEADLINE, process.wait()).await.is_err() {
        eprintln!("{name} does not end and is killed");
        if let Err(e) = process.kill().await {
            eprintln!("{name} cannot be killed: {e}");
        }
    }
}

fn in_words(ended: std::io::Result<ExitStatus>) -> String {
    ended.map_or_else(|e| e.to_string(), |status| status.to_string())
}

fn last_words(role: &Role) -> String {
    let bytes = fs::read(&role.log).unwrap_or_default();
    let tail = bytes.get(bytes.len().saturating_sub(4_096)..).unwrap_or_default();
    why_it_ended(&String::from_utf8_lossy(tail))
}

/// The error that a log ends with, or its last line; others may write to the same log after the error.
fn why_it_ended(log: &str) -> String {
    let mut lines = log.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.clone().next();
    let error = lines.find_map(|line| line.strip_prefix(ERROR_PREFIX));
    error.or(last).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_told_and_not_what_was_logged_after_it() {
        let log = "INFO starts\nleasehold: allocator: no room\nWARN a former life ends\n\n";
        assert_eq!(why_it_ended(log), "allocator: no room");
        assert_eq!(why_it_ended("INFO a\nINFO b\n"), "INFO b");
        assert_eq!(why_it_ended(""), "it said nothing");
    }
}
