//! The lease manager: what an agent holds of the allocator's pools, and what it asks for next.
//!
//! It owns the safety of spending: a token is spent only out of a lease that a commit granted, inside a span counted
//! from the *sending* of the request and shrunk by the drift margin (DESIGN.md, section 4). It never sends, waits or
//! reads a clock: [`Machine::step`] takes what happened and says what to send.

mod contract;
mod held;
#[cfg(test)]
mod laws;
mod pool;
mod settings;
mod signals;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::admin::HeldLease;
use leasehold_protocol::lease::{
    AcquireAnswer, AcquireOutcome, FRAME_ITEMS_MAX, LeaseFrame, LeaseFrameAnswer, Push,
};
use leasehold_protocol::machine::{Effects, Machine};
use leasehold_protocol::{Holder, Incarnation, LocalTime, PoolKey, Tokens};

pub use self::contract::{Availability, LeaseEffect, LeaseInput};
use self::held::HeldWindow;
use self::pool::{Look, PoolLease};
pub use self::settings::LeaseSettings;

/// Frames on their way at once.
const FRAMES_IN_FLIGHT_MAX: usize = 16;
/// How often one frame is sent before its wishes are given up.
const ATTEMPTS_MAX: u32 = 3;

#[derive(Debug)]
struct InFlight {
    frame: LeaseFrame,
    attempts: u32,
    /// `None` while a sending is on its way, else when to send again.
    again_at: Option<LocalTime>,
}

/// See the module.
#[derive(Debug)]
pub struct LeaseManager {
    holder: Holder,
    incarnation: Incarnation,
    settings: LeaseSettings,
    pools: BTreeMap<PoolKey, PoolLease>,
    due: BTreeSet<(LocalTime, PoolKey)>,
    frames: BTreeMap<u64, InFlight>,
    frame_id: u64,
    rtt_ms: u64,
    sent_at: Option<LocalTime>,
    answered_at: Option<LocalTime>,
    unanswered_since: Option<LocalTime>,
    failures: u32,
    quiet_until: LocalTime,
    jitter: u64,
    superseded: bool,
    draining: bool,
}

impl LeaseManager {
    /// An agent's life begins: it holds nothing, whatever its former life held.
    pub fn new(holder: Holder, incarnation: Incarnation, settings: LeaseSettings) -> Self {
        Self {
            jitter: settings.jitter_seed,
            holder,
            incarnation,
            settings,
            pools: BTreeMap::new(),
            due: BTreeSet::new(),
            frames: BTreeMap::new(),
            frame_id: 0,
            rtt_ms: 0,
            sent_at: None,
            answered_at: None,
            unanswered_since: None,
            failures: 0,
            quiet_until: LocalTime(0),
            superseded: false,
            draining: false,
        }
    }

    /// What `pool` can give at `now` for a request of `cost` tokens. Reads only.
    pub fn availability(&self, now: LocalTime, pool: &PoolKey, cost: Tokens) -> Availability {
        let lost = self.is_allocator_lost(now) || self.superseded;
        let Some(state) = self.pools.get(pool) else {
            // Beyond `pools_max` nothing can be asked for, so nothing can be decided.
            let full = self.pools.len() >= self.settings.pools_max;
            let held = Tokens::ZERO;
            return if lost || full {
                Availability::Lost { held }
            } else {
                Availability::Pending { held, limit: None }
            };
        };
        let usable = state.usable(now);
        let held = usable.map_or(Tokens::ZERO, HeldWindow::held);
        if let Some(w) = usable
            && held >= cost
        {
            return Availability::Enough {
                remaining: held,
                window: w.window,
                limit: w.limit,
                usable_until: w.usable_until(),
            };
        }
        if let Some(word) = state.exhausted_at(now) {
            let limit = state.windows.get(&word.window.start).map_or(Tokens::ZERO, |w| w.limit);
            return Availability::Exhausted {
                retry_after_ms: word.until.ms_since(now).max(1),
                window: word.window,
                limit,
                held,
                last_word: word.last_word,
            };
        }
        if state.unknown_until.is_some_and(|until| now < until) {
            return Availability::UnknownPool;
        }
        if lost || state.uncertain_until.is_some_and(|until| now < until) {
            return Availability::Lost { held };
        }
        Availability::Pending { held, limit: state.windows.values().next_back().map(|w| w.limit) }
    }

    /// Notes a request, once, whether or not it will be admitted.
    pub fn demand(&mut self, now: LocalTime, pool: &PoolKey, cost: Tokens) {
        if !self.pools.contains_key(pool) {
            if self.superseded || self.pools.len() >= self.settings.pools_max {
                return;
            }
            let spread = spread_of(&self.holder, pool);
            self.pools.insert(pool.clone(), PoolLease::new(now, spread));
        }
        let rtt_ms = self.rtt_ms;
        if self.pools.get_mut(pool).is_some_and(|state| state.demand(now, cost, rtt_ms)) {
            self.look_at(pool, now);
        }
    }

