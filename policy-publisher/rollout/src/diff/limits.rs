//! Effective limits before and after, grouped by what happens to them.

use std::collections::BTreeMap;

use leasehold_protocol::bundle::{Algorithm, Bundle, KeyPart, Limit, Rule};
use leasehold_protocol::{LedgerTime, RuleId, TenantId};

use super::words::{by_how_much, limit, some_of, span};

/// One limit that changes in the same way for these tenants.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LimitChange<'a> {
    pub(super) rule: &'a RuleId,
    /// What the limit is counted over, in words; empty for none.
    per: String,
    /// In order; at least one.
    pub(super) tenants: Vec<&'a TenantId>,
    pub(super) was: Limit,
    pub(super) is: Limit,
}

/// A limit as a value that sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Blocked,
    Limited(u64),
    Unlimited,
}

impl From<Limit> for Rank {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Blocked => Self::Blocked,
            Limit::Limited { tokens } => Self::Limited(tokens.0),
            Limit::Unlimited => Self::Unlimited,
        }
    }
}

impl LimitChange<'_> {
    /// `P-TENANT for tenant birch: 600 -> 300 per 60 s (-50 %)`.
    pub(super) fn in_words(&self) -> String {
        let whom = some_of(&self.tenants);
        let by = match (self.was, self.is) {
            (Limit::Limited { tokens: was }, Limit::Limited { tokens: is }) => {
                format!(" ({})", by_how_much(was.0, is.0))
            }
            _ => String::new(),
        };
        format!("{} for {whom}: {} -> {}{}{by}", self.rule, limit(self.was), limit(self.is), self.per)
    }

    /// True if it changes by more than `times`, or to or from no limit at all.
    pub(super) fn is_more_than(&self, times: u64) -> bool {
        match (self.was, self.is) {
            (Limit::Limited { tokens: was }, Limit::Limited { tokens: is }) => {
                was.0.max(is.0) > was.0.min(is.0).saturating_mul(times)
            }
            (was, is) => was != is,
        }
    }
}

/// Every limit of a rule and tenant that both bundles know and that differs.
pub(super) fn changes<'a>(old: &'a Bundle, new: &'a Bundle) -> Vec<LimitChange<'a>> {
    let at = LedgerTime(new.issued_at_ms);
    let mut found = Vec::new();
    for rule in &new.rules {
        let Some(before) = old.rule(&rule.id) else { continue };
        if !rule.key.contains(&KeyPart::Tenant) {
            // A change of its own limit is said of the rule.
            continue;
        }
        let mut groups: BTreeMap<(Rank, Rank), (Limit, Limit, Vec<&TenantId>)> = BTreeMap::new();
        for tenant in new.tenants.iter().map(|t| &t.id).filter(|id| old.has_tenant(id)) {
            let was = old.limit_value_at(before, Some(tenant), at);
            let is = new.limit_value_at(rule, Some(tenant), at);
            if let (Some(was), Some(is)) = (was, is)
                && was != is
            {
                let group = groups.entry((was.into(), is.into())).or_insert_with(|| (was, is, Vec::new()));
                group.2.push(tenant);
            }
        }
        for (was, is, tenants) in groups.into_values() {
            found.push(LimitChange { rule: &rule.id, per: per(rule), tenants, was, is });
        }
    }
    found
}

fn per(rule: &Rule) -> String {
    match rule.algorithm {
        Algorithm::FixedWindow { window_ms, .. } => format!(" per {}", span(window_ms.as_ms())),
        Algorithm::Concurrency { .. } => " at once".to_owned(),
        Algorithm::TokenBucket { .. } => String::new(),
    }
}
