//! Limits and policy: what a pool may give, and what a change of policy does to it.

use leasehold_protocol::OverrideId;
use leasehold_protocol::bundle::Override;

use super::*;

#[test]
fn lowering_a_limit_below_what_is_leased_shows_a_debt_and_grants_nothing() {
    let mut ledger = ledger(limited(100), MINUTE);
    let window = acquire(&mut ledger, T0, 1, 1, 80).window;
    publish(&mut ledger, T0 + 1, limited(30), MINUTE);
    assert_eq!(numbers(&ledger, T0), [30, 50, 0, 80, 0]);
    let lease = acquire(&mut ledger, T0 + 2, 2, 1, 1);
    assert_eq!((lease.granted_total, lease.remaining, lease.limit), (Tokens(0), Tokens(0), Tokens(30)));
    // A return works the debt off first.
    settle(&mut ledger, T0 + 3, 1, window.start, 20, 40);
    assert_eq!(numbers(&ledger, T0), [30, 10, 0, 20, 20]);
    settle(&mut ledger, T0 + 4, 1, window.start, 20, 55);
    // Of the 5 above it, who went hungry is given the one that it waits for.
    assert_eq!(numbers(&ledger, T0), [30, 0, 4, 6, 20]);
    assert_eq!(acquire(&mut ledger, T0 + 5, 2, 2, 9).granted_total, Tokens(5));
}

#[test]
fn raising_a_limit_helps_at_once_and_in_the_window_leased_ahead() {
    let mut ledger = ledger(limited(10), MINUTE);
    acquire(&mut ledger, T0, 1, 1, 10);
    acquire_next(&mut ledger, T0, 1, 2, 10);
    publish(&mut ledger, T0 + 1, limited(25), MINUTE);
    assert_eq!(numbers(&ledger, T0), [25, 0, 15, 10, 0]);
    assert_eq!(numbers(&ledger, T0 + MINUTE), [25, 0, 15, 10, 0]);
    assert_eq!(acquire(&mut ledger, T0 + 2, 2, 1, 99).granted_total, Tokens(15));
}

#[test]
fn needs_near_the_largest_number_get_what_remains_and_nothing_wraps() {
    let mut ledger = ledger(Limit::Limited { tokens: Tokens::MAX }, MINUTE);
    assert_eq!(acquire(&mut ledger, T0, 1, 1, 5).granted_total, Tokens(5));
    let all = acquire(&mut ledger, T0, 1, u64::MAX, u64::MAX);
    assert_eq!((all.granted_total, all.remaining), (Tokens::MAX, Tokens(0)));
    assert_eq!(acquire(&mut ledger, T0, 2, 1, u64::MAX).granted_total, Tokens(0));
    assert_eq!(numbers(&ledger, T0), [Tokens::MAX.0, 0, 0, Tokens::MAX.0, 0]);
}

#[test]
fn unlimited_blocked_and_missing_are_three_different_things() {
    let unknown = Outcome::Acquired(AcquireOutcome::UnknownPool);
    let ask = || wish(1, 1, WindowChoice::Current, 5);
    assert_eq!(apply(&mut Ledger::default(), T0, ask()), unknown, "no policy yet");

    let mut unlimited = ledger(Limit::Unlimited, MINUTE);
    assert_eq!(apply(&mut unlimited, T0, ask()), unknown, "nothing to lease from");
    assert_eq!(unlimited.pools_len(), 0);

    let mut blocked = ledger(Limit::Blocked, MINUTE);
    let lease = lease(apply(&mut blocked, T0, ask()));
    assert_eq!((lease.granted_total, lease.limit, lease.remaining), (Tokens(0), Tokens(0), Tokens(0)));

    let mut known = ledger(limited(5), MINUTE);
    for key in [
        PoolKey { tenant: Some(tenant("nobody")), ..pool() },
        PoolKey { tenant: None, ..pool() },
        PoolKey { rule: RuleId::new("P-OTHER").unwrap(), ..pool() },
    ] {
        let Command::Acquire { holder, incarnation, mut acquire } = ask() else { panic!() };
        acquire.pool = key;
        assert_eq!(apply(&mut known, T0, Command::Acquire { holder, incarnation, acquire }), unknown);
    }
    assert_eq!(known.pools_len(), 0, "asking for what does not exist costs no memory");
}

