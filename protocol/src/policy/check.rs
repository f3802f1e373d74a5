//! What cannot be right in a bundle. Every fault is listed, not only the first.

use crate::amount::Tokens;
use crate::bundle::{
    Algorithm, BUNDLE_FORMAT, Bundle, Enforcement, FailMode, Fallback, KeyPart, Limit, Route, Rule,
};
use crate::ids::{OverrideId, RuleId, TenantId};
use crate::policy::{ROUTE_RULES_MAX, TEXT_LEN_MAX};
use crate::problem::InvalidField;
use crate::time::LedgerTime;

/// Everything that is wrong with `bundle`.
pub(super) fn faults_of(bundle: &Bundle) -> Vec<InvalidField> {
    Faults::of(bundle)
}

/// The largest part of a pool that a region may have against another's part of 1.
const WEIGHT_MAX: u32 = 1_000;

/// Collects what is wrong with a bundle.
struct Faults(Vec<InvalidField>);

impl Faults {
    fn of(bundle: &Bundle) -> Vec<InvalidField> {
        let mut faults = Self(Vec::new());
        faults.head(bundle);
        for (i, rule) in bundle.rules.iter().enumerate() {
            faults.rule(&format!("rules[{i}]"), rule);
        }
        faults.sorted("rules", bundle.rules.iter().map(|r| r.id.as_str()));
        faults.case_twins(bundle);
        faults.plans(bundle);
        faults.tenants(bundle);
        faults.overrides(bundle);
        faults.routes(bundle);
        faults.0
    }

    fn add(&mut self, field: impl Into<String>, value: impl ToString, rule: impl ToString) {
        self.0.push(InvalidField::new(field, value, rule));
    }

    fn head(&mut self, bundle: &Bundle) {
        if bundle.format != BUNDLE_FORMAT {
            self.add("format", bundle.format, format!("this version reads format {BUNDLE_FORMAT}"));
        }
        if bundle.version.0 == 0 {
            self.add("version", 0, "versions start at 1");
        }
        if bundle.max_age_s == 0 {
            self.add("max_age_s", 0, "must be at least 1 s");
        }
        if bundle.routes.is_empty() {
            self.add("routes", "[]", "a policy without a route admits nothing");
        }
    }

