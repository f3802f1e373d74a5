//! The agents' side of the run: requests, held requests, frames and their deadlines.

use std::collections::{BTreeMap, VecDeque};

use leasehold_admission::lease::{Availability, LeaseEffect, LeaseInput};
use leasehold_protocol::lease::{LeaseFrameAnswer, Push};
use leasehold_protocol::machine::Machine as _;
use leasehold_protocol::{Tokens, Window};
use rand::RngExt as _;

use super::{Event, FRAME_DEADLINE_MS, HOLD_MS, World};
use crate::agent::{AgentHost, Sending};
use crate::clock::TrueTime;
use crate::plan::Mutant;

/// An agent and what its shell would keep for it.
pub(super) struct Hosted {
    pub(super) host: AgentHost,
    /// The sending of each frame that is still waited for.
    open: BTreeMap<u64, u64>,
    held: VecDeque<(TrueTime, Tokens)>,
}

impl Hosted {
    pub(super) fn new(host: AgentHost) -> Self {
        Self { host, open: BTreeMap::new(), held: VecDeque::new() }
    }
}

impl World {
    pub(super) fn request(&mut self, agent: usize) {
        let rate = self.plan.rates.get(agent).copied().unwrap_or(1).max(1);
        let mut gap_us = self.rng.random_range(1..=2_000_000 / rate);
        if self.rng.random_range(0..1_000) < self.plan.pause_permille {
            gap_us += self.rng.random_range(0..=self.plan.pause_max_ms) * 1_000;
        }
        self.at(TrueTime(self.now.0 + gap_us * 1_000), Event::Request { agent });
        let cost = Tokens(if self.rng.random_range(0..20) == 0 { self.rng.random_range(2..=5) } else { 1 });
        let (now, pool) = (self.now, self.pool.clone());
        let window = Window::containing(self.allocator.line_at(now), self.length);
        self.checker.requested(window, cost);
        let Some(hosted) = self.agents.get_mut(agent) else { return };
        let at = hosted.host.clock.local(now);
        hosted.host.leases.demand(at, &pool, cost);
        let found = hosted.host.leases.availability(at, &pool, cost);
        if !self.try_admit(agent, cost) {
            let Some(hosted) = self.agents.get_mut(agent) else { return };
            match found {
                Availability::Pending { .. } => {
                    hosted.held.push_back((now.plus_ms(HOLD_MS), cost));
                    hosted.host.leases.waiting(at, &pool, cost);
                    self.after(HOLD_MS, Event::HoldOver { agent });
                }
                Availability::Lost { .. } | Availability::UnknownPool if self.quiet_from.is_some() => {
                    self.checker.fail(format!(
                        "dead: agent {agent} says {found:?} although the time to recover is over"
                    ));
                }
                _ => hosted.host.refused += 1,
            }
        }
        self.reschedule(agent);
    }