#[test]
fn blocking_a_pool_in_mid_window_grants_nothing_more_and_unblocking_goes_on_where_it_was() {
    let mut ledger = ledger(limited(100), MINUTE);
    acquire(&mut ledger, T0, 1, 1, 60);
    publish(&mut ledger, T0 + 1, Limit::Blocked, MINUTE);
    assert_eq!(acquire(&mut ledger, T0 + 2, 2, 1, 1).granted_total, Tokens(0));
    assert_eq!(numbers(&ledger, T0), [0, 60, 0, 60, 0]);
    publish(&mut ledger, T0 + 3, limited(100), MINUTE);
    assert_eq!(acquire(&mut ledger, T0 + 4, 2, 2, 100).granted_total, Tokens(40));
}

#[test]
fn a_pool_that_policy_drops_goes_with_its_window_and_comes_back_full_once() {
    let mut ledger = ledger(limited(100), MINUTE);
    acquire(&mut ledger, T0, 1, 1, 60);
    let mut without = bundle(2, limited(100), MINUTE);
    without.rules.clear();
    apply(&mut ledger, T0 + 1, activate(without));
    assert_eq!(
        apply(&mut ledger, T0 + 2, wish(1, 2, WindowChoice::Current, 1)),
        Outcome::Acquired(AcquireOutcome::UnknownPool)
    );
    assert_eq!(numbers(&ledger, T0), [0, 60, 0, 60, 0]);
    // Back within the window: it is not full again.
    publish(&mut ledger, T0 + 3, limited(100), MINUTE);
    assert_eq!(acquire(&mut ledger, T0 + 4, 2, 1, 100).granted_total, Tokens(40));
    let mut without = bundle(4, limited(100), MINUTE);
    without.rules.clear();
    apply(&mut ledger, T0 + 5, activate(without));
    for (at, pools) in [(T0 + MINUTE, 1), (T0 + 2 * MINUTE, 1), (T0 + 3 * MINUTE, 0)] {
        ledger.apply(&Entry { stamp: LedgerTime(at), commands: vec![] });
        assert_eq!(ledger.pools_len(), pools, "what it has seen is known for as long as a retry can come");
    }
}

#[test]
fn an_override_that_ends_by_itself_gives_the_limit_back_without_a_command() {
    let mut ledger = Ledger::default();
    let mut raised = bundle(1, limited(10), MINUTE);
    raised.overrides = vec![Override {
        id: OverrideId::new("sale").unwrap(),
        tenant: tenant("atlas"),
        rule: rule_id(),
        limit: limited(50),
        owner: "ops".to_owned(),
        reason: "sale".to_owned(),
        expires_at_ms: T0 + 30_000,
    }];
    apply(&mut ledger, T0, activate(raised));
    assert_eq!(acquire(&mut ledger, T0 + 29_999, 1, 1, 40).limit, Tokens(50));
    let after = acquire(&mut ledger, T0 + 30_000, 2, 1, 1);
    assert_eq!((after.limit, after.granted_total), (Tokens(10), Tokens(0)));
    assert_eq!(numbers(&ledger, T0), [10, 30, 0, 40, 0]);
}

#[test]
fn only_the_next_version_becomes_the_policy_and_a_repeated_activation_changes_nothing() {
    let mut ledger = ledger(limited(10), MINUTE);
    let before = ledger.clone();
    let active = BundleVersion(1);
    let outcome = apply(&mut ledger, T0, activate(bundle(1, limited(10), MINUTE)));
    assert_eq!(outcome, Outcome::Activated(ActivateOutcome::AlreadyActive { version: active }));
    let conflict = ActivateOutcome::Conflict { active, active_digest: Some(format!("{:064x}", 1)) };
    for version in [0, 3, u64::MAX] {
        let outcome = apply(&mut ledger, T0, activate(bundle(version, limited(99), MINUTE)));
        assert_eq!(outcome, Outcome::Activated(conflict.clone()), "version {version}");
    }
    // Two publishers minted the same version: the first one's stays.
    let other = Command::ActivateBundle {
        bundle: Box::new(bundle(1, limited(99), MINUTE)),
        digest: "another".to_owned(),
    };
    assert_eq!(apply(&mut ledger, T0, other), Outcome::Activated(conflict));
    assert_eq!(ledger, before);
}