    /// Notes that a request for `cost` was refused for want of `pool`'s tokens.
    pub fn refused(&mut self, now: LocalTime, pool: &PoolKey, cost: Tokens) {
        if let Some(state) = self.pools.get_mut(pool) {
            state.refused(now, cost);
            let report = state.report_due(now, &self.settings);
            if state.wake.is_none_or(|wake| wake > report) {
                self.look_at(pool, report);
            }
        }
    }

    /// A held request starts to wait for `cost` tokens, so that acquires carry its need.
    pub fn waiting(&mut self, now: LocalTime, pool: &PoolKey, cost: Tokens) {
        if let Some(state) = self.pools.get_mut(pool) {
            state.wait(cost);
            self.look_at(pool, now);
        }
    }

    /// A held request waits no longer, whatever became of it.
    pub fn not_waiting(&mut self, pool: &PoolKey, cost: Tokens) {
        if let Some(state) = self.pools.get_mut(pool) {
            state.stop_waiting(cost);
        }
    }

    /// Spends `cost` out of a usable lease. False if none holds that much; then nothing changed.
    pub fn spend(&mut self, now: LocalTime, pool: &PoolKey, cost: Tokens) -> bool {
        let Some(state) = self.pools.get_mut(pool) else { return false };
        if !state.spend(now, cost) {
            return false;
        }
        let report = state.report_due(now, &self.settings);
        if state.wake.is_none_or(|wake| wake > report) {
            self.look_at(pool, report);
        }
        true
    }

    /// True if the allocator was asked something and has not answered anything for `allocator_lost_ms`.
    pub fn is_allocator_lost(&self, now: LocalTime) -> bool {
        self.unanswered_since.is_some_and(|since| now.ms_since(since) >= self.settings.allocator_lost_ms)
    }

    /// When the allocator last answered.
    pub fn allocator_answered_at(&self) -> Option<LocalTime> {
        self.answered_at
    }

    /// Every lease that may be spent at `now`.
    pub fn held_leases(&self, now: LocalTime) -> Vec<HeldLease> {
        let mut leases = Vec::new();
        for (key, state) in &self.pools {
            leases.extend(state.usable(now).map(|w| HeldLease {
                rule: key.rule.clone(),
                tenant: key.tenant.clone(),
                window_start: w.window.start.to_rfc3339(),
                held: w.held(),
                spent: w.spent(),
                usable_for_ms: w.usable_until().ms_since(now),
            }));
        }
        leases
    }

    /// How many leases may be spent at `now`, and the tokens in them.
    pub fn held_totals(&self, now: LocalTime) -> (u64, Tokens) {
        let usable = self.pools.values().filter_map(|state| state.usable(now));
        usable.fold((0, Tokens::ZERO), |(leases, tokens), w| (leases + 1, tokens.saturating_add(w.held())))
    }

    /// After a change of policy: what `keep` refuses is given back, reported and forgotten.
    pub fn retain_pools(&mut self, now: LocalTime, keep: impl Fn(&PoolKey) -> bool) {
        let gone: Vec<PoolKey> = self.pools.keys().filter(|key| !keep(key)).cloned().collect();
        for state in self.pools.values_mut() {
            state.policy_changed();
        }
        for key in gone {
            if let Some(state) = self.pools.get_mut(&key) {
                state.give_back();
            }
            self.look_at(&key, now);
        }
    }

    /// Looks at `pool` at `at` or before.
    fn look_at(&mut self, pool: &PoolKey, at: LocalTime) {
        if let Some(state) = self.pools.get_mut(pool) {
            if let Some(old) = state.wake {
                if old <= at {
                    return;
                }
                self.due.remove(&(old, pool.clone()));
            }
            state.wake = Some(at);
            self.due.insert((at, pool.clone()));
        }
    }

    fn can_send(&self, now: LocalTime) -> bool {
        !self.superseded && self.frames.len() < FRAMES_IN_FLIGHT_MAX && now >= self.quiet_until
    }

    /// Looks at every pool that is due and packs what they want into one frame.
    fn collect(&mut self, now: LocalTime, effects: &mut Effects<(), LeaseEffect>) {
        let mut frame = self.empty_frame();
        // What is due stays due while no frame may leave; `next_wakeup` waits for the moment when one may.
        if !self.can_send(now) {
            return;
        }
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && frame.settles.len() + frame.acquires.len() + 8 <= FRAME_ITEMS_MAX
        {
            let Some((_, key)) = self.due.pop_first() else { break };
            let Some(state) = self.pools.get_mut(&key) else { continue };
            state.wake = None;
            let look = Look { now, settings: &self.settings, rtt_ms: self.rtt_ms, is_asking: !self.draining };
            let mut wish = state.wish(look, &key);
            frame.acquires.append(&mut wish.acquires);
            frame.settles.append(&mut wish.settles);
            let idle = state.is_idle(now);
            if idle {
                self.pools.remove(&key);
            } else if let Some(next) = wish.wake {
                self.look_at(&key, next);
            }
        }
        let probe = self.frames.is_empty() && !self.draining && self.is_allocator_lost(now);
        let is_heartbeat = self.heartbeat_at().is_some_and(|at| at <= now);
        if probe || is_heartbeat || !frame.acquires.is_empty() || !frame.settles.is_empty() {
            self.send(now, frame, effects);
        }
    }

