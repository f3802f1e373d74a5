//! Claims about the lease manager, by whole lists of effects.

use leasehold_protocol::lease::{Acquire, Lease, Settle, Supply, WindowChoice};
use leasehold_protocol::{AgentId, BundleVersion, Demand, LedgerTime, RegionId, RuleId, TenantId, Window};

use super::*;

mod words;

/// When each test begins, in ms of the agent's clock; acquires count up from it in µs.
const T0: u64 = 1_000_000;
const SEQ: u64 = T0 * 1_000;
const MINUTE: Window = Window { start: LedgerTime(600_000), end: LedgerTime(660_000) };

fn at(ms: u64) -> LocalTime {
    LocalTime::from_ms(T0 + ms)
}

fn pool() -> PoolKey {
    PoolKey { rule: RuleId::new("P-TENANT").unwrap(), tenant: Some(TenantId::new("atlas").unwrap()) }
}

fn manager() -> LeaseManager {
    let holder = Holder { region: RegionId::new("eu").unwrap(), agent: AgentId::new("eu-1").unwrap() };
    LeaseManager::new(holder, Incarnation(3), LeaseSettings::default())
}

/// An acquire by which one request waits, whatever is forecast.
fn acquire(seq: u64, window: WindowChoice, need: u64) -> Acquire {
    Acquire {
        pool: pool(),
        window,
        seq: SEQ + seq,
        need: Tokens(need),
        least: Tokens(need),
        boundary: Tokens(0),
        demand: Demand::default(),
        extend_only: false,
    }
}

fn settle(window: Window, spent: u64, returned: u64) -> Settle {
    Settle {
        pool: pool(),
        window_start: window.start,
        spent_total: Tokens(spent),
        returned_total: Tokens(returned),
        denied_total: Tokens(0),
        demand: Demand::default(),
    }
}

fn send(frame_id: u64, settles: Vec<Settle>, acquires: Vec<Acquire>) -> LeaseEffect {
    let frame = LeaseFrame { settles, acquires, ..manager().empty_frame() };
    LeaseEffect::Send { frame_id, frame }
}

/// The effects with what is forecast and measured taken out of their frames.
fn plain(effects: Vec<LeaseEffect>) -> Vec<LeaseEffect> {
    let plain = |effect| match effect {
        LeaseEffect::Send { frame_id, mut frame } => {
            frame.rtt_ms = 0;
            frame.settles.iter_mut().for_each(|settle| settle.demand = Demand::default());
            frame.acquires.iter_mut().for_each(|acquire| acquire.demand = Demand::default());
            LeaseEffect::Send { frame_id, frame }
        }
        other => other,
    };
    effects.into_iter().map(plain).collect()
}

/// A lease as it is granted in the middle of a minute with 1,000 tokens.
fn lease(window: Window, granted: u64, expires_in_ms: u64) -> Lease {
    Lease {
        window,
        starts_in_ms: 0,
        expires_in_ms,
        granted_total: Tokens(granted),
        spent_total: Tokens(0),
        returned_total: Tokens(0),
        limit: Tokens(1_000),
        remaining: Tokens(500),
        outstanding: Tokens(300),
        version: 1,
        supply: Supply::default(),
    }
}

fn answer(seq: u64, outcome: AcquireOutcome) -> LeaseFrameAnswer {
    LeaseFrameAnswer {
        answers: vec![AcquireAnswer { pool: pool(), seq: SEQ + seq, outcome }],
        bundle_version: BundleVersion(1),
        pushes: vec![],
    }
}

/// Answers frame `frame_id`, sent at `sent` and received at `now`, both in ms.
fn answered(
    m: &mut LeaseManager,
    (sent, now): (u64, u64),
    frame_id: u64,
    answer: LeaseFrameAnswer,
) -> Vec<LeaseEffect> {
    plain(m.step(at(now), LeaseInput::Answered { sent: at(sent), frame_id, answer }).then)
}

fn granted(m: &mut LeaseManager, times: (u64, u64), id: u64, lease: Lease) -> Vec<LeaseEffect> {
    answered(m, times, id, answer(id, AcquireOutcome::Lease(lease)))
}

fn tick(m: &mut LeaseManager, ms: u64) -> Vec<LeaseEffect> {
    plain(m.step(at(ms), LeaseInput::Tick).then)
}

fn failed(m: &mut LeaseManager, ms: u64, frame_id: u64) -> Vec<LeaseEffect> {
    plain(m.step(at(ms), LeaseInput::Failed { frame_id }).then)
}

