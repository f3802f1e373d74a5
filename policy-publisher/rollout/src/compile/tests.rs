use leasehold_protocol::bundle::{Enforcement, FailMode, Fallback, KeyPart, Order, Sharing, Weight};
use leasehold_protocol::{OverrideId, PlanId, RegionId, RouteId, RuleId, TenantId, Tokens};
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::source::{Bucket, Concurrency, FixedWindow, Override, Plan, PlanLimit, Route, Rule, Tenant};

const NORTHSTAR: &str = include_str!("../../../../docs/examples/northstar.yaml");
const NOW: LedgerTime = LedgerTime(1_800_000_000_000);

fn northstar() -> Source {
    serde_norway::from_str(NORTHSTAR).unwrap()
}

fn faults(source: &Source) -> Vec<(String, String)> {
    compile(source, BundleVersion(1), NOW)
        .unwrap_err()
        .faults
        .into_iter()
        .map(|f| (f.field, f.value))
        .collect()
}

fn pair(field: &str, value: &str) -> (String, String) {
    (field.to_owned(), value.to_owned())
}

#[test]
fn the_sample_policy_compiles_and_says_what_the_requirement_says() {
    let bundle = compile(&northstar(), BundleVersion(1), NOW).unwrap();
    let limit = |rule: &str, tenant: Option<&str>| {
        let tenant = tenant.map(|t| TenantId::new(t).unwrap());
        let rule = bundle.rule(&RuleId::new(rule).unwrap()).unwrap();
        bundle.limit_value_at(rule, tenant.as_ref(), NOW).unwrap()
    };
    let tokens = |n| Limit::Limited { tokens: Tokens(n) };
    assert_eq!(limit("P-TENANT", Some("atlas")), tokens(1_000));
    assert_eq!(limit("P-TENANT", Some("birch")), tokens(600));
    assert_eq!(limit("P-EXPORT", Some("atlas")), tokens(3));
    assert_eq!(limit("P-EXPORT", Some("cedar")), tokens(2));
    assert_eq!(limit("P-GLOBAL", None), tokens(40_000));
    assert_eq!(limit("P-ANON", None), tokens(20));
    let modes: Vec<_> =
        bundle.routes.iter().map(|r| (r.id.as_str(), r.weight.0, r.fail_mode.clone())).collect();
    assert_eq!(
        modes,
        [
            ("catalog", 1, FailMode::Bounded),
            ("checkout", 1, FailMode::Closed),
            ("export", 10, FailMode::Closed),
            ("login", 1, FailMode::Closed),
            ("search", 2, FailMode::Bounded),
        ]
    );
}

#[test]
fn every_fault_is_named_by_its_place_in_the_source() {
    let mut source = northstar();
    source.rules[0].fixed_window =
        Some(FixedWindow { limit: Limit::Limited { tokens: Tokens(0) }, window_s: 0 });
    source.rules[1].fallback =
        Fallback::Bucket { capacity: Tokens(0), refill_tokens: Tokens(1), refill_ms: 1_000 };
    source.rules[3].concurrency = None;
    source.plans[0].limits[0].rule = RuleId::new("P-READ").unwrap();
    source.overrides[0].expires_at = "next spring".to_owned();
    source.overrides[0].owner = " ".to_owned();
    source.routes[0].rules.push(RuleId::new("P-NONE").unwrap());
    source.routes[4].weight = Tokens(0);
    let mut found = faults(&source);
    found.sort();
    let mut expected = [
        pair("overrides[0].expires_at", "next spring"),
        pair("overrides[0].owner", " "),
        pair("plans[0].limits[0].rule", "P-READ"),
        pair("routes[0].rules[3]", "P-NONE"),
        // What follows from a limit of 0: no weight passes.
        pair("routes[2].rules[0]", "P-ANON"),
        pair("routes[4].weight", "0"),
        pair("rules[0].fixed_window.limit", "0"),
        pair("rules[0].fixed_window.window_s", "0"),
        pair("rules[1].fallback.bucket.capacity", "0"),
        pair("rules[3]", "P-EXPORT"),
    ];
    expected.sort();
    assert_eq!(found, expected);
}

