//! The whole product as its users run it: `leasehold dev` and its processes, started by a test on free ports.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold_gateway_client::{AgentClient, ClientSettings};
use leasehold_protocol::admin::ClusterView;
use serde_json::Value;

/// How long anything may take: a bound against hanging, not a claim about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A running `leasehold dev` in a folder of its own.
pub(crate) struct Dev {
    child: Child,
    folder: PathBuf,
    /// The first port that it uses, less one.
    pub(crate) port_base: u16,
    /// What it printed up to the word `ready`.
    pub(crate) printed: String,
}

impl Dev {
    /// Starts it in `folder` and waits for the word `ready`.
    pub(crate) fn start(folder: &Path, port_base: u16, more: &[&str]) -> Self {
        let mut child = leasehold(folder)
            .args(["dev", "--port-base", &port_base.to_string()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // An error means that the test waits no longer; the pipe is still drained.
                let _ = sender.send(line);
            }
        });
        let mut printed = String::new();
        loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) if line == "ready" => break,
                Ok(line) => printed.extend([line.as_str(), "\n"]),
                Err(e) => {
                    let _ = child.kill();
                    panic!("no `ready`: {e}; it printed {printed:?}; logs:\n{}", logs(folder));
                }
            }
        }
        Self { child, folder: folder.to_owned(), port_base, printed }
    }

    /// A client of the agent at this place in the order of the regions.
    pub(crate) fn agent(&self, place: u16) -> AgentClient {
        let url = format!("http://127.0.0.1:{}", self.port_base + 21 + place);
        AgentClient::new(url, ClientSettings { deadline_ms: 5_000, token: None }).unwrap()
    }

    /// The command line's JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let out = self.command(args);
        serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&out.stderr)))
    }

    /// Runs an operator's command in the same folder.
    pub(crate) fn command(&self, args: &[&str]) -> Output {
        leasehold(&self.folder).args(args).output().unwrap()
    }

    /// The replica that leads in a later term than `after`, according to itself.
    pub(crate) async fn leader(&self, after: u64) -> Option<ClusterView> {
        let http = reqwest::Client::builder().timeout(Duration::from_millis(300)).no_proxy().build().unwrap();
        for node in 1..=3 {
            let url = format!("http://127.0.0.1:{}/v1/cluster", self.port_base + node);
            let Ok(answer) = http.get(url).send().await else { continue };
            if let Ok(view) = answer.json::<ClusterView>().await
                && view.state == "leader"
                && view.term > after
            {
                return Some(view);
            }
        }
        None
    }

    /// Ends it as Ctrl-C does, and waits.
    pub(crate) fn interrupt(mut self) {
        signal(self.child.id(), "INT");
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it without a word, and waits until its processes have noticed.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !ports(self.port_base).all(is_free) {
            assert!(Instant::now() < deadline, "a process outlives the command that started it");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn leasehold(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.current_dir(folder);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LEASEHOLD_")) {
        command.env_remove(name);
    }
    command
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(done.success(), "kill -{name} {pid}");
}

/// A base whose ports are free now.
pub(crate) fn free_port_base() -> u16 {
    let mut seed = [0_u8; 2];
    getrandom::fill(&mut seed).unwrap();
    let start = u16::from_le_bytes(seed) % 250;
    (0..250_u16)
        .map(|step| 10_000 + (start + step) % 250 * 60)
        .find(|base| ports(*base).all(is_free))
        .expect("some of 250 ranges are free")
}

fn ports(base: u16) -> impl Iterator<Item = u16> {
    [1, 2, 3, 10, 21, 22, 23].into_iter().map(move |offset| base + offset)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn logs(folder: &Path) -> String {
    let Ok(files) = std::fs::read_dir(folder.join("leasehold-data/logs")) else { return String::new() };
    let mut all = Vec::new();
    for file in files.flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.iter().skip(lines.len().saturating_sub(10)).copied().collect::<Vec<_>>().join("\n");
        all.push(format!("{}:\n{tail}", file.path().display()));
    }
    all.join("\n")
}