/// A request for `cost` that is held if it cannot be admitted at once; what is sent because of it.
fn request(m: &mut LeaseManager, ms: u64, cost: u64) -> Vec<LeaseEffect> {
    m.demand(at(ms), &pool(), Tokens(cost));
    if !m.spend(at(ms), &pool(), Tokens(cost)) {
        m.waiting(at(ms), &pool(), Tokens(cost));
    }
    tick(m, ms)
}

fn held(m: &LeaseManager, ms: u64) -> u64 {
    m.held_leases(at(ms)).iter().map(|lease| lease.held.0).sum()
}

/// A manager that holds `tokens` of [`MINUTE`] until about 30 s from now, and whose first frame is answered.
fn holding(tokens: u64) -> LeaseManager {
    let mut m = manager();
    request(&mut m, 0, 1);
    m.not_waiting(&pool(), Tokens(1));
    let effects = granted(&mut m, (0, 100), 1, lease(MINUTE, tokens, 30_000));
    assert_eq!(effects, [LeaseEffect::Changed]);
    m
}

#[test]
fn the_first_request_asks_for_what_waits_and_a_forecast_and_nothing_else() {
    let mut m = manager();
    assert_eq!(m.next_wakeup(), None);
    assert_eq!(request(&mut m, 0, 2), [send(1, vec![], vec![acquire(1, WindowChoice::Current, 2)])]);
    assert_eq!(tick(&mut m, 1), []);
    assert_eq!(
        m.availability(at(1), &pool(), Tokens(2)),
        Availability::Pending { held: Tokens(0), limit: None }
    );
}

#[test]
fn a_life_counts_from_the_sending_less_the_drift_margin_however_late_the_answer() {
    for received in [1, 100, 29_000] {
        let mut m = manager();
        request(&mut m, 0, 1);
        assert_eq!(
            granted(&mut m, (0, received), 1, lease(MINUTE, 5, 30_000)).first(),
            Some(&LeaseEffect::Changed)
        );
        // 30 s less a thousandth, from the sending.
        let end = at(29_970);
        assert_eq!(
            m.availability(at(received), &pool(), Tokens(5)),
            Availability::Enough {
                remaining: Tokens(5),
                window: MINUTE,
                limit: Tokens(1_000),
                usable_until: end
            }
        );
        assert!(m.spend(LocalTime(end.0 - 1), &pool(), Tokens(1)));
        assert!(!m.spend(end, &pool(), Tokens(1)));
    }
}

#[test]
fn tokens_of_a_lease_that_ran_out_on_the_way_are_never_spent() {
    let mut m = manager();
    request(&mut m, 0, 1);
    assert_eq!(
        granted(&mut m, (0, 40), 1, lease(MINUTE, 5, 40)),
        [LeaseEffect::Changed, send(2, vec![], vec![acquire(2, WindowChoice::Current, 1)])]
    );
    assert!(!m.spend(at(40), &pool(), Tokens(1)));
    assert_eq!(held(&m, 40), 0);
    // A later answer prolongs the life; the allocator counts what was left over as spent.
    let longer = Lease { version: 2, spent_total: Tokens(5), ..lease(MINUTE, 7, 1_000) };
    granted(&mut m, (40, 60), 2, longer);
    assert_eq!(held(&m, 60), 2);
}

#[test]
fn a_lease_of_the_next_window_is_not_spent_before_its_true_start() {
    let mut m = manager();
    request(&mut m, 0, 1);
    let next = Lease { starts_in_ms: 2_000, ..lease(MINUTE.next(), 9, 62_000) };
    granted(&mut m, (0, 100), 1, next);
    // 2 s and a thousandth, from the receipt.
    let start = at(2_102);
    assert!(!m.spend(LocalTime(start.0 - 1), &pool(), Tokens(1)));
    assert!(m.spend(start, &pool(), Tokens(1)));
}

#[test]
fn repeated_and_reordered_answers_credit_the_highest_total_once() {
    let mut m = manager();
    request(&mut m, 0, 1);
    request(&mut m, 1, 1);
    let (older, newer) = (lease(MINUTE, 4, 30_000), Lease { version: 2, ..lease(MINUTE, 9, 29_000) });
    assert_eq!(granted(&mut m, (1, 100), 2, newer.clone()), [LeaseEffect::Changed]);
    assert_eq!(held(&m, 100), 9);
    assert_eq!(granted(&mut m, (1, 101), 2, newer.clone()), [], "the frame is answered already");
    assert_eq!(granted(&mut m, (0, 102), 1, older), [LeaseEffect::Changed]);
    assert_eq!(held(&m, 102), 9);
    assert!(m.spend(at(102), &pool(), Tokens(9)));
    assert!(!m.spend(at(102), &pool(), Tokens(1)));
}

