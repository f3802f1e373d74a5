//! The run: events in order of true time, one after another, until the plan ends.

mod agents;
mod faults;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use leasehold_admission::lease::LeaseSettings;
use leasehold_ledger::{Applied, Command, Ledger, Notice, Outcome};
use leasehold_protocol::bundle::{
    Algorithm, BUNDLE_FORMAT, Bundle, Enforcement, FailMode, Fallback, KeyPart, Limit, Plan as TenantPlan,
    Route, Rule, Sharing, Tenant,
};
use leasehold_protocol::lease::{Acquire, AcquireAnswer, AcquireOutcome, LeaseFrameAnswer, Push};
use leasehold_protocol::{
    BundleVersion, LedgerTime, PlanId, PoolKey, RouteId, RuleId, TenantId, Tokens, WindowLength,
};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::agent::{AgentHost, Sending};
use crate::allocator::{AllocatorModel, REPLICAS};
use crate::checker::Checker;
use crate::clock::{MachineClock, TrueTime};
use crate::plan::{Mutant, Plan};

/// Heartbeats between replicas: how often, and the longest delay, in ms.
const HEARTBEAT_MS: u64 = 100;
const HEARTBEAT_DELAY_MAX_MS: u64 = 20;
/// How often the leader looks at who went hungry, in ms.
const FEED_MS: u64 = 100;
/// How long an entry can take to its quorum, in ms.
const COMMIT_MAX_MS: u64 = 30;
/// The longest time between a heartbeat that a quorum heard and the election after it, in ms.
const UNHEARD_MAX_MS: u64 = 3_000;
/// What must be admitted of the demand up to the limit once faults have stopped, in percent, in any single run. A run
/// has few and short windows; the sweep asks for more of the mean.
const QUIET_PERCENT_MIN: u64 = 50;
/// How long a request is held for tokens on their way, in ms.
const HOLD_MS: u64 = 150;
/// How long an agent waits for a frame's answer, in ms.
const FRAME_DEADLINE_MS: u64 = 800;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// How its plan was drawn and what was broken in it, as the examples take it.
    pub how: String,
    /// The first rule that was broken, in words.
    pub violation: Option<String>,
    /// Requests admitted.
    pub admitted: u64,
    /// Requests refused.
    pub refused: u64,
    /// In the whole windows that began [`RECOVERY_MS`](crate::plan::RECOVERY_MS) or more after the last fault: tokens
    /// admitted, and the demand up to the limit.
    pub quiet: (u64, u64),
    /// Entries committed.
    pub entries: u64,
    /// Reigns.
    pub reigns: u64,
    /// A digest of every event in order: equal for equal runs.
    pub trace_digest: u64,
    /// The events in words, if asked for.
    pub trace: Vec<String>,
}

impl Report {
    /// The command that shows this run again, event for event, unless its plan was changed by hand.
    pub fn reproduce(&self) -> String {
        format!("cargo run -p leasehold-simulations --example replay -- {} {}", self.seed, self.how)
    }
}

/// What can happen.
#[derive(Debug, Clone)]
enum Event {
    Request { agent: usize },
    HoldOver { agent: usize },
    Wake { agent: usize },
    FrameArrives(Sending),
    AnswerArrives { sending: Sending, answer: LeaseFrameAnswer },
    PushArrives { agent: usize, push: Push },
    Feed,
    FrameDeadline { agent: usize, frame_id: u64, sent: u64 },
    Commit { reign: u64 },
    Heartbeat,
    HeartbeatArrives { replica: usize, reign: u64, stamp: LedgerTime },
    CatchUp { replica: usize },
    Fault(faults::Fault),
    Elect { reign: u64 },
    Begin { reign: u64 },
    Calm,
    Quiet,
}

struct World {
    plan: Plan,
    rng: ChaCha8Rng,
    now: TrueTime,
    queue: BinaryHeap<Reverse<(TrueTime, u64)>>,
    events: BTreeMap<u64, Event>,
    scheduled: u64,
    allocator: AllocatorModel<Option<Sending>>,
    agents: Vec<agents::Hosted>,
    checker: Checker,
    pool: PoolKey,
    has_changed_length: bool,
    /// How far a new leader's line may lie behind the old one's, in ms: the longest message delay, and what the
    /// drift margin and the rounding take off an estimate.
    early_ms: u64,
    version: u64,
    calm: bool,
    /// The line's reading when the time to recover was over.
    quiet_from: Option<LedgerTime>,
    length: WindowLength,
    entries: u64,
    digest: u64,
    trace: Option<Vec<String>>,
}

/// Runs the plan of `seed` with `mutant`. The same arguments give the same report.
pub fn run(seed: u64, mutant: Mutant, with_trace: bool) -> Report {
    run_plan(Plan::draw(seed, mutant), with_trace)
}