    fn sorted<'a>(&mut self, field: &str, ids: impl Iterator<Item = &'a str>) {
        let mut last: Option<&str> = None;
        for id in ids {
            if last.is_some_and(|l| l == id) {
                self.add(field, id, "occurs twice");
            } else if last.is_some_and(|l| l > id) {
                self.add(field, id, "the list is not sorted by id");
            }
            last = Some(id);
        }
    }

    fn case_twins(&mut self, bundle: &Bundle) {
        let mut lower: Vec<(String, &RuleId)> =
            bundle.rules.iter().map(|r| (r.id.as_str().to_ascii_lowercase(), &r.id)).collect();
        lower.sort();
        for pair in lower.windows(2) {
            if let [(a, first), (b, second)] = pair
                && a == b
                && first != second
            {
                self.add("rules", second, format!("differs from {first} by case alone"));
            }
        }
    }

    fn rule(&mut self, at: &str, rule: &Rule) {
        if !rule.key.is_sorted_by(|a, b| a < b) {
            self.add(format!("{at}.key"), format!("{:?}", rule.key), "parts must be sorted and occur once");
        }
        if rule.key.contains(&KeyPart::Principal) && !rule.key.contains(&KeyPart::Tenant) {
            self.add(
                format!("{at}.key"),
                "principal",
                "a principal is one of a tenant: add the tenant to the key",
            );
        }
        match rule.algorithm {
            Algorithm::FixedWindow { limit, .. } => self.limit(&format!("{at}.algorithm.limit"), limit),
            Algorithm::TokenBucket { capacity, refill_tokens, refill_ms } => {
                self.bucket(&format!("{at}.algorithm"), capacity, refill_tokens, refill_ms);
            }
            Algorithm::Concurrency { limit, slot_ttl_ms } => {
                self.limit(&format!("{at}.algorithm.limit"), limit);
                if !(1_000..=86_400_000).contains(&slot_ttl_ms) {
                    self.add(format!("{at}.algorithm.slot_ttl_ms"), slot_ttl_ms, "must be 1 s to 24 h");
                }
            }
        }
        if let Fallback::Bucket { capacity, refill_tokens, refill_ms } = rule.fallback {
            self.bucket(&format!("{at}.fallback"), capacity, refill_tokens, refill_ms);
        }
        self.sharing(&format!("{at}.sharing"), rule);
        if rule.enforcement == Enforcement::Leased {
            if !matches!(rule.algorithm, Algorithm::FixedWindow { .. }) {
                self.add(
                    format!("{at}.enforcement"),
                    "leased",
                    "only a fixed window has a pool to lease from",
                );
            }
            if rule.key.iter().any(|part| *part != KeyPart::Tenant) {
                self.add(
                    format!("{at}.key"),
                    format!("{:?}", rule.key),
                    "a leased rule is keyed by tenant or by nothing",
                );
            }
        }
    }

    fn sharing(&mut self, at: &str, rule: &Rule) {
        if rule.enforcement != Enforcement::Leased && !rule.sharing.is_default() {
            self.add(at, &rule.id, "only a leased rule has a pool that regions share");
        }
        self.sorted(&format!("{at}.weights"), rule.sharing.weights.iter().map(|w| w.region.as_str()));
        for part in &rule.sharing.weights {
            if !(1..=WEIGHT_MAX).contains(&part.weight) {
                let value = format!("{}: {}", part.region, part.weight);
                self.add(format!("{at}.weights"), value, format!("a weight is 1 to {WEIGHT_MAX}"));
            }
        }
    }

    fn limit(&mut self, at: &str, limit: Limit) {
        if let Limit::Limited { tokens } = limit
            && (tokens.is_zero() || tokens > Tokens::MAX)
        {
            self.add(at, tokens, format!("must be 1 to {}; `blocked` admits nothing", Tokens::MAX));
        }
    }

    fn bucket(&mut self, at: &str, capacity: Tokens, refill: Tokens, refill_ms: u64) {
        if capacity.is_zero() || capacity > Tokens::MAX {
            self.add(format!("{at}.capacity"), capacity, format!("must be 1 to {}", Tokens::MAX));
        }
        if refill.is_zero() || refill > Tokens::MAX {
            self.add(format!("{at}.refill_tokens"), refill, format!("must be 1 to {}", Tokens::MAX));
        }
        if !(1..=86_400_000).contains(&refill_ms) {
            self.add(format!("{at}.refill_ms"), refill_ms, "must be 1 ms to 24 h");
        }
    }

    fn limit_for(&mut self, at: &str, bundle: &Bundle, rule: &RuleId, limit: Limit, tenant_needed: bool) {
        self.limit(&format!("{at}.limit"), limit);
        match bundle.rule(rule) {
            None => self.add(format!("{at}.rule"), rule, "no such rule"),
            Some(found) if matches!(found.algorithm, Algorithm::TokenBucket { .. }) => {
                self.add(format!("{at}.rule"), rule, "a token bucket's capacity is set in its rule only");
            }
            Some(found) if tenant_needed && !found.key.contains(&KeyPart::Tenant) => {
                self.add(
                    format!("{at}.rule"),
                    rule,
                    "the rule's key names no tenant, so no tenant can differ in it",
                );
            }
            Some(_) => {}
        }
    }

    fn plans(&mut self, bundle: &Bundle) {
        self.sorted("plans", bundle.plans.iter().map(|p| p.id.as_str()));
        for (i, plan) in bundle.plans.iter().enumerate() {
            self.sorted(&format!("plans[{i}].limits"), plan.limits.iter().map(|l| l.rule.as_str()));
            for (j, l) in plan.limits.iter().enumerate() {
                self.limit_for(&format!("plans[{i}].limits[{j}]"), bundle, &l.rule, l.limit, true);
            }
        }
    }

    fn tenants(&mut self, bundle: &Bundle) {
        self.sorted("tenants", bundle.tenants.iter().map(|t| t.id.as_str()));
        for (i, tenant) in bundle.tenants.iter().enumerate() {
            if !bundle.plans.iter().any(|p| p.id == tenant.plan) {
                self.add(format!("tenants[{i}].plan"), &tenant.plan, "no such plan");
            }
        }
    }

    fn overrides(&mut self, bundle: &Bundle) {
        let mut last: Option<(&TenantId, &RuleId)> = None;
        let mut ids: Vec<&OverrideId> = Vec::new();
        for (i, o) in bundle.overrides.iter().enumerate() {
            let at = format!("overrides[{i}]");
            let key = (&o.tenant, &o.rule);
            if last.is_some_and(|l| l == key) {
                self.add(at.clone(), &o.id, "a second override for the same tenant and rule");
            } else if last.is_some_and(|l| l > key) {
                self.add("overrides", &o.id, "the list is not sorted by tenant and rule");
            }
            last = Some(key);
            ids.push(&o.id);
            self.limit_for(&at, bundle, &o.rule, o.limit, true);
            if !bundle.has_tenant(&o.tenant) {
                self.add(format!("{at}.tenant"), &o.tenant, "no such tenant");
            }
            self.text(&format!("{at}.owner"), &o.owner);
            self.text(&format!("{at}.reason"), &o.reason);
            if o.expires_at_ms <= bundle.issued_at_ms {
                self.add(format!("{at}.expires_at"), LedgerTime(o.expires_at_ms), "has already passed");
            }
        }
        ids.sort();
        for pair in ids.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                self.add("overrides", b, "occurs twice");
            }
        }
    }

    fn routes(&mut self, bundle: &Bundle) {
        self.sorted("routes", bundle.routes.iter().map(|r| r.id.as_str()));
        let mut patterns: Vec<&str> = bundle.routes.iter().map(|r| r.pattern.as_str()).collect();
        patterns.sort_unstable();
        for pair in patterns.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                self.add("routes", b, "two routes have this pattern");
            }
        }
        for (i, route) in bundle.routes.iter().enumerate() {
            self.route(&format!("routes[{i}]"), bundle, route);
        }
        for rule in &bundle.rules {
            if !bundle.routes.iter().any(|route| route.rules.contains(&rule.id)) {
                self.add("rules", &rule.id, "no route names it, so nothing can reach it");
            }
        }
    }

    fn route(&mut self, at: &str, bundle: &Bundle, route: &Route) {
        self.text(&format!("{at}.pattern"), &route.pattern);
        if route.weight.is_zero() || route.weight > Tokens::MAX {
            self.add(format!("{at}.weight"), route.weight, format!("must be 1 to {}", Tokens::MAX));
        }
        if route.rules.is_empty() || route.rules.len() > ROUTE_RULES_MAX {
            self.add(
                format!("{at}.rules"),
                route.rules.len(),
                format!("a route has 1 to {ROUTE_RULES_MAX} rules"),
            );
        }
        for (j, id) in route.rules.iter().enumerate() {
            let field = format!("{at}.rules[{j}]");
            if route.rules.iter().take(j).any(|earlier| earlier == id) {
                self.add(field, id, "named twice");
                continue;
            }
            let Some(rule) = bundle.rule(id) else {
                self.add(field, id, "no such rule");
                continue;
            };
            for (what, most) in capacities(bundle, rule) {
                if route.weight > most {
                    let text = format!("weight {} can never pass {what}, which holds {most}", route.weight);
                    self.add(field.clone(), id, text);
                }
            }
        }
        if let FailMode::Open { reason } = &route.fail_mode {
            self.text(&format!("{at}.fail_mode.reason"), reason);
        }
    }

    fn text(&mut self, at: &str, text: &str) {
        if text.trim().is_empty() {
            self.add(at, text, "must not be blank");
        } else if text.len() > TEXT_LEN_MAX {
            self.add(at, text, format!("at most {TEXT_LEN_MAX} bytes"));
        } else if text.chars().any(is_forbidden) {
            self.add(at, text.escape_debug(), "control and text-direction characters are not allowed");
        }
    }
}

