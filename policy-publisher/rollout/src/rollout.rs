//! A bundle's way from draft to release, through the allocator's register.
//!
//! The register is the one place where versions are handed out: a draft counts only once the allocator has made it
//! active, and it is released only then. Whatever happens between the two, a crash included, is settled by asking.

mod record;

use leasehold_protocol::admin::PolicyView;
use leasehold_protocol::machine::{Effects, Machine};
use leasehold_protocol::{BundleVersion, LocalTime};
use serde::{Deserialize, Serialize};

pub use self::record::{Entry, HISTORY_MAX, Pending, Record, Release, ReplayError};

/// The first wait after the allocator did not answer, in ms; it doubles.
pub const RETRY_MIN_MS: u64 = 100;
/// The longest such wait, in ms.
pub const RETRY_MAX_MS: u64 = 2_000;
/// How often the register is read although nothing is on its way, in ms.
pub const CHECK_EVERY_MS: u64 = 15_000;
/// So many answers in a row that name a lower version than is known are believed, after half a minute or so; fewer may
/// come from replicas that have not caught up.
pub const LOWER_ANSWERS_MAX: u32 = 20;

/// Everything that can happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The publisher starts, its record replayed.
    Started,
    /// Time has come ([`Machine::next_wakeup`]).
    Woken,
    /// A bundle was compiled and signed as [`Rollout::next_version`], and its envelope is durable.
    Drafted(Release),
    /// The answer to [`Outgoing::Ask`].
    Says(PolicyView),
    /// The answer to [`Outgoing::Register`]: the register after it.
    Accepted(PolicyView),
    /// The answer to [`Outgoing::Register`]: its version is not the next one.
    Conflict,
    /// The answer to [`Outgoing::Register`]: it is refused for good.
    Refused {
        /// Why, in words.
        reason: String,
    },
    /// No answer: nobody knows what came of it.
    Unanswered,
}

/// What the host shall do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outgoing {
    /// Read the register.
    Ask,
    /// Offer the draft to the register.
    Register(Release),
    /// Hand it out from now on.
    Released(Release),
    /// It will never be released.
    Withdrawn {
        /// What.
        release: Release,
        /// Why.
        why: Withdrawal,
    },
    /// Its envelope is no longer kept.
    Forget(BundleVersion),
}

/// Why a draft ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawal {
    /// Another publisher came first.
    #[error("another publisher came first: version {active} is active")]
    Overtaken {
        /// What is active instead.
        active: BundleVersion,
    },
    /// The allocator refuses it.
    #[error("the allocator refuses it: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// Another draft is on its way, or the version is not above what is released.
    #[error("it does not follow what is released or on its way here")]
    OutOfTurn,
}

/// Why no version can be minted now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    /// The register has not been read in this life.
    #[error("the allocator's register is not known yet, and so neither is the next version")]
    Unasked,
    /// One at a time.
    #[error("version {version} is on its way")]
    Busy {
        /// The draft's version.
        version: BundleVersion,
    },
    /// The register is below what was released here.
    #[error("{}", Standing::RegisterBehind { released: *.released, active: *.active })]
    RegisterBehind {
        /// Released here.
        released: BundleVersion,
        /// Active there.
        active: BundleVersion,
    },
    /// There is no higher version.
    #[error("version {active} is the last there can be")]
    Exhausted {
        /// Active there.
        active: BundleVersion,
    },
}

