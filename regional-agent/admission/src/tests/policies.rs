//! Where limits come from, and what a new bundle changes.

use leasehold_protocol::BundleVersion;
use leasehold_protocol::bundle::{Algorithm, Limit};
use leasehold_protocol::policy::Origin;

use super::world::{UNIX0, World, ask, denied_by, is_allowed, limited, northstar, override_of, read};
use crate::{ActivateError, Verdict};

fn exports(world: &mut World, count: usize) -> usize {
    (0..count).filter(|n| is_allowed(&world.check(ask("export", "atlas", &format!("e-{n}"))))).count()
}

#[test]
fn an_override_ends_by_itself_although_nobody_publishes_anything() {
    let mut bundle = northstar();
    bundle.routes[2].rules.truncate(2);
    bundle.overrides.push(override_of("P-EXPORT", limited(5), UNIX0 + 10_000));
    let mut world = World::of(bundle);
    assert_eq!(exports(&mut world, 9), 5);
    world.pass_ms(130_000);
    assert_eq!(exports(&mut world, 9), 3, "the override has ended, the slots have expired");
}

#[test]
fn explain_says_where_a_limit_comes_from() {
    let mut bundle = northstar();
    bundle.overrides.push(override_of("P-EXPORT", limited(5), UNIX0 + 10_000));
    let mut world = World::of(bundle);
    let explain = |world: &World| {
        let explained =
            world.admission.explain(world.now(), world.unix(), &ask("export", "atlas", "u")).unwrap();
        explained.rules.into_iter().map(|rule| (rule.limit, rule.origin)).collect::<Vec<_>>()
    };
    let rules = explain(&world);
    let Origin::Override { owner, reason, expires_at, .. } = &rules[0].1 else { panic!("{rules:?}") };
    assert_eq!((owner.as_str(), reason.as_str()), ("account-team", "Black Friday week"));
    assert_eq!(expires_at, "2027-01-15T08:00:15.000Z");
    assert_eq!(rules[1], ("bucket of 20, 2 per 1 s, regional".to_owned(), Origin::Rule));
    assert_eq!(rules[2].0, "1000 per 60 s, leased");
    assert!(matches!(&rules[2].1, Origin::Plan { plan } if plan.as_str() == "enterprise"));
    world.pass_ms(10_000);
    assert_eq!(explain(&world)[0].1, Origin::Rule);
}

#[test]
fn blocked_and_unlimited_are_neither_zero_nor_a_large_number() {
    let mut bundle = northstar();
    bundle.routes[2].rules.truncate(2);
    bundle.overrides.push(override_of("P-EXPORT", Limit::Blocked, UNIX0 + 1_000_000));
    let mut world = World::of(bundle.clone());
    assert_eq!(exports(&mut world, 3), 0);
    assert_eq!(denied_by(&world.check(ask("export", "atlas", "e"))).map(|(rule, _)| rule), Some("P-EXPORT"));
    bundle.version = BundleVersion(2);
    bundle.overrides[0].limit = Limit::Unlimited;
    world.activate(bundle);
    assert_eq!(exports(&mut world, 50), 50);
}

#[test]
fn a_lower_capacity_counts_at_once_and_a_higher_one_refills_nothing() {
    let mut world = World::new();
    world.grant(100);
    for _ in 0..15 {
        assert!(is_allowed(&world.check(read("u"))));
    }
    let with_capacity = |version: u64, tokens: u64| {
        let mut bundle = northstar();
        bundle.version = BundleVersion(version);
        let Algorithm::TokenBucket { capacity, .. } = &mut bundle.rules[3].algorithm else { panic!() };
        capacity.0 = tokens;
        bundle
    };
    world.activate(with_capacity(2, 100));
    let left = (0..100).filter(|_| is_allowed(&world.check(read("u")))).count();
    assert_eq!(left, 5, "15 of 20 were used, and more room is no gift");
    world.activate(with_capacity(3, 10));
    world.pass_ms(20_000);
    let filled = (0..100).filter(|_| is_allowed(&world.check(read("u")))).count();
    assert_eq!(filled, 10, "it fills to its new capacity and no further");
}

#[test]
fn only_a_higher_version_is_put_in_force() {
    let mut world = World::new();
    let mut older = northstar();
    older.version = BundleVersion(1);
    let bundle = leasehold_protocol::policy::CheckedBundle::new(older).unwrap();
    let (now, unix) = (world.now(), world.unix());
    let refused = world.admission.activate(now, unix, bundle, "x".to_owned());
    assert_eq!(refused, Err(ActivateError::NotHigher { active: BundleVersion(1), got: BundleVersion(1) }));
}