    fn empty_frame(&self) -> LeaseFrame {
        LeaseFrame {
            holder: self.holder.clone(),
            incarnation: self.incarnation,
            rtt_ms: self.rtt_ms,
            settles: Vec::new(),
            acquires: Vec::new(),
        }
    }

    /// When the allocator shall next hear of this agent although it wants nothing: it keeps nothing back for those that
    /// it does not hear.
    fn heartbeat_at(&self) -> Option<LocalTime> {
        let is_due = !self.pools.is_empty() && self.frames.is_empty() && !self.draining;
        self.sent_at.filter(|_| is_due).map(|at| at.saturating_add_ms(self.settings.heartbeat_ms))
    }

    fn send(&mut self, now: LocalTime, frame: LeaseFrame, effects: &mut Effects<(), LeaseEffect>) {
        self.frame_id = self.frame_id.saturating_add(1);
        self.sent_at = Some(now);
        self.unanswered_since.get_or_insert(now);
        effects.then.push(LeaseEffect::Send { frame_id: self.frame_id, frame: frame.clone() });
        self.frames.insert(self.frame_id, InFlight { frame, attempts: 1, again_at: None });
    }

    fn resend(&mut self, now: LocalTime, effects: &mut Effects<(), LeaseEffect>) {
        for (frame_id, frame) in &mut self.frames {
            if frame.again_at.is_some_and(|at| at <= now) {
                frame.again_at = None;
                self.unanswered_since.get_or_insert(now);
                frame.attempts = frame.attempts.saturating_add(1);
                effects.then.push(LeaseEffect::Send { frame_id: *frame_id, frame: frame.frame.clone() });
            }
        }
    }

    fn answered(
        &mut self,
        now: LocalTime,
        sent: LocalTime,
        frame_id: u64,
        answer: &LeaseFrameAnswer,
        effects: &mut Effects<(), LeaseEffect>,
    ) {
        let Some(frame) = self.frames.remove(&frame_id) else { return };
        self.answered_at = Some(now);
        self.unanswered_since = None;
        self.failures = 0;
        self.quiet_until = LocalTime(0);
        let rtt = now.ms_since(sent);
        self.rtt_ms = if self.rtt_ms == 0 {
            rtt
        } else {
            self.rtt_ms.saturating_mul(7).saturating_add(rtt).div_ceil(8)
        };
        let is_uncertain = |one: &AcquireAnswer| matches!(one.outcome, AcquireOutcome::ClockUncertain { .. });
        let are_settles_taken = !answer.answers.iter().any(is_uncertain);
        for settle in &frame.frame.settles {
            if let Some(state) = self.pools.get_mut(&settle.pool)
                && are_settles_taken
            {
                state.confirm(settle);
            }
            self.look_at(&settle.pool, now);
        }
        let mut changed = false;
        for one in &answer.answers {
            if let AcquireOutcome::StaleIncarnation { seen } = one.outcome {
                self.stop(seen, effects);
                return;
            }
            if let Some(state) = self.pools.get_mut(&one.pool) {
                changed |= state.answered(sent, now, one.seq, &one.outcome, &self.settings);
            }
            self.look_at(&one.pool, now);
        }
        // An acquire that the answer leaves out would stay in flight for ever.
        for acquire in &frame.frame.acquires {
            if let Some(state) = self.pools.get_mut(&acquire.pool) {
                state.gave_up(acquire.seq);
            }
        }
        for push in &answer.pushes {
            changed |= self.pushed(now, push);
        }
        if changed {
            effects.then.push(LeaseEffect::Changed);
        }
    }

    /// Takes in what was said unasked. True if waiting requests should hear of it.
    fn pushed(&mut self, now: LocalTime, push: &Push) -> bool {
        if push.incarnation != self.incarnation {
            return false;
        }
        let Some(state) = self.pools.get_mut(&push.pool) else { return false };
        let is_changed = state.pushed(now, &push.lease, &self.settings);
        self.look_at(&push.pool, now);
        is_changed
    }

