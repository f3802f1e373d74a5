//! Each kind of limit, and all of them together.

use leasehold_protocol::admit::{AdmitRequest, Mode};
use leasehold_protocol::{DecisionId, Tokens};

use super::world::{World, ask, denied_by, is_allowed, read};
use crate::ParseError;
use crate::Verdict;
use crate::verdict::whole_seconds;

fn login(source: &str) -> AdmitRequest {
    AdmitRequest {
        source: Some(source.parse().unwrap()),
        route: "login".to_owned(),
        ..AdmitRequest::default()
    }
}

#[test]
fn twelve_reads_at_once_pass_and_the_twenty_first_waits_a_second_by_its_header() {
    let mut world = World::new();
    world.grant(100);
    let at_once = (0..12).filter(|_| is_allowed(&world.check(read("u-17")))).count();
    assert_eq!(at_once, 12);
    let rest = (0..8).filter(|_| is_allowed(&world.check(read("u-17")))).count();
    assert_eq!(rest, 8);
    let refused = world.check(read("u-17"));
    assert_eq!(denied_by(&refused), Some(("P-READ", 500)));
    assert_eq!(whole_seconds(500), 1);
    assert!(is_allowed(&world.check(read("u-18"))), "another user has a bucket of its own");
}

#[test]
fn a_user_gets_twenty_and_two_a_second_over_any_time() {
    let mut world = World::new();
    world.grant(500);
    let mut admitted = 0_u64;
    for _ in 0..1_000 {
        admitted += u64::from(is_allowed(&world.check(read("u-17"))));
        assert!(admitted <= 20 + 2 * world.now_ms / 1_000, "{admitted} after {} ms", world.now_ms);
        world.pass_ms(25);
    }
    assert!(admitted >= 20 + 2 * 24, "{admitted} in 25 s");
}

#[test]
fn a_fixed_window_admits_forty_in_a_fifth_of_a_second_around_its_boundary() {
    let mut world = World::new();
    world.pass_ms(4_900);
    let before = (0..30).filter(|_| is_allowed(&world.check(login("192.0.2.7")))).count();
    world.pass_ms(200);
    let after = (0..30).filter(|_| is_allowed(&world.check(login("192.0.2.7")))).count();
    assert_eq!((before, after), (20, 20));
    assert_eq!(denied_by(&world.check(login("192.0.2.7"))), Some(("P-ANON", 9_900)));
}

#[test]
fn one_client_has_one_budget_however_its_address_is_spelt_and_a_neighbouring_prefix_another() {
    let mut world = World::new();
    let spellings = ["192.0.2.7", "::ffff:192.0.2.7", "::ffff:c000:207"];
    let passed = (0..30).filter(|n| is_allowed(&world.check(login(spellings[n % 3])))).count();
    assert_eq!(passed, 20);
    let house = (0..30).filter(|n| is_allowed(&world.check(login(&format!("2001:db8:1:2::{n:x}"))))).count();
    assert_eq!(house, 20, "a /64 is one customer");
    assert!(is_allowed(&world.check(login("2001:db8:1:3::1"))));
}

#[test]
fn an_export_takes_ten_tokens_and_a_slot_and_three_run_at_once() {
    let mut world = World::new();
    world.grant(100);
    let ids: Vec<DecisionId> = (0..3).map(|_| world.next_id()).collect();
    for (n, id) in ids.iter().enumerate() {
        let Verdict::Allowed(report) = world.check_as(ask("export", "atlas", &format!("e-{n}")), id) else {
            panic!("export {n}")
        };
        assert!(report.holds_slot);
    }
    assert_eq!(world.held(), 70);
    let fourth = world.check(ask("export", "atlas", "e-9"));
    assert_eq!(denied_by(&fourth).map(|(rule, _)| rule), Some("P-EXPORT"));
    assert_eq!(world.held(), 70, "what one rule refuses no other pays for");
    let now = world.now();
    assert!(world.admission.release(&ids[0], now));
    assert!(!world.admission.release(&ids[0], now), "a second release mints nothing");
    assert!(is_allowed(&world.check(ask("export", "atlas", "e-9"))));
    assert!(!is_allowed(&world.check(ask("export", "atlas", "e-10"))));
}

