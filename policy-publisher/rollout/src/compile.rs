//! From source to bundle: the same source, version and time always give the same bytes.

mod places;

use leasehold_protocol::bundle::{
    self, Algorithm, BUNDLE_BYTES_MAX, BUNDLE_FORMAT, Bundle, Enforcement, Limit,
};
use leasehold_protocol::policy::{BundleError, CheckedBundle};
use leasehold_protocol::{BundleVersion, InvalidField, LedgerTime, WindowLength};

use self::places::{Kind, Places};
use crate::source::{self, Source};

/// The most faults that are listed; beyond it only their number is said.
pub const FAULTS_MAX: usize = 1_000;

/// A source that cannot be enforced: everything that is wrong with it, by its place in the source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .faults.iter().map(|f| format!("`{}` = {:?}: {}", f.field, f.value, f.rule)).collect::<Vec<_>>().join("; "))]
pub struct CompileError {
    /// Each names the field, its value and the rule it breaks; at least one.
    pub faults: Vec<InvalidField>,
}

/// The bundle that `source` describes, as `version`, at `issued_at`. An override that has ended by then is a fault:
/// somebody believes in it.
pub fn compile(
    source: &Source,
    version: BundleVersion,
    issued_at: LedgerTime,
) -> Result<CheckedBundle, CompileError> {
    let mut work = Work { faults: Vec::new() };
    let (bundle, places) = work.bundle(source, version, issued_at);
    let checked = CheckedBundle::new(bundle);
    let mut faults = work.faults;
    match checked {
        Ok(checked) if faults.is_empty() => {
            let len = checked.to_bytes().len();
            if len <= BUNDLE_BYTES_MAX {
                return Ok(checked);
            }
            let rule = format!("the bundle would have more than {BUNDLE_BYTES_MAX} bytes");
            faults.push(InvalidField::new(".", len, rule));
        }
        Ok(_) => {}
        Err(BundleError::Invalid(found)) => {
            faults.extend(found.into_iter().map(|f| InvalidField { field: places.in_source(&f.field), ..f }));
        }
        Err(other) => faults.push(InvalidField::new(".", "", other)),
    }
    if faults.len() > FAULTS_MAX {
        let more = faults.len() - FAULTS_MAX;
        faults.truncate(FAULTS_MAX);
        faults.push(InvalidField::new(".", more, "so many more faults are not listed"));
    }
    Err(CompileError { faults })
}

/// True if two bundles say the same, whatever their version and time of issue.
pub fn has_same_content(a: &Bundle, b: &Bundle) -> bool {
    // Written out, so that a new field cannot be forgotten.
    let Bundle { format, version: _, issued_at_ms: _, max_age_s, rules, plans, tenants, overrides, routes } =
        a;
    (format, max_age_s, rules, plans, tenants, overrides, routes)
        == (&b.format, &b.max_age_s, &b.rules, &b.plans, &b.tenants, &b.overrides, &b.routes)
}

/// The items with their places in the source, in the bundle's order.
fn sorted<'a, T, K: Ord>(items: &'a [T], key: impl Fn(&'a T) -> K) -> Vec<(usize, &'a T)> {
    let mut numbered: Vec<(usize, &T)> = items.iter().enumerate().collect();
    numbered.sort_by_key(|(_, item)| key(item));
    numbered
}

/// Collects what cannot be written down as a bundle at all. What is faulty gets a stand-in that breaks no other rule.
struct Work {
    faults: Vec<InvalidField>,
}

impl Work {
    fn add(&mut self, field: impl Into<String>, value: impl ToString, rule: impl ToString) {
        self.faults.push(InvalidField::new(field, value, rule));
    }

    fn bundle(&mut self, source: &Source, version: BundleVersion, issued_at: LedgerTime) -> (Bundle, Places) {
        let rules = sorted(&source.rules, |r| &r.id);
        let plans: Vec<_> = sorted(&source.plans, |p| &p.id)
            .into_iter()
            .map(|(i, plan)| (i, plan, sorted(&plan.limits, |l| &l.rule)))
            .collect();
        let tenants = sorted(&source.tenants, |t| &t.id);
        let overrides = sorted(&source.overrides, |o| (&o.tenant, &o.rule));
        let routes = sorted(&source.routes, |r| &r.id);
        let places = Places {
            rules: rules.iter().map(|(i, rule)| (*i, kind_of(rule))).collect(),
            plans: plans
                .iter()
                .map(|(i, _, limits)| (*i, limits.iter().map(|(j, _)| *j).collect()))
                .collect(),
            tenants: tenants.iter().map(|(i, _)| *i).collect(),
            overrides: overrides.iter().map(|(i, _)| *i).collect(),
            routes: routes.iter().map(|(i, _)| *i).collect(),
        };
        let bundle = Bundle {
            format: BUNDLE_FORMAT,
            version,
            issued_at_ms: issued_at.0,
            max_age_s: source.max_age_s,
            rules: rules.into_iter().map(|(i, rule)| self.rule(i, rule)).collect(),
            plans: plans.into_iter().map(|(_, plan, limits)| plan_of(plan, &limits)).collect(),
            tenants: tenants
                .into_iter()
                .map(|(_, t)| bundle::Tenant { id: t.id.clone(), plan: t.plan.clone() })
                .collect(),
            overrides: overrides.into_iter().map(|(i, o)| self.an_override(i, o)).collect(),
            routes: routes.into_iter().map(|(_, route)| route_of(route)).collect(),
        };
        (bundle, places)
    }

