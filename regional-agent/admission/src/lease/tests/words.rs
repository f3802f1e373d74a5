//! What the allocator's words do: empty, unknown, uncertain; and windows that end, go on, or are forgotten.

use super::*;

const DAY: Window = Window { start: LedgerTime(86_400_000), end: LedgerTime(172_800_000) };
/// What the ledger says of a session's length.
const SESSION: u64 = 600_000 - 1;

fn empty(outstanding: u64, version: u64) -> Lease {
    let supply = Supply { scarce: true, short: true, ..Supply::default() };
    let (remaining, outstanding) = (Tokens(0), Tokens(outstanding));
    Lease { remaining, outstanding, version, supply, ..lease(MINUTE, 0, 30_000) }
}

#[test]
fn an_empty_pool_is_waited_for_as_long_as_a_recall_takes_and_polled_seldom() {
    let mut m = manager();
    request(&mut m, 0, 1);
    assert_eq!(granted(&mut m, (0, 100), 1, empty(7, 1)), [LeaseEffect::Changed]);
    let limit = Some(Tokens(1_000));
    assert_eq!(
        m.availability(at(349), &pool(), Tokens(1)),
        Availability::Pending { held: Tokens(0), limit },
        "what was recalled may come"
    );
    assert_eq!(
        m.availability(at(350), &pool(), Tokens(1)),
        Availability::Exhausted {
            retry_after_ms: 29_650,
            window: MINUTE,
            limit: Tokens(1_000),
            held: Tokens(0),
            last_word: false
        }
    );
    m.not_waiting(&pool(), Tokens(1));
    let mut polls = Vec::new();
    for ms in (400..20_000).step_by(100) {
        m.demand(at(ms), &pool(), Tokens(1));
        m.refused(at(ms), &pool(), Tokens(1));
        for effect in tick(&mut m, ms) {
            let LeaseEffect::Send { frame_id, frame } = effect else { panic!("{effect:?}") };
            let answers = frame.acquires.iter().map(|a| AcquireAnswer {
                pool: pool(),
                seq: a.seq,
                outcome: AcquireOutcome::Lease(Lease { expires_in_ms: 30_000 - ms, ..empty(7, 1 + ms) }),
            });
            let answers: Vec<_> = answers.collect();
            polls.extend(frame.acquires.iter().map(|a| (ms, a.need)));
            let answer = LeaseFrameAnswer { answers, bundle_version: BundleVersion(1), pushes: vec![] };
            answered(&mut m, (ms, ms), frame_id, answer);
        }
    }
    assert!((6..=19).contains(&polls.len()), "{polls:?}");
    assert!(polls.windows(2).all(|two| (1_000..=3_100).contains(&(two[1].0 - two[0].0))), "{polls:?}");
    assert!(polls.iter().all(|(_, need)| *need == Tokens(1)), "a poll says what it lacks");
}

/// The acquires that leave at `ms`; their frames are taken as answered without them.
fn heard(m: &mut LeaseManager, ms: u64) -> Vec<Acquire> {
    let mut acquires = Vec::new();
    for effect in tick(m, ms) {
        let LeaseEffect::Send { frame_id, frame } = effect else { continue };
        acquires.extend(frame.acquires);
        let answer = LeaseFrameAnswer { answers: vec![], bundle_version: BundleVersion(1), pushes: vec![] };
        answered(m, (ms, ms), frame_id, answer);
    }
    acquires
}

#[test]
fn the_last_word_on_a_window_is_believed_until_the_window_ends() {
    let mut m = manager();
    request(&mut m, 0, 1);
    granted(&mut m, (0, 100), 1, empty(0, 1));
    m.not_waiting(&pool(), Tokens(1));
    for ms in (200..28_000).step_by(500) {
        m.demand(at(ms), &pool(), Tokens(1));
        assert_eq!(heard(&mut m, ms), [], "at {ms} ms");
        assert!(matches!(
            m.availability(at(ms), &pool(), Tokens(1)),
            Availability::Exhausted { last_word: true, .. }
        ));
    }
    assert!(!matches!(m.availability(at(30_000), &pool(), Tokens(1)), Availability::Exhausted { .. }));
}