#[test]
fn a_slot_comes_back_by_expiry_unless_heartbeats_keep_it() {
    let mut bundle = super::world::northstar();
    // Reads only, so that no lease plays a part.
    bundle.routes[2].rules.truncate(2);
    let mut world = World::of(bundle);
    let ids: Vec<DecisionId> = (0..3).map(|_| world.next_id()).collect();
    for (n, id) in ids.iter().enumerate() {
        assert!(is_allowed(&world.check_as(ask("export", "atlas", &format!("e-{n}")), id)));
    }
    world.pass_ms(119_000);
    let now = world.now();
    assert!(world.admission.heartbeat(&ids[1], now));
    world.pass_ms(1_000);
    let now = world.now();
    assert!(!world.admission.heartbeat(&ids[0], now), "it has expired");
    let passed =
        (0..5).filter(|n| is_allowed(&world.check(ask("export", "atlas", &format!("f-{n}"))))).count();
    assert_eq!(passed, 2, "one of three is kept");
}

#[test]
fn a_thousand_tries_of_an_empty_user_do_not_touch_the_tenants_tokens() {
    let mut world = World::new();
    world.grant(100);
    for _ in 0..20 {
        assert!(is_allowed(&world.check(read("u-17"))));
    }
    assert_eq!(world.held(), 80);
    for _ in 0..1_000 {
        assert_eq!(denied_by(&world.check(read("u-17"))).map(|(rule, _)| rule), Some("P-READ"));
    }
    assert_eq!(world.held(), 80);
}

#[test]
fn a_tenant_without_tokens_does_not_cost_its_users_theirs() {
    let mut world = World::new();
    world.grant_with(2, 0, 0);
    assert!(is_allowed(&world.check(read("u-17"))) && is_allowed(&world.check(read("u-17"))));
    for _ in 0..50 {
        let verdict = world.check(read("u-17"));
        let Some(("P-TENANT", wait)) = denied_by(&verdict) else { panic!("{verdict:?}") };
        assert_eq!(wait, 55_000, "the pool is empty and nothing can come back: the wait is the window's end");
    }
    let Verdict::Denied(report) = world.check(read("u-17")) else { panic!() };
    let bucket = report.limits.iter().find(|l| l.rule.as_str() == "P-READ").unwrap();
    assert_eq!(bucket.remaining, Tokens(18), "two were spent, fifty-one refusals took nothing");
}

#[test]
fn without_tokens_a_request_waits_and_at_the_end_of_its_hold_is_refused_softly() {
    let mut world = World::new();
    let Verdict::Wait(waiting) = world.check(read("u-17")) else { panic!("it should wait") };
    assert_eq!((waiting.cost, waiting.pools.len()), (Tokens(1), 1));
    world.pass_ms(150);
    let last = world.check_last(read("u-17"));
    assert_eq!(denied_by(&last), Some(("P-TENANT", crate::SOFT_RETRY_MS)));
}

#[test]
fn a_request_that_waited_is_admitted_once_tokens_are_there() {
    let mut world = World::new();
    let request = world.parse(read("u-17")).unwrap();
    let id = world.next_id();
    let (now, unix) = (world.now(), world.unix());
    assert!(matches!(world.admission.check(now, unix, &request, &id), Verdict::Wait(_)));
    world.grant(5);
    let verdict = world.admission.check_again(now, unix, &request, &id);
    let Verdict::Allowed(report) = verdict else { panic!("{verdict:?}") };
    assert_eq!((report.mode, report.denied_by, report.retry_after_ms), (Mode::Normal, None, None));
    let states: Vec<(&str, u64)> = report.limits.iter().map(|l| (l.rule.as_str(), l.remaining.0)).collect();
    assert_eq!(states, [("P-READ", 19), ("P-TENANT", 4)]);
    assert_eq!(report.limits[1].window_start.as_deref(), Some("2027-01-15T08:00:00.000Z"));
}