/// Runs a plan that was drawn and then changed.
pub fn run_plan(plan: Plan, with_trace: bool) -> Report {
    World::new(plan, with_trace).run()
}

impl World {
    fn new(plan: Plan, with_trace: bool) -> Self {
        let mut rng = plan.generator();
        let mut clock = || {
            let ppm = plan.rate_ppm_max;
            let wall = plan.wall_offset_max_ms;
            MachineClock::new(
                rng.random_range(1_000_000_000..1_000_000_000_000),
                rng.random_range(-ppm..=ppm),
                rng.random_range(-wall..=wall),
            )
        };
        let clocks: [MachineClock; REPLICAS] = [clock(), clock(), clock()];
        let drift_ppm = if plan.mutant == Mutant::NoDriftMargin { 0 } else { plan.drift_ppm };
        let agents = (0..plan.agents)
            .map(|number| {
                let settings =
                    LeaseSettings { drift_ppm, jitter_seed: number as u64, ..LeaseSettings::default() };
                agents::Hosted::new(AgentHost::new(number, clock(), settings))
            })
            .collect();
        let early = plan.mutant == Mutant::AnswerBeforeDurable;
        Self {
            allocator: AllocatorModel::new(clocks, TrueTime(0), plan.drift_ppm, early),
            agents,
            checker: Checker::new(plan.window_ms_max()),
            pool: pool(),
            has_changed_length: false,
            early_ms: HEARTBEAT_DELAY_MAX_MS
                + 10
                + u64::from(plan.drift_ppm) * 2 * UNHEARD_MAX_MS / 1_000_000,
            version: 0,
            calm: false,
            quiet_from: None,
            length: WindowLength::from_ms(plan.window_ms).expect("plans draw whole seconds"),
            entries: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            trace: with_trace.then(Vec::new),
            now: TrueTime(0),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            rng,
            plan,
        }
    }