#[test]
fn an_unknown_pool_is_asked_again_after_a_while_and_not_before() {
    let mut m = manager();
    request(&mut m, 0, 1);
    m.not_waiting(&pool(), Tokens(1));
    let unknown = answer(1, AcquireOutcome::UnknownPool);
    assert_eq!(answered(&mut m, (0, 100), 1, unknown), [LeaseEffect::Changed]);
    m.demand(at(599), &pool(), Tokens(1));
    assert_eq!(m.availability(at(599), &pool(), Tokens(1)), Availability::UnknownPool);
    assert_eq!(tick(&mut m, 599), []);
    m.demand(at(600), &pool(), Tokens(1));
    assert_eq!(tick(&mut m, 600).len(), 1);
}

#[test]
fn an_allocator_without_a_sure_clock_counts_as_lost_while_held_tokens_are_spent() {
    let mut m = holding(3);
    request(&mut m, 110, 5);
    let uncertain = answer(2, AcquireOutcome::ClockUncertain { retry_ms: 60_000 });
    assert_eq!(answered(&mut m, (110, 200), 2, uncertain), [LeaseEffect::Changed]);
    assert_eq!(m.availability(at(200), &pool(), Tokens(5)), Availability::Lost { held: Tokens(3) });
    assert!(m.spend(at(200), &pool(), Tokens(3)));
    // It took the report of what was spent before in as little as the wish.
    assert_eq!(
        m.pools[&pool()].windows[&MINUTE.start].report(&pool(), Demand::default()),
        Some(settle(MINUTE, 3, 0))
    );
    // However long the allocator says, it is asked again within half a second.
    assert_eq!(m.next_wakeup(), Some(at(700)));
}

#[test]
fn the_next_window_is_asked_for_once_two_seconds_ahead() {
    let mut m = holding(100);
    let mut asked = Vec::new();
    for ms in (200..29_900).step_by(100) {
        m.demand(at(ms), &pool(), Tokens(1));
        for effect in tick(&mut m, ms) {
            let LeaseEffect::Send { frame_id, frame } = effect else { continue };
            let next = frame.acquires.iter().filter(|a| a.window == WindowChoice::Next);
            asked.extend(next.map(|a| (ms, a.need, a.boundary)));
            let answers = frame.acquires.iter().map(|a| AcquireAnswer {
                pool: pool(),
                seq: a.seq,
                outcome: AcquireOutcome::Lease(match a.window {
                    WindowChoice::Current => lease(MINUTE, 100, 30_000 - ms),
                    WindowChoice::Next => {
                        Lease { starts_in_ms: 30_000 - ms, ..lease(MINUTE.next(), 40, 90_000 - ms) }
                    }
                }),
            });
            let answer = LeaseFrameAnswer {
                answers: answers.collect(),
                bundle_version: BundleVersion(1),
                pushes: vec![],
            };
            answered(&mut m, (ms, ms), frame_id, answer);
        }
    }
    // The window began before the first request, so nothing is known of its start.
    assert_eq!(asked.len(), 1);
    assert!((27_800..=28_000).contains(&asked[0].0) && asked[0].1 == Tokens(0), "{asked:?}");
    assert_eq!(held(&m, 30_050), 40);
}

#[test]
fn a_window_of_a_day_is_leased_by_sessions_that_extend_for_as_long_as_somebody_asks() {
    let mut m = manager();
    request(&mut m, 0, 1);
    m.not_waiting(&pool(), Tokens(1));
    granted(&mut m, (0, 10), 1, lease(DAY, 1_000_000, SESSION));
    let (mut extensions, mut version) = (0, 1);
    for second in 1..=12 * 3_600 {
        let ms = second * 1_000;
        m.demand(at(ms), &pool(), Tokens(1));
        assert!(m.spend(at(ms), &pool(), Tokens(1)), "never expired while it is renewed: {second} s");
        for effect in tick(&mut m, ms) {
            let LeaseEffect::Send { frame_id, frame } = effect else { continue };
            assert!(
                frame.acquires.iter().all(|a| a.window == WindowChoice::Current),
                "the day has not ended"
            );
            extensions += frame.acquires.len();
            version += 1;
            let answers = frame.acquires.iter().map(|a| AcquireAnswer {
                pool: pool(),
                seq: a.seq,
                outcome: AcquireOutcome::Lease(Lease { version, ..lease(DAY, 1_000_000, SESSION) }),
            });
            let answer = LeaseFrameAnswer {
                answers: answers.collect(),
                bundle_version: BundleVersion(1),
                pushes: vec![],
            };
            answered(&mut m, (ms, ms + 1), frame_id, answer);
        }
    }
    assert!((100..130).contains(&extensions), "{extensions} in 12 h, one each 400 s");
    assert_eq!(held(&m, 12 * 3_600_000), 1_000_000 - 12 * 3_600);
}

