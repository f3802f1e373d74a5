//! What roles say of themselves: bodies of the admin reads.

use serde::{Deserialize, Serialize};

use crate::amount::Tokens;
use crate::ids::{
    AgentId, BundleVersion, Holder, Incarnation, NodeId, PlanId, RegionId, RouteId, RuleId, TenantId,
};
use crate::policy::Origin;

/// One replica's view of the cluster (`GET /v1/cluster`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    /// Who answers.
    pub node: NodeId,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub state: String,
    /// Its process id on its own machine.
    pub pid: u32,
    /// The Raft term.
    pub term: u64,
    /// The leader it knows.
    pub leader: Option<NodeId>,
    /// The leader's base URL.
    pub leader_url: Option<String>,
    /// Ms since a quorum last answered this leader; `null` on a follower.
    pub quorum_age_ms: Option<u64>,
    /// Last log index.
    pub last_log_index: Option<u64>,
    /// Last applied index.
    pub applied_index: Option<u64>,
    /// Index of the last snapshot.
    pub snapshot_index: Option<u64>,
    /// Index of the last entry that the log has no more: whoever lacks later ones than this one gets a snapshot.
    pub purged_index: Option<u64>,
    /// Ledger time as applied here, RFC 3339: stale by what is not applied yet.
    pub ledger_time: String,
    /// False while the leader cannot place itself in time and grants nothing.
    pub clock_certain: bool,
    /// The bundle that the ledger enforces; 0 before the first.
    pub bundle_version: BundleVersion,
    /// The voters.
    pub members: Vec<MemberView>,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// The replica.
    pub node: NodeId,
    /// Its base URL.
    pub url: String,
}

/// A list with the place it was read at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Pass as `cursor` to go on; `null` at the end.
    pub next_cursor: Option<String>,
    /// Ms since the reading replica last heard from a leader it follows, or had its quorum; 0 at a leader with one.
    pub stale_ms: u64,
}

/// One pool in one window (`GET /v1/pools`): `limit = remaining + leased + spent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// The rule.
    pub rule: RuleId,
    /// The tenant; `null` for the fleet's pool.
    pub tenant: Option<TenantId>,
    /// The window's label, RFC 3339.
    pub window_start: String,
    /// Its end, RFC 3339.
    pub window_end: String,
    /// `open`, `next` or `closed`.
    pub state: String,
    /// `null`: unlimited.
    pub limit: Option<Tokens>,
    /// By how much the limit was lowered below what had been granted: nothing is granted until it is worked off.
    pub debt: Tokens,
    /// In the pool.
    pub remaining: Tokens,
    /// Held by agents.
    pub leased: Tokens,
    /// Reported spent, or in leases that ended without a settle.
    pub spent: Tokens,
    /// Of `spent`, what holders reported. The rest was stranded or never reported.
    pub reported: Tokens,
}

/// One holder's lease (`GET /v1/leases`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The rule.
    pub rule: RuleId,
    /// The tenant; `null` for the fleet's pool.
    pub tenant: Option<TenantId>,
    /// The window's label, RFC 3339.
    pub window_start: String,
    /// Who holds it.
    pub holder: Holder,
    /// Which life of the holder.
    pub incarnation: Incarnation,
    /// Ever granted in this window.
    pub granted: Tokens,
    /// Given back.
    pub returned: Tokens,
    /// Reported spent.
    pub spent: Tokens,
    /// True time left, in ms of ledger time; 0 when it has ended.
    pub expires_in_ms: u64,
}

/// An agent's state (`GET /v1/status`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its region.
    pub region: RegionId,
    /// The agent.
    pub agent: AgentId,
    /// Its process id.
    pub pid: u32,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The bundle it enforces; 0 before the first.
    pub bundle_version: BundleVersion,
    /// Ms since the publisher last confirmed that it is the newest; `null` if never in this life.
    pub bundle_age_ms: Option<u64>,
    /// True if that is past the bundle's `max_age_s`.
    pub bundle_stale: bool,
    /// Ms since the allocator last answered; `null` if never in this life.
    pub allocator_age_ms: Option<u64>,
    /// True while the allocator counts as lost and fail modes apply to leased rules without tokens.
    pub fallback_engaged: bool,
    /// Leases held now.
    pub leases: Vec<HeldLease>,
    /// Counters in memory.
    pub counters: u64,
    /// Their bound.
    pub counters_max: u64,
}

/// A lease as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLease {
    /// The rule.
    pub rule: RuleId,
    /// The tenant; `null` for the fleet's pool.
    pub tenant: Option<TenantId>,
    /// The window's label, RFC 3339.
    pub window_start: String,
    /// Tokens not spent yet.
    pub held: Tokens,
    /// Tokens spent in this window.
    pub spent: Tokens,
    /// Until this agent stops using it, in ms.
    pub usable_for_ms: u64,
}

/// What applies to a request, and why (`GET /v1/explain`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The tenant asked about.
    pub tenant: Option<TenantId>,
    /// Its plan.
    pub plan: Option<PlanId>,
    /// The principal asked about.
    pub principal: Option<String>,
    /// The route.
    pub route: RouteId,
    /// Its pattern.
    pub pattern: String,
    /// A request's default cost in tokens.
    pub weight: Tokens,
    /// `closed`, `bounded`, or `open`.
    pub fail_mode: String,
    /// By which bundle.
    pub bundle_version: BundleVersion,
    /// The rules in their order.
    pub rules: Vec<RuleExplanation>,
}

/// One rule of an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleExplanation {
    /// The rule.
    pub rule: RuleId,
    /// The rule in words: `1000 per 60 s, leased`.
    pub limit: String,
    /// Where the limit comes from.
    pub origin: Origin,
    /// What is left at this agent now; `null` if it is unlimited or an identity is missing.
    pub remaining: Option<Tokens>,
    /// What stands in for it when it cannot be decided, in words.
    pub fallback: String,
}

/// The publisher's state (`GET /v1/status`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherStatus {
    /// Its process id.
    pub pid: u32,
    /// The newest released bundle; 0 before the first.
    pub released_version: BundleVersion,
    /// Its digest, hex.
    pub released_digest: Option<String>,
    /// The id of the signing key.
    pub key_id: String,
    /// What is not as it should be, in words: a register that stands elsewhere, a draft on its way.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What each agent last said.
    pub agents: Vec<AgentAck>,
}

/// An agent's word on a bundle (`POST /v1/acks`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentAck {
    /// Its region.
    pub region: RegionId,
    /// The agent.
    pub agent: AgentId,
    /// The bundle it enforces.
    pub active_version: BundleVersion,
    /// A newer bundle it refused, and why.
    pub refused: Option<RefusedBundle>,
}

/// A bundle that an agent refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedBundle {
    /// The version it claims, if it could be read.
    pub version: Option<BundleVersion>,
    /// Why.
    pub reason: String,
}

/// The allocator's policy register (`GET /v1/policy`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyView {
    /// The active bundle; the next one must be exactly one higher. 0 before the first.
    pub active_version: BundleVersion,
    /// Its digest, hex.
    pub active_digest: Option<String>,
}
