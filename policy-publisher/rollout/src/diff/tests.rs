use leasehold_protocol::bundle::{Fallback, Limit, Order, Sharing, Weight};
use leasehold_protocol::{BundleVersion, PlanId, RegionId, RuleId, TenantId, Tokens};

use super::*;
use crate::compile::compile;
use crate::source::{Bucket, FixedWindow, Source, Tenant};

const NORTHSTAR: &str = include_str!("../../../../docs/examples/northstar.yaml");
/// 30 days before the sample's override ends.
const NOW: LedgerTime = LedgerTime(1_893_456_000_000);

fn source() -> Source {
    serde_norway::from_str(NORTHSTAR).unwrap()
}

fn tokens(n: u64) -> Limit {
    Limit::Limited { tokens: Tokens(n) }
}

fn after(change: impl FnOnce(&mut Source)) -> Comparison {
    let before = compile(&source(), BundleVersion(1), NOW).unwrap();
    let mut changed = source();
    change(&mut changed);
    compare(Some(&before), &compile(&changed, BundleVersion(2), NOW).unwrap())
}

#[test]
fn the_sample_policy_warns_of_nothing_but_the_late_end_of_its_override() {
    let near = compile(&source(), BundleVersion(1), NOW).unwrap();
    let first = compare(None, &near);
    assert_eq!(first.warnings, Vec::<String>::new());
    assert_eq!(first.changes, ["the first policy: 5 rules, 3 plans, 3 tenants, 1 overrides, 5 routes"]);
    let far = compile(&source(), BundleVersion(1), LedgerTime(NOW.0 - 100 * 86_400_000)).unwrap();
    assert_eq!(
        compare(None, &far).warnings,
        [
            "override cedar-export-trial lasts until 2030-01-31T00:00:00.000Z, 130 days: what lasts longer than 90 is a \
          plan"
        ]
    );
}

#[test]
fn no_change_is_no_line() {
    assert_eq!(after(|_| {}), Comparison::default());
}

#[test]
fn a_plans_new_limit_is_said_by_tenant_and_amount() {
    let halved = after(|s| s.plans[1].limits[0].limit = tokens(300));
    assert_eq!(
        halved.changes,
        [
            "P-TENANT for tenant birch: 600 -> 300 per 60 s (-50 %)",
            "plan standard: its limits change, 1 tenants are on it"
        ]
    );
    assert_eq!(halved.warnings, Vec::<String>::new());
}

#[test]
fn a_limit_that_moves_by_more_than_ten_times_is_warned_of() {
    let wide = after(|s| s.plans[1].limits[0].limit = tokens(6_001));
    assert_eq!(
        wide.warnings,
        ["P-TENANT for tenant birch: 600 -> 6001 per 60 s (+900 %): more than 10 times"]
    );
    assert_eq!(after(|s| s.plans[1].limits[0].limit = tokens(6_000)).warnings, Vec::<String>::new());
    let blocked = after(|s| s.plans[1].limits[0].limit = Limit::Blocked);
    assert_eq!(blocked.warnings, ["P-TENANT for tenant birch: 600 -> blocked per 60 s: more than 10 times"]);
    let bucket = after(|s| {
        s.rules[1].token_bucket =
            Some(Bucket { capacity: Tokens(20), refill_tokens: Tokens(2), refill_ms: 60_000 });
    });
    assert_eq!(
        bucket.warnings,
        [
            "rule P-READ: bucket of 20, refilled by 2 each 1 s -> bucket of 20, refilled by 2 each 60 s: more than 10 \
          times"
        ]
    );
}

