//! What a counter hangs from.

use std::sync::Arc;

use leasehold_protocol::bundle::{KeyPart, Rule};
use leasehold_protocol::{RuleId, TenantId};

use crate::request::Identity;

/// What a counter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The rule itself.
    Rule,
    /// Its local stand-in while the rule cannot be decided (D16).
    Fallback,
}

/// One counter's key: the rule, and the parts of the request's identity that the rule's key names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CounterKey {
    /// The rule.
    pub rule: RuleId,
    /// What it is for.
    pub purpose: Purpose,
    /// The tenant, if the key names it.
    pub tenant: Option<TenantId>,
    /// The principal, if the key names it.
    pub principal: Option<Arc<str>>,
    /// The source, if the key names it.
    pub source: Option<crate::source::SourceKey>,
}

impl CounterKey {
    /// The key of `rule` for `identity`, or `None` where a part that the rule's key names is missing.
    pub fn of(rule: &Rule, purpose: Purpose, identity: &Identity) -> Option<Self> {
        let mut key = Self { rule: rule.id.clone(), purpose, tenant: None, principal: None, source: None };
        for part in &rule.key {
            match part {
                KeyPart::Tenant => key.tenant = Some(identity.tenant.clone()?),
                KeyPart::Principal => key.principal = Some(identity.principal.clone()?),
                KeyPart::Source => key.source = Some(identity.source?),
            }
        }
        Some(key)
    }

    /// True if the key has exactly the parts that `rule` names now.
    pub fn fits(&self, rule: &Rule) -> bool {
        self.rule == rule.id
            && self.tenant.is_some() == rule.key.contains(&KeyPart::Tenant)
            && self.principal.is_some() == rule.key.contains(&KeyPart::Principal)
            && self.source.is_some() == rule.key.contains(&KeyPart::Source)
    }
}
