//! Which rules apply to a caller, where each value comes from, and what is left (D21).

use leasehold_protocol::admin::{Explanation, RuleExplanation};
use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::bundle::{Algorithm, Enforcement, FailMode, Fallback, Limit, Rule};
use leasehold_protocol::policy::Origin;
use leasehold_protocol::{InvalidField, LedgerTime, LocalTime, PoolKey, RouteId, TenantId, Tokens};

use crate::admission::{Admission, ParseError};
use crate::counters::key::{CounterKey, Purpose};
use crate::counters::{Counter, shape_of};
use crate::lease::Availability;
use crate::policy::ActivePolicy;
use crate::request::Identity;
use crate::source::SourceKey;

impl Admission {
    /// What applies to a caller on a route. Only `tenant`, `principal`, `source` and `route` of `asked` matter; a
    /// missing identity leaves the rules keyed by it without a count. Reads only.
    pub fn explain(
        &self,
        now: LocalTime,
        unix: LedgerTime,
        asked: &AdmitRequest,
    ) -> Result<Explanation, ParseError> {
        let policy = self.policy.as_ref().ok_or(ParseError::NoPolicy)?;
        let tenant = tenant_of(policy, asked)?;
        let Some(route) = policy.route(&asked.route) else {
            let rule = format!("no route has this id or pattern in bundle version {}", policy.version());
            return Err(ParseError::Invalid(vec![InvalidField::new("route", &asked.route, rule)]));
        };
        let identity = Identity {
            tenant: tenant.clone(),
            principal: asked.principal.as_deref().map(Into::into),
            source: asked.source.map(SourceKey::from),
        };
        let rules = policy.rules_of(route).map(|rule| RuleExplanation {
            rule: rule.id.clone(),
            limit: limit_in_words(policy, rule, tenant.as_ref(), unix),
            origin: policy
                .bundle()
                .limit_at(rule, tenant.as_ref(), unix)
                .map_or(Origin::Rule, |(_, origin)| origin),
            remaining: self.remaining(now, unix, policy, rule, &identity),
            fallback: fallback_in_words(rule),
        });
        Ok(Explanation {
            plan: tenant.as_ref().and_then(|t| policy.bundle().plan_of(t)).cloned(),
            principal: asked.principal.clone(),
            route: RouteId::clone(&route.id),
            pattern: route.pattern.clone(),
            weight: route.weight,
            fail_mode: match route.fail_mode {
                FailMode::Closed => "closed",
                FailMode::Bounded => "bounded",
                FailMode::Open { .. } => "open",
            }
            .to_owned(),
            bundle_version: policy.version(),
            rules: rules.collect(),
            tenant,
        })
    }

    fn remaining(
        &self,
        now: LocalTime,
        unix: LedgerTime,
        policy: &ActivePolicy,
        rule: &Rule,
        identity: &Identity,
    ) -> Option<Tokens> {
        let limit = policy.bundle().limit_at(rule, identity.tenant.as_ref(), unix).map(|(limit, _)| limit);
        let tokens = match limit {
            Some(Limit::Limited { tokens }) => tokens,
            Some(Limit::Blocked) => return Some(Tokens::ZERO),
            Some(Limit::Unlimited) => return None,
            None => Tokens::ZERO,
        };
        let key = CounterKey::of(rule, Purpose::Rule, identity)?;
        if rule.enforcement == Enforcement::Leased {
            let pool = PoolKey { rule: rule.id.clone(), tenant: key.tenant };
            return match self.leases.availability(now, &pool, Tokens(1)) {
                Availability::Enough { remaining: held, .. }
                | Availability::Exhausted { held, .. }
                | Availability::Pending { held, .. }
                | Availability::Lost { held } => Some(held),
                Availability::UnknownPool => None,
            };
        }
        // A counter that is not stored has counted nothing.
        match (self.counters.get(&key), rule.algorithm) {
            (Some(Counter::Window(count, _)), Algorithm::FixedWindow { window_ms, .. }) => {
                Some(tokens.saturating_sub(count.at(window_ms, unix, now).used()))
            }
            (Some(Counter::Bucket(bucket, _)), _) => {
                shape_of(rule, Purpose::Rule).map(|shape| bucket.at(shape, now).tokens())
            }
            (Some(Counter::Slots(slots)), _) => {
                let taken = u64::try_from(slots.in_flight_at(now)).unwrap_or(u64::MAX);
                Some(tokens.saturating_sub(Tokens(taken)))
            }
            (_, Algorithm::TokenBucket { capacity, .. }) => Some(capacity),
            (_, Algorithm::FixedWindow { .. } | Algorithm::Concurrency { .. }) => Some(tokens),
        }
    }
}

fn tenant_of(policy: &ActivePolicy, asked: &AdmitRequest) -> Result<Option<TenantId>, ParseError> {
    let Some(text) = &asked.tenant else { return Ok(None) };
    let id = TenantId::new(text)
        .map_err(|e| ParseError::Invalid(vec![InvalidField::new("tenant", text.escape_debug(), e)]))?;
    if policy.bundle().has_tenant(&id) {
        return Ok(Some(id));
    }
    let rule = format!("no such tenant in bundle version {}", policy.version());
    Err(ParseError::Invalid(vec![InvalidField::new("tenant", id, rule)]))
}

fn limit_in_words(policy: &ActivePolicy, rule: &Rule, tenant: Option<&TenantId>, unix: LedgerTime) -> String {
    let place = match rule.enforcement {
        Enforcement::Regional => "regional",
        Enforcement::Leased => "leased",
    };
    let limit = policy.bundle().limit_at(rule, tenant, unix).map(|(limit, _)| limit);
    match (limit, rule.algorithm) {
        (_, Algorithm::TokenBucket { capacity, refill_tokens, refill_ms }) => {
            format!("bucket of {capacity}, {}, {place}", per(refill_tokens, refill_ms))
        }
        (Some(Limit::Unlimited), _) => format!("unlimited, {place}"),
        (Some(Limit::Blocked), _) => format!("blocked, {place}"),
        (Some(Limit::Limited { tokens }), Algorithm::FixedWindow { window_ms, .. }) => {
            format!("{}, {place}", per(tokens, window_ms.as_ms()))
        }
        (Some(Limit::Limited { tokens }), Algorithm::Concurrency { slot_ttl_ms, .. }) => {
            format!("{tokens} at once, each for {} without a heartbeat, {place}", span(slot_ttl_ms))
        }
        (None, _) => place.to_owned(),
    }
}

fn fallback_in_words(rule: &Rule) -> String {
    match rule.fallback {
        Fallback::Refuse => "refuse".to_owned(),
        Fallback::Bucket { capacity, refill_tokens, refill_ms } => {
            format!("bucket of {capacity}, {}, at each agent", per(refill_tokens, refill_ms))
        }
    }
}

fn per(tokens: Tokens, ms: u64) -> String {
    format!("{tokens} per {}", span(ms))
}

fn span(ms: u64) -> String {
    if ms.is_multiple_of(1_000) { format!("{} s", ms / 1_000) } else { format!("{ms} ms") }
}