/// Control characters and those that turn the direction of text (Unicode UAX 9).
fn is_forbidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Every capacity that a request under `rule` can meet: the rule's own, each plan's and each override's (D17: a cost
/// above the capacity could never succeed).
fn capacities(bundle: &Bundle, rule: &Rule) -> Vec<(String, Tokens)> {
    let tokens = |limit: Limit| match limit {
        Limit::Limited { tokens } => Some(tokens),
        Limit::Unlimited | Limit::Blocked => None,
    };
    let mut found = Vec::new();
    match rule.algorithm {
        Algorithm::Concurrency { .. } => return found,
        Algorithm::TokenBucket { capacity, .. } => found.push((format!("rule {}", rule.id), capacity)),
        Algorithm::FixedWindow { limit, .. } => {
            found.extend(tokens(limit).map(|t| (format!("rule {}", rule.id), t)));
        }
    }
    for plan in &bundle.plans {
        for l in plan.limits.iter().filter(|l| l.rule == rule.id) {
            found.extend(tokens(l.limit).map(|t| (format!("plan {}", plan.id), t)));
        }
    }
    for o in bundle.overrides.iter().filter(|o| o.rule == rule.id) {
        found.extend(tokens(o.limit).map(|t| (format!("override {}", o.id), t)));
    }
    found
}
