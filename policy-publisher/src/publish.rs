//! The rollout's task: takes sources, steps the rollout, and does what it says.

mod allocator;
mod bootstrap;

use std::path::PathBuf;
use std::sync::Arc;

use leasehold_protocol::bundle::Bundle;
use leasehold_protocol::envelope::{Envelope, digest};
use leasehold_protocol::machine::Machine as _;
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::publish::Published;
use leasehold_protocol::{BundleVersion, Problem, ProblemKind};
use leasehold_rollout::rollout::{Input, MintError, Outgoing, Standing, Withdrawal};
use leasehold_rollout::{Comparison, Release, Rollout, Source, compare, compile, has_same_content};
use leasehold_transport::client::{HttpClient, LeaderClient};
use tokio::sync::{mpsc, oneshot};

use crate::clock::{LocalClock, wall_now};
use crate::key::Key;
use crate::state::{Released, Shared, locked};
use crate::store::Store;

/// So many unanswered questions in a row are worth a note.
const FAILURES_NOTED: u32 = 3;

/// A source to publish.
#[derive(Debug)]
pub(crate) struct Request {
    /// The source.
    pub(crate) source: Source,
    /// The version that must be active now, if the caller cares.
    pub(crate) expected: Option<BundleVersion>,
    /// Where the answer goes.
    pub(crate) answer: oneshot::Sender<Result<Published, Box<Problem>>>,
}

