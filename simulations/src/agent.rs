//! A regional agent as the simulator hosts it: the real lease manager behind a clock and a network.

use leasehold_admission::lease::{LeaseManager, LeaseSettings};
use leasehold_protocol::lease::LeaseFrame;
use leasehold_protocol::{AgentId, Holder, Incarnation, LocalTime, RegionId};

use crate::clock::{MachineClock, TrueTime};

/// One agent.
#[derive(Debug)]
pub struct AgentHost {
    /// Its clock.
    pub clock: MachineClock,
    /// Which life it is in.
    pub incarnation: Incarnation,
    /// The real thing.
    pub leases: LeaseManager,
    /// Cut off from the allocator until then.
    pub cut_until: TrueTime,
    /// The wake-up that is scheduled, so that others are dropped.
    pub wake: Option<TrueTime>,
    /// Requests admitted.
    pub admitted: u64,
    /// Requests refused.
    pub refused: u64,
    number: usize,
    settings: LeaseSettings,
}

/// A frame on the network, and which sending of it this is.
#[derive(Debug, Clone)]
pub struct Sending {
    /// Which agent sent it.
    pub agent: usize,
    /// In which life.
    pub incarnation: Incarnation,
    /// Its frame.
    pub frame_id: u64,
    /// When it left, by the agent's clock.
    pub sent: LocalTime,
    /// What it says.
    pub frame: LeaseFrame,
}

impl AgentHost {
    /// An agent in its first life.
    pub fn new(number: usize, clock: MachineClock, settings: LeaseSettings) -> Self {
        let incarnation = Incarnation(1);
        let leases = LeaseManager::new(holder(number), incarnation, settings.clone());
        Self {
            clock,
            incarnation,
            leases,
            cut_until: TrueTime(0),
            wake: None,
            admitted: 0,
            refused: 0,
            number,
            settings,
        }
    }

    /// Its name at the allocator.
    pub fn holder(&self) -> Holder {
        holder(self.number)
    }

    /// It dies and comes back: a new life that holds nothing. `same_life` is how it must never be.
    pub fn restart(&mut self, same_life: bool) {
        self.incarnation = Incarnation(self.incarnation.0 + u64::from(!same_life));
        self.leases = LeaseManager::new(holder(self.number), self.incarnation, self.settings.clone());
        self.wake = None;
    }
}

/// The name of agent `number`.
pub(crate) fn holder(number: usize) -> Holder {
    Holder {
        region: RegionId::new(format!("r{number}")).expect("a letter and a number follow the grammar"),
        agent: AgentId::new(format!("r{number}-1")).expect("a letter and a number follow the grammar"),
    }
}
