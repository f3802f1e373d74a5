//! What a bundle means for one tenant, and the proof that it may be enforced: shared by compiler, allocator and
//! agents.

mod check;

use serde::{Deserialize, Serialize};

use crate::bundle::{
    Algorithm, BUNDLE_BYTES_MAX, Bundle, Enforcement, KeyPart, Limit, Override, Plan, Route, Rule,
};
use crate::ids::{OverrideId, PlanId, PoolKey, RouteId, RuleId, TenantId};
use crate::problem::InvalidField;
use crate::time::LedgerTime;
use crate::window::WindowLength;

/// The longest free text (owner, reason, pattern), in bytes.
pub const TEXT_LEN_MAX: usize = 500;

/// The most rules a route may name.
pub const ROUTE_RULES_MAX: usize = 16;

/// A bundle that satisfies every rule of [`CheckedBundle::new`]. Nothing else is ever enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedBundle(Bundle);

/// Why bytes are no bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Refused by size before parsing.
    #[error("a bundle of {len} bytes; at most {BUNDLE_BYTES_MAX} are allowed")]
    TooLarge {
        /// Its size in bytes.
        len: usize,
    },
    /// Not JSON of the bundle's shape.
    #[error("not a bundle: {0}")]
    Malformed(String),
    /// A second encoding of the same value: white space, escapes, a missing null, another order.
    #[error("the bytes are not the canonical form of what they say (first difference at byte {at})")]
    NotCanonical {
        /// Offset of the first difference in bytes.
        at: usize,
    },
    /// Well formed, but it cannot be right.
    #[error("{}", .0.iter().map(|f| format!("`{}` = {:?}: {}", f.field, f.value, f.rule)).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<InvalidField>),
}

/// Where a limit comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The rule's own limit.
    Rule,
    /// The tenant's plan.
    Plan {
        /// The plan.
        plan: PlanId,
    },
    /// An override that has not ended.
    Override {
        /// The override.
        id: OverrideId,
        /// Who answers for it.
        owner: String,
        /// Why.
        reason: String,
        /// When it ends, RFC 3339.
        expires_at: String,
    },
}

/// [`Origin`] without its texts.
enum Source<'a> {
    Rule,
    Plan(&'a Plan),
    Override(&'a Override),
}

impl CheckedBundle {
    /// The bundle, if nothing about it is wrong; else every fault found.
    pub fn new(bundle: Bundle) -> Result<Self, BundleError> {
        let faults = check::faults_of(&bundle);
        if faults.is_empty() { Ok(Self(bundle)) } else { Err(BundleError::Invalid(faults)) }
    }

    /// The bundle in `bytes`: size, shape, canonical form, then meaning.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BundleError> {
        if bytes.len() > BUNDLE_BYTES_MAX {
            return Err(BundleError::TooLarge { len: bytes.len() });
        }
        let bundle: Bundle =
            serde_json::from_slice(bytes).map_err(|e| BundleError::Malformed(e.to_string()))?;
        let again = serde_json::to_vec(&bundle).map_err(|e| BundleError::Malformed(e.to_string()))?;
        if again != bytes {
            let at = again.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            return Err(BundleError::NotCanonical { at });
        }
        Self::new(bundle)
    }

    /// Its canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).expect("a bundle has string keys only, so JSON can hold it")
    }

    /// The bundle.
    pub fn bundle(&self) -> &Bundle {
        &self.0
    }

    /// The bundle, by value.
    pub fn into_inner(self) -> Bundle {
        self.0
    }
}

impl std::ops::Deref for CheckedBundle {
    type Target = Bundle;
    fn deref(&self) -> &Bundle {
        &self.0
    }
}

impl Bundle {
    /// The rule of this name.
    pub fn rule(&self, id: &RuleId) -> Option<&Rule> {
        self.rules.binary_search_by(|r| r.id.cmp(id)).ok().and_then(|i| self.rules.get(i))
    }

    /// The route of this name.
    pub fn route(&self, id: &RouteId) -> Option<&Route> {
        self.routes.binary_search_by(|r| r.id.cmp(id)).ok().and_then(|i| self.routes.get(i))
    }

