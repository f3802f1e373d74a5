//! Values as people say them.

use std::fmt::Display;

use leasehold_protocol::bundle::{
    Algorithm, Enforcement, FailMode, Fallback, KeyPart, Limit, Order, Sharing,
};
use leasehold_protocol::{TenantId, Tokens};

/// The most tenants that a line names.
const NAMED_MAX: usize = 3;

pub(super) fn limit(limit: Limit) -> String {
    match limit {
        Limit::Limited { tokens } => tokens.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::Blocked => "blocked".to_owned(),
    }
}

/// A span of ms, in s where it is whole.
pub(super) fn span(ms: u64) -> String {
    if ms.is_multiple_of(1_000) { format!("{} s", ms / 1_000) } else { format!("{ms} ms") }
}

fn bucket(capacity: Tokens, refill_tokens: Tokens, refill_ms: u64) -> String {
    format!("bucket of {capacity}, refilled by {refill_tokens} each {}", span(refill_ms))
}

pub(super) fn algorithm(algorithm: &Algorithm) -> String {
    match *algorithm {
        Algorithm::FixedWindow { limit: l, window_ms } => {
            format!("{} per {}", limit(l), span(window_ms.as_ms()))
        }
        Algorithm::TokenBucket { capacity, refill_tokens, refill_ms } => {
            bucket(capacity, refill_tokens, refill_ms)
        }
        Algorithm::Concurrency { limit: l, slot_ttl_ms } => {
            format!("{} at once (a slot lasts {})", limit(l), span(slot_ttl_ms))
        }
    }
}

pub(super) fn fallback(fallback: &Fallback) -> String {
    match *fallback {
        Fallback::Refuse => "refuse".to_owned(),
        Fallback::Bucket { capacity, refill_tokens, refill_ms } => bucket(capacity, refill_tokens, refill_ms),
    }
}

pub(super) fn sharing(sharing: &Sharing) -> String {
    let order = match sharing.order {
        Order::MaxMin => "max-min fairly",
        Order::Fcfs => "by order of arrival",
    };
    let weights: Vec<String> =
        sharing.weights.iter().map(|part| format!("{} {}", part.region, part.weight)).collect();
    if weights.is_empty() { order.to_owned() } else { format!("{order} (parts: {})", list(&weights)) }
}

pub(super) fn fail_mode(mode: &FailMode) -> &'static str {
    match mode {
        FailMode::Closed => "closed",
        FailMode::Bounded => "bounded",
        FailMode::Open { .. } => "open",
    }
}

pub(super) fn enforcement(enforcement: Enforcement) -> &'static str {
    match enforcement {
        Enforcement::Regional => "regional",
        Enforcement::Leased => "leased",
    }
}

pub(super) fn key(parts: &[KeyPart]) -> String {
    let words: Vec<&str> = parts
        .iter()
        .map(|part| match part {
            KeyPart::Tenant => "tenant",
            KeyPart::Principal => "principal",
            KeyPart::Source => "source",
        })
        .collect();
    if words.is_empty() { "the whole fleet".to_owned() } else { words.join(" and ") }
}

pub(super) fn list(ids: &[impl Display]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `tenant atlas`, or `412 tenants (atlas, birch, cedar, ...)`.
pub(super) fn some_of(tenants: &[&TenantId]) -> String {
    match tenants {
        [one] => format!("tenant {one}"),
        all if all.len() <= NAMED_MAX => format!("tenants {}", list(all)),
        all => {
            let named = all.iter().take(NAMED_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("{} tenants ({named}, ...)", all.len())
        }
    }
}

/// `+50 %`, `-40 %`, rounded towards none.
pub(super) fn by_how_much(was: u64, is: u64) -> String {
    let Some(percent) = (u128::from(was.abs_diff(is)) * 100).checked_div(u128::from(was)) else {
        return "from none".to_owned();
    };
    let sign = if is >= was { '+' } else { '-' };
    if percent == 0 && was != is { format!("{sign}<1 %") } else { format!("{sign}{percent} %") }
}
