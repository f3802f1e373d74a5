//! What a flood can do to an agent's memory, and to others.

use std::net::Ipv4Addr;

use leasehold_protocol::admit::AdmitRequest;

use super::world::{World, ask, denied_by, is_allowed, northstar};
use crate::{Condition, Verdict};

const COUNTERS_MAX: usize = 1_000;

fn login(address: u32) -> AdmitRequest {
    AdmitRequest {
        source: Some(Ipv4Addr::from(address).into()),
        route: "login".to_owned(),
        ..AdmitRequest::default()
    }
}

/// Regional rules alone, so that the leases play no part.
fn world() -> World {
    let mut bundle = northstar();
    for route in &mut bundle.routes {
        route.rules.retain(|rule| !["P-TENANT", "P-GLOBAL"].contains(&rule.as_str()));
    }
    bundle.routes.retain(|route| !route.rules.is_empty());
    let is_named = |id: &leasehold_protocol::RuleId| bundle.routes.iter().any(|r| r.rules.contains(id));
    bundle.rules = bundle.rules.iter().filter(|rule| is_named(&rule.id)).cloned().collect();
    bundle.plans[0].limits.clear();
    World::sized(bundle, COUNTERS_MAX)
}

#[test]
fn a_million_addresses_stay_within_memory_refill_nobody_and_leave_room_for_known_callers() {
    let mut world = world();
    let spent = 0xC000_0207;
    assert_eq!((0..30).filter(|_| is_allowed(&world.check(login(spent)))).count(), 20);
    let (mut admitted, mut undecided) = (0, 0);
    for n in 0..1_000_000_u32 {
        match world.check(login(n)) {
            Verdict::Allowed(_) => admitted += 1,
            Verdict::FailClosed(report) => {
                assert_eq!(report.undecided[0].1, Condition::CountersFull);
                undecided += 1;
            }
            other => panic!("{other:?}"),
        }
        assert!(world.admission.counters().len() <= COUNTERS_MAX);
    }
    assert_eq!((admitted, undecided), (499, 999_501));
    assert_eq!(denied_by(&world.check(login(spent))).map(|(rule, _)| rule), Some("P-ANON"));
    let users = (0..400).filter(|n| is_allowed(&world.check(ask("catalog", "birch", &format!("u-{n}")))));
    assert_eq!(users.count(), 400, "a flood of strangers costs Birch nothing");
    // The next window: what says nothing any more makes room.
    world.pass_ms(10_000);
    assert!((0..400).all(|n| is_allowed(&world.check(login(n)))));
}

#[test]
fn a_counter_that_is_spent_is_not_evicted_into_freshness_by_its_neighbours() {
    let mut world = world();
    for _ in 0..20 {
        assert!(is_allowed(&world.check(ask("catalog", "atlas", "u-17"))));
    }
    for n in 0..5_000 {
        let _ = world.check(ask("catalog", "atlas", &format!("x-{n}")));
    }
    assert_eq!(denied_by(&world.check(ask("catalog", "atlas", "u-17"))), Some(("P-READ", 500)));
    assert!(world.admission.counters().refused() > 0);
}

#[test]
fn where_no_counter_finds_room_no_fallback_does_and_nothing_is_admitted_uncounted() {
    let mut world = world();
    for n in 0..2_000 {
        let verdict = world.check(ask("catalog", "atlas", &format!("x-{n}")));
        match verdict {
            Verdict::Allowed(_) => assert!(n < COUNTERS_MAX),
            // The route is bounded, but its bucket would be a new counter too.
            Verdict::FailClosed(_) => assert!(n >= COUNTERS_MAX),
            other => panic!("{other:?}"),
        }
    }
}