    /// True if the tenant is listed.
    pub fn has_tenant(&self, id: &TenantId) -> bool {
        self.tenants.binary_search_by(|t| t.id.cmp(id)).is_ok()
    }

    /// The tenant's plan, if the tenant is listed.
    pub fn plan_of(&self, id: &TenantId) -> Option<&PlanId> {
        self.tenants
            .binary_search_by(|t| t.id.cmp(id))
            .ok()
            .and_then(|i| self.tenants.get(i))
            .map(|t| &t.plan)
    }

    /// The override of this tenant and rule that has not ended at `at`. One that has ended is no longer there,
    /// whoever reads the bundle and whether or not anything was published since.
    pub fn override_at(&self, tenant: &TenantId, rule: &RuleId, at: LedgerTime) -> Option<&Override> {
        let found = self.overrides.binary_search_by(|o| (&o.tenant, &o.rule).cmp(&(tenant, rule))).ok()?;
        self.overrides.get(found).filter(|o| at.0 < o.expires_at_ms)
    }

    /// The limit that `rule` has for `tenant` at `at`, and where it comes from: an override that has not ended,
    /// else the plan's, else the rule's own (D21). `None` for a token bucket, which has no such limit.
    pub fn limit_at(
        &self,
        rule: &Rule,
        tenant: Option<&TenantId>,
        at: LedgerTime,
    ) -> Option<(Limit, Origin)> {
        let (limit, source) = self.source_at(rule, tenant, at)?;
        let origin = match source {
            Source::Override(o) => Origin::Override {
                id: o.id.clone(),
                owner: o.owner.clone(),
                reason: o.reason.clone(),
                expires_at: LedgerTime(o.expires_at_ms).to_rfc3339(),
            },
            Source::Plan(plan) => Origin::Plan { plan: plan.id.clone() },
            Source::Rule => Origin::Rule,
        };
        Some((limit, origin))
    }

    /// The limit of [`Bundle::limit_at`] alone. Allocates nothing, for the hot path.
    pub fn limit_value_at(&self, rule: &Rule, tenant: Option<&TenantId>, at: LedgerTime) -> Option<Limit> {
        self.source_at(rule, tenant, at).map(|(limit, _)| limit)
    }

    fn source_at(
        &self,
        rule: &Rule,
        tenant: Option<&TenantId>,
        at: LedgerTime,
    ) -> Option<(Limit, Source<'_>)> {
        let own = match rule.algorithm {
            Algorithm::FixedWindow { limit, .. } | Algorithm::Concurrency { limit, .. } => limit,
            Algorithm::TokenBucket { .. } => return None,
        };
        if let Some(tenant) = tenant {
            if let Some(o) = self.override_at(tenant, &rule.id, at) {
                return Some((o.limit, Source::Override(o)));
            }
            let plan = self
                .plan_of(tenant)
                .and_then(|id| self.plans.binary_search_by(|p| p.id.cmp(id)).ok())
                .and_then(|i| self.plans.get(i));
            if let Some(plan) = plan
                && let Ok(i) = plan.limits.binary_search_by(|l| l.rule.cmp(&rule.id))
                && let Some(found) = plan.limits.get(i)
            {
                return Some((found.limit, Source::Plan(plan)));
            }
        }
        Some((own, Source::Rule))
    }

    /// The window length and the limit at `at` of the pool `key`, if it names a leased rule of this bundle and a
    /// tenant that the rule's key wants.
    pub fn pool_at(&self, key: &PoolKey, at: LedgerTime) -> Option<(WindowLength, Limit)> {
        let rule = self.rule(&key.rule).filter(|r| r.enforcement == Enforcement::Leased)?;
        let Algorithm::FixedWindow { window_ms, .. } = rule.algorithm else { return None };
        let wanted = rule.key.contains(&KeyPart::Tenant);
        let fits = match &key.tenant {
            Some(tenant) => wanted && self.has_tenant(tenant),
            None => !wanted,
        };
        if !fits {
            return None;
        }
        self.limit_value_at(rule, key.tenant.as_ref(), at).map(|limit| (window_ms, limit))
    }
}
