//! What is allowed and may still be a mistake.

use std::collections::BTreeMap;

use leasehold_protocol::bundle::{Algorithm, Bundle, Enforcement, FailMode, Fallback, Limit, Override, Rule};
use leasehold_protocol::{LedgerTime, PlanId, RuleId, TenantId};

use super::limits::LimitChange;
use super::words::{algorithm, fail_mode, limit, list, some_of};

/// A change by more than this factor, up or down, is warned of.
const FACTOR_MAX: u64 = 10;
/// An override that ends later than this after the bundle was issued is warned of, in days.
const OVERRIDE_DAYS_MAX: u64 = 90;
const DAY_MS: u64 = 86_400_000;

/// The warnings of `new`, given the bundle before and its changes of effective limits.
pub(super) fn of(old: Option<&Bundle>, new: &Bundle, limits: &[LimitChange<'_>]) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(old) = old {
        for change in limits.iter().filter(|c| c.is_more_than(FACTOR_MAX)) {
            lines.push(format!("{}: more than {FACTOR_MAX} times", change.in_words()));
        }
        rules(old, new, &mut lines);
        tenants(old, new, &mut lines);
        routes(old, new, &mut lines);
    }
    for o in &new.overrides {
        an_override(new, o, &mut lines);
    }
    for route in &new.routes {
        if let FailMode::Open { reason } = &route.fail_mode {
            lines.push(format!(
                "route {} fails open ({reason}): without a decision all is admitted",
                route.id
            ));
        }
    }
    for rule in &new.rules {
        wide_fallback(rule, &mut lines);
    }
    lines
}

/// Limits that no tenant's effective limit shows: buckets, and rules whose key names no tenant.
fn rules(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    for rule in &new.rules {
        let Some(before) = old.rule(&rule.id) else { continue };
        let far = |a: u64, b: u64| a.max(b) > a.min(b).saturating_mul(FACTOR_MAX);
        let is_far = match (before.algorithm, rule.algorithm) {
            (
                Algorithm::TokenBucket { capacity: c0, refill_tokens: t0, refill_ms: m0 },
                Algorithm::TokenBucket { capacity: c1, refill_tokens: t1, refill_ms: m1 },
            ) => far(c0.0, c1.0) || far(t0.0.saturating_mul(m1), t1.0.saturating_mul(m0)),
            (
                Algorithm::FixedWindow { limit: l0, window_ms: w0 },
                Algorithm::FixedWindow { limit: l1, window_ms: w1 },
            ) => match (l0, l1) {
                (Limit::Limited { tokens: a }, Limit::Limited { tokens: b }) => {
                    far(a.0.saturating_mul(w1.as_ms()), b.0.saturating_mul(w0.as_ms()))
                }
                _ => l0 != l1,
            },
            (Algorithm::Concurrency { limit: l0, .. }, Algorithm::Concurrency { limit: l1, .. }) => {
                match (l0, l1) {
                    (Limit::Limited { tokens: a }, Limit::Limited { tokens: b }) => far(a.0, b.0),
                    _ => l0 != l1,
                }
            }
            _ => {
                lines.push(format!("rule {} counts in another way: what was counted is forgotten", rule.id));
                false
            }
        };
        if is_far {
            let (was, is) = (algorithm(&before.algorithm), algorithm(&rule.algorithm));
            lines.push(format!("rule {}: {was} -> {is}: more than {FACTOR_MAX} times", rule.id));
        }
        if before.enforcement == Enforcement::Leased && rule.enforcement == Enforcement::Regional {
            lines.push(format!("rule {} is no longer leased: each agent admits its whole limit", rule.id));
        }
    }
}

fn tenants(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    let lost: Vec<&TenantId> = old.tenants.iter().map(|t| &t.id).filter(|id| !new.has_tenant(id)).collect();
    if !lost.is_empty() {
        lines.push(format!("{} lost: requests of an unknown tenant are refused as invalid", some_of(&lost)));
    }
    let names = |bundle| -> BTreeMap<&PlanId, Vec<&RuleId>> {
        let bundle: &Bundle = bundle;
        bundle.plans.iter().map(|p| (&p.id, p.limits.iter().map(|l| &l.rule).collect())).collect()
    };
    let (before, after) = (names(old), names(new));
    let mut bare: BTreeMap<&RuleId, Vec<&TenantId>> = BTreeMap::new();
    for tenant in &new.tenants {
        let had = old.plan_of(&tenant.id).and_then(|plan| before.get(plan));
        let has = after.get(&tenant.plan);
        for rule in had.into_iter().flatten() {
            let still_there = new.rule(rule).is_some();
            if still_there && !has.is_some_and(|rules| rules.contains(rule)) {
                bare.entry(rule).or_default().push(&tenant.id);
            }
        }
    }
    for (rule, tenants) in bare {
        lines.push(format!(
            "the plan of {} no longer names {rule}: the rule's own limit counts",
            some_of(&tenants)
        ));
    }
}

fn routes(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    let strength = |mode: &FailMode| match mode {
        FailMode::Closed => 2,
        FailMode::Bounded => 1,
        FailMode::Open { .. } => 0,
    };
    for was in &old.routes {
        let Some(is) = new.route(&was.id) else {
            lines.push(format!("route {} is lost: its requests are refused as invalid", was.id));
            continue;
        };
        let dropped: Vec<&RuleId> = was.rules.iter().filter(|rule| !is.rules.contains(rule)).collect();
        if !dropped.is_empty() {
            lines.push(format!("route {} no longer passes {}", was.id, list(&dropped)));
        }
        if strength(&is.fail_mode) < strength(&was.fail_mode) {
            let (from, to) = (fail_mode(&was.fail_mode), fail_mode(&is.fail_mode));
            lines.push(format!("route {} fails more openly: {from} -> {to}", was.id));
        }
    }
}

fn an_override(new: &Bundle, o: &Override, lines: &mut Vec<String>) {
    let days = o.expires_at_ms.saturating_sub(new.issued_at_ms) / DAY_MS;
    if days > OVERRIDE_DAYS_MAX {
        let until = LedgerTime(o.expires_at_ms);
        lines.push(format!(
            "override {} lasts until {until}, {days} days: what lasts longer than {OVERRIDE_DAYS_MAX} is a plan",
            o.id
        ));
    }
    let without = new.rule(&o.rule).and_then(|rule| {
        // Past its end the override is no longer there.
        new.limit_value_at(rule, Some(&o.tenant), LedgerTime(o.expires_at_ms))
    });
    if without == Some(o.limit) {
        lines.push(format!("override {} changes nothing: {} already is {}", o.id, o.rule, limit(o.limit)));
    }
}

/// A fallback that alone lets each agent admit more than the rule's own limit in a window.
fn wide_fallback(rule: &Rule, lines: &mut Vec<String>) {
    if let (
        Algorithm::FixedWindow { limit: Limit::Limited { tokens: limit }, window_ms },
        Fallback::Bucket { capacity, refill_tokens, refill_ms },
    ) = (rule.algorithm, rule.fallback)
    {
        let flows_in =
            u128::from(refill_tokens.0) * u128::from(window_ms.as_ms()) / u128::from(refill_ms.max(1));
        let admits = u128::from(capacity.0).saturating_add(flows_in);
        if admits > u128::from(limit.0) {
            lines.push(format!(
                "rule {}: in fallback each agent admits {admits} in a window, more than the limit of {limit}",
                rule.id
            ));
        }
    }
}