#[test]
fn a_tenant_that_is_lost_or_loses_its_plans_limit_is_warned_of() {
    let lost = after(|s| {
        s.tenants.remove(0);
    });
    assert_eq!(lost.changes, ["tenant atlas: removed"]);
    assert_eq!(lost.warnings, ["tenant atlas lost: requests of an unknown tenant are refused as invalid"]);
    let bare = after(|s| s.plans[2].limits.clear());
    assert_eq!(
        bare.warnings,
        [
            "P-TENANT for tenant atlas: 1000 -> 60 per 60 s (-94 %): more than 10 times",
            "the plan of tenant atlas no longer names P-TENANT: the rule's own limit counts"
        ]
    );
    let moved = after(|s| s.tenants[1].plan = PlanId::new("enterprise").unwrap());
    assert_eq!(
        moved.changes,
        [
            "P-TENANT for tenant birch: 600 -> 1000 per 60 s (+66 %)",
            "tenant birch: plan standard -> enterprise"
        ]
    );
}

#[test]
fn routes_rules_and_overrides_are_compared_by_meaning() {
    let all = after(|s| {
        s.max_age_s = 60;
        s.rules[0].fixed_window = Some(FixedWindow { limit: tokens(30), window_s: 10 });
        s.rules[2].fallback =
            Fallback::Bucket { capacity: Tokens(100), refill_tokens: Tokens(1), refill_ms: 60_000 };
        let weight = Weight { region: RegionId::new("eu").unwrap(), weight: 2 };
        s.rules[2].sharing = Sharing { order: Order::Fcfs, weights: vec![weight] };
        s.overrides[0].limit = tokens(3);
        s.routes[3].weight = Tokens(20);
        s.routes[1].fail_mode = FailMode::Bounded;
        s.routes[1].rules.pop();
    });
    assert_eq!(
        all.changes,
        [
            "maximum age: 3600 s -> 60 s",
            "rule P-ANON: 20 per 10 s -> 30 per 10 s",
            "rule P-TENANT: fallback refuse -> bucket of 100, refilled by 1 each 60 s",
            "rule P-TENANT: shared max-min fairly -> by order of arrival (parts: eu 2)",
            "P-EXPORT for tenant cedar: 2 -> 3 at once (+50 %)",
            "override cedar-export-trial of tenant cedar for P-EXPORT: 2 until 2030-01-31T00:00:00.000Z -> 3 until \
             2030-01-31T00:00:00.000Z",
            "route checkout: rules P-READ, P-TENANT -> P-READ",
            "route checkout: fail mode closed -> bounded",
            "route export: weight 10 -> 20 (+100 %)",
        ]
    );
    assert_eq!(
        all.warnings,
        [
            "route checkout no longer passes P-TENANT",
            "route checkout fails more openly: closed -> bounded",
            "rule P-TENANT: in fallback each agent admits 101 in a window, more than the limit of 60",
        ]
    );
}

#[test]
fn many_tenants_are_one_line() {
    let many: Vec<Tenant> = (0..1_000)
        .map(|i| Tenant {
            id: TenantId::new(format!("t{i:03}")).unwrap(),
            plan: PlanId::new("free").unwrap(),
        })
        .collect();
    let mut before = source();
    before.tenants.extend(many);
    let mut now = before.clone();
    now.plans[0].limits[0].limit = tokens(30);
    let [before, now] = [before, now].map(|s| compile(&s, BundleVersion(1), NOW).unwrap());
    let lines = compare(Some(&before), &now).changes;
    assert_eq!(lines[0], "P-TENANT for 1001 tenants (cedar, t000, t001, ...): 60 -> 30 per 60 s (-50 %)");
    assert_eq!(lines.len(), 2);
}

#[test]
fn lines_without_end_are_cut() {
    let routes = |s: &mut Source| {
        let template = s.routes[0].clone();
        s.routes.extend((0..600).map(|i| {
            let mut route = template.clone();
            route.id = RouteId::new(format!("r{i}")).unwrap();
            route.pattern = format!("GET /{i}");
            route.rules = vec![RuleId::new("P-READ").unwrap()];
            route
        }));
    };
    let lines = after(routes).changes;
    assert_eq!((lines.len(), lines.last().unwrap().as_str()), (LINES_MAX + 1, "and 100 more"));
}
