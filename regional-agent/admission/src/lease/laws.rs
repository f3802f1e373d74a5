//! Laws of the lease manager, over random inputs.

use leasehold_protocol::lease::{Acquire, Lease, Supply, WindowChoice};
use leasehold_protocol::{AgentId, BundleVersion, LedgerTime, RegionId, RuleId, Window};
use proptest::prelude::*;

use super::*;

/// What a host can do to a manager.
#[derive(Debug, Clone)]
enum Op {
    Wait { ms: u64 },
    Wake,
    Request { pool: usize, cost: u64, held: bool },
    Spend { pool: usize, cost: u64 },
    StopWaiting { pool: usize, cost: u64 },
    Answer { pick: usize, granted: u64, expires: u64, kind: u8 },
    Refused { pool: usize, cost: u64 },
    Push { pool: usize, granted: u64, kind: u8 },
    Fail { pick: usize },
    Drain,
    Retain,
}

fn op() -> impl Strategy<Value = Op> {
    let (pool, cost) = (0..3_usize, prop_oneof![9 => 0..20_u64, 1 => Just(u64::MAX)]);
    prop_oneof![
        4 => prop_oneof![Just(0), 1..50_u64, 50..2_000_u64, 2_000..100_000_u64].prop_map(|ms| Op::Wait { ms }),
        4 => Just(Op::Wake),
        6 => (pool.clone(), cost.clone(), any::<bool>())
            .prop_map(|(pool, cost, held)| Op::Request { pool, cost, held }),
        4 => (pool.clone(), cost.clone()).prop_map(|(pool, cost)| Op::Spend { pool, cost }),
        2 => (pool, cost.clone()).prop_map(|(pool, cost)| Op::StopWaiting { pool, cost }),
        6 => (any::<usize>(), cost, 0..70_000_u64, any::<u8>())
            .prop_map(|(pick, granted, expires, kind)| Op::Answer { pick, granted, expires, kind }),
        1 => (0..3_usize, 0..20_u64).prop_map(|(pool, cost)| Op::Refused { pool, cost }),
        2 => (0..3_usize, 0..20_u64, any::<u8>()).prop_map(|(pool, granted, kind)| Op::Push { pool, granted, kind }),
        3 => any::<usize>().prop_map(|pick| Op::Fail { pick }),
        1 => prop_oneof![19 => Just(Op::Retain), 1 => Just(Op::Drain)],
    ]
}

/// A manager, its clock, and an allocator that answers as it likes, but with totals that only grow.
struct Host {
    m: LeaseManager,
    now: LocalTime,
    sent: Vec<(u64, LocalTime, LeaseFrame)>,
    granted: BTreeMap<(PoolKey, LedgerTime), u64>,
    reported: BTreeMap<(PoolKey, LedgerTime), (Tokens, Tokens)>,
    spent: BTreeMap<PoolKey, u64>,
    version: u64,
}

fn key(pool: usize) -> PoolKey {
    PoolKey { rule: RuleId::new(format!("R{pool}")).unwrap(), tenant: None }
}

impl Host {
    fn new() -> Self {
        let holder = Holder { region: RegionId::new("eu").unwrap(), agent: AgentId::new("eu-1").unwrap() };
        Self {
            m: LeaseManager::new(holder, Incarnation(1), LeaseSettings::default()),
            now: LocalTime::from_ms(50_000),
            sent: Vec::new(),
            granted: BTreeMap::new(),
            reported: BTreeMap::new(),
            spent: BTreeMap::new(),
            version: 0,
        }
    }

    fn step(&mut self, input: LeaseInput) -> usize {
        let effects = self.m.step(self.now, input);
        assert_eq!(effects.append, []);
        let before = self.sent.len();
        for effect in effects.then {
            if let LeaseEffect::Send { frame_id, frame } = effect {
                assert!(frame.settles.len() + frame.acquires.len() <= FRAME_ITEMS_MAX);
                self.sent.push((frame_id, self.now, frame));
            }
        }
        self.sent.len() - before
    }

