//! The publisher's two clocks: what the core takes as values.

use std::time::Instant;

use leasehold_protocol::LocalTime;
pub(crate) use leasehold_transport::clock::wall_now;

/// A clock that never steps, for waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalClock(Instant);

impl LocalClock {
    /// Starts at zero.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// The time since then.
    pub(crate) fn now(self) -> LocalTime {
        LocalTime::default().saturating_add(self.0.elapsed())
    }

    /// `at` as the runtime's timers take it.
    pub(crate) fn instant(self, at: LocalTime) -> Instant {
        self.0.checked_add(at.since(LocalTime::default())).unwrap_or(self.0)
    }
}
