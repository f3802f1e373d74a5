//! What happens when a decision cannot be made (D15, D16).

use leasehold_protocol::admit::{AdmitRequest, Mode};
use leasehold_protocol::bundle::Fallback;
use leasehold_protocol::lease::AcquireOutcome;

use super::world::{World, ask, denied_by, is_allowed, northstar, read};
use crate::{Condition, Verdict};

fn guarded() -> AdmitRequest {
    AdmitRequest { route: "guarded".to_owned(), ..AdmitRequest::default() }
}

#[test]
fn tokens_that_are_held_are_spent_normally_while_the_allocator_is_lost() {
    let mut world = World::new();
    world.grant(3);
    // Somebody waits for more than is held, so that something is asked and not answered.
    let Verdict::Wait(waiting) = world.check(ask("export", "atlas", "e")) else { panic!("it should wait") };
    let now = world.now();
    world.admission.start_wait(now, &waiting);
    world.lose_allocator();
    for user in ["a", "b", "c"] {
        let verdict = world.check(ask("checkout", "atlas", user));
        let Verdict::Allowed(report) = verdict else { panic!("{verdict:?}") };
        assert_eq!(report.mode, Mode::Normal);
    }
    assert!(matches!(world.check(ask("checkout", "atlas", "d")), Verdict::FailClosed(_)));
}

#[test]
fn a_closed_route_names_the_rule_that_cannot_be_decided_and_debits_nothing() {
    let mut world = World::new();
    assert!(matches!(world.check(ask("checkout", "atlas", "u")), Verdict::Wait(_)));
    world.lose_allocator();
    for _ in 0..30 {
        let verdict = world.check(ask("checkout", "atlas", "u"));
        let Verdict::FailClosed(report) = verdict else { panic!("{verdict:?}") };
        assert_eq!(report.denied_by.unwrap().as_str(), "P-TENANT");
        assert_eq!(report.undecided[0].1, Condition::AllocatorLost);
        assert_eq!(report.limits[0].remaining.0, 20, "the user's bucket is untouched");
    }
}

#[test]
fn a_bounded_route_lives_on_its_fallback_bucket_and_says_so() {
    let mut world = World::new();
    assert!(matches!(world.check(guarded()), Verdict::Wait(_)));
    world.lose_allocator();
    let mut admitted = 0;
    for _ in 0..1_000 {
        if let Verdict::Allowed(report) = world.check(guarded()) {
            assert_eq!(report.mode, Mode::Fallback);
            admitted += 1;
        }
    }
    assert_eq!(admitted, 400);
    assert_eq!(denied_by(&world.check(guarded())).map(|(rule, _)| rule), Some("P-GLOBAL"));
    world.pass_ms(500);
    let more = (0..500).filter(|_| is_allowed(&world.check(guarded()))).count();
    assert_eq!(more, 200, "400 a second");
}

#[test]
fn a_bounded_route_whose_rule_has_no_fallback_is_closed() {
    let mut world = World::new();
    assert!(matches!(world.check(read("u")), Verdict::Wait(_)));
    world.lose_allocator();
    let verdict = world.check(read("u"));
    let Verdict::FailClosed(report) = verdict else { panic!("{verdict:?}") };
    assert_eq!(report.mode, Mode::Normal, "nothing stood in for the rule");
}

#[test]
fn an_open_route_is_admitted_and_marked() {
    let mut world = World::new();
    assert!(matches!(world.check(ask("status", "atlas", "u")), Verdict::Wait(_)));
    world.lose_allocator();
    let verdict = world.check(ask("status", "atlas", "u"));
    let Verdict::Allowed(report) = verdict else { panic!("{verdict:?}") };
    assert_eq!((report.mode, report.undecided.len()), (Mode::Fallback, 1));
}

#[test]
fn a_rule_that_can_be_decided_refuses_although_another_cannot_be() {
    let mut bundle = northstar();
    bundle.rules[4].fallback = Fallback::Bucket {
        capacity: leasehold_protocol::Tokens(100),
        refill_tokens: leasehold_protocol::Tokens(1),
        refill_ms: 1_000,
    };
    let mut world = World::of(bundle);
    assert!(matches!(world.check(read("u")), Verdict::Wait(_)));
    world.lose_allocator();
    let allowed = (0..60).filter(|_| is_allowed(&world.check(read("u")))).count();
    assert_eq!(allowed, 20, "the user's own bucket still counts");
    assert_eq!(denied_by(&world.check(read("u"))).map(|(rule, _)| rule), Some("P-READ"));
}

#[test]
fn a_pool_that_the_allocator_does_not_know_is_undecided_and_not_refused() {
    let mut world = World::new();
    assert!(matches!(world.check(read("u")), Verdict::Wait(_)));
    world.answer(&AcquireOutcome::UnknownPool);
    let verdict = world.check(read("u"));
    let Verdict::FailClosed(report) = verdict else { panic!("{verdict:?}") };
    assert_eq!(report.undecided[0].1, Condition::UnknownPool);
}

#[test]
fn an_allocator_that_may_not_grant_yet_is_as_good_as_lost() {
    let mut world = World::new();
    assert!(matches!(world.check(read("u")), Verdict::Wait(_)));
    world.answer(&AcquireOutcome::ClockUncertain { retry_ms: 60_000 });
    let verdict = world.check(read("u"));
    let Verdict::FailClosed(report) = verdict else { panic!("{verdict:?}") };
    assert_eq!(report.undecided[0].1, Condition::AllocatorLost);
}

#[test]
fn without_a_policy_nothing_is_decided() {
    use crate::lease::{LeaseManager, LeaseSettings};
    use leasehold_protocol::{AgentId, Holder, Incarnation, LedgerTime, RegionId};
    let holder = Holder { region: RegionId::new("eu").unwrap(), agent: AgentId::new("eu-1").unwrap() };
    let leases = LeaseManager::new(holder, Incarnation(1), LeaseSettings::default());
    let empty = crate::Admission::new(10, leases);
    assert_eq!(empty.parse(LedgerTime(0), read("u")), Err(crate::ParseError::NoPolicy));
}
