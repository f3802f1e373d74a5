//! What a new bundle changes, in words: by its meaning for tenants, not by its text.

mod limits;
mod warnings;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::bundle::{Bundle, FailMode, Override, Route};
use leasehold_protocol::{LedgerTime, OverrideId, RouteId, TenantId};

use self::limits::LimitChange;
use self::words::{algorithm, fail_mode, fallback, key, limit, some_of};

/// The most lines of each kind; beyond it only their number is said.
pub const LINES_MAX: usize = 500;

/// A new bundle against the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What changes.
    pub changes: Vec<String>,
    /// What may be a mistake.
    pub warnings: Vec<String>,
}

/// Compares by the limits in force when `new` was issued.
pub fn compare(old: Option<&Bundle>, new: &Bundle) -> Comparison {
    let limits = old.map(|old| limits::changes(old, new)).unwrap_or_default();
    let mut changes = match old {
        Some(old) => changes(old, new, &limits),
        None => vec![format!(
            "the first policy: {} rules, {} plans, {} tenants, {} overrides, {} routes",
            new.rules.len(),
            new.plans.len(),
            new.tenants.len(),
            new.overrides.len(),
            new.routes.len()
        )],
    };
    let mut warnings = warnings::of(old, new, &limits);
    cut(&mut changes);
    cut(&mut warnings);
    Comparison { changes, warnings }
}

fn cut(lines: &mut Vec<String>) {
    if lines.len() > LINES_MAX {
        let more = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
        lines.push(format!("and {more} more"));
    }
}