    fn take(&mut self, pick: usize) -> Option<(u64, LocalTime, LeaseFrame)> {
        (!self.sent.is_empty()).then(|| self.sent.swap_remove(pick % self.sent.len()))
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Wait { ms } => self.now = self.now.saturating_add_ms(ms),
            Op::Wake => {
                self.now = self.m.next_wakeup().map_or(self.now, |wake| wake.max(self.now));
                self.step(LeaseInput::Tick);
            }
            Op::Request { pool, cost, held } => {
                self.m.demand(self.now, &key(pool), Tokens(cost));
                if held {
                    self.m.waiting(self.now, &key(pool), Tokens(cost));
                }
                self.step(LeaseInput::Tick);
            }
            Op::Spend { pool, cost } => {
                if self.m.spend(self.now, &key(pool), Tokens(cost)) {
                    let spent = self.spent.entry(key(pool)).or_default();
                    *spent = spent.saturating_add(cost);
                }
            }
            Op::StopWaiting { pool, cost } => self.m.not_waiting(&key(pool), Tokens(cost)),
            Op::Answer { pick, granted, expires, kind } => {
                let Some((frame_id, sent, frame)) = self.take(pick) else { return };
                // An allocator without a sure clock takes nothing in.
                let is_uncertain = (4..8).contains(&kind);
                for settle in frame.settles.iter().filter(|_| !is_uncertain) {
                    let told = self.reported.entry((settle.pool.clone(), settle.window_start)).or_default();
                    told.0 = told.0.max(settle.spent_total);
                    told.1 = told.1.max(settle.returned_total);
                }
                if is_uncertain && frame.acquires.is_empty() {
                    self.step(LeaseInput::Failed { frame_id });
                    return;
                }
                let answers = frame
                    .acquires
                    .iter()
                    .map(|acquire| AcquireAnswer {
                        pool: acquire.pool.clone(),
                        seq: acquire.seq,
                        outcome: match kind {
                            0..4 => AcquireOutcome::UnknownPool,
                            4..8 => AcquireOutcome::ClockUncertain { retry_ms: expires },
                            8 => AcquireOutcome::StaleIncarnation { seen: Incarnation(2) },
                            _ => self.answer(acquire, granted, expires, kind),
                        },
                    })
                    .collect();
                let answer = LeaseFrameAnswer { answers, bundle_version: BundleVersion(1), pushes: vec![] };
                self.step(LeaseInput::Answered { sent, frame_id, answer });
            }
            Op::Refused { pool, cost } => self.m.refused(self.now, &key(pool), Tokens(cost)),
            Op::Push { pool, granted, kind } => {
                let lease = self.lease(&key(pool), WindowChoice::Current, granted, 0, kind);
                let push = Push { incarnation: Incarnation(1), pool: key(pool), lease };
                self.step(LeaseInput::Pushed(push));
            }
            Op::Fail { pick } => {
                if let Some((frame_id, _, _)) = self.take(pick) {
                    self.step(LeaseInput::Failed { frame_id });
                }
            }
            Op::Drain => {
                self.step(LeaseInput::Drain);
            }
            Op::Retain => {
                self.m.retain_pools(self.now, |pool| *pool != key(0));
                self.step(LeaseInput::Tick);
            }
        }
    }

    fn answer(&mut self, acquire: &Acquire, granted: u64, expires: u64, kind: u8) -> AcquireOutcome {
        AcquireOutcome::Lease(self.lease(&acquire.pool, acquire.window, granted, expires, kind))
    }

    /// Windows are a day long, so that none is over in a run, and one label keeps its account.
    fn lease(&mut self, pool: &PoolKey, window: WindowChoice, granted: u64, expires: u64, kind: u8) -> Lease {
        let today = Window { start: LedgerTime(86_400_000), end: LedgerTime(172_800_000) };
        let is_next = window == WindowChoice::Next;
        let window = if is_next { today.next() } else { today };
        let total = self.granted.entry((pool.clone(), window.start)).or_default();
        *total = total.saturating_add(granted);
        let granted_total = Tokens(*total);
        let told = self.reported.get(&(pool.clone(), window.start)).copied();
        let (spent_total, returned_total) = told.unwrap_or_default();
        self.version += 1;
        Lease {
            window,
            starts_in_ms: if is_next { 40_000_000 } else { 0 },
            expires_in_ms: expires,
            granted_total,
            spent_total,
            returned_total,
            limit: Tokens(1_000),
            remaining: Tokens(u64::from(kind % 3)),
            outstanding: Tokens(u64::from(kind % 5)),
            version: self.version,
            supply: Supply { scarce: kind & 16 != 0, direct: kind & 32 != 0, short: kind & 64 != 0 },
        }
    }
}

proptest! {
    /// A host that steps whenever it is asked to must come to rest: otherwise it spins.
    #[test]
    fn after_a_few_steps_the_next_wake_up_lies_in_the_future(ops in prop::collection::vec(op(), 1..120)) {
        let mut host = Host::new();
        for op in &ops {
            host.apply(op);
            let mut steps = 0;
            while host.m.next_wakeup().is_some_and(|wake| wake <= host.now) {
                host.step(LeaseInput::Tick);
                steps += 1;
                prop_assert!(steps <= 6, "{op:?} at {:?} wants {:?}", host.now, host.m.next_wakeup());
            }
        }
    }

    /// With nothing but time passing, and every frame failing, a host is woken some fifty times a second at most.
    #[test]
    fn an_agent_that_nobody_asks_sleeps(ops in prop::collection::vec(op(), 1..60), fails in any::<bool>()) {
        let mut host = Host::new();
        for op in &ops {
            host.apply(op);
        }
        let end = host.now.saturating_add_ms(60_000);
        let mut steps = 0_u64;
        while let Some(wake) = host.m.next_wakeup().filter(|wake| *wake < end) {
            host.now = host.now.max(wake);
            host.step(LeaseInput::Tick);
            steps += 1;
            if fails && steps.is_multiple_of(2) {
                host.apply(&Op::Fail { pick: 0 });
            }
        }
        prop_assert!(steps <= 60 * 50, "{steps} in a minute");
    }

    /// Whatever is answered, failed or forgotten: no more is spent than was granted, and never more than a few frames
    /// wait for an answer.
    #[test]
    fn what_is_spent_was_granted(ops in prop::collection::vec(op(), 1..150)) {
        let mut host = Host::new();
        for op in &ops {
            host.apply(op);
            prop_assert!(host.m.frames.len() <= FRAMES_IN_FLIGHT_MAX || host.m.draining);
            for (pool, spent) in &host.spent {
                let granted = host.granted.iter().filter(|((p, _), _)| p == pool);
                let granted = granted.fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
                prop_assert!(*spent <= granted, "{pool}: {spent} of {granted}");
            }
        }
    }
}
