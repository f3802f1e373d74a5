//! Windows and time: one line, no overlap, one reset each.

use super::*;

#[test]
fn a_snapshot_in_mid_window_restores_and_the_next_window_is_full_once() {
    let mut ledger = ledger(limited(100), MINUTE);
    acquire(&mut ledger, T0 + 1, 1, 1, 100);
    let mut restored = restored(&ledger);
    assert_eq!(restored, ledger);
    for replica in [&mut ledger, &mut restored] {
        assert_eq!(acquire(replica, T0 + MINUTE - 1, 2, 1, 100).granted_total, Tokens(0));
        assert_eq!(acquire(replica, T0 + MINUTE, 2, 2, 60).granted_total, Tokens(60));
        assert_eq!(acquire(replica, T0 + MINUTE + 1, 1, 2, 100).granted_total, Tokens(40));
        assert_eq!(acquire(replica, T0 + 2 * MINUTE - 1, 1, 3, 1).granted_total, Tokens(40));
    }
    assert_eq!(restored, ledger);
}

#[test]
fn a_stamp_that_comes_late_never_moves_time_back_and_no_expiry_moves() {
    let mut ledger = ledger(limited(100), MINUTE);
    let lease = acquire(&mut ledger, T0 + 10_000, 1, 1, 10);
    // Five leaders in ten seconds, each a little behind the last.
    for (n, stamp) in (0..5).map(|n| (n, T0 + 10_000 + n * 2_000)) {
        for behind in [0, 20, 900, stamp] {
            ledger.apply(&Entry { stamp: LedgerTime(stamp - behind), commands: vec![] });
            assert_eq!(ledger.now(), LedgerTime(stamp), "reign {n}");
            let left = ledger.lease_views()[0].expires_in_ms;
            assert_eq!(left, lease.window.end.0 - stamp, "true time left, whoever leads");
        }
    }
    // A late stamp reopens no window either.
    acquire(&mut ledger, T0 + MINUTE, 1, 2, 1);
    let stale = acquire(&mut ledger, T0 + 59_000, 1, 3, 1);
    assert_eq!(stale.window.start, LedgerTime(T0 + MINUTE));
}

#[test]
fn a_weighted_acquire_moves_no_windows_end_and_ends_nothing_early() {
    let mut ledger = ledger(limited(100), MINUTE);
    let light = acquire(&mut ledger, T0, 1, 1, 1);
    let heavy = acquire(&mut ledger, T0 + 5, 2, 1, 10);
    assert_eq!(heavy.window, light.window);
    let again = acquire(&mut ledger, T0 + 5, 1, 2, 10);
    assert_eq!((again.window, again.granted_total), (light.window, Tokens(11)));
    assert_eq!(numbers(&ledger, T0), [100, 0, 79, 21, 0]);
}

#[test]
fn the_next_window_is_leased_ahead_out_of_its_own_pool_and_starts_later() {
    let mut ledger = ledger(limited(100), MINUTE);
    acquire(&mut ledger, T0 + 58_000, 1, 1, 100);
    let next = acquire_next(&mut ledger, T0 + 58_000, 2, 1, 70);
    assert_eq!((next.starts_in_ms, next.expires_in_ms), (2_000, 62_000 - 1));
    assert_eq!((next.granted_total, next.remaining), (Tokens(70), Tokens(30)));
    assert_eq!(numbers(&ledger, T0), [100, 0, 0, 100, 0]);
    // When it has come, the lease goes on in the same account.
    let now = acquire(&mut ledger, T0 + MINUTE, 2, 2, 50);
    assert_eq!((now.starts_in_ms, now.granted_total), (0, Tokens(100)));
}

#[test]
fn windows_of_800_requests_against_500_are_full_once_each_at_30_edges() {
    let mut ledger = ledger(limited(500), 1_000);
    let start = T0 / 1_000 * 1_000;
    let mut granted = std::collections::BTreeMap::<LedgerTime, u64>::new();
    let mut seen = std::collections::BTreeMap::<(u64, LedgerTime), u64>::new();
    for n in 0..800 * 30 {
        let lease = acquire(&mut ledger, start + n * 1_000 / 800, n % 2, n + 1, 1);
        let before = seen.insert((n % 2, lease.window.start), lease.granted_total.0).unwrap_or(0);
        *granted.entry(lease.window.start).or_default() += lease.granted_total.0 - before;
    }
    assert_eq!(granted.len(), 30);
    assert!(granted.values().all(|n| *n == 500), "{granted:?}");
}

#[test]
fn a_new_length_takes_hold_at_the_next_window_although_holders_lease_ahead() {
    let mut ledger = ledger(limited(100), MINUTE);
    acquire(&mut ledger, T0 + 1, 1, 1, 1);
    publish(&mut ledger, T0 + 2, limited(100), 5 * MINUTE);
    let open = acquire(&mut ledger, T0 + 3, 1, 2, 1).window;
    assert_eq!(open.length_ms(), MINUTE, "an open window keeps its end");
    // Aligned to five minutes at its end, cut at its front.
    let next = acquire_next(&mut ledger, T0 + 58_000, 1, 3, 1).window;
    let end = (T0 + MINUTE) / (5 * MINUTE) * 5 * MINUTE + 5 * MINUTE;
    assert_eq!((next.start.0, next.end.0), (T0 + MINUTE, end));
    let after = acquire(&mut ledger, end, 1, 4, 1).window;
    assert_eq!((after.start.0, after.length_ms()), (end, 5 * MINUTE));
    // And back: the long window keeps its end, no label comes twice.
    publish(&mut ledger, end + 1, limited(100), MINUTE);
    assert_eq!(acquire(&mut ledger, end + 2, 1, 5, 1).window, after);
    assert_eq!(acquire(&mut ledger, after.end.0, 1, 6, 1).window.length_ms(), MINUTE);
}

#[test]
fn a_window_that_nobody_asks_for_costs_nothing_and_the_past_is_bounded() {
    let mut ledger = ledger(limited(10), 1_000);
    for n in 0..500 {
        acquire(&mut ledger, T0 + n * 1_000, 1, n + 1, 1);
    }
    assert_eq!(ledger.pool_views().len(), 64 + 1);
    acquire(&mut ledger, T0 + 3_600_000, 1, 501, 1);
    assert_eq!(ledger.pool_views().len(), 64 + 1);
    assert_eq!((ledger.pools_len(), ledger.leases_len()), (1, 1));
}
