//! What goes wrong, and when: the mix and the moments come from the seed.

use leasehold_protocol::Tokens;
use rand::RngExt as _;

use super::{Event, World};
use crate::allocator::REPLICAS;
use crate::plan::{Mutant, WINDOWS_MS, pick};

/// One fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    LeaderCrash,
    Partition,
    Restart,
    WallJump,
    LimitChange,
    Boot,
}

impl World {
    pub(super) fn schedule_faults(&mut self) {
        for (fault, every) in [
            (Fault::LeaderCrash, self.plan.leader_crash_every_ms),
            (Fault::Partition, self.plan.partition_every_ms),
            (Fault::Restart, self.plan.restart_every_ms),
            (Fault::WallJump, self.plan.jump_every_ms),
            (Fault::LimitChange, self.plan.limit_change_every_ms),
            (Fault::Boot, self.plan.boot_every_ms),
        ] {
            self.schedule_fault(fault, every);
        }
    }

    fn schedule_fault(&mut self, fault: Fault, every_ms: u64) {
        if every_ms > 0 {
            let wait = self.rng.random_range(1..=2 * every_ms);
            self.after(wait, Event::Fault(fault));
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        if self.calm {
            return;
        }
        match fault {
            Fault::LeaderCrash => self.leader_crash(),
            Fault::Partition => {
                let agent = self.rng.random_range(0..self.plan.agents);
                let until = self.now.plus_ms(self.rng.random_range(100..4_000));
                if let Some(hosted) = self.agents.get_mut(agent) {
                    hosted.host.cut_until = until;
                }
            }
            Fault::Restart => {
                let agent = self.rng.random_range(0..self.plan.agents);
                self.restart(agent);
            }
            Fault::WallJump => {
                let replica = self.rng.random_range(0..REPLICAS);
                let ms = self.rng.random_range(-300_000..=300_000);
                self.allocator.jump_wall(replica, ms);
            }
            Fault::LimitChange => {
                let limit = Tokens(self.rng.random_range(1..=self.plan.limit * 2));
                let mut length_ms = self.plan.window_ms;
                if self.rng.random_range(0..100) < self.plan.length_change_percent {
                    length_ms = *pick(&mut self.rng, &WINDOWS_MS);
                    self.has_changed_length = true;
                }
                self.publish(limit, length_ms);
            }
            Fault::Boot => {
                // One machine, or all of them.
                let all = self.rng.random_bool(0.5);
                let one = self.rng.random_range(0..REPLICAS);
                for replica in (0..REPLICAS).filter(|replica| all || *replica == one) {
                    self.allocator.boot(replica);
                }
                if all || self.allocator.leader() == Some(one) {
                    self.leader_crash();
                }
            }
        }
        let every = match fault {
            Fault::LeaderCrash => self.plan.leader_crash_every_ms,
            Fault::Partition => self.plan.partition_every_ms,
            Fault::Restart => self.plan.restart_every_ms,
            Fault::WallJump => self.plan.jump_every_ms,
            Fault::LimitChange => self.plan.limit_change_every_ms,
            Fault::Boot => self.plan.boot_every_ms,
        };
        self.schedule_fault(fault, every);
    }

    /// Faults stop: the network heals and nothing else breaks.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        for hosted in &mut self.agents {
            hosted.host.cut_until = self.now;
        }
    }

    fn leader_crash(&mut self) {
        if self.allocator.leader().is_none() {
            return;
        }
        let survive = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(1..=4) };
        self.allocator.crash(survive);
        self.take_limits();
        let wait = self.rng.random_range(150..1_500);
        self.after(wait, Event::Elect { reign: self.allocator.reign });
    }

    pub(super) fn elect(&mut self) {
        let next = self.rng.random_range(0..REPLICAS);
        let peer = (next + self.rng.random_range(1..REPLICAS)) % REPLICAS;
        if let Some(ms) = self.allocator.elect(self.now, next, peer) {
            let wait = if self.plan.mutant == Mutant::NoWait { 0 } else { ms };
            let at = self.allocator.after_at_leader(self.now, wait);
            self.at(at, Event::Begin { reign: self.allocator.reign });
        }
    }
}