/// How the register stands to what is released here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The register has not been read in this life.
    Unasked,
    /// They agree.
    InStep,
    /// The register holds a bundle that was not released here.
    RegisterAhead {
        /// Released here; 0 if nothing.
        released: BundleVersion,
        /// Active there.
        active: BundleVersion,
    },
    /// The register holds less than was released here.
    RegisterBehind {
        /// Released here.
        released: BundleVersion,
        /// Active there.
        active: BundleVersion,
    },
    /// The same version with other content.
    Forked {
        /// The version.
        version: BundleVersion,
    },
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unasked => f.write_str("the allocator's register is not known yet"),
            Self::InStep => f.write_str("the allocator enforces what is released here"),
            Self::RegisterAhead { released: BundleVersion(0), active } => write!(
                f,
                "the allocator enforces version {active}, and this publisher's store holds none: it was published \
                 elsewhere, or the store is lost; agents get nothing newer here until the next publish, which will \
                 be version {}",
                active.0.saturating_add(1)
            ),
            Self::RegisterAhead { released, active } => write!(
                f,
                "the allocator enforces version {active}, which was not published here; the newest here is \
                 {released}; the next publish will be version {}",
                active.0.saturating_add(1)
            ),
            Self::RegisterBehind { released, active } => write!(
                f,
                "the allocator's register stands at version {active}, below version {released} that was released \
                 here: it has lost its log, or this store belongs to another cluster; nothing can be published"
            ),
            Self::Forked { version } => write!(
                f,
                "the allocator enforces another version {version} than the one released here: this store belongs to \
                 another cluster, or two of them were mixed"
            ),
        }
    }
}

/// What the allocator answered about the draft, until the register confirms it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Conflict,
    Refused(String),
}

/// The machine. Only its [`Record`] survives a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    record: Record,
    seen: Option<PolicyView>,
    lower_answers: u32,
    verdict: Option<Verdict>,
    failures: u32,
    wake_at: Option<LocalTime>,
}

impl Rollout {
    /// Goes on from `record`; step it with [`Input::Started`] first.
    pub fn new(record: Record) -> Self {
        Self { record, seen: None, lower_answers: 0, verdict: None, failures: 0, wake_at: None }
    }

    /// What survives a crash.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The register as last believed; `None` if it has not been read in this life.
    pub fn seen(&self) -> Option<&PolicyView> {
        self.seen.as_ref()
    }

    /// The version that the next draft must have.
    pub fn next_version(&self) -> Result<BundleVersion, MintError> {
        let active = self.seen.as_ref().ok_or(MintError::Unasked)?.active_version;
        if let Some(pending) = &self.record.pending {
            return Err(MintError::Busy { version: pending.release.version });
        }
        let released = self.record.released_version();
        if active < released {
            return Err(MintError::RegisterBehind { released, active });
        }
        active.0.checked_add(1).map(BundleVersion).ok_or(MintError::Exhausted { active })
    }

    /// How many questions in a row brought no usable answer.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How the register stands to what is released here.
    pub fn standing(&self) -> Standing {
        let Some(seen) = &self.seen else { return Standing::Unasked };
        let (active, released) = (seen.active_version, self.record.released_version());
        let digest = self.record.released().map(|r| r.digest.as_str());
        match active.cmp(&released) {
            std::cmp::Ordering::Greater => Standing::RegisterAhead { released, active },
            std::cmp::Ordering::Less => Standing::RegisterBehind { released, active },
            std::cmp::Ordering::Equal if seen.active_digest.as_deref() != digest => {
                Standing::Forked { version: active }
            }
            std::cmp::Ordering::Equal => Standing::InStep,
        }
    }

    fn started(&mut self, now: LocalTime, effects: &mut Work) {
        if let Some(Pending { release, is_registered: true }) = self.record.pending.clone() {
            self.release(release, effects);
        }
        self.ask_now(now, effects);
    }

    fn drafted(&mut self, release: Release, effects: &mut Work) {
        if self.record.pending.is_some() || release.version <= self.record.released_version() {
            effects.then.push(Outgoing::Withdrawn { release, why: Withdrawal::OutOfTurn });
            return;
        }
        self.verdict = None;
        self.append(Entry::Drafted(release.clone()), effects);
        effects.then.push(Outgoing::Register(release));
    }

    fn says(&mut self, now: LocalTime, view: &PolicyView, effects: &mut Work) {
        let verdict = self.verdict.take();
        if !self.believe(view, verdict.is_some()) {
            self.unanswered(now);
            return;
        }
        self.answered(now);
        let Some(Pending { release, .. }) = self.record.pending.clone() else { return };
        let active = view.active_version;
        if active == release.version && view.active_digest.as_deref() == Some(release.digest.as_str()) {
            self.append(Entry::Registered(release.version), effects);
            self.release(release, effects);
        } else if active >= release.version {
            self.withdraw(release, Withdrawal::Overtaken { active }, effects);
        } else if let Some(Verdict::Refused(reason)) = verdict {
            self.withdraw(release, Withdrawal::Refused { reason }, effects);
        } else if verdict.is_none() && active.0.checked_add(1) == Some(release.version.0) {
            effects.then.push(Outgoing::Register(release));
        } else {
            // The answers contradict each other, so one of them is old.
            self.unanswered(now);
        }
    }