#[test]
fn a_request_that_was_read_under_one_bundle_is_decided_by_the_next_as_a_whole() {
    let mut world = World::new();
    world.grant(10);
    let request = world.parse(read("u")).unwrap();
    let mut next = northstar();
    next.version = BundleVersion(2);
    next.routes[0].rules.truncate(1);
    world.activate(next);
    let id = world.next_id();
    let (now, unix) = (world.now(), world.unix());
    let Verdict::Allowed(report) = world.admission.check(now, unix, &request, &id) else { panic!() };
    assert_eq!((report.bundle_version, report.limits.len()), (BundleVersion(2), 1));
    let mut gone = northstar();
    gone.version = BundleVersion(3);
    gone.routes.remove(0);
    world.activate(gone);
    assert!(matches!(world.admission.check(now, unix, &request, &id), Verdict::Invalid(_)));
}

#[test]
fn explain_tells_what_is_left_before_anything_was_asked_and_after() {
    let mut world = World::new();
    let left = |world: &World, route: &str, user: Option<&str>| {
        let mut asked = ask(route, "atlas", "");
        asked.principal = user.map(str::to_owned);
        let explained = world.admission.explain(world.now(), world.unix(), &asked).unwrap();
        explained.rules.into_iter().map(|rule| rule.remaining.map(|t| t.0)).collect::<Vec<_>>()
    };
    assert_eq!(left(&world, "export", Some("u")), [Some(3), Some(20), Some(0)], "no lease is held yet");
    assert_eq!(left(&world, "export", None), [Some(3), None, Some(0)], "whose bucket?");
    world.grant(50);
    assert!(is_allowed(&world.check(ask("export", "atlas", "u"))));
    assert_eq!(left(&world, "export", Some("u")), [Some(2), Some(10), Some(40)]);
    let before = format!("{:?}", world.admission.counters());
    let _ = left(&world, "catalog", Some("u"));
    assert_eq!(format!("{:?}", world.admission.counters()), before, "explaining changes nothing");
}

#[test]
fn a_slot_is_given_back_although_its_rule_is_gone_and_one_of_a_kept_rule_still_counts() {
    let mut bundle = northstar();
    bundle.routes[2].rules.truncate(2);
    let mut world = World::of(bundle.clone());
    let ids: Vec<_> = (0..3).map(|_| world.next_id()).collect();
    for (n, id) in ids.iter().enumerate() {
        assert!(is_allowed(&world.check_as(ask("export", "atlas", &format!("e-{n}")), id)));
    }
    bundle.version = BundleVersion(2);
    world.activate(bundle.clone());
    assert_eq!(exports(&mut world, 1), 0, "three still run");
    let now = world.now();
    assert!(world.admission.release(&ids[0], now));
    bundle.version = BundleVersion(3);
    bundle.rules.retain(|rule| rule.id.as_str() != "P-EXPORT");
    bundle.routes[2].rules.truncate(2);
    bundle.routes[2].rules.remove(0);
    world.activate(bundle);
    assert!(!world.admission.heartbeat(&ids[1], now), "nothing says how long");
    assert!(!world.admission.release(&ids[1], now) && !world.admission.release(&ids[0], now));
    assert_eq!(world.admission.counters().len(), 3, "the users' buckets alone: no slot is left behind");
}

#[test]
fn a_limit_shared_by_two_routes_changes_for_both_at_once_and_forgets_nothing() {
    let mut bundle = northstar();
    let login = bundle.routes.iter().position(|route| route.id.as_str() == "login").unwrap();
    let mut signup = bundle.routes[login].clone();
    signup.id = leasehold_protocol::RouteId::new("signup").unwrap();
    signup.pattern = "POST /signup".to_owned();
    bundle.routes.insert(login + 1, signup);
    let mut world = World::of(bundle.clone());
    let from = |route: &str| leasehold_protocol::admit::AdmitRequest {
        source: Some("192.0.2.7".parse().unwrap()),
        route: route.to_owned(),
        ..Default::default()
    };
    let passed =
        |world: &mut World, route: &str| (0..30).filter(|_| is_allowed(&world.check(from(route)))).count();
    for route in ["login", "signup"].repeat(5) {
        assert!(is_allowed(&world.check(from(route))));
    }
    bundle.version = BundleVersion(2);
    let Algorithm::FixedWindow { limit, .. } = &mut bundle.rules[0].algorithm else { panic!() };
    *limit = limited(12);
    world.activate(bundle.clone());
    assert_eq!((passed(&mut world, "signup"), passed(&mut world, "login")), (2, 0));
    bundle.version = BundleVersion(3);
    let Algorithm::FixedWindow { limit, .. } = &mut bundle.rules[0].algorithm else { panic!() };
    *limit = limited(11);
    world.activate(bundle);
    let Verdict::Denied(report) = world.check(from("login")) else { panic!() };
    assert_eq!(
        report.limits[0].remaining.0, 0,
        "more is used than is allowed now: nothing is left, not less"
    );
}
