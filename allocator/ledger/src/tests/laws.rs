//! Laws of the ledger, over random histories.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One command, or one that comes again.
#[derive(Debug, Clone)]
enum Op {
    Acquire { n: u64, life: u64, seq: u64, next: bool, need: u64, demand: Demand },
    Hear { n: u64, life: u64, rtt_ms: u64 },
    Feed,
    Settle { n: u64, life: u64, window: usize, spent: u64, returned: u64 },
    Publish { limit: Limit, window_ms: u64, has_rule: bool, skips: u64 },
    Again { back: usize },
}

fn tokens() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..40_u64, 2 => 0..400_u64, 1 => Just(u64::MAX)]
}

fn demand() -> impl Strategy<Value = Demand> {
    (tokens(), tokens()).prop_map(|(fast, sustained)| Demand {
        fast_mtps: fast.saturating_mul(100),
        sustained_mtps: sustained.saturating_mul(100),
    })
}

fn op() -> impl Strategy<Value = Op> {
    let limit = prop_oneof![
        6 => (1..300_u64).prop_map(limited),
        1 => Just(Limit::Limited { tokens: Tokens::MAX }),
        1 => Just(Limit::Blocked),
        1 => Just(Limit::Unlimited)
    ];
    let length = prop_oneof![6 => Just(10_000_u64), 1 => Just(3_000), 1 => Just(60_000), 1 => Just(DAY)];
    prop_oneof![
        12 => (0..4_u64, 0..3_u64, 0..200_u64, any::<bool>(), tokens(), demand())
            .prop_map(|(n, life, seq, next, need, demand)| Op::Acquire { n, life, seq, next, need, demand }),
        2 => (0..4_u64, 0..3_u64, 0..400_u64).prop_map(|(n, life, rtt_ms)| Op::Hear { n, life, rtt_ms }),
        2 => Just(Op::Feed),
        8 => (0..4_u64, 0..3_u64, 0..8_usize, tokens(), tokens())
            .prop_map(|(n, life, window, spent, returned)| Op::Settle { n, life, window, spent, returned }),
        2 => (limit, length, prop::bool::weighted(0.9), prop_oneof![8 => Just(0_u64), 1 => 1..3_u64])
            .prop_map(|(limit, window_ms, has_rule, skips)| Op::Publish { limit, window_ms, has_rule, skips }),
        6 => (0..30_usize).prop_map(|back| Op::Again { back }),
    ]
}

/// Entries of a few commands, and how far each stamp lies from the one before: mostly ahead, at times far, at times
/// behind.
fn history() -> impl Strategy<Value = Vec<(i64, Vec<Op>)>> {
    let step =
        prop_oneof![8 => 0..400_i64, 3 => 400..15_000_i64, 1 => 15_000..200_000_i64, 2 => -30_000..0_i64];
    prop::collection::vec((step, prop::collection::vec(op(), 0..5)), 1..60)
}

/// The history as entries. Which windows a settle can name comes from a ledger that runs along.
fn entries(history: &[(i64, Vec<Op>)]) -> Vec<Entry> {
    let mut along = Ledger::default();
    let first = activate(bundle(1, limited(100), 10_000));
    let mut entries = vec![Entry { stamp: LedgerTime(T0), commands: vec![first] }];
    along.apply(&entries[0]);
    let (mut stamp, mut said) = (T0, Vec::new());
    for (step, ops) in history {
        stamp = stamp.saturating_add_signed(*step);
        let mut commands = Vec::new();
        for op in ops {
            let command = match *op {
                Op::Acquire { n, life, seq, next, need, demand } => Command::Acquire {
                    holder: holder(n),
                    incarnation: Incarnation(life),
                    acquire: Acquire {
                        pool: pool(),
                        window: if next { WindowChoice::Next } else { WindowChoice::Current },
                        seq,
                        need: Tokens(need),
                        least: Tokens(need / 2),
                        boundary: Tokens(need / 3),
                        demand,
                        extend_only: seq % 7 == 6,
                    },
                },
                Op::Hear { n, life, rtt_ms } => {
                    Command::Hear { holder: holder(n), incarnation: Incarnation(life), rtt_ms }
                }
                Op::Feed => Command::Feed,
                Op::Settle { n, life, window, spent, returned } => Command::Settle {
                    holder: holder(n),
                    incarnation: Incarnation(life),
                    settle: Settle {
                        pool: pool(),
                        window_start: nth_window(&along, window),
                        spent_total: Tokens(spent),
                        returned_total: Tokens(returned),
                        denied_total: Tokens(spent),
                        demand: Demand::default(),
                    },
                },
                Op::Publish { limit, window_ms, has_rule, skips } => {
                    let mut bundle = bundle(along.bundle_version().0 + 1 + skips, limit, window_ms);
                    bundle.rules.retain(|_| has_rule);
                    activate(bundle)
                }
                Op::Again { back } => match said.iter().rev().nth(back) {
                    Some(command) => Command::clone(command),
                    None => continue,
                },
            };
            said.push(command.clone());
            commands.push(command);
        }
        let entry = Entry { stamp: LedgerTime(stamp), commands };
        along.apply(&entry);
        entries.push(entry);
    }
    entries
}