    /// A later life of this agent is known: what this one holds is forfeit, and it asks for nothing more.
    fn stop(&mut self, seen: Incarnation, effects: &mut Effects<(), LeaseEffect>) {
        self.superseded = true;
        self.frames.clear();
        self.pools.clear();
        self.due.clear();
        effects.then.push(LeaseEffect::Superseded { seen });
        effects.then.push(LeaseEffect::Changed);
    }

    fn failed(&mut self, now: LocalTime, frame_id: u64) {
        if !self.frames.contains_key(&frame_id) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.unanswered_since.get_or_insert(now);
        let wait = self.backoff_ms();
        let at = now.saturating_add_ms(wait);
        self.quiet_until = self.quiet_until.max(at);
        let Some(frame) = self.frames.get_mut(&frame_id) else { return };
        if frame.attempts < ATTEMPTS_MAX && !frame.frame.acquires.is_empty() {
            frame.again_at = Some(at);
            return;
        }
        let Some(frame) = self.frames.remove(&frame_id) else { return };
        for acquire in &frame.frame.acquires {
            if let Some(state) = self.pools.get_mut(&acquire.pool) {
                state.gave_up(acquire.seq);
            }
            self.look_at(&acquire.pool, at);
        }
        for settle in &frame.frame.settles {
            if let Some(state) = self.pools.get_mut(&settle.pool) {
                state.report_at(at);
            }
            self.look_at(&settle.pool, at);
        }
    }

    /// Doubles from the shortest to the longest wait; half of it is jitter (D20).
    fn backoff_ms(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = mixed(self.jitter);
        let doubled =
            self.settings.backoff_min_ms.saturating_mul(1 << self.failures.saturating_sub(1).min(16));
        let full = doubled.min(self.settings.backoff_max_ms).max(2);
        full / 2 + z % (full / 2 + 1)
    }
}

impl Machine for LeaseManager {
    type Time = LocalTime;
    type Input = LeaseInput;
    /// Nothing: an agent that restarts holds nothing, so it has nothing to remember.
    type Entry = ();
    type Outgoing = LeaseEffect;

    fn step(&mut self, now: LocalTime, input: LeaseInput) -> Effects<(), LeaseEffect> {
        let mut effects = Effects::default();
        match input {
            LeaseInput::Tick => {}
            LeaseInput::Answered { sent, frame_id, answer } => {
                self.answered(now, sent, frame_id, &answer, &mut effects);
            }
            LeaseInput::Pushed(push) => {
                if self.pushed(now, &push) {
                    effects.then.push(LeaseEffect::Changed);
                }
            }
            LeaseInput::Failed { frame_id } => self.failed(now, frame_id),
            LeaseInput::Drain => return self.drain(now),
        }
        self.resend(now, &mut effects);
        self.collect(now, &mut effects);
        effects
    }

    fn next_wakeup(&self) -> Option<LocalTime> {
        let again = self.frames.values().filter_map(|f| f.again_at).min();
        if self.superseded || self.frames.len() >= FRAMES_IN_FLIGHT_MAX {
            // Pools wait until a frame is answered or has failed.
            return again;
        }
        let pools = self.due.first().map(|(at, _)| (*at).max(self.quiet_until));
        // A lost allocator is probed although nobody asks, so that the first request after it heals need not find
        // out.
        let probe = self
            .unanswered_since
            .filter(|_| self.frames.is_empty() && !self.draining)
            .map(|since| since.saturating_add_ms(self.settings.allocator_lost_ms).max(self.quiet_until));
        let heartbeat = self.heartbeat_at().map(|at| at.max(self.quiet_until));
        [again, pools, probe, heartbeat].into_iter().flatten().min()
    }
}

impl LeaseManager {
    /// One last frame with everything given back.
    fn drain(&mut self, now: LocalTime) -> Effects<(), LeaseEffect> {
        let mut effects = Effects::default();
        self.draining = true;
        let mut frame = self.empty_frame();
        for (key, state) in &mut self.pools {
            state.give_back();
            state.report_at(now.saturating_add_ms(self.settings.report_ms));
            frame.settles.append(&mut state.last_report(key));
        }
        while !frame.settles.is_empty() {
            let rest = frame.settles.split_off(frame.settles.len().min(FRAME_ITEMS_MAX));
            let next = LeaseFrame { settles: rest, ..frame.clone() };
            self.send(now, frame, &mut effects);
            frame = next;
        }
        effects
    }
}

/// SplitMix64's output function.
fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number that differs between agents and between pools, so that they do not all act in one moment.
fn spread_of(holder: &Holder, pool: &PoolKey) -> u64 {
    let tenant = pool.tenant.as_ref().map_or("", |tenant| tenant.as_str());
    let bytes = [holder.region.as_str(), holder.agent.as_str(), pool.rule.as_str(), tenant].map(str::bytes);
    mixed(bytes.into_iter().flatten().fold(0, |hash, byte| mixed(hash ^ u64::from(byte))))
}