#[test]
fn words_of_an_older_answer_do_not_undo_those_of_a_newer_one() {
    let mut m = manager();
    request(&mut m, 0, 1);
    request(&mut m, 1, 1);
    let empty = Lease { remaining: Tokens(0), version: 1, ..lease(MINUTE, 0, 30_000) };
    let ok = Lease { version: 2, ..lease(MINUTE, 1, 30_000) };
    granted(&mut m, (1, 100), 2, ok);
    granted(&mut m, (0, 101), 1, empty);
    assert!(matches!(
        m.availability(at(101), &pool(), Tokens(5)),
        Availability::Pending { held: Tokens(1), limit: Some(Tokens(1_000)) }
    ));
}

#[test]
fn needs_are_pipelined_in_four_frames_at_most_each_for_what_no_other_asks() {
    let mut m = manager();
    for n in 1..=4 {
        let wish = vec![acquire(n, WindowChoice::Current, 1)];
        assert_eq!(request(&mut m, 0, 1), [send(n, vec![], wish)]);
    }
    assert_eq!(request(&mut m, 0, 1), []);
    assert_eq!(m.next_wakeup(), None, "only an answer or a failure can make room");
    // The first answer covers its own need; the fifth request's is asked for as soon as there is room.
    assert_eq!(
        granted(&mut m, (0, 50), 1, lease(MINUTE, 1, 30_000)),
        [LeaseEffect::Changed, send(5, vec![], vec![acquire(5, WindowChoice::Current, 1)])]
    );
}

#[test]
fn a_failed_frame_is_sent_again_as_it_was_three_times_in_all_and_then_given_up() {
    let mut m = manager();
    let first = request(&mut m, 0, 1);
    let mut now = 0;
    for attempt in 2..=3 {
        now += 800;
        assert_eq!(failed(&mut m, now, 1), [], "attempt {attempt} waits");
        let wake = m.next_wakeup().expect("it will be sent again").as_ms() - T0;
        assert!(wake > now && wake <= now + 1_000);
        now = wake + 1;
        assert_eq!(tick(&mut m, now), first, "attempt {attempt}");
        assert_eq!(m.next_wakeup(), None);
    }
    assert_eq!(failed(&mut m, now + 800, 1), []);
    // The request waits still, so its need goes out anew, under a new number.
    now = m.next_wakeup().expect("its need is asked for again").as_ms() - T0 + 1;
    let effects = tick(&mut m, now);
    let [LeaseEffect::Send { frame_id: 2, frame }] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(frame.acquires.iter().map(|a| (a.seq, a.need)).collect::<Vec<_>>(), [(SEQ + 2, Tokens(1))]);
}

#[test]
fn an_answer_to_a_frame_that_was_given_up_or_never_sent_changes_nothing() {
    let mut m = manager();
    let mut now = 0;
    request(&mut m, now, 1);
    m.not_waiting(&pool(), Tokens(1));
    for _ in 0..3 {
        failed(&mut m, now, 1);
        now += 2_000;
        tick(&mut m, now);
    }
    let late = lease(MINUTE, 50, 30_000);
    for frame_id in [1, 77] {
        assert_eq!(granted(&mut m, (0, now + 1), frame_id, late.clone()), []);
        assert_eq!(failed(&mut m, now + 1, frame_id), []);
    }
    assert_eq!(held(&m, now + 1), 0);
}

#[test]
fn a_grant_whose_answer_was_lost_comes_with_the_next_total() {
    let mut m = holding(10);
    assert!(m.spend(at(100), &pool(), Tokens(10)));
    let lost = request(&mut m, 200, 3);
    assert_eq!(lost, [send(2, vec![settle(MINUTE, 10, 0)], vec![acquire(2, WindowChoice::Current, 3)])]);
    failed(&mut m, 1_000, 2);
    tick(&mut m, 1_500);
    // The repetition gets no new tokens but the total that the first sending was granted.
    let again = Lease { version: 3, spent_total: Tokens(10), ..lease(MINUTE, 26, 28_000) };
    granted(&mut m, (1_500, 1_600), 2, again);
    assert_eq!(held(&m, 1_600), 16);
}