/// The disk fails: what was decided cannot be kept, so nothing more is decided.
#[derive(Debug, thiserror::Error)]
#[error("the publisher's store: {0}")]
pub(crate) struct DiskError(#[from] std::io::Error);

/// Why a source was not published.
enum Refusal {
    Problem(Box<Problem>),
    Disk(DiskError),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<Box<Problem>> for Refusal {
    fn from(problem: Box<Problem>) -> Self {
        Self::Problem(problem)
    }
}

impl From<DiskError> for Refusal {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

/// A draft's end, and the allocator's own words if it refused.
struct Ended {
    why: Withdrawal,
    problem: Option<Problem>,
}

/// The task's state.
pub(crate) struct Publishing {
    pub(crate) rollout: Rollout,
    pub(crate) shared: Arc<Shared>,
    pub(crate) http: HttpClient,
    pub(crate) leader: LeaderClient,
    /// Base URLs of the replicas.
    pub(crate) allocators: Vec<String>,
    pub(crate) key: Key,
    pub(crate) clock: LocalClock,
    /// The source to publish if the register is empty; `None` once that is settled.
    pub(crate) bootstrap: Option<PathBuf>,
    /// Why it was not published.
    pub(crate) bootstrap_fault: Option<String>,
    /// The draft's envelope, so that it need not be read again.
    pub(crate) draft: Option<(Release, Arc<Envelope>)>,
    /// The allocator's refusal of it.
    pub(crate) refusal: Option<Problem>,
    /// What is wrong with the newest release's bytes.
    pub(crate) damage: Option<String>,
}

impl Publishing {
    /// Runs until nobody can ask any more, or the disk fails.
    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<Request>) -> Result<(), DiskError> {
        self.drive(Input::Started).await?;
        loop {
            self.bootstrap().await?;
            let wake = self.rollout.next_wakeup().map(|at| self.clock.instant(at));
            tokio::select! {
                request = requests.recv() => {
                    let Some(Request { source, expected, answer }) = request else { return Ok(()) };
                    let published = match self.publish(source, expected).await {
                        Ok(published) => Ok(published),
                        Err(Refusal::Problem(problem)) => Err(problem),
                        Err(Refusal::Disk(e)) => return Err(e),
                    };
                    self.count(&published);
                    // An error means that the caller is gone.
                    let _ = answer.send(published);
                }
                () = sleep_until(wake) => {
                    self.drive(Input::Woken).await?;
                }
            }
        }
    }

    /// From source to release, or to the reason why not.
    async fn publish(
        &mut self,
        source: Source,
        expected: Option<BundleVersion>,
    ) -> Result<Published, Refusal> {
        let seen = self.ask().await;
        let is_answered = seen != Input::Unanswered;
        self.drive(seen).await?;
        if !is_answered {
            let detail = "the allocator does not answer; nothing was changed";
            return Err(Problem::new(ProblemKind::Unavailable, detail).into());
        }
        let version = self.next_version()?;
        let active = BundleVersion(version.0.saturating_sub(1));
        if let Some(expected) = expected.filter(|v| *v != active) {
            let detail = format!("version {active} is active, not {expected}");
            return Err(Problem::new(ProblemKind::Conflict, detail).into());
        }
        let current = self.shared.newest();
        let standing = self.rollout.standing();
        let made = blocking({
            let (key, current) = (self.key.clone(), current.clone());
            move || make(&source, version, &key, current.as_deref().map(|c| c.bundle.bundle()))
        })
        .await?;
        let Made { release, envelope, bytes, mut comparison, is_unchanged } = made?;
        if standing != Standing::InStep {
            comparison.warnings.insert(0, format!("compared with the newest version here, but {standing}"));
        } else if let (true, Some(current)) = (is_unchanged, current) {
            let Release { version, digest } = current.release.clone();
            let Comparison { changes, warnings } = comparison;
            return Ok(Published {
                version,
                digest,
                unchanged: true,
                previous_version: version,
                changes,
                warnings,
            });
        }
        let named = release.clone();
        self.on_disk(move |store| store.keep(&named, &bytes)).await?;
        self.draft = Some((release.clone(), Arc::new(envelope)));
        self.refusal = None;
        let ended = self.drive(Input::Drafted(release.clone())).await?;
        if let Some(ended) = ended {
            return Err(refusal_of(&release, ended).into());
        }
        if self.rollout.record().released() != Some(&release) {
            let detail = format!(
                "version {version} is signed and kept, but the allocator has not answered; it is offered again until \
                 it does (see GET /v1/status)"
            );
            return Err(Problem::new(ProblemKind::Unavailable, detail).into());
        }
        let Comparison { changes, warnings } = comparison;
        let Release { version, digest } = release;
        Ok(Published { version, digest, unchanged: false, previous_version: active, changes, warnings })
    }

    fn next_version(&self) -> Result<BundleVersion, Box<Problem>> {
        self.rollout.next_version().map_err(|e| {
            let kind = match e {
                MintError::Unasked => ProblemKind::Unavailable,
                MintError::Busy { .. } | MintError::RegisterBehind { .. } | MintError::Exhausted { .. } => {
                    ProblemKind::Conflict
                }
            };
            Problem::new(kind, e.to_string()).into()
        })
    }

    /// Steps the rollout and does what it says, until there is nothing left to do now. Returns how a draft ended.
    async fn drive(&mut self, first: Input) -> Result<Option<Ended>, DiskError> {
        let mut inputs = vec![first];
        let mut ended = None;
        while let Some(input) = inputs.pop() {
            let effects = self.rollout.step(self.clock.now(), input);
            if !effects.append.is_empty() {
                let record = self.rollout.record().clone();
                self.on_disk(move |store| store.append(&effects.append, &record)).await?;
            }
            for outgoing in effects.then {
                match outgoing {
                    Outgoing::Ask => inputs.push(self.ask().await),
                    Outgoing::Register(release) => inputs.push(self.register(&release).await),
                    Outgoing::Released(release) => self.hand_out(release).await?,
                    Outgoing::Withdrawn { release, why } => {
                        tracing::warn!(version = %release.version, %why, "a draft is withdrawn");
                        self.sweep().await?;
                        ended = Some(Ended { why, problem: self.refusal.take() });
                    }
                    Outgoing::Forget(version) => {
                        tracing::debug!(%version, "an old bundle is no longer kept");
                        self.sweep().await?;
                    }
                }
            }
        }
        self.show();
        Ok(ended)
    }

    /// Reads the release's bytes back from where they are durable, and hands them out.
    pub(crate) async fn hand_out(&mut self, release: Release) -> Result<(), DiskError> {
        let named = release.clone();
        let opened = self.on_disk(move |store| {
            Ok(store.load(&named).map_err(Into::into).and_then(|bytes| Released::open(named, bytes)))
        });
        match opened.await? {
            Ok(released) => {
                tracing::info!(version = %release.version, digest = %release.digest, "a bundle is released");
                self.damage = None;
                self.shared.current.send_replace(Some(Arc::new(released)));
            }
            Err(e) => {
                tracing::error!(version = %release.version, error = %e, "a released bundle is damaged");
                let note =
                    format!("version {} is released but damaged here: {e}; publish again", release.version);
                self.damage = Some(note);
                self.shared.current.send_replace(None);
            }
        }
        self.draft = None;
        Ok(())
    }

    /// Brings what requests see up to date, and logs what is new about it.
    pub(crate) fn show(&self) {
        let record = self.rollout.record();
        *locked(&self.shared.kept) = record.kept().cloned().collect();
        let standing = self.rollout.standing();
        let pending = record.pending.as_ref().map(|p| {
            let version = p.release.version;
            format!("version {version} is signed and waits for the allocator to accept it")
        });
        let mut notes = Vec::new();
        if standing != Standing::InStep {
            notes.push(standing.to_string());
        }
        if standing != Standing::Unasked && self.rollout.failures() >= FAILURES_NOTED {
            notes.push("the allocator does not answer".to_owned());
        }
        notes.extend(pending);
        notes.extend(self.damage.clone());
        notes.extend(self.bootstrap_fault.clone());
        let mut shown = locked(&self.shared.notes);
        for note in notes.iter().filter(|note| !shown.contains(note)) {
            // At every start the register is unknown for a moment.
            if standing == Standing::Unasked {
                tracing::info!("{note}");
            } else {
                tracing::warn!("{note}");
            }
        }
        *shown = notes;
        drop(shown);
        let register = self.rollout.seen().map(|view| view.active_version);
        let in_step = standing == Standing::InStep;
        self.shared.metrics.stands(record.released_version(), register, in_step);
    }

    fn count(&self, published: &Result<Published, Box<Problem>>) {
        let result = match published {
            Ok(Published { unchanged: true, .. }) => "unchanged",
            Ok(_) => "published",
            Err(problem) => match problem.kind() {
                Some(ProblemKind::PolicyRefused | ProblemKind::SignatureRefused) => "refused",
                Some(ProblemKind::Conflict) => "conflict",
                Some(ProblemKind::Unavailable) => "unavailable",
                _ => "failed",
            },
        };
        self.shared.metrics.published(result);
    }

    async fn sweep(&self) -> Result<(), DiskError> {
        let record = self.rollout.record().clone();
        self.on_disk(move |store| store.sweep(&record)).await
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        let store = Arc::clone(&self.shared.store);
        let done = tokio::task::spawn_blocking(move || work(&mut locked(&store))).await;
        Ok(done.map_err(std::io::Error::other)??)
    }
}

/// What a source becomes.
struct Made {
    release: Release,
    envelope: Envelope,
    bytes: Vec<u8>,
    comparison: Comparison,
    is_unchanged: bool,
}

fn make(
    source: &Source,
    version: BundleVersion,
    key: &Key,
    current: Option<&Bundle>,
) -> Result<Made, Box<Problem>> {
    let bundle = compile(source, version, wall_now()).map_err(refused_source)?;
    let payload = bundle.to_bytes();
    let envelope = key.sign(&payload);
    let bytes = serde_json::to_vec(&envelope)
        .map_err(|e| Problem::new(ProblemKind::Internal, format!("the envelope cannot be written: {e}")))?;
    Ok(Made {
        release: Release { version, digest: digest(&payload) },
        comparison: compare(current, &bundle),
        is_unchanged: current.is_some_and(|current| has_same_content(current, &bundle)),
        envelope,
        bytes,
    })
}

/// A source that does not compile, as a problem.
fn refused_source(error: leasehold_rollout::CompileError) -> Problem {
    let detail = format!("{} faults: {error}", error.faults.len());
    let detail = detail.chars().take(2_000).collect::<String>();
    Problem { errors: error.faults, ..Problem::new(ProblemKind::PolicyRefused, detail) }
}

fn refusal_of(release: &Release, ended: Ended) -> Problem {
    let detail = format!("version {} is withdrawn: {}", release.version, ended.why);
    match ended.why {
        Withdrawal::Overtaken { .. } | Withdrawal::OutOfTurn => Problem::new(ProblemKind::Conflict, detail),
        Withdrawal::Refused { .. } => match ended.problem {
            Some(problem) => Problem { detail: Some(detail), leader: None, ..problem },
            None => Problem::new(ProblemKind::PolicyRefused, detail),
        },
    }
}

/// Runs `work` where it may take its time.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Box<Problem>> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Problem::new(ProblemKind::Internal, format!("the work ended by itself: {e}")).into())
}

/// Waits until `at`, or for ever.
async fn sleep_until(at: Option<std::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// The same as [`make`] would, without a version, a key or a trace: for `:validate`.
pub(crate) fn check(
    source: &Source,
    current: Option<&CheckedBundle>,
) -> Result<(Comparison, bool), Box<Problem>> {
    let next = current.map_or(1, |c| c.version.0.saturating_add(1));
    let bundle = compile(source, BundleVersion(next), wall_now()).map_err(refused_source)?;
    let current = current.map(CheckedBundle::bundle);
    Ok((compare(current, &bundle), current.is_some_and(|c| has_same_content(c, &bundle))))
}
