//! The clocks of a host: what cores take as values.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_protocol::{LedgerTime, LocalTime};
use rustix::time::{ClockId, clock_gettime};

/// This machine's own clock: it never steps, counts on while the machine sleeps, and is the same for every process of
/// one boot.
pub fn local_now() -> LocalTime {
    let at = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    let ns = u64::try_from(at.tv_nsec).unwrap_or(0);
    LocalTime(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// This machine's wall clock, on which no two machines agree.
pub fn wall_now() -> LedgerTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LedgerTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Names this boot of the machine: [`local_now`] of another boot means nothing. `None` where the system has no name.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_clock_does_not_go_back_and_a_boot_has_one_name() {
        let before = local_now();
        assert!(before <= local_now());
        assert_eq!(boot_id(), boot_id());
    }
}