    fn try_admit(&mut self, agent: usize, cost: Tokens) -> bool {
        let (now, pool) = (self.now, self.pool.clone());
        let Some(hosted) = self.agents.get_mut(agent) else { return false };
        let at = hosted.host.clock.local(now);
        let Availability::Enough { window, .. } = hosted.host.leases.availability(at, &pool, cost) else {
            return false;
        };
        let is_forgotten = self.plan.mutant == Mutant::ForgottenSpend && hosted.host.admitted % 32 == 31;
        if !is_forgotten && !hosted.host.leases.spend(at, &pool, cost) {
            return false;
        }
        hosted.host.admitted += 1;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{} agent {agent} admits {cost} by {}", now.0, window.start));
        }
        // Within the first reign the line has never been handed over, so nothing may be early.
        let early_ms = if self.allocator.reign == 1 { 0 } else { self.early_ms };
        self.checker.admitted(window, cost, self.allocator.line_at(now), early_ms);
        true
    }

    /// Gives the requests that are held another look, oldest first.
    fn look_at_held(&mut self, agent: usize) {
        let pool = self.pool.clone();
        let held = self.agents.get_mut(agent).map(|h| std::mem::take(&mut h.held)).unwrap_or_default();
        for (until, cost) in held {
            let admitted = self.try_admit(agent, cost);
            let Some(hosted) = self.agents.get_mut(agent) else { return };
            if admitted {
                hosted.host.leases.not_waiting(&pool, cost);
            } else {
                hosted.held.push_back((until, cost));
            }
        }
    }

    pub(super) fn hold_over(&mut self, agent: usize) {
        let (now, pool) = (self.now, self.pool.clone());
        let Some(hosted) = self.agents.get_mut(agent) else { return };
        while let Some((until, cost)) = hosted.held.front().copied()
            && until <= now
        {
            hosted.held.pop_front();
            hosted.host.leases.not_waiting(&pool, cost);
            hosted.host.refused += 1;
        }
        self.reschedule(agent);
    }

    pub(super) fn wake(&mut self, agent: usize) {
        let now = self.now;
        let Some(hosted) = self.agents.get_mut(agent) else { return };
        if hosted.host.wake == Some(now) {
            hosted.host.wake = None;
            self.step(agent, LeaseInput::Tick);
        }
    }

    pub(super) fn answer_arrives(&mut self, sending: &Sending, answer: LeaseFrameAnswer) {
        let now = self.now;
        let mutant = self.plan.mutant;
        let Some(hosted) = self.agents.get_mut(sending.agent) else { return };
        let is_waited_for = hosted.open.get(&sending.frame_id) == Some(&sending.sent.0);
        if sending.incarnation != hosted.host.incarnation || !is_waited_for || now < hosted.host.cut_until {
            return;
        }
        hosted.open.remove(&sending.frame_id);
        let sent =
            if mutant == Mutant::LifeFromReceipt { hosted.host.clock.local(now) } else { sending.sent };
        self.step(sending.agent, LeaseInput::Answered { sent, frame_id: sending.frame_id, answer });
    }

    pub(super) fn push_arrives(&mut self, agent: usize, mut push: Push) {
        let Some(hosted) = self.agents.get(agent) else { return };
        if self.now < hosted.host.cut_until {
            return;
        }
        if self.plan.mutant == Mutant::GrantsNothing {
            push.lease.granted_total = Tokens::ZERO;
        }
        self.step(agent, LeaseInput::Pushed(push));
    }

    pub(super) fn frame_deadline(&mut self, agent: usize, frame_id: u64, sent: u64) {
        let Some(hosted) = self.agents.get_mut(agent) else { return };
        if hosted.open.get(&frame_id) == Some(&sent) {
            hosted.open.remove(&frame_id);
            self.step(agent, LeaseInput::Failed { frame_id });
        }
    }

    /// The agent's process dies and comes back; what was on its way to it is lost.
    pub(super) fn restart(&mut self, agent: usize) {
        let same_life = self.plan.mutant == Mutant::SameLife;
        if let Some(hosted) = self.agents.get_mut(agent) {
            hosted.host.restart(same_life);
            hosted.open.clear();
            hosted.held.clear();
        }
    }

    fn step(&mut self, agent: usize, input: LeaseInput) {
        let now = self.now;
        let Some(hosted) = self.agents.get_mut(agent) else { return };
        let at = hosted.host.clock.local(now);
        let effects = hosted.host.leases.step(at, input);
        for effect in effects.then {
            match effect {
                LeaseEffect::Send { frame_id, frame } => {
                    let Some(hosted) = self.agents.get_mut(agent) else { return };
                    hosted.open.insert(frame_id, at.0);
                    let incarnation = hosted.host.incarnation;
                    let sending = Sending { agent, incarnation, frame_id, sent: at, frame };
                    self.transmit(agent, &Event::FrameArrives(sending));
                    self.after(FRAME_DEADLINE_MS, Event::FrameDeadline { agent, frame_id, sent: at.0 });
                }
                LeaseEffect::Changed => self.look_at_held(agent),
                LeaseEffect::Superseded { seen } => {
                    self.checker.fail(format!("agent {agent} was told that life {seen} has begun; none has"));
                }
            }
        }
        self.reschedule(agent);
    }

    fn reschedule(&mut self, agent: usize) {
        let now = self.now;
        let Some(hosted) = self.agents.get_mut(agent) else { return };
        let Some(next) = hosted.host.leases.next_wakeup() else { return };
        let at = hosted.host.clock.when(next, TrueTime(now.0 + 1));
        if hosted.host.wake.is_none_or(|wake| at < wake || wake <= now) {
            hosted.host.wake = Some(at);
            self.at(at, Event::Wake { agent });
        }
    }
}