    fn run(mut self) -> Report {
        self.publish(Tokens(self.plan.limit), self.plan.window_ms);
        self.commit();
        self.after(0, Event::Heartbeat);
        self.after(FEED_MS, Event::Feed);
        for agent in 0..self.plan.agents {
            self.after(1, Event::Request { agent });
        }
        self.schedule_faults();
        self.after(self.plan.faulty_ms, Event::Calm);
        self.after(self.plan.faulty_ms + self.plan.recovery_ms(), Event::Quiet);
        let end = TrueTime(0).plus_ms(self.plan.faulty_ms + self.plan.calm_ms);
        while let Some(Reverse((at, id))) = self.queue.pop() {
            if at > end || self.checker.violation.is_some() {
                break;
            }
            self.now = at;
            if let Some(event) = self.events.remove(&id) {
                self.note(id, &event);
                self.happen(event);
            }
        }
        self.judge_the_end();
        self.report()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request { agent } => self.request(agent),
            Event::HoldOver { agent } => self.hold_over(agent),
            Event::Wake { agent } => self.wake(agent),
            Event::FrameArrives(sending) => self.frame_arrives(sending),
            Event::AnswerArrives { sending, answer } => self.answer_arrives(&sending, answer),
            Event::PushArrives { agent, push } => self.push_arrives(agent, push),
            Event::Feed => self.feed(),
            Event::FrameDeadline { agent, frame_id, sent } => self.frame_deadline(agent, frame_id, sent),
            Event::Commit { reign } if reign == self.allocator.reign => self.commit(),
            Event::Heartbeat => self.heartbeat(),
            Event::HeartbeatArrives { replica, reign, stamp } => {
                self.allocator.hear(self.now, replica, reign, stamp);
            }
            Event::CatchUp { replica } => self.allocator.catch_up(replica),
            Event::Fault(fault) => self.fault(fault),
            Event::Elect { reign } if reign == self.allocator.reign => self.elect(),
            Event::Begin { reign } if reign == self.allocator.reign => self.allocator.begin(self.now, None),
            Event::Commit { .. } | Event::Elect { .. } | Event::Begin { .. } => {}
            Event::Calm => self.calm_down(),
            Event::Quiet => self.quiet_from = Some(self.allocator.line_at(self.now)),
        }
    }

    fn at(&mut self, at: TrueTime, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled)));
        self.events.insert(self.scheduled, event);
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now.plus_ms(ms), event);
    }

    /// Puts a message between an agent and the allocator on the network: lost, late, twice or cut.
    fn transmit(&mut self, agent: usize, event: &Event) {
        if self.agents.get(agent).is_some_and(|a| self.now < a.host.cut_until) {
            return;
        }
        let (loss, twice, most) = if self.calm {
            (0, 0, self.plan.delay_min_ms + 2)
        } else {
            (self.plan.loss_permille, self.plan.duplicate_permille, self.plan.delay_max_ms)
        };
        let copies = if self.rng.random_range(0..1_000) < twice { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.random_range(0..1_000) < loss {
                continue;
            }
            let us = self.rng.random_range(self.plan.delay_min_ms * 1_000..=most * 1_000);
            self.at(TrueTime(self.now.0 + us * 1_000), event.clone());
        }
    }

    fn frame_arrives(&mut self, sending: Sending) {
        if self.allocator.leader().is_none() {
            return;
        }
        let frame = &sending.frame;
        if !self.allocator.is_placed() {
            if frame.acquires.is_empty() {
                return;
            }
            let uncertain = |acquire: &Acquire| AcquireAnswer {
                pool: acquire.pool.clone(),
                seq: acquire.seq,
                outcome: AcquireOutcome::ClockUncertain { retry_ms: 1_000 },
            };
            let answers = frame.acquires.iter().map(uncertain).collect();
            let answer = self.answer_of(answers);
            self.transmit(sending.agent, &Event::AnswerArrives { sending, answer });
            return;
        }
        let (holder, incarnation) = (&frame.holder, frame.incarnation);
        let mut commands = vec![Command::Hear { holder: holder.clone(), incarnation, rtt_ms: frame.rtt_ms }];
        commands.extend(frame.settles.iter().map(|settle| Command::Settle {
            holder: holder.clone(),
            incarnation,
            settle: settle.clone(),
        }));
        commands.extend(frame.acquires.iter().map(|acquire| Command::Acquire {
            holder: holder.clone(),
            incarnation,
            acquire: acquire.clone(),
        }));
        self.propose(commands, Some(sending));
    }

    fn propose(&mut self, commands: Vec<Command>, reply: Option<Sending>) {
        let early = self.allocator.propose(self.now, commands, reply);
        let wait = self.rng.random_range(1..=COMMIT_MAX_MS);
        self.after(wait, Event::Commit { reign: self.allocator.reign });
        if let Some((applied, reply)) = early {
            self.answer(applied, reply);
        }
    }

    fn answer_of(&self, answers: Vec<AcquireAnswer>) -> LeaseFrameAnswer {
        LeaseFrameAnswer { answers, bundle_version: BundleVersion(self.version), pushes: Vec::new() }
    }

    fn commit(&mut self) {
        self.entries += 1;
        let leader = self.allocator.leader().unwrap_or_default();
        let follower = (leader + self.rng.random_range(1..REPLICAS)) % REPLICAS;
        let answered = self.allocator.commit(self.now, follower);
        self.take_limits();
        if let Some((applied, reply)) = answered {
            self.answer(applied, reply);
        }
        if let Some(Err(broken)) = self.allocator.ledger().map(Ledger::check_invariants) {
            self.checker.fail(format!("invariant: {broken}"));
        }
        let replica = self.rng.random_range(0..REPLICAS);
        let late = self.rng.random_range(1..3_000);
        self.after(late, Event::CatchUp { replica });
    }

    /// Tells the checker of limits that were committed meanwhile.
    fn take_limits(&mut self) {
        for (at, limit) in self.allocator.activated() {
            self.checker.limit_committed(at, limit);
        }
    }

    /// Sends out what an entry came to: pushes, and the answer if it was a frame's.
    fn answer(&mut self, applied: Applied, reply: Option<Sending>) {
        let Applied { outcomes, notices } = applied;
        for Notice { holder, push } in notices {
            if let Some(agent) = self.agents.iter().position(|a| a.host.holder() == holder) {
                self.transmit(agent, &Event::PushArrives { agent, push });
            }
        }
        let Some(sending) = reply else {
            return;
        };
        let acquired = outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Acquired(outcome) => Some(outcome),
            Outcome::Settled(_) | Outcome::Activated(_) | Outcome::Noted => None,
        });
        let mut answers = Vec::new();
        for (acquire, mut outcome) in sending.frame.acquires.iter().zip(acquired) {
            if let AcquireOutcome::Lease(lease) = &mut outcome {
                match self.plan.mutant {
                    Mutant::NoClamp => lease.expires_in_ms = 15_000,
                    Mutant::GrantsNothing => lease.granted_total = Tokens::ZERO,
                    _ => {}
                }
            }
            answers.push(AcquireAnswer { pool: acquire.pool.clone(), seq: acquire.seq, outcome });
        }
        let answer = self.answer_of(answers);
        self.transmit(sending.agent, &Event::AnswerArrives { sending, answer });
    }

    fn heartbeat(&mut self) {
        if let Some(stamp) = self.allocator.heartbeat(self.now) {
            let leader = self.allocator.leader();
            for replica in (0..REPLICAS).filter(|r| Some(*r) != leader) {
                if !self.calm && self.rng.random_range(0..1_000) < self.plan.loss_permille {
                    continue;
                }
                let delay = self.rng.random_range(0..=HEARTBEAT_DELAY_MAX_MS);
                let reign = self.allocator.reign;
                self.after(delay, Event::HeartbeatArrives { replica, reign, stamp });
            }
        }
        self.after(HEARTBEAT_MS, Event::Heartbeat);
    }

    /// What the leader's shell does for those that went hungry.
    fn feed(&mut self) {
        let is_due = self.allocator.is_placed() && self.allocator.ledger().is_some_and(Ledger::could_feed);
        if is_due {
            self.propose(vec![Command::Feed], None);
        }
        self.after(FEED_MS, Event::Feed);
    }

    /// A new bundle with this limit and window goes through the log, as every other command.
    fn publish(&mut self, limit: Tokens, window_ms: u64) {
        if self.allocator.leader().is_none() || !self.allocator.is_placed() {
            return;
        }
        let active = self.allocator.ledger().map_or(0, |l| l.bundle_version().0);
        self.version = active + 1;
        let bundle = bundle(self.version, limit, window_ms);
        let digest = format!("{:064x}", self.version);
        self.propose(vec![Command::ActivateBundle { bundle: Box::new(bundle), digest }], None);
    }

    fn judge_the_end(&mut self) {
        if self.checker.violation.is_some() {
            return;
        }
        let durable = self.plan.mutant != Mutant::AnswerBeforeDurable;
        if durable && !self.allocator.replicas_agree() {
            self.checker.fail("replicas that applied the same entries differ".to_owned());
        }
        if let Some((admitted, ideal)) = self.efficiency()
            && admitted * 100 < ideal * QUIET_PERCENT_MIN
        {
            self.checker.fail(format!("idle: {admitted} of {ideal} admitted in windows without faults"));
        }
    }

    fn efficiency(&self) -> Option<(u64, u64)> {
        if self.has_changed_length {
            // Which windows a request fell into is the ledger's own affair then.
            return None;
        }
        let to = self.allocator.line_at(self.now);
        Some(self.checker.efficiency(self.quiet_from?, to, self.plan.window_ms))
    }

    fn report(self) -> Report {
        let quiet = self.efficiency().unwrap_or_default();
        Report {
            seed: self.plan.seed,
            how: self.plan.how(),
            violation: self.checker.violation,
            admitted: self.agents.iter().map(|a| a.host.admitted).sum(),
            refused: self.agents.iter().map(|a| a.host.refused).sum(),
            quiet,
            entries: self.entries,
            reigns: self.allocator.reign,
            trace_digest: self.digest,
            trace: self.trace.unwrap_or_default(),
        }
    }

    /// Adds an event to the digest (FNV-1a over its number and time) and in words to the trace, if there is one.
    fn note(&mut self, id: u64, event: &Event) {
        for byte in self.now.0.to_le_bytes().into_iter().chain(id.to_le_bytes()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{} {event:?}", self.now.0));
        }
    }
}

