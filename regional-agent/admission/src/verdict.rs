//! What comes of a check: values, never errors.

use leasehold_protocol::admit::{Decision, LimitState, Mode};
use leasehold_protocol::{BundleVersion, DecisionId, InvalidField, PoolKey, RuleId, Tokens};

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every rule passed, or a fail mode stood in for it. Everything has been debited.
    Allowed(Report),
    /// A rule refused. Nothing has been debited.
    Denied(Report),
    /// The decision cannot be made, and the route or the rule says 503 then. Nothing has been debited.
    FailClosed(Report),
    /// Only leased tokens on their way stand between the request and a decision: hold it and check again. Nothing
    /// has been debited.
    Wait(Waiting),
    /// The bundle changed since the request was parsed, and under the new one it is no request.
    Invalid(Vec<InvalidField>),
    /// There is no bundle.
    NoPolicy,
}

/// A decision and what its host needs beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The one bundle that it was made by.
    pub bundle_version: BundleVersion,
    /// How it was made.
    pub mode: Mode,
    /// The first rule that refused, or that could not be decided.
    pub denied_by: Option<RuleId>,
    /// The least honest wait in ms: before it, the same request cannot pass. `None` if allowed.
    pub retry_after_ms: Option<u64>,
    /// By how much a host may lengthen the wait at random, in ms, so that the refused do not return together (D20).
    pub spread_ms: u64,
    /// The rules in the route's order, as they stand after this decision.
    pub limits: Vec<LimitState>,
    /// The rules that could not be decided, and why.
    pub undecided: Vec<(RuleId, Condition)>,
    /// True if the decision holds a concurrency slot.
    pub holds_slot: bool,
}

impl Report {
    /// The decision on the wire. `jitter` is added to the wait, cut to `spread_ms`.
    pub fn into_decision(self, decision_id: DecisionId, jitter_ms: u64) -> Decision {
        let jitter = jitter_ms.min(self.spread_ms);
        Decision {
            decision_id,
            bundle_version: self.bundle_version,
            mode: self.mode,
            denied_by: self.denied_by,
            retry_after_ms: self.retry_after_ms.map(|ms| ms.saturating_add(jitter)),
            limits: self.limits,
        }
    }
}

/// Why a rule could not be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The allocator does not answer, and the tokens held do not suffice.
    AllocatorLost,
    /// The allocator does not know the pool: its bundle lags or differs.
    UnknownPool,
    /// No room for another counter.
    CountersFull,
}

impl Condition {
    /// Every condition, for metrics.
    pub const ALL: [Condition; 3] = [Self::AllocatorLost, Self::UnknownPool, Self::CountersFull];

    /// A stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllocatorLost => "allocator_lost",
            Self::UnknownPool => "unknown_pool",
            Self::CountersFull => "counters_full",
        }
    }
}

/// The pools that a held request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its cost in tokens.
    pub cost: Tokens,
    /// The pools.
    pub pools: Vec<PoolKey>,
}

/// Whole seconds, rounded up: what a `Retry-After` field says (D19).
///
/// ```
/// use leasehold_admission::verdict::whole_seconds;
/// assert_eq!([0, 1, 500, 1_000, 3_500].map(whole_seconds), [0, 1, 1, 1, 4]);
/// ```
pub fn whole_seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000)
}
