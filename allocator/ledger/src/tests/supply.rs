//! Recall, feeding and whose turn it is.

use super::*;
use crate::{Applied, Notice};

fn rate(tokens_a_second: u64) -> Demand {
    Demand { fast_mtps: tokens_a_second * 1_000, sustained_mtps: tokens_a_second * 1_000 }
}

fn wish_at_rate(n: u64, seq: u64, need: u64, per_s: u64) -> Command {
    let Command::Acquire { holder, incarnation, acquire } = wish(n, seq, WindowChoice::Current, need) else {
        panic!()
    };
    let acquire = Acquire { least: Tokens(need.min(1)), demand: rate(per_s), ..acquire };
    Command::Acquire { holder, incarnation, acquire }
}

fn run(ledger: &mut Ledger, at: u64, commands: Vec<Command>) -> Applied {
    let applied = ledger.apply(&Entry { stamp: LedgerTime(at), commands });
    assert_eq!(ledger.check_invariants(), Ok(()));
    applied
}

fn give_back(n: u64, start: LedgerTime, spent: u64, returned: u64) -> Command {
    Command::Settle {
        holder: holder(n),
        incarnation: Incarnation(1),
        settle: Settle {
            pool: pool(),
            window_start: start,
            spent_total: Tokens(spent),
            returned_total: Tokens(returned),
            denied_total: Tokens(0),
            demand: rate(0),
        },
    }
}

/// Holder, granted total, and whether tokens are scarce and it is short.
fn said(applied: &Applied) -> Vec<(u64, u64, bool, bool)> {
    applied
        .notices
        .iter()
        .map(|Notice { holder: to, push }| {
            let n = (0..50).find(|n| holder(*n) == *to).unwrap();
            (n, push.lease.granted_total.0, push.lease.supply.scarce, push.lease.supply.short)
        })
        .collect()
}

#[test]
fn an_empty_pool_recalls_from_every_other_holder_once_and_feeds_the_hungry_with_what_comes_back() {
    let mut ledger = ledger(limited(100), MINUTE);
    run(&mut ledger, T0, vec![wish_at_rate(1, 1, 60, 0), wish_at_rate(2, 1, 40, 0)]);
    let empty = run(&mut ledger, T0 + 1_000, vec![wish_at_rate(3, 1, 2, 1)]);
    assert_eq!(said(&empty), [(1, 60, true, false), (2, 40, true, false)]);
    let Outcome::Acquired(AcquireOutcome::Lease(lease)) = &empty.outcomes[0] else { panic!("{empty:?}") };
    assert!(lease.supply.short && lease.supply.scarce && lease.outstanding == Tokens(100));
    // A second hungry one does not recall again.
    assert_eq!(said(&run(&mut ledger, T0 + 1_010, vec![wish_at_rate(4, 1, 1, 1)])), []);
    let start = lease.window.start;
    let fed = run(&mut ledger, T0 + 1_100, vec![give_back(1, start, 10, 30)]);
    let fed = said(&fed);
    assert_eq!(fed.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), [3, 4]);
    assert!(fed.iter().all(|(_, granted, scarce, short)| *granted >= 1 && *scarce && !short), "{fed:?}");
    assert!(!ledger.could_feed());
}

#[test]
fn whoever_had_least_for_its_weight_is_fed_first() {
    let mut ledger = ledger(limited(100), MINUTE);
    run(
        &mut ledger,
        T0,
        vec![wish_at_rate(1, 1, 50, 1), wish_at_rate(2, 1, 30, 1), wish_at_rate(3, 1, 20, 1)],
    );
    let hungry = vec![wish_at_rate(2, 2, 5, 1), wish_at_rate(3, 2, 5, 1)];
    let start = lease(Outcome::Acquired(match &run(&mut ledger, T0 + 10, hungry).outcomes[0] {
        Outcome::Acquired(outcome) => outcome.clone(),
        other => panic!("{other:?}"),
    }))
    .window
    .start;
    let fed = said(&run(&mut ledger, T0 + 20, vec![give_back(1, start, 45, 5)]));
    assert_eq!(fed.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), [3], "all of it is one request's need");
}

#[test]
fn a_raised_limit_feeds_the_hungry_without_being_asked() {
    let mut ledger = ledger(limited(10), MINUTE);
    run(&mut ledger, T0, vec![wish_at_rate(1, 1, 10, 1), wish_at_rate(2, 1, 3, 1)]);
    let raised = run(&mut ledger, T0 + 50, vec![activate(bundle(2, limited(40), MINUTE))]);
    let raised = said(&raised);
    assert!(matches!(raised.as_slice(), [(2, granted, _, false)] if *granted >= 3), "{raised:?}");
}

#[test]
fn what_a_former_life_holds_is_neither_recalled_nor_hoped_for() {
    let mut ledger = ledger(limited(10), MINUTE);
    run(&mut ledger, T0, vec![wish_at_rate(1, 1, 10, 1)]);
    run(
        &mut ledger,
        T0 + 1,
        vec![Command::Hear { holder: holder(1), incarnation: Incarnation(2), rtt_ms: 80 }],
    );
    let last = run(&mut ledger, T0 + 2, vec![wish_at_rate(2, 1, 1, 1)]);
    assert_eq!(said(&last), []);
    let Outcome::Acquired(AcquireOutcome::Lease(lease)) = &last.outcomes[0] else { panic!() };
    assert_eq!((lease.remaining, lease.outstanding), (Tokens(0), Tokens(0)), "the denial is final");
}

#[test]
fn nobody_is_fed_who_cannot_hear_of_it_before_the_window_ends() {
    let mut ledger = ledger(limited(10), MINUTE);
    let far = Command::Hear { holder: holder(2), incarnation: Incarnation(1), rtt_ms: 300 };
    run(&mut ledger, T0, vec![wish_at_rate(1, 1, 10, 1), far]);
    let empty = run(&mut ledger, T0 + MINUTE - 300, vec![wish_at_rate(2, 1, 1, 1)]);
    let start = lease(empty.outcomes[0].clone()).window.start;
    assert_eq!(said(&run(&mut ledger, T0 + MINUTE - 149, vec![give_back(1, start, 0, 10)])), []);
}

#[test]
fn a_fragment_that_lets_nobody_through_stays_in_the_pool() {
    let mut ledger = ledger(limited(100), MINUTE);
    run(&mut ledger, T0, vec![wish_at_rate(1, 1, 95, 1)]);
    let Command::Acquire { holder: h, incarnation, acquire } = wish_at_rate(2, 1, 10, 1) else { panic!() };
    let heavy =
        Command::Acquire { holder: h, incarnation, acquire: Acquire { least: Tokens(10), ..acquire } };
    let lease = lease(apply(&mut ledger, T0 + 10, heavy));
    assert_eq!((lease.granted_total, lease.remaining), (Tokens(0), Tokens(5)));
    assert!(lease.supply.short);
}

#[test]
fn the_hunger_of_a_window_ends_with_it() {
    let mut ledger = ledger(limited(10), MINUTE);
    run(&mut ledger, T0, vec![wish_at_rate(1, 1, 10, 1), wish_at_rate(2, 1, 1, 1)]);
    assert!(!ledger.starving.is_empty());
    run(&mut ledger, T0 + MINUTE, vec![]);
    assert!(ledger.starving.is_empty() && !ledger.could_feed());
    assert_eq!(said(&run(&mut ledger, T0 + MINUTE, vec![Command::Feed])), []);
}