/// The pool of [`bundle`]'s rule and tenant.
pub(crate) fn pool() -> PoolKey {
    PoolKey {
        rule: RuleId::new("P-TENANT").expect("a literal that follows the grammar"),
        tenant: TenantId::new("atlas").ok(),
    }
}

/// A bundle with one leased rule.
pub(crate) fn bundle(version: u64, limit: Tokens, window_ms: u64) -> Bundle {
    let rule = RuleId::new("P-TENANT").expect("a literal that follows the grammar");
    let plan = PlanId::new("standard").expect("a literal that follows the grammar");
    Bundle {
        format: BUNDLE_FORMAT,
        version: BundleVersion(version),
        issued_at_ms: 0,
        max_age_s: 3_600,
        rules: vec![Rule {
            id: rule.clone(),
            key: vec![KeyPart::Tenant],
            algorithm: Algorithm::FixedWindow {
                limit: Limit::Limited { tokens: limit },
                window_ms: WindowLength::from_ms(window_ms).expect("plans draw whole seconds"),
            },
            enforcement: Enforcement::Leased,
            fallback: Fallback::Refuse,
            sharing: Sharing::default(),
        }],
        plans: vec![TenantPlan { id: plan.clone(), limits: vec![] }],
        tenants: vec![Tenant {
            id: TenantId::new("atlas").expect("a literal that follows the grammar"),
            plan,
        }],
        overrides: vec![],
        routes: vec![Route {
            id: RouteId::new("catalog").expect("a literal that follows the grammar"),
            pattern: "GET /catalog".to_owned(),
            weight: Tokens(1),
            rules: vec![rule],
            fail_mode: FailMode::Closed,
        }],
    }
}
