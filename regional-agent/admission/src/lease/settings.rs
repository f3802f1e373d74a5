//! What a deployment may set of the lease manager.

use leasehold_protocol::time::DRIFT_PPM_DEFAULT;
use serde::{Deserialize, Serialize};

/// What a deployment may set. All spans in ms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseSettings {
    /// The bound on the rate error between any two clocks, in parts per million.
    pub drift_ppm: u32,
    /// The allocator counts as lost when nothing it was asked has been answered for this long.
    pub allocator_lost_ms: u64,
    /// The most pools kept in memory.
    pub pools_max: usize,
    /// How often totals are reported at most; more often for windows shorter than twice this. Returns leave at once.
    pub report_ms: u64,
    /// How often an agent that tracks any pool is heard of at least.
    pub heartbeat_ms: u64,
    /// How often, give or take a half, a pool that is short is asked again while some holder may still give back: in
    /// case a push was lost.
    pub poll_ms: u64,
    /// How long requests are held after a pool ran short: until what was recalled is here.
    pub recall_ms: u64,
    /// How long "no such pool" is believed.
    pub unknown_retry_ms: u64,
    /// The longest wait before asking again an allocator that cannot place itself in time.
    pub uncertain_retry_ms: u64,
    /// The first and the longest wait after a failed frame; it doubles in between, with jitter.
    pub backoff_min_ms: u64,
    /// See `backoff_min_ms`.
    pub backoff_max_ms: u64,
    /// The seed of the jitter; a shell draws it once at its start.
    pub jitter_seed: u64,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            drift_ppm: DRIFT_PPM_DEFAULT,
            allocator_lost_ms: 1_000,
            pools_max: 100_000,
            report_ms: 5_000,
            heartbeat_ms: 1_000,
            poll_ms: 2_000,
            recall_ms: 250,
            unknown_retry_ms: 500,
            uncertain_retry_ms: 500,
            backoff_min_ms: 25,
            backoff_max_ms: 1_000,
            jitter_seed: 0,
        }
    }
}
