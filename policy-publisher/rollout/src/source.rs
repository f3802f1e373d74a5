//! What people write: a policy as a file, in any format that serde reads.
//!
//! There are no maps (a map silently keeps the last of two equal keys), no default for anything that limits, and an
//! unknown field is refused. Spans carry their unit in the name.

mod words;

use leasehold_protocol::bundle::{Enforcement, FailMode, Fallback, KeyPart, Limit, Sharing};
use leasehold_protocol::{OverrideId, PlanId, RouteId, RuleId, TenantId, Tokens};
use serde::{Deserialize, Serialize};

/// A whole policy. The order of its lists means nothing, except in [`Route::rules`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// How long an agent may go without hearing from the publisher before it calls its policy stale, in s.
    pub max_age_s: u64,
    /// The limits.
    pub rules: Vec<Rule>,
    /// Tiers of limits.
    pub plans: Vec<Plan>,
    /// Who is on which plan.
    pub tenants: Vec<Tenant>,
    /// Exceptions that end by themselves.
    pub overrides: Vec<Override>,
    /// Routes, their weights, rules and fail modes.
    pub routes: Vec<Route>,
}

/// One limit; exactly one of `fixed_window`, `token_bucket` and `concurrency` says how it counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, such as `P-TENANT`.
    #[serde(deserialize_with = "words::id")]
    pub id: RuleId,
    /// What its counters hang from; empty: one counter for the whole fleet.
    pub key: Vec<KeyPart>,
    /// Where it is counted.
    pub enforcement: Enforcement,
    /// A count that starts anew at each multiple of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_window: Option<FixedWindow>,
    /// A bucket that refills steadily.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_bucket: Option<Bucket>,
    /// So much at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// What stands in for it while it cannot be decided: `refuse`, or `bucket: {...}`.
    #[serde(with = "words::fallback")]
    pub fallback: Fallback,
    /// How regions share a pool that is too small for all of them, for a leased rule: `order: maxmin` (as without it)
    /// or `fcfs`, and `weights` for regions whose part is another than 1.
    #[serde(default, skip_serializing_if = "Sharing::is_default")]
    pub sharing: Sharing,
}

/// See [`Rule::fixed_window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedWindow {
    /// Tokens a window: a number, `unlimited` or `blocked`.
    #[serde(with = "words::limit")]
    pub limit: Limit,
    /// The window's length in s.
    pub window_s: u64,
}

/// See [`Rule::token_bucket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The most it holds, in tokens.
    pub capacity: Tokens,
    /// Tokens that flow in each `refill_ms`.
    pub refill_tokens: Tokens,
    /// The time for `refill_tokens`, in ms.
    pub refill_ms: u64,
}

/// See [`Rule::concurrency`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// Slots: a number, `unlimited` or `blocked`.
    #[serde(with = "words::limit")]
    pub limit: Limit,
    /// A slot without release or heartbeat comes back after this, in s.
    pub slot_ttl_s: u64,
}

/// A tier of limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name.
    #[serde(deserialize_with = "words::id")]
    pub id: PlanId,
    /// Limits that replace the rules' own.
    pub limits: Vec<PlanLimit>,
}

/// A plan's limit for one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLimit {
    /// The rule.
    #[serde(deserialize_with = "words::id")]
    pub rule: RuleId,
    /// A number, `unlimited` or `blocked`.
    #[serde(with = "words::limit")]
    pub limit: Limit,
}

/// A tenant and its plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    #[serde(deserialize_with = "words::id")]
    pub id: TenantId,
    /// Its plan.
    #[serde(deserialize_with = "words::id")]
    pub plan: PlanId,
}

/// An exception for one tenant. Nothing of it is optional (D21).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Its name.
    #[serde(deserialize_with = "words::id")]
    pub id: OverrideId,
    /// Whose limit.
    #[serde(deserialize_with = "words::id")]
    pub tenant: TenantId,
    /// Which limit.
    #[serde(deserialize_with = "words::id")]
    pub rule: RuleId,
    /// A number, `unlimited` or `blocked`.
    #[serde(with = "words::limit")]
    pub limit: Limit,
    /// Who answers for it.
    pub owner: String,
    /// Why.
    pub reason: String,
    /// When it ends by itself, RFC 3339.
    pub expires_at: String,
}

/// A route group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Its name.
    #[serde(deserialize_with = "words::id")]
    pub id: RouteId,
    /// Its method and path, such as `GET /catalog`.
    pub pattern: String,
    /// The default cost of a request, in tokens.
    pub weight: Tokens,
    /// The rules that a request must pass, in the order in which a denial is named.
    #[serde(deserialize_with = "words::rule_ids")]
    pub rules: Vec<RuleId>,
    /// What happens when the decision cannot be made: `closed`, `bounded`, or `open: { reason: ... }`.
    #[serde(with = "words::fail_mode")]
    pub fail_mode: FailMode,
}