/// Shared by order of arrival, with these parts.
fn by_arrival(weights: &[(&str, u32)]) -> Sharing {
    let weight =
        |(region, weight): &(&str, u32)| Weight { region: RegionId::new(*region).unwrap(), weight: *weight };
    Sharing { order: Order::Fcfs, weights: weights.iter().map(weight).collect() }
}

#[test]
fn parts_of_regions_are_sorted_and_kept_within_their_bounds() {
    let mut source = northstar();
    source.rules[2].sharing = by_arrival(&[("us", 3), ("eu", 2)]);
    let bundle = compile(&source, BundleVersion(1), NOW).unwrap().into_inner();
    assert_eq!(
        bundle.rules.iter().find(|r| r.id.as_str() == "P-TENANT").unwrap().sharing,
        by_arrival(&[("eu", 2), ("us", 3)])
    );
    source.rules[2].sharing = by_arrival(&[("us", 0), ("eu", 1_001), ("us", 3)]);
    source.rules[1].sharing = by_arrival(&[]);
    let mut found = faults(&source);
    found.sort();
    let at = "rules[2].sharing.weights";
    assert_eq!(
        found,
        [pair("rules[1].sharing", "P-READ"), pair(at, "eu: 1001"), pair(at, "us"), pair(at, "us: 0")]
    );
}

#[test]
fn an_override_that_has_ended_is_refused() {
    let mut source = northstar();
    source.overrides[0].expires_at = NOW.to_rfc3339();
    assert_eq!(faults(&source), [("overrides[0].expires_at".to_owned(), NOW.to_rfc3339())]);
}

#[test]
fn a_rule_that_counts_in_two_ways_is_refused() {
    let mut source = northstar();
    source.rules[1].concurrency = Some(Concurrency { limit: Limit::Blocked, slot_ttl_s: 60 });
    assert_eq!(faults(&source), [pair("rules[1]", "P-READ")]);
}

#[test]
fn a_weight_that_can_never_pass_a_plan_is_refused() {
    let mut source = northstar();
    source.plans[0].limits[0].limit = Limit::Limited { tokens: Tokens(9) };
    let error = compile(&source, BundleVersion(1), NOW).unwrap_err();
    assert_eq!(error.faults.len(), 1);
    assert_eq!(error.faults[0].field, "routes[3].rules[2]");
    assert!(error.to_string().contains("weight 10 can never pass plan free"), "{error}");
}

#[test]
fn a_list_of_faults_without_end_is_cut() {
    let mut source = northstar();
    source.tenants = (0..2_000)
        .map(|i| Tenant { id: TenantId::new(format!("t{i}")).unwrap(), plan: PlanId::new("none").unwrap() })
        .collect();
    let faults = compile(&source, BundleVersion(1), NOW).unwrap_err().faults;
    assert_eq!(faults.len(), FAULTS_MAX + 1);
    assert!(faults.last().unwrap().rule.contains("more faults"));
}