#[test]
fn wrong_input_is_refused_by_field_and_a_cost_that_can_never_pass_is_one() {
    let world = World::new();
    let fields = |asked: AdmitRequest| match world.parse(asked) {
        Err(ParseError::Invalid(faults)) => faults.into_iter().map(|f| f.field).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let with_cost = |cost: u64| AdmitRequest { cost: Some(Tokens(cost)), ..read("u-17") };
    assert_eq!(fields(with_cost(0)), ["cost"]);
    assert_eq!(fields(with_cost(21)), ["cost"], "the user's bucket never holds 21");
    assert_eq!(fields(with_cost(u64::MAX)), ["cost"]);
    assert_eq!(fields(AdmitRequest { route: "nowhere".to_owned(), ..read("u-17") }), ["route"]);
    assert_eq!(fields(AdmitRequest { principal: None, ..read("u-17") }), ["principal"]);
    assert_eq!(fields(ask("catalog", "zeta", "u")), ["tenant"]);
    assert_eq!(fields(ask("catalog", "At{las}", "u")), ["tenant"]);
    assert_eq!(fields(read("a\u{0}b")), ["principal"]);
    assert_eq!(fields(read(&"x".repeat(257))), ["principal"]);
    assert_eq!(fields(AdmitRequest { route: "login".to_owned(), ..AdmitRequest::default() }), ["source"]);
    assert!(world.parse(AdmitRequest { route: "GET /catalog".to_owned(), ..read("u-17") }).is_ok());
}

#[test]
fn a_request_without_a_cost_costs_its_routes_weight() {
    let mut world = World::new();
    world.grant(100);
    assert!(is_allowed(&world.check(ask("export", "atlas", "e"))));
    assert_eq!(world.held(), 90);
    let reads = AdmitRequest { cost: Some(Tokens(3)), ..read("e") };
    assert!(is_allowed(&world.check(reads)));
    assert_eq!(world.held(), 87);
}

#[test]
fn two_routes_that_name_one_rule_share_its_tokens_and_its_buckets() {
    let mut world = World::new();
    world.grant(30);
    for n in 0..30 {
        let route = if n % 2 == 0 { "catalog" } else { "checkout" };
        assert!(is_allowed(&world.check(ask(route, "atlas", &format!("u-{}", n / 15)))), "{n}");
    }
    assert_eq!(world.held(), 0);
    for route in ["catalog", "checkout"] {
        let Verdict::Denied(report) = world.check_last(ask(route, "atlas", "u-0")) else { panic!("{route}") };
        let left: Vec<u64> = report.limits.iter().map(|l| l.remaining.0).collect();
        assert_eq!(left, [5, 0], "{route}");
    }
}

#[test]
fn a_refusal_anywhere_takes_no_slot() {
    let mut world = World::new();
    world.grant(100);
    for _ in 0..20 {
        assert!(is_allowed(&world.check(read("u-17"))));
    }
    for _ in 0..10 {
        let refused = world.check(ask("export", "atlas", "u-17"));
        assert_eq!(denied_by(&refused), Some(("P-READ", 5_000)), "ten tokens at two a second");
    }
    for n in 0..3 {
        assert!(is_allowed(&world.check(ask("export", "atlas", &format!("e-{n}")))));
    }
}

#[test]
fn jitter_lengthens_a_wait_by_what_the_refusal_allows_and_never_shortens_it() {
    let mut world = World::new();
    for _ in 0..20 {
        assert!(is_allowed(&world.check(login("192.0.2.7"))));
    }
    let Verdict::Denied(report) = world.check(login("192.0.2.7")) else { panic!() };
    assert_eq!((report.retry_after_ms, report.spread_ms), (Some(5_000), 1_000));
    let wait = |jitter_ms| {
        let id = DecisionId::new("d").unwrap();
        report.clone().into_decision(id, jitter_ms).retry_after_ms.unwrap()
    };
    assert_eq!([0, 7, 1_000, u64::MAX].map(wait), [5_000, 5_007, 6_000, 6_000]);
}
