//! The wire between gateways and agents.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::amount::Tokens;
use crate::ids::{BundleVersion, DecisionId, RuleId};
use crate::problem::Problem;

/// The longest principal, gateway or attribute text, in bytes.
pub const TEXT_LEN_MAX: usize = 256;
/// The most attributes of a request.
pub const ATTRIBUTES_MAX: usize = 32;
/// The most requests of a batch.
pub const BATCH_LEN_MAX: usize = 1_000;

/// One question: may this request spend capacity now?
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitRequest {
    /// Whose quota; required where a rule of the route is keyed by tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Which identity inside the tenant; required where a rule of the route is keyed by principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The client's address; required where a rule of the route is keyed by source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The route group's id, or its pattern such as `GET /catalog`.
    pub route: String,
    /// The cost in tokens; the route's weight if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Tokens>,
    /// The gateway that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Anything else a mapping may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
}

/// How a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By every rule itself.
    Normal,
    /// At least one rule could not be decided, and the route's fail mode stood in for it.
    Fallback,
}

/// One rule's state after a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitState {
    /// The rule.
    pub rule: RuleId,
    /// Its limit in tokens for all regions together: a window's, a bucket's capacity, or slots.
    pub limit: Tokens,
    /// What is left: for a leased rule, what this agent holds.
    pub remaining: Tokens,
    /// The window's length in s; a bucket's time to fill; `null` for slots.
    pub window_s: Option<u64>,
    /// Until the window ends or the bucket is full again, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_after_ms: Option<u64>,
    /// A leased rule's window by its label: the start on the ledger's line, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_start: Option<String>,
}

/// A decision; the body of a 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Names it for release, heartbeat, settle and logs.
    pub decision_id: DecisionId,
    /// The one bundle that it was made by.
    pub bundle_version: BundleVersion,
    /// How it was made.
    pub mode: Mode,
    /// The rule that refused, or could not be decided on a closed route; `null` if allowed.
    pub denied_by: Option<RuleId>,
    /// How long to wait before trying again, in ms; `null` if allowed.
    pub retry_after_ms: Option<u64>,
    /// The rules of the route, in its order.
    pub limits: Vec<LimitState>,
}

/// A refusal: the body of a 429 or 503 (problem+json with the decision's members).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The problem's members.
    #[serde(flatten)]
    pub problem: Problem,
    /// The decision's members.
    #[serde(flatten)]
    pub decision: Decision,
}

/// The body of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitBatch {
    /// At most [`BATCH_LEN_MAX`], answered in order.
    pub requests: Vec<AdmitRequest>,
}

/// One answer of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchResult {
    /// The status that the request would have had alone.
    pub status: u16,
    /// The body that it would have had alone.
    pub body: serde_json::Value,
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchAnswer {
    /// In the order of the requests.
    pub results: Vec<BatchResult>,
}

/// Names a decision, to release its slot or keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotRequest {
    /// The decision.
    pub decision_id: DecisionId,
}

/// What came of a release or heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotAnswer {
    /// The decision.
    pub decision_id: DecisionId,
    /// True if it held a slot until now. False is no error: releasing twice or after expiry changes nothing (D18).
    pub held: bool,
}
