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
    /// How far ahead an acquire forecasts.
    pub horizon_ms: u64,
    /// How long before a window's end the next one is asked for; at most half a window.
    pub next_lead_ms: u64,
    /// Tokens nobody asked for during this long are given back.
    pub idle_return_ms: u64,
    /// How often spent totals are reported.
    pub report_ms: u64,
    /// How often an empty pool is asked again while some holder may still give tokens back.
    pub exhausted_poll_ms: u64,
    /// How long "no such pool" is believed.
    pub unknown_retry_ms: u64,
    /// The longest wait before asking again an allocator that cannot place itself in time.
    pub uncertain_retry_ms: u64,
    /// The gap between two acquires of a pool that has less left than is needed.
    pub ask_gap_ms: u64,
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
            horizon_ms: 4_000,
            next_lead_ms: 2_000,
            idle_return_ms: 3_000,
            report_ms: 1_000,
            exhausted_poll_ms: 1_000,
            unknown_retry_ms: 500,
            uncertain_retry_ms: 500,
            ask_gap_ms: 100,
            backoff_min_ms: 25,
            backoff_max_ms: 1_000,
            jitter_seed: 0,
        }
    }
}
