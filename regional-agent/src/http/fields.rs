//! The `RateLimit` and `RateLimit-Policy` fields, as the IETF drafts -08 to -11 agree on them. The one place that
//! writes them.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use leasehold_admission::verdict::whole_seconds;
use leasehold_protocol::admit::LimitState;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// Adds the fields for `limits`; nothing where there is no limit.
pub(super) fn add(headers: &mut HeaderMap, limits: &[LimitState]) {
    if limits.is_empty() {
        return;
    }
    let policy = limits.iter().map(policy_item).collect::<Vec<_>>().join(", ");
    let state = limits.iter().map(state_item).collect::<Vec<_>>().join(", ");
    if let (Ok(policy), Ok(state)) = (HeaderValue::try_from(policy), HeaderValue::try_from(state)) {
        headers.insert(RATELIMIT_POLICY, policy);
        headers.insert(RATELIMIT, state);
    }
}

fn policy_item(state: &LimitState) -> String {
    let quota = state.limit.0.min(INTEGER_MAX);
    match state.window_s {
        Some(window_s) => format!("\"{}\";q={quota};w={}", state.rule, window_s.min(INTEGER_MAX)),
        None => format!("\"{}\";q={quota}", state.rule),
    }
}

fn state_item(state: &LimitState) -> String {
    let rest = state.remaining.0.min(INTEGER_MAX);
    match state.reset_after_ms {
        Some(ms) => format!("\"{}\";r={rest};t={}", state.rule, whole_seconds(ms).min(INTEGER_MAX)),
        None => format!("\"{}\";r={rest}", state.rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_protocol::{RuleId, Tokens};

    #[test]
    fn each_limit_is_an_item_and_a_number_never_has_more_than_fifteen_digits() {
        let state = |rule: &str, limit, window_s, reset_after_ms| LimitState {
            rule: RuleId::new(rule).unwrap(),
            limit: Tokens(limit),
            remaining: Tokens(12),
            window_s,
            reset_after_ms,
            window_start: None,
        };
        let mut headers = HeaderMap::new();
        add(&mut headers, &[]);
        assert!(headers.is_empty());
        add(
            &mut headers,
            &[
                state("P-READ", 20, Some(10), Some(29_001)),
                state("P-EXPORT", 3, None, None),
                state("P-BIG", Tokens::MAX.0, Some(60), Some(0)),
            ],
        );
        assert_eq!(
            headers["ratelimit-policy"],
            "\"P-READ\";q=20;w=10, \"P-EXPORT\";q=3, \"P-BIG\";q=999999999999999;w=60"
        );
        assert_eq!(headers["ratelimit"], "\"P-READ\";r=12;t=30, \"P-EXPORT\";r=12, \"P-BIG\";r=12;t=0");
    }
}