#[test]
fn what_is_missing_blank_unknown_or_of_another_kind_is_refused_where_it_stands() {
    let refused = |from: &str, to: &str| {
        assert!(NORTHSTAR.contains(from), "{from}");
        serde_norway::from_str::<Source>(&NORTHSTAR.replacen(from, to, 1)).unwrap_err().to_string()
    };
    for (from, to, wanted) in [
        ("limit: 20, window_s: 10", "window_s: 10", "missing field `limit`"),
        ("limit: 20, window_s: 10", "limit: , window_s: 10", "rules[0].fixed_window.limit: invalid type"),
        ("limit: 20, window_s: 10", "limit: 2e1, window_s: 10", "a whole number, `unlimited` or `blocked`"),
        ("limit: 20, window_s: 10", "limit: -1, window_s: 10", "a whole number, `unlimited` or `blocked`"),
        ("limit: 20, window_s: 10", "limit: none, window_s: 10", "a whole number, `unlimited` or `blocked`"),
        ("limit: 20, window_s: 10", "limit: 20, limit: 30, window_s: 10", "duplicate field `limit`"),
        ("limit: 20, window_s: 10", "limit: 20, window_ms: 10", "unknown field `window_ms`"),
        ("fallback: refuse", "fallback: open", "expected `refuse` or `bucket"),
        ("fail_mode: bounded", "fail_mode: open", "expected `closed`, `bounded` or `open: { reason }`"),
        ("fail_mode: bounded", "fail_mode: { open: { } }", "missing field `reason`"),
        ("    owner: account-team@northstar.example\n", "", "missing field `owner`"),
        ("    expires_at: 2030-01-31T00:00:00Z\n", "", "missing field `expires_at`"),
        ("id: P-ANON", "id: 7-x", "rules[0].id: \"7-x\" has '7' at byte 0"),
        ("id: P-ANON", "id: [P-ANON]", "rules[0].id: invalid type"),
        ("rules: [P-ANON]", "rules: [P ANON]", "routes[2].rules[0]: \"P ANON\" has ' ' at byte 1"),
        ("max_age_s: 3600", "max_age_s: 3600\nmax_age: 1", "unknown field `max_age`"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(wanted) && error.contains("line"), "{to}: {error}");
    }
}

#[test]
fn content_is_compared_without_version_and_time() {
    let one = compile(&northstar(), BundleVersion(1), NOW).unwrap();
    let two = compile(&northstar(), BundleVersion(2), LedgerTime(NOW.0 + 1)).unwrap();
    assert!(one != two && has_same_content(&one, &two));
    let mut other = northstar();
    other.max_age_s += 1;
    assert!(!has_same_content(&one, &compile(&other, BundleVersion(1), NOW).unwrap()));
}

fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (20_u64..1_000_000).prop_map(|n| Limit::Limited { tokens: Tokens(n) }),
        Just(Limit::Unlimited),
        Just(Limit::Blocked),
    ]
}

fn any_rule(n: usize) -> impl Strategy<Value = Rule> {
    let bucket = (20_u64..1_000, 1_u64..50, 1_u64..5_000).prop_map(|(capacity, refill, refill_ms)| Bucket {
        capacity: Tokens(capacity),
        refill_tokens: Tokens(refill),
        refill_ms,
    });
    let window = (any_limit(), 1_u64..86_400).prop_map(|(limit, window_s)| FixedWindow { limit, window_s });
    let slots =
        (any_limit(), 1_u64..86_400).prop_map(|(limit, slot_ttl_s)| Concurrency { limit, slot_ttl_s });
    (0..4_u8, any::<bool>(), window, bucket, slots, any::<bool>()).prop_map(
        move |(kind, has_fallback, window, bucket, slots, is_by_source)| Rule {
            id: RuleId::new(format!("R-{n}")).unwrap(),
            key: match kind {
                0 => vec![KeyPart::Tenant],
                _ if is_by_source => vec![KeyPart::Source],
                _ => vec![KeyPart::Principal, KeyPart::Tenant],
            },
            enforcement: if kind == 0 { Enforcement::Leased } else { Enforcement::Regional },
            fixed_window: (kind <= 1).then_some(window),
            token_bucket: (kind == 2).then_some(bucket),
            concurrency: (kind == 3).then_some(slots),
            fallback: if has_fallback {
                let Bucket { capacity, refill_tokens, refill_ms } = bucket;
                Fallback::Bucket { capacity, refill_tokens, refill_ms }
            } else {
                Fallback::Refuse
            },
            sharing: if kind == 0 && has_fallback {
                by_arrival(&[("us", 3), ("eu", 2)])
            } else {
                Sharing::default()
            },
        },
    )
}

fn any_fail_mode() -> impl Strategy<Value = FailMode> {
    prop_oneof![
        Just(FailMode::Closed),
        Just(FailMode::Bounded),
        "[a-zäß:#'\"{-]{0,20}x".prop_map(|reason| FailMode::Open { reason }),
    ]
}