#[test]
fn a_refresh_while_spends_are_not_reported_refuses_nothing_and_subtracts_nothing_twice() {
    let mut m = holding(10);
    assert!(m.spend(at(110), &pool(), Tokens(4)));
    request(&mut m, 120, 6);
    assert_eq!(held(&m, 120), 0);
    // Applied before the report of the 4, and after it: in either case 10 are spent and the grant is what is new.
    for (id, reported) in [(2, 0), (3, 4), (4, 10)] {
        request(&mut m, 120 + id, 20);
        let total = 10 + 20 * (id - 1);
        let answer = Lease { version: id, spent_total: Tokens(reported), ..lease(MINUTE, total, 29_000) };
        granted(&mut m, (120 + id, 130 + id), id, answer);
        assert_eq!(held(&m, 130 + id), 20, "frame {id}");
        assert!(m.spend(at(130 + id), &pool(), Tokens(20)), "no refusal while tokens are held");
        m.not_waiting(&pool(), Tokens(20));
    }
}

/// Lets `m` run until `end`, each of its frames answered at once; what it settled, in order.
fn settled_until(m: &mut LeaseManager, end: u64) -> Vec<(u64, Settle)> {
    let mut settled = Vec::new();
    while let Some(wake) = m.next_wakeup().filter(|wake| *wake < at(end)) {
        for effect in plain(m.step(wake, LeaseInput::Tick).then) {
            let LeaseEffect::Send { frame_id, frame } = effect else { continue };
            assert_eq!(frame.acquires, []);
            settled.extend(frame.settles.into_iter().map(|settle| (wake.ms_since(at(0)), settle)));
            let answer =
                LeaseFrameAnswer { answers: vec![], bundle_version: BundleVersion(1), pushes: vec![] };
            m.step(wake, LeaseInput::Answered { sent: wake, frame_id, answer });
        }
    }
    settled
}

#[test]
fn an_idle_agent_reports_what_it_spent_and_keeps_what_nobody_misses() {
    let mut m = holding(10);
    assert!(m.spend(at(100), &pool(), Tokens(4)));
    assert_eq!(settled_until(&mut m, 20_000), [(5_100, settle(MINUTE, 4, 0))]);
    assert_eq!(held(&m, 20_000), 6);
}

/// What the allocator says unasked of [`MINUTE`].
fn push(m: &mut LeaseManager, ms: u64, lease: Lease) -> Vec<LeaseEffect> {
    let push = Push { incarnation: Incarnation(3), pool: pool(), lease };
    plain(m.step(at(ms), LeaseInput::Pushed(push)).then)
}

#[test]
fn a_recall_brings_back_what_will_not_be_needed_soon_and_at_the_end_to_the_last_token() {
    let mut m = holding(40);
    let scarce = Supply { scarce: true, ..Supply::default() };
    let recall = Lease { version: 2, supply: scarce, ..lease(MINUTE, 40, 0) };
    // One request a moment ago: within four seconds, one more.
    assert_eq!(
        push(&mut m, 200, recall.clone()),
        [LeaseEffect::Changed, send(2, vec![settle(MINUTE, 0, 39)], vec![])]
    );
    assert_eq!(held(&m, 200), 1);
    assert_eq!(push(&mut m, 210, recall), [LeaseEffect::Changed], "a repeated recall finds nothing more");
    // The last one once it is surplus too, and never when they would arrive too late.
    let rest = settled_until(&mut m, 29_990);
    assert_eq!(rest.last().map(|(_, settle)| settle.returned_total), Some(Tokens(40)));
    assert!(rest.last().is_some_and(|(ms, _)| *ms < 29_900));
}

#[test]
fn a_push_brings_tokens_and_news_but_no_longer_life() {
    let mut m = manager();
    request(&mut m, 0, 1);
    let short = Supply { scarce: true, short: true, ..Supply::default() };
    let none = Lease { remaining: Tokens(0), supply: short, ..lease(MINUTE, 0, 30_000) };
    assert_eq!(granted(&mut m, (0, 100), 1, none), [LeaseEffect::Changed]);
    let fed = Lease { version: 2, supply: Supply { short: false, ..short }, ..lease(MINUTE, 3, 1_000_000) };
    assert_eq!(push(&mut m, 150, fed.clone()), [LeaseEffect::Changed]);
    assert_eq!(held(&m, 150), 3);
    // Reordered or repeated, it brings nothing more; for another life, nothing at all.
    assert_eq!(push(&mut m, 160, Lease { version: 1, ..lease(MINUTE, 2, 0) }), [LeaseEffect::Changed]);
    let other = Push {
        incarnation: Incarnation(2),
        pool: pool(),
        lease: Lease { version: 9, ..lease(MINUTE, 99, 0) },
    };
    assert_eq!(m.step(at(170), LeaseInput::Pushed(other)).then, []);
    assert_eq!(held(&m, 170), 3);
    assert!(!m.spend(at(29_970), &pool(), Tokens(1)), "it ends when the answer said");
    push(&mut m, 29_980, Lease { version: 3, ..fed });
    assert_eq!(held(&m, 29_980), 0);
}