    fn rule(&mut self, at: usize, rule: &source::Rule) -> bundle::Rule {
        let mut key = rule.key.clone();
        key.sort_unstable();
        let mut sharing = rule.sharing.clone();
        sharing.weights.sort_by(|a, b| a.region.cmp(&b.region));
        bundle::Rule {
            id: rule.id.clone(),
            key,
            algorithm: self.algorithm(at, rule),
            enforcement: rule.enforcement,
            fallback: rule.fallback,
            sharing,
        }
    }

    fn algorithm(&mut self, at: usize, rule: &source::Rule) -> Algorithm {
        match (rule.fixed_window, rule.token_bucket, rule.concurrency) {
            (Some(window), None, None) => Algorithm::FixedWindow {
                limit: window.limit,
                window_ms: self.window(&format!("rules[{at}].fixed_window.window_s"), window.window_s),
            },
            (None, Some(bucket), None) => Algorithm::TokenBucket {
                capacity: bucket.capacity,
                refill_tokens: bucket.refill_tokens,
                refill_ms: bucket.refill_ms,
            },
            (None, None, Some(slots)) => Algorithm::Concurrency {
                limit: slots.limit,
                slot_ttl_ms: slots.slot_ttl_s.saturating_mul(1_000),
            },
            _ => {
                let wanted =
                    "exactly one of `fixed_window`, `token_bucket` and `concurrency` says how it counts";
                self.add(format!("rules[{at}]"), &rule.id, wanted);
                match rule.enforcement {
                    Enforcement::Leased => {
                        Algorithm::FixedWindow { limit: Limit::Unlimited, window_ms: minute() }
                    }
                    Enforcement::Regional => {
                        Algorithm::Concurrency { limit: Limit::Unlimited, slot_ttl_ms: 60_000 }
                    }
                }
            }
        }
    }

    fn window(&mut self, field: &str, window_s: u64) -> WindowLength {
        let length = window_s.checked_mul(1_000).and_then(|ms| WindowLength::from_ms(ms).ok());
        length.unwrap_or_else(|| {
            self.add(field, window_s, "a window has 1 s to 86400 s");
            minute()
        })
    }

    fn an_override(&mut self, at: usize, o: &source::Override) -> bundle::Override {
        let expires_at = LedgerTime::from_rfc3339(&o.expires_at).unwrap_or_else(|e| {
            self.add(format!("overrides[{at}].expires_at"), &o.expires_at, e);
            LedgerTime(u64::MAX)
        });
        bundle::Override {
            id: o.id.clone(),
            tenant: o.tenant.clone(),
            rule: o.rule.clone(),
            limit: o.limit,
            owner: o.owner.clone(),
            reason: o.reason.clone(),
            expires_at_ms: expires_at.0,
        }
    }
}

fn minute() -> WindowLength {
    WindowLength::from_ms(60_000).expect("a minute is a window")
}

fn kind_of(rule: &source::Rule) -> Kind {
    if rule.token_bucket.is_some() {
        Kind::TokenBucket
    } else if rule.concurrency.is_some() {
        Kind::Concurrency
    } else {
        Kind::FixedWindow
    }
}

fn plan_of(plan: &source::Plan, limits: &[(usize, &source::PlanLimit)]) -> bundle::Plan {
    bundle::Plan {
        id: plan.id.clone(),
        limits: limits
            .iter()
            .map(|(_, l)| bundle::PlanLimit { rule: l.rule.clone(), limit: l.limit })
            .collect(),
    }
}

fn route_of(route: &source::Route) -> bundle::Route {
    bundle::Route {
        id: route.id.clone(),
        pattern: route.pattern.clone(),
        weight: route.weight,
        rules: route.rules.clone(),
        fail_mode: route.fail_mode.clone(),
    }
}

#[cfg(test)]
mod tests;