prop_compose! {
    fn any_source()(
        rules in (1_usize..5).prop_flat_map(|n| (0..n).map(any_rule).collect::<Vec<_>>()),
    )(
        limits in proptest::collection::vec((any_limit(), any_limit()), rules.len()),
        used in subsequence((0..rules.len()).collect::<Vec<_>>(), 1..=rules.len()),
        modes in proptest::collection::vec(any_fail_mode(), 2),
        weight in 1_u64..20,
        text in "[ a-zäß:#'\"{-]{0,20}x",
        expires in 1_u64..10_000_000_000,
        rules in Just(rules),
    ) -> Source {
        let plan = PlanId::new("plan").unwrap();
        let tenant = TenantId::new("atlas").unwrap();
        let tenant_limits = |rule: &Rule| rule.token_bucket.is_none() && rule.key.contains(&KeyPart::Tenant);
        let by_rule = || rules.iter().zip(&limits).filter(|(rule, _)| tenant_limits(rule));
        let route = |n: usize, rules: Vec<RuleId>| Route {
            id: RouteId::new(format!("route-{n}")).unwrap(),
            pattern: format!("GET /{n}"),
            weight: Tokens(weight),
            rules,
            fail_mode: modes[n].clone(),
        };
        Source {
            max_age_s: 60,
            plans: vec![
                Plan { id: PlanId::new("other").unwrap(), limits: vec![] },
                Plan {
                    id: plan.clone(),
                    limits: by_rule().map(|(r, l)| PlanLimit { rule: r.id.clone(), limit: l.0 }).collect(),
                },
            ],
            tenants: vec![Tenant { id: tenant.clone(), plan }],
            overrides: by_rule()
                .enumerate()
                .map(|(n, (rule, limit))| Override {
                    id: OverrideId::new(format!("o{n}")).unwrap(),
                    tenant: tenant.clone(),
                    rule: rule.id.clone(),
                    limit: limit.1,
                    owner: text.clone(),
                    reason: text.clone(),
                    expires_at: NOW.saturating_add_ms(expires).to_rfc3339(),
                })
                .collect(),
            routes: vec![
                route(0, rules.iter().map(|r| r.id.clone()).collect()),
                route(1, used.iter().map(|i| rules[*i].id.clone()).collect()),
            ],
            rules,
        }
    }
}

fn shuffled<T: Clone>(items: &[T], turn: usize) -> Vec<T> {
    let mut items = items.to_vec();
    if !items.is_empty() {
        let by = turn % items.len();
        items.rotate_left(by);
        items.reverse();
    }
    items
}

proptest! {
    #[test]
    fn the_same_policy_in_any_order_gives_the_same_bytes(source in any_source(), turn in 0_usize..10) {
        let bytes = compile(&source, BundleVersion(3), NOW).unwrap().to_bytes();
        let other = Source {
            rules: shuffled(&source.rules, turn),
            plans: shuffled(&source.plans, turn),
            tenants: shuffled(&source.tenants, turn),
            overrides: shuffled(&source.overrides, turn),
            routes: shuffled(&source.routes, turn),
            ..source
        };
        prop_assert_eq!(compile(&other, BundleVersion(3), NOW).unwrap().to_bytes(), bytes);
    }

    #[test]
    fn a_compiled_bundle_is_read_back_from_its_bytes(source in any_source()) {
        let bundle = compile(&source, BundleVersion(3), NOW).unwrap();
        prop_assert_eq!(CheckedBundle::from_bytes(&bundle.to_bytes()), Ok(bundle));
    }

    #[test]
    fn a_source_survives_being_written_and_read_as_yaml_or_json(source in any_source()) {
        let yaml = serde_norway::to_string(&source).unwrap();
        prop_assert_eq!(&serde_norway::from_str::<Source>(&yaml).unwrap(), &source);
        let json = serde_json::to_string(&source).unwrap();
        prop_assert_eq!(&serde_norway::from_str::<Source>(&json).unwrap(), &source);
    }
}