#[test]
fn what_is_refused_is_reported_and_where_none_is_held_asked_for_by_the_next_request() {
    let mut m = holding(1);
    assert!(m.spend(at(110), &pool(), Tokens(1)));
    m.refused(at(120), &pool(), Tokens(3));
    m.demand(at(130), &pool(), Tokens(3));
    let report = Settle { denied_total: Tokens(3), ..settle(MINUTE, 1, 0) };
    assert_eq!(tick(&mut m, 130), [send(2, vec![report], vec![acquire(2, WindowChoice::Current, 3)])]);
}

#[test]
fn a_drain_gives_everything_back_in_one_frame_and_asks_for_nothing_more() {
    let mut m = holding(10);
    assert!(m.spend(at(100), &pool(), Tokens(4)));
    let last = send(2, vec![settle(MINUTE, 4, 6)], vec![]);
    assert_eq!(plain(m.step(at(200), LeaseInput::Drain).then), std::slice::from_ref(&last));
    assert!(!m.spend(at(200), &pool(), Tokens(1)));
    assert_eq!(request(&mut m, 210, 1), []);
    // It is worth trying again: what does not arrive is lost for everybody until the window ends.
    assert_eq!(failed(&mut m, 300, 2), []);
    let wake = m.next_wakeup().expect("a failed return is sent again");
    assert!(wake > at(300) && wake <= at(400));
    assert_eq!(plain(m.step(wake, LeaseInput::Tick).then), [send(3, vec![settle(MINUTE, 4, 6)], vec![])]);
}

#[test]
fn a_superseded_life_holds_nothing_and_never_asks_again() {
    let mut m = holding(10);
    request(&mut m, 150, 20);
    let stale = answer(2, AcquireOutcome::StaleIncarnation { seen: Incarnation(4) });
    assert_eq!(
        answered(&mut m, (150, 200), 2, stale),
        [LeaseEffect::Superseded { seen: Incarnation(4) }, LeaseEffect::Changed]
    );
    assert_eq!(request(&mut m, 210, 1), []);
    assert_eq!(m.availability(at(210), &pool(), Tokens(1)), Availability::Lost { held: Tokens(0) });
    assert_eq!(m.next_wakeup(), None);
}

#[test]
fn a_lost_allocator_is_probed_until_it_answers_and_what_is_held_is_spent_meanwhile() {
    let mut m = holding(1_000);
    // A heartbeat finds nobody.
    assert!(m.spend(at(100), &pool(), Tokens(1)));
    assert_eq!(m.next_wakeup(), Some(at(1_000)));
    assert_eq!(tick(&mut m, 1_100), [send(2, vec![], vec![])]);
    assert!(!m.is_allocator_lost(at(2_099)));
    assert!(m.is_allocator_lost(at(2_100)));
    failed(&mut m, 2_000, 2);
    let (mut now, mut probes) = (at(2_000), 0);
    while now < at(20_000) {
        m.demand(now, &pool(), Tokens(1));
        assert!(m.spend(now, &pool(), Tokens(1)), "held tokens need no allocator");
        now = m.next_wakeup().expect("it is probed");
        for effect in m.step(now, LeaseInput::Tick).then {
            let LeaseEffect::Send { frame_id, .. } = effect else { panic!("{effect:?}") };
            probes += 1;
            now = now.saturating_add_ms(10);
            assert_eq!(m.step(now, LeaseInput::Failed { frame_id }).then, []);
        }
    }
    assert!((18..80).contains(&probes), "{probes} in 18 s");
    assert!(
        matches!(m.availability(now, &pool(), Tokens(5_000)), Availability::Lost { held } if held.0 > 900)
    );
}

#[test]
fn a_burst_asks_in_few_acquires_for_most_of_what_waits_without_waiting_for_the_first_answer() {
    let mut m = manager();
    let (mut acquires, mut needed) = (0, 0);
    for _ in 0..50 {
        for effect in request(&mut m, 0, 1) {
            let LeaseEffect::Send { frame, .. } = effect else { continue };
            acquires += frame.acquires.len();
            needed += frame.acquires.iter().map(|acquire| acquire.need.0).sum::<u64>();
        }
    }
    assert_eq!((acquires, needed), (7, 32), "1 four times, then 4, 8 and 16");
}
