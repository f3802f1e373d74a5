//! Leases: granted once, given back once, ended once.

use super::*;

#[test]
fn of_1000_grants_of_1_from_a_pool_of_100_exactly_100_succeed() {
    let mut ledger = ledger(limited(100), MINUTE);
    // Ten frames of a hundred commands, as a leader would batch them.
    let mut granted = 0;
    for frame in 0..10 {
        let commands = (0..100).map(|n| wish(n, frame + 1, WindowChoice::Current, 1)).collect();
        for outcome in ledger.apply(&Entry { stamp: LedgerTime(T0 + frame), commands }).outcomes {
            granted += u64::from(lease(outcome).granted_total.0 > 0 && frame == 0);
        }
    }
    assert_eq!(granted, 100);
    assert_eq!(numbers(&ledger, T0), [100, 0, 0, 100, 0]);
}

#[test]
fn a_repeated_acquire_gets_its_lease_with_spans_computed_afresh_and_no_more_tokens() {
    let mut ledger = ledger(limited(100), MINUTE);
    let first = acquire(&mut ledger, T0 + 10, 1, 7, 30);
    let again = acquire(&mut ledger, T0 + 1_010, 1, 7, 30);
    assert_eq!((first.granted_total, first.expires_in_ms), (Tokens(30), MINUTE - 10 - 1));
    assert_eq!(again, Lease { expires_in_ms: MINUTE - 1_010 - 1, version: 2, ..first });
    // One that comes out of order is new; one too old to tell is not.
    assert_eq!(acquire(&mut ledger, T0 + 1_020, 1, 3, 5).granted_total, Tokens(35));
    assert_eq!(acquire(&mut ledger, T0 + 1_030, 1, 1_000, 5).granted_total, Tokens(40));
    assert_eq!(acquire(&mut ledger, T0 + 1_040, 1, 8, 5).granted_total, Tokens(40));
}

#[test]
fn a_settle_counts_once_and_the_highest_totals_win_in_any_order() {
    let mut ledger = ledger(limited(100), MINUTE);
    let window = acquire(&mut ledger, T0, 1, 1, 50).window;
    let back = |returned| SettleOutcome::Applied { returned: Tokens(returned) };
    assert_eq!(settle(&mut ledger, T0 + 1, 1, window.start, 10, 20), back(20));
    let before = ledger.clone();
    assert_eq!(settle(&mut ledger, T0 + 1, 1, window.start, 10, 20), back(0));
    assert_eq!(settle(&mut ledger, T0 + 1, 1, window.start, 4, 5), back(0));
    assert_eq!(ledger, before);
    assert_eq!(numbers(&ledger, T0), [100, 0, 70, 20, 10]);
    let lease = acquire(&mut ledger, T0 + 2, 1, 2, 0);
    assert_eq!(
        (lease.granted_total, lease.spent_total, lease.returned_total),
        (Tokens(50), Tokens(10), Tokens(20))
    );
}

#[test]
fn a_settle_that_claims_more_than_was_granted_changes_nothing_and_never_wraps() {
    let mut ledger = ledger(limited(100), MINUTE);
    let window = acquire(&mut ledger, T0, 1, 1, 50).window;
    let before = ledger.clone();
    for (spent, returned) in [(51, 0), (0, 51), (26, 25), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX)]
    {
        let outcome = settle(&mut ledger, T0, 1, window.start, spent, returned);
        assert_eq!(outcome, SettleOutcome::Impossible { granted: Tokens(50) }, "{spent}, {returned}");
    }
    assert_eq!(settle(&mut ledger, T0, 2, window.start, 0, 0), SettleOutcome::Over, "it has no lease");
    assert_eq!(settle(&mut ledger, T0, 1, LedgerTime(5), 0, 0), SettleOutcome::Over, "no such window");
    assert_eq!(ledger, before);
}

#[test]
fn a_settle_after_the_windows_end_gives_nothing_back_but_its_spends_count() {
    let mut ledger = ledger(limited(100), MINUTE);
    let window = acquire(&mut ledger, T0, 1, 1, 50).window;
    acquire(&mut ledger, T0 + MINUTE, 1, 2, 1);
    assert_eq!(settle(&mut ledger, T0 + MINUTE, 1, window.start, 30, 20), SettleOutcome::Over);
    assert_eq!(numbers(&ledger, T0), [100, 0, 50, 0, 50]);
    assert_eq!(numbers(&ledger, T0 + MINUTE), [100, 0, 99, 1, 0]);
    let view = &ledger.pool_views()[0];
    assert_eq!((view.state.as_str(), view.reported), ("closed", Tokens(30)));
}