/// The `n`th newest window of the pool, counting round.
fn nth_window(ledger: &Ledger, n: usize) -> LedgerTime {
    let Some(pool) = ledger.pools.get(&pool()) else { return LedgerTime(0) };
    let windows: Vec<LedgerTime> =
        pool.closed.iter().map(|w| w.window.start).chain(pool.open.keys().copied()).collect();
    windows.iter().rev().nth(n % windows.len().max(1)).copied().unwrap_or_default()
}

/// What each open window has committed, and its limit.
fn windows(ledger: &Ledger) -> BTreeMap<LedgerTime, (u64, u64)> {
    let open = ledger.pools.values().flat_map(|pool| pool.open.values());
    open.map(|w| (w.window.start, (w.committed.0, w.contract.0))).collect()
}

/// Granted and not given back, over all leases of all open windows.
fn committed(ledger: &Ledger) -> u128 {
    ledger.lease_views().iter().map(|view| u128::from(view.granted.0) - u128::from(view.returned.0)).sum()
}

fn granted(ledger: &Ledger) -> u128 {
    ledger.lease_views().iter().map(|view| u128::from(view.granted.0)).sum()
}

proptest! {
    #[test]
    fn after_every_command_the_sums_hold_and_time_runs_forward(history in history()) {
        let mut ledger = Ledger::default();
        let mut latest = LedgerTime(0);
        for entry in entries(&history) {
            latest = latest.max(entry.stamp);
            for command in &entry.commands {
                ledger.apply(&Entry { stamp: entry.stamp, commands: vec![command.clone()] });
                prop_assert_eq!(ledger.check_invariants(), Ok(()));
                for view in ledger.pool_views() {
                    let limit = view.limit.expect("a pool has a limit");
                    prop_assert_eq!(
                        u128::from(view.remaining.0) + u128::from(view.leased.0) + u128::from(view.spent.0),
                        u128::from(limit.0) + u128::from(view.debt.0),
                        "{:?}", view
                    );
                    prop_assert!(view.debt.is_zero() || view.remaining.is_zero());
                }
            }
            ledger.apply(&Entry { stamp: entry.stamp, commands: vec![] });
            prop_assert_eq!(ledger.now(), latest);
        }
    }

    /// Only a change of policy makes a debt, and while there is one nothing is granted.
    #[test]
    fn no_grant_takes_a_window_above_its_limit(history in history()) {
        let mut ledger = Ledger::default();
        for entry in entries(&history) {
            ledger.apply(&Entry { stamp: entry.stamp, commands: vec![] });
            for command in &entry.commands {
                let before = windows(&ledger);
                ledger.apply(&Entry { stamp: entry.stamp, commands: vec![command.clone()] });
                for (start, (committed, limit)) in windows(&ledger) {
                    let was = before.get(&start).map_or(0, |(committed, _)| *committed);
                    prop_assert!(committed <= was.max(limit), "{start}: from {was} to {committed} of {limit}");
                    let can_grow = !matches!(command, Command::Hear { .. });
                    prop_assert!(committed <= was || can_grow, "{command:?}");
                }
            }
        }
    }

    /// At once or later, within the time in which a retry can come. One that was refused was not taken in.
    #[test]
    fn a_command_that_comes_again_grants_and_returns_nothing_more(history in history()) {
        let mut ledger = Ledger::default();
        let mut said: Vec<(LedgerTime, Command)> = Vec::new();
        for entry in entries(&history) {
            let outcomes = ledger.apply(&entry).outcomes;
            let now = ledger.now();
            let taken = entry.commands.into_iter().zip(outcomes).filter(|(_, outcome)| match outcome {
                Outcome::Acquired(outcome) => matches!(outcome, AcquireOutcome::Lease(_)),
                Outcome::Settled(outcome) => matches!(outcome, SettleOutcome::Applied { .. }),
                Outcome::Activated(outcome) => !matches!(outcome, ActivateOutcome::Conflict { .. }),
                Outcome::Noted => false,
            });
            said.extend(taken.map(|(command, _)| (now, command)));
            let recent = said.iter().rev().take(12).filter(|(at, _)| now.ms_since(*at) < 100_000);
            for (_, command) in recent {
                let mut again = ledger.clone();
                again.apply(&Entry { stamp: now, commands: vec![command.clone()] });
                prop_assert_eq!(granted(&again), granted(&ledger), "{:?}", command);
                prop_assert_eq!(committed(&again), committed(&ledger), "{:?}", command);
                if !matches!(command, Command::Acquire { .. }) {
                    // Save that what it forecast was heard of later.
                    for (key, pool) in &mut again.pools {
                        pool.reports.clone_from(&ledger.pools[key].reports);
                    }
                    prop_assert_eq!(&again, &ledger, "{:?}", command);
                }
            }
        }
    }

    /// A follower that applies a minute late, or restores a snapshot and applies the rest, is equal bit for bit.
    #[test]
    fn replicas_with_the_same_entries_are_equal_with_or_without_a_snapshot(history in history(), cut in 0..60_usize) {
        let entries = entries(&history);
        let (mut leader, mut late) = (Ledger::default(), Ledger::default());
        let outcomes: Vec<_> = entries.iter().map(|entry| leader.apply(entry)).collect();
        for (n, entry) in entries.iter().enumerate() {
            prop_assert_eq!(&late.apply(entry), &outcomes[n]);
            if n == cut {
                late = restored(&late);
            }
        }
        prop_assert_eq!(&late, &leader);
        prop_assert_eq!(serde_json::to_string(&late).unwrap(), serde_json::to_string(&leader).unwrap());
    }
}