#[test]
fn a_window_that_lapsed_was_reported_and_was_forgotten_goes_on_from_the_report() {
    let mut m = manager();
    request(&mut m, 0, 1);
    m.not_waiting(&pool(), Tokens(1));
    granted(&mut m, (0, 10), 1, lease(DAY, 100, 5_000));
    assert!(m.spend(at(20), &pool(), Tokens(60)));
    // The report, and then a long silence in which the pool is dropped altogether.
    let settled = settled_until(&mut m, 200_000).into_iter().map(|(_, settle)| settle).collect::<Vec<_>>();
    assert_eq!(settled, [settle(DAY, 60, 0)]);
    let effects = request(&mut m, 200_000, 7);
    let [LeaseEffect::Send { frame_id, frame }] = effects.as_slice() else { panic!("{effects:?}") };
    let outcome = AcquireOutcome::Lease(Lease {
        version: 9,
        // The 40 that lapsed count as spent at the allocator.
        spent_total: Tokens(100),
        ..lease(DAY, 107, SESSION)
    });
    let answers = vec![AcquireAnswer { pool: pool(), seq: frame.acquires[0].seq, outcome }];
    let answer = LeaseFrameAnswer { answers, bundle_version: BundleVersion(1), pushes: vec![] };
    answered(&mut m, (200_000, 200_010), *frame_id, answer);
    assert_eq!(held(&m, 200_010), 7, "not 107");
}

#[test]
fn nothing_is_forgotten_while_an_acquire_is_on_its_way() {
    let mut m = manager();
    request(&mut m, 0, 1);
    request(&mut m, 0, 1);
    m.not_waiting(&pool(), Tokens(1));
    m.not_waiting(&pool(), Tokens(1));
    granted(&mut m, (0, 10), 1, lease(MINUTE, 5, 50));
    assert!(m.spend(at(20), &pool(), Tokens(5)));
    assert_eq!(tick(&mut m, 5_020), [send(3, vec![settle(MINUTE, 5, 0)], vec![])]);
    let confirmed = LeaseFrameAnswer { answers: vec![], bundle_version: BundleVersion(1), pushes: vec![] };
    answered(&mut m, (5_020, 5_030), 3, confirmed);
    tick(&mut m, 5_100);
    // It was applied before the report, so it knows of no spend.
    granted(&mut m, (0, 5_200), 2, Lease { version: 2, ..lease(MINUTE, 5, 60_000) });
    assert_eq!(held(&m, 5_200), 0);
}

#[test]
fn pools_that_policy_dropped_are_given_back_and_others_kept() {
    let mut m = holding(10);
    m.retain_pools(at(200), |_| true);
    assert_eq!(tick(&mut m, 200), []);
    m.retain_pools(at(300), |_| false);
    assert_eq!(tick(&mut m, 300), [send(2, vec![settle(MINUTE, 0, 10)], vec![])]);
    assert!(!m.spend(at(300), &pool(), Tokens(1)));
}

#[test]
fn costs_and_needs_near_the_largest_number_do_not_wrap() {
    let mut m = manager();
    for _ in 0..3 {
        let effects = request(&mut m, 0, u64::MAX);
        for effect in effects {
            let LeaseEffect::Send { frame, .. } = effect else { continue };
            assert!(frame.acquires.iter().all(|a| a.least <= a.need && a.need <= Tokens::MAX));
        }
    }
    granted(&mut m, (0, 1), 1, lease(MINUTE, u64::MAX, u64::MAX));
    assert!(m.spend(at(2), &pool(), Tokens(u64::MAX)));
    assert!(!m.spend(at(2), &pool(), Tokens(1)));
}

#[test]
fn beyond_the_bound_on_pools_nothing_is_kept_and_the_answer_is_that_it_cannot_decide() {
    let mut m = manager();
    m.settings.pools_max = 1;
    request(&mut m, 0, 1);
    let other = PoolKey { tenant: Some(TenantId::new("birch").unwrap()), ..pool() };
    m.demand(at(1), &other, Tokens(1));
    m.waiting(at(1), &other, Tokens(1));
    assert_eq!(m.pools.len(), 1);
    assert_eq!(m.availability(at(1), &other, Tokens(1)), Availability::Lost { held: Tokens(0) });
}
