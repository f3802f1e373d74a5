//! Where a fault that was found in a bundle stands in the source: lists are sorted on the way, and some fields have
//! other names.

/// How a rule counts, as far as names differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    FixedWindow,
    TokenBucket,
    Concurrency,
}

/// For each place in the bundle, the place in the source.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) rules: Vec<(usize, Kind)>,
    pub(super) plans: Vec<(usize, Vec<usize>)>,
    pub(super) tenants: Vec<usize>,
    pub(super) overrides: Vec<usize>,
    pub(super) routes: Vec<usize>,
}

impl Places {
    /// The field's path in the source; a path without a place is the same in both.
    pub(super) fn in_source(&self, field: &str) -> String {
        let Some((list, at, rest)) = indexed(field) else { return field.to_owned() };
        let (at, rest) = match list {
            "rules" => match self.rules.get(at) {
                Some((place, kind)) => (*place, in_rule(rest, *kind)),
                None => return field.to_owned(),
            },
            "plans" => match self.plans.get(at) {
                Some((place, limits)) => (*place, in_plan(rest, limits)),
                None => return field.to_owned(),
            },
            _ => {
                let places = match list {
                    "tenants" => &self.tenants,
                    "overrides" => &self.overrides,
                    "routes" => &self.routes,
                    _ => return field.to_owned(),
                };
                match places.get(at) {
                    Some(place) => (*place, rest.replace("fail_mode.reason", "fail_mode.open.reason")),
                    None => return field.to_owned(),
                }
            }
        };
        format!("{list}[{at}]{rest}")
    }
}

/// `list[at]rest`, taken apart.
fn indexed(field: &str) -> Option<(&str, usize, &str)> {
    let (list, rest) = field.split_once('[')?;
    let (at, rest) = rest.split_once(']')?;
    Some((list, at.parse().ok()?, rest))
}

fn in_rule(rest: &str, kind: Kind) -> String {
    let name = match kind {
        Kind::FixedWindow => "fixed_window",
        Kind::TokenBucket => "token_bucket",
        Kind::Concurrency => "concurrency",
    };
    let rest = rest.replace(".slot_ttl_ms", ".slot_ttl_s");
    match rest.split_once(".algorithm") {
        Some((_, tail)) => format!(".{name}{tail}"),
        None => rest.replace(".fallback.", ".fallback.bucket."),
    }
}

fn in_plan(rest: &str, limits: &[usize]) -> String {
    match indexed(rest) {
        Some((list, at, tail)) => {
            limits.get(at).map_or_else(|| rest.to_owned(), |place| format!("{list}[{place}]{tail}"))
        }
        None => rest.to_owned(),
    }
}