#[test]
fn an_earlier_life_is_refused_and_changes_nothing_once_a_later_one_was_seen() {
    let mut ledger = ledger(limited(100), MINUTE);
    acquire(&mut ledger, T0, 1, 1, 40);
    let second_life = |seq| {
        let Command::Acquire { holder, acquire, .. } = wish(1, seq, WindowChoice::Current, 10) else {
            panic!()
        };
        Command::Acquire { holder, incarnation: Incarnation(2), acquire }
    };
    let lease = lease(apply(&mut ledger, T0 + 1, second_life(1)));
    assert_eq!(lease.granted_total, Tokens(10), "it holds nothing of the first life");
    let before = ledger.clone();
    let stale = apply(&mut ledger, T0 + 1, wish(1, 2, WindowChoice::Current, 10));
    assert_eq!(stale, Outcome::Acquired(AcquireOutcome::StaleIncarnation { seen: Incarnation(2) }));
    assert_eq!(ledger, before);
    // What the first life had is lost to the window, unless it gave it back.
    assert_eq!(numbers(&ledger, T0), [100, 0, 50, 50, 0]);
}

#[test]
fn the_last_word_is_spoken_when_neither_the_pool_nor_any_other_holder_has_tokens() {
    let mut ledger = ledger(limited(10), MINUTE);
    let window = acquire(&mut ledger, T0, 1, 1, 10).window;
    let empty = acquire(&mut ledger, T0, 2, 1, 1);
    assert_eq!((empty.remaining, empty.outstanding, empty.granted_total), (Tokens(0), Tokens(10), Tokens(0)));
    settle(&mut ledger, T0 + 1, 1, window.start, 10, 0);
    let last = acquire(&mut ledger, T0 + 2, 2, 2, 1);
    assert_eq!((last.remaining, last.outstanding), (Tokens(0), Tokens(0)));
}

#[test]
fn renewing_every_200_ms_for_a_minute_and_past_it_never_says_expired() {
    let mut ledger = ledger(limited(1_000), MINUTE);
    for n in 0..400 {
        let now = T0 + n * 200;
        let lease = acquire(&mut ledger, now, 1, n + 1, 0);
        assert!(lease.window.contains(LedgerTime(now)));
        assert_eq!(lease.expires_in_ms, lease.window.end.0 - now - 1, "at {now}");
    }
}

#[test]
fn a_window_of_a_day_is_leased_by_sessions_that_extend_and_never_pass_its_end() {
    let start = T0 / DAY * DAY + DAY;
    let mut ledger = ledger(limited(1_000), DAY);
    let mut total = 0;
    for n in 0..100 {
        let now = start + n * 870_000;
        let lease = acquire(&mut ledger, now, 1, n + 1, 1);
        total += 1;
        let left = start + DAY - now;
        assert_eq!(lease.granted_total, Tokens(total), "one window, one account");
        assert_eq!(lease.expires_in_ms, left.min(600_000) - 1, "renewal {n}");
    }
}

#[test]
fn a_lease_that_ran_out_keeps_nothing_when_it_is_extended() {
    let mut ledger = ledger(limited(1_000), DAY);
    let first = acquire(&mut ledger, T0, 1, 1, 50);
    settle(&mut ledger, T0 + 1, 1, first.window.start, 10, 0);
    assert_eq!(ledger.outstanding_span_ms(), 600_000 - 1);
    let again = acquire(&mut ledger, T0 + 600_000, 1, 2, 5);
    assert_eq!((again.granted_total, again.spent_total), (Tokens(55), Tokens(50)));
    assert_eq!(numbers(&ledger, first.window.start.0), [1_000, 0, 945, 5, 50]);
}

#[test]
fn the_outstanding_span_is_that_of_the_longest_lease_with_tokens() {
    let mut ledger = ledger(limited(100), MINUTE);
    assert_eq!(ledger.outstanding_span_ms(), 0);
    let window = acquire(&mut ledger, T0, 1, 1, 10).window;
    assert_eq!(ledger.outstanding_span_ms(), MINUTE);
    acquire_next(&mut ledger, T0 + 59_000, 1, 2, 10);
    assert_eq!(ledger.outstanding_span_ms(), 61_000);
    let next = window.next();
    settle(&mut ledger, T0 + 59_000, 1, next.start, 0, 10);
    assert_eq!(ledger.outstanding_span_ms(), 1_000);
}
