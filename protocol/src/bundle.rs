//! The bundle: one immutable, versioned snapshot of all policy, as bytes.
//!
//! The bytes are the serialisation of [`Bundle`] as JSON with lists sorted by id. The schema has no maps (a map
//! silently keeps the last of two equal keys), no floats and no default for anything that limits. What verifies is
//! the stored bytes; a reader accepts only bytes equal to their own re-serialisation (POLICY.md, section 0).

use serde::{Deserialize, Serialize};

use crate::amount::Tokens;
use crate::ids::{BundleVersion, OverrideId, PlanId, RegionId, RouteId, RuleId, TenantId};
use crate::window::WindowLength;

/// The format this version writes and reads.
pub const BUNDLE_FORMAT: u32 = 1;

/// The largest bundle, in bytes, checked before parsing.
pub const BUNDLE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// All policy at one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// [`BUNDLE_FORMAT`].
    pub format: u32,
    /// Strictly increasing; minted by the allocator's log.
    pub version: BundleVersion,
    /// When it was compiled, in ms since the Unix epoch. For people; nothing is decided by it.
    pub issued_at_ms: u64,
    /// How long an agent may go without hearing from the publisher before it calls its policy stale, in s.
    pub max_age_s: u64,
    /// Sorted by id.
    pub rules: Vec<Rule>,
    /// Sorted by id.
    pub plans: Vec<Plan>,
    /// Sorted by id.
    pub tenants: Vec<Tenant>,
    /// Sorted by tenant, then rule; one for each pair at most.
    pub overrides: Vec<Override>,
    /// Sorted by id.
    pub routes: Vec<Route>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, such as `P-TENANT`.
    pub id: RuleId,
    /// What its counters hang from, sorted; empty: one counter for the whole fleet.
    pub key: Vec<KeyPart>,
    /// How it counts.
    pub algorithm: Algorithm,
    /// Where it is counted.
    pub enforcement: Enforcement,
    /// What stands in for it while its decision cannot be made, on routes whose fail mode is `bounded`.
    pub fallback: Fallback,
    /// How regions share a pool that is too small for all of them. Counts for leased rules alone.
    #[serde(default, skip_serializing_if = "Sharing::is_default")]
    pub sharing: Sharing,
}

/// How regions share a pool that is too small for all of them. It decides who is admitted, never how many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// By which rule.
    #[serde(default)]
    pub order: Order,
    /// Regions whose part is another than 1, sorted by region.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<Weight>,
}

impl Sharing {
    /// True for max-min with equal parts.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The part of `region` against the others'.
    pub fn weight(&self, region: &RegionId) -> u32 {
        self.weights.iter().find(|w| w.region == *region).map_or(1, |w| w.weight.max(1))
    }
}

/// By which rule a pool is shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Max-min fair: a region that asks for less than its part gets all it asks for, the rest is dealt out evenly.
    #[default]
    #[serde(rename = "maxmin")]
    MaxMin,
    /// First come, first served.
    Fcfs,
}

/// A region's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The region.
    pub region: RegionId,
    /// Its part, 1 to 1,000.
    pub weight: u32,
}

/// A part of a counter's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPart {
    /// The tenant.
    Tenant,
    /// The identity inside the tenant.
    Principal,
    /// The source address; IPv6 by its /64, IPv4-mapped forms as IPv4 (D8).
    Source,
}

/// How a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Algorithm {
    /// A count that starts anew at each multiple of the window (D1). It admits up to twice the limit around a
    /// boundary.
    FixedWindow {
        /// Tokens a window.
        limit: Limit,
        /// The window's length in ms.
        window_ms: WindowLength,
    },
    /// A bucket that refills steadily up to its capacity (D2). Over T it admits up to capacity + rate * T.
    TokenBucket {
        /// The most it holds, in tokens.
        capacity: Tokens,
        /// Tokens that flow in each `refill_ms`.
        refill_tokens: Tokens,
        /// The time for `refill_tokens`, in ms.
        refill_ms: u64,
    },
    /// A semaphore: so much at once (D18).
    Concurrency {
        /// Slots.
        limit: Limit,
        /// A slot without release or heartbeat comes back after this, in ms.
        slot_ttl_ms: u64,
    },
}

/// How much. Unlimited, blocked and missing are three different things; there is no number for the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Limit {
    /// This many, at least 1.
    Limited {
        /// Tokens a window, or slots.
        tokens: Tokens,
    },
    /// No limit; still counted.
    Unlimited,
    /// Nothing is admitted.
    Blocked,
}

/// Where a rule is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// At each agent, for itself.
    Regional,
    /// Out of a pool at the allocator, by lease.
    Leased,
}

/// What stands in for a rule whose decision cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fallback {
    /// Nothing: the request is refused with 503 although the route is `bounded`. Adds nothing to D13's bound.
    Refuse,
    /// A local bucket for each key at each agent (D16). Adds to D13's bound, for each agent, its capacity plus its
    /// refill over the window.
    Bucket {
        /// The most it holds, in tokens.
        capacity: Tokens,
        /// Tokens that flow in each `refill_ms`.
        refill_tokens: Tokens,
        /// The time for `refill_tokens`, in ms.
        refill_ms: u64,
    },
}

/// A tier of limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name.
    pub id: PlanId,
    /// Limits that replace the rules' own, sorted by rule.
    pub limits: Vec<PlanLimit>,
}

/// A plan's limit for one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLimit {
    /// The rule.
    pub rule: RuleId,
    /// The limit.
    pub limit: Limit,
}

/// A tenant and its plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// Its plan.
    pub plan: PlanId,
}

/// An exception for one tenant. Owner, reason and expiry are not optional (D21).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Its name.
    pub id: OverrideId,
    /// Whose limit.
    pub tenant: TenantId,
    /// Which limit.
    pub rule: RuleId,
    /// The limit while it lasts.
    pub limit: Limit,
    /// Who answers for it.
    pub owner: String,
    /// Why.
    pub reason: String,
    /// When it ends by itself, in ms since the Unix epoch.
    pub expires_at_ms: u64,
}

/// A route group, its weight and its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Its name.
    pub id: RouteId,
    /// Its method and path for people and gateways, such as `GET /catalog`.
    pub pattern: String,
    /// The default cost of a request, in tokens (D17).
    pub weight: Tokens,
    /// The rules that a request must pass, in the order in which a denial is named.
    pub rules: Vec<RuleId>,
    /// What happens when the decision cannot be made (D15).
    pub fail_mode: FailMode,
}

/// What a route does when its decision cannot be made (D15).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FailMode {
    /// 503.
    Closed,
    /// Each rule's [`Fallback`].
    Bounded,
    /// Admit.
    Open {
        /// Why this is harmless; not optional.
        reason: String,
    },
}