fn changes(old: &Bundle, new: &Bundle, limits: &[LimitChange<'_>]) -> Vec<String> {
    let mut lines = Vec::new();
    if old.max_age_s != new.max_age_s {
        lines.push(format!("maximum age: {} s -> {} s", old.max_age_s, new.max_age_s));
    }
    rules(old, new, &mut lines);
    lines.extend(limits.iter().map(LimitChange::in_words));
    plans(old, new, &mut lines);
    tenants(old, new, &mut lines);
    overrides(old, new, &mut lines);
    routes(old, new, &mut lines);
    lines
}

fn rules(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    for rule in &old.rules {
        if new.rule(&rule.id).is_none() {
            lines.push(format!("rule {}: removed", rule.id));
        }
    }
    for rule in &new.rules {
        let Some(before) = old.rule(&rule.id) else {
            lines.push(format!("rule {}: new, {}", rule.id, algorithm(&rule.algorithm)));
            continue;
        };
        if before.algorithm != rule.algorithm {
            let (was, is) = (algorithm(&before.algorithm), algorithm(&rule.algorithm));
            lines.push(format!("rule {}: {was} -> {is}", rule.id));
        }
        if before.key != rule.key {
            lines.push(format!("rule {}: counted by {} -> {}", rule.id, key(&before.key), key(&rule.key)));
        }
        if before.enforcement != rule.enforcement {
            let [was, is] = [before, rule].map(|r| words::enforcement(r.enforcement));
            lines.push(format!("rule {}: {was} -> {is}", rule.id));
        }
        if before.fallback != rule.fallback {
            let (was, is) = (fallback(&before.fallback), fallback(&rule.fallback));
            lines.push(format!("rule {}: fallback {was} -> {is}", rule.id));
        }
        if before.sharing != rule.sharing {
            let (was, is) = (words::sharing(&before.sharing), words::sharing(&rule.sharing));
            lines.push(format!("rule {}: shared {was} -> {is}", rule.id));
        }
    }
}

fn plans(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    let ids = |bundle: &Bundle| bundle.plans.iter().map(|p| p.id.clone()).collect::<BTreeSet<_>>();
    let (before, after) = (ids(old), ids(new));
    lines.extend(before.difference(&after).map(|id| format!("plan {id}: removed")));
    lines.extend(after.difference(&before).map(|id| format!("plan {id}: new")));
    for plan in &new.plans {
        let changed = old.plans.iter().any(|p| p.id == plan.id && p.limits != plan.limits);
        if changed {
            let on_it = new.tenants.iter().filter(|t| t.plan == plan.id).count();
            lines.push(format!("plan {}: its limits change, {on_it} tenants are on it", plan.id));
        }
    }
}

fn tenants(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    let lost: Vec<&TenantId> = old.tenants.iter().map(|t| &t.id).filter(|id| !new.has_tenant(id)).collect();
    let come: Vec<&TenantId> = new.tenants.iter().map(|t| &t.id).filter(|id| !old.has_tenant(id)).collect();
    if !lost.is_empty() {
        lines.push(format!("{}: removed", some_of(&lost)));
    }
    if !come.is_empty() {
        lines.push(format!("{}: new", some_of(&come)));
    }
    let mut moves: BTreeMap<_, Vec<&TenantId>> = BTreeMap::new();
    for tenant in &new.tenants {
        if let Some(was) = old.plan_of(&tenant.id)
            && *was != tenant.plan
        {
            moves.entry((was, &tenant.plan)).or_default().push(&tenant.id);
        }
    }
    for ((was, is), moved) in moves {
        lines.push(format!("{}: plan {was} -> {is}", some_of(&moved)));
    }
}

fn overrides(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    let by_id = |bundle| -> BTreeMap<&OverrideId, &Override> {
        let bundle: &Bundle = bundle;
        bundle.overrides.iter().map(|o| (&o.id, o)).collect()
    };
    let after = by_id(new);
    for o in &old.overrides {
        if !after.contains_key(&o.id) {
            lines.push(format!("override {} of tenant {} for {}: removed", o.id, o.tenant, o.rule));
        }
    }
    let before = by_id(old);
    for (id, o) in after {
        let what = format!("override {id} of tenant {} for {}", o.tenant, o.rule);
        let until = LedgerTime(o.expires_at_ms);
        match before.get(id) {
            None => {
                let (limit, owner, reason) = (limit(o.limit), &o.owner, &o.reason);
                lines.push(format!("{what}: new, {limit} until {until}, {owner}: {reason}"));
            }
            Some(b) if (b.limit, b.expires_at_ms) != (o.limit, o.expires_at_ms) => {
                let (was, ended) = (limit(b.limit), LedgerTime(b.expires_at_ms));
                lines.push(format!("{what}: {was} until {ended} -> {} until {until}", limit(o.limit)));
            }
            Some(b) if **b != *o => lines.push(format!("{what}: another target, owner or reason")),
            Some(_) => {}
        }
    }
}

fn routes(old: &Bundle, new: &Bundle, lines: &mut Vec<String>) {
    let before: BTreeMap<&RouteId, &Route> = old.routes.iter().map(|r| (&r.id, r)).collect();
    for id in before.keys() {
        if new.route(id).is_none() {
            lines.push(format!("route {id}: removed"));
        }
    }
    for route in &new.routes {
        let at = format!("route {}", route.id);
        let Some(was) = before.get(&route.id) else {
            lines.push(format!("{at}: new, {}, weight {}", route.pattern, route.weight));
            continue;
        };
        if was.pattern != route.pattern {
            lines.push(format!("{at}: pattern {} -> {}", was.pattern, route.pattern));
        }
        if was.weight != route.weight {
            let by = words::by_how_much(was.weight.0, route.weight.0);
            lines.push(format!("{at}: weight {} -> {} ({by})", was.weight, route.weight));
        }
        if was.rules != route.rules {
            let [was, is] = [&was.rules, &route.rules].map(|ids| words::list(ids));
            lines.push(format!("{at}: rules {was} -> {is}"));
        }
        if was.fail_mode != route.fail_mode {
            let (was, is): (&FailMode, _) = (&was.fail_mode, fail_mode(&route.fail_mode));
            lines.push(format!("{at}: fail mode {} -> {is}", fail_mode(was)));
        }
    }
}

#[cfg(test)]
mod tests;