    fn accepted(&mut self, now: LocalTime, view: &PolicyView, effects: &mut Work) {
        let is_over = self.record.pending.as_ref().is_none_or(|p| p.release.version > view.active_version);
        if is_over {
            // Nothing that was offered is in the register, so it was no answer.
            self.unanswered(now);
        } else {
            self.says(now, view, effects);
        }
    }

    fn judged(&mut self, now: LocalTime, verdict: Verdict, effects: &mut Work) {
        if self.record.pending.is_some() {
            self.verdict = Some(verdict);
        }
        self.ask_now(now, effects);
    }

    fn ask_now(&mut self, now: LocalTime, effects: &mut Work) {
        // Until the answer: should there be none, the host says so, and the wait is set anew.
        self.wake_at = Some(now.saturating_add_ms(CHECK_EVERY_MS));
        effects.then.push(Outgoing::Ask);
    }

    /// Takes the view in, unless it is lower than what is known: that is believed only if it repeats, or if it
    /// follows the allocator's own refusal.
    fn believe(&mut self, view: &PolicyView, is_fresh: bool) -> bool {
        let seen = self.seen.as_ref().map_or(BundleVersion(0), |seen| seen.active_version);
        let is_lower = view.active_version < seen.max(self.record.released_version());
        let is_news = is_lower && self.seen.as_ref() != Some(view);
        if is_news && !is_fresh {
            self.lower_answers = self.lower_answers.saturating_add(1);
            if self.lower_answers < LOWER_ANSWERS_MAX {
                return false;
            }
        }
        self.lower_answers = 0;
        self.seen = Some(view.clone());
        true
    }

    fn answered(&mut self, now: LocalTime) {
        self.failures = 0;
        self.wake_at = Some(now.saturating_add_ms(CHECK_EVERY_MS));
    }

    fn unanswered(&mut self, now: LocalTime) {
        let wait_ms = RETRY_MIN_MS.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        self.wake_at = Some(now.saturating_add_ms(wait_ms));
    }

    fn release(&mut self, release: Release, effects: &mut Work) {
        self.append(Entry::Released(release.version), effects);
        effects.then.push(Outgoing::Released(release));
        while let Some(oldest) = self.record.oldest_beyond_history() {
            self.append(Entry::Forgotten(oldest), effects);
            effects.then.push(Outgoing::Forget(oldest));
        }
    }

    fn withdraw(&mut self, release: Release, why: Withdrawal, effects: &mut Work) {
        self.append(Entry::Withdrawn(release.version), effects);
        effects.then.push(Outgoing::Withdrawn { release, why });
    }

    fn append(&mut self, entry: Entry, effects: &mut Work) {
        self.record.apply(&entry).expect("each caller has looked at the record first");
        effects.append.push(entry);
    }
}

type Work = Effects<Entry, Outgoing>;

impl Machine for Rollout {
    type Time = LocalTime;
    type Input = Input;
    type Entry = Entry;
    type Outgoing = Outgoing;

    fn step(&mut self, now: LocalTime, input: Input) -> Work {
        let mut effects = Work::default();
        match input {
            Input::Started => self.started(now, &mut effects),
            Input::Woken => {
                if self.wake_at.is_some_and(|at| at <= now) {
                    self.ask_now(now, &mut effects);
                }
            }
            Input::Drafted(release) => self.drafted(release, &mut effects),
            Input::Says(view) => self.says(now, &view, &mut effects),
            Input::Accepted(view) => self.accepted(now, &view, &mut effects),
            Input::Conflict => self.judged(now, Verdict::Conflict, &mut effects),
            Input::Refused { reason } => self.judged(now, Verdict::Refused(reason), &mut effects),
            Input::Unanswered => self.unanswered(now),
        }
        effects
    }

    fn next_wakeup(&self) -> Option<LocalTime> {
        self.wake_at
    }
}

#[cfg(test)]
mod tests;
