//! The clocks of this host, and a random source: what the core takes as values.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use leasehold_transport::clock::{local_now, wall_now};

/// SplitMix64 over a shared counter: spreads hints and back-offs; nothing is kept secret by it.
#[derive(Debug)]
pub(crate) struct SplitMix64(AtomicU64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub(crate) fn next(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `most`.
    pub(crate) fn up_to(&self, most: u64) -> u64 {
        most.checked_add(1).map_or_else(|| self.next(), |n| self.next() % n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_within_its_bound_and_varies() {
        let random = SplitMix64::new(7);
        let drawn: std::collections::BTreeSet<u64> = (0..1_000).map(|_| random.up_to(9)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert_eq!(random.up_to(0), 0);
    }
}
