//! How much of a pool is admitted where the demand is: the shipped ledger and lease managers against the alternatives,
//! on the same requests, without faults (ALGORITHM.md, section 2, states model and measures).
//!
//! Virtual time in ns; a window has [`WINDOW_MS`]. A request that is refused does not come back.

mod central;
mod leased;
mod local;
mod score;
mod traces;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

pub use self::score::{Score, Sum};
pub use self::traces::{Draw, TRACES, Trace};

/// The length of a window, in ms.
pub const WINDOW_MS: u64 = 60_000;
/// The windows of a run; the first begins cold.
pub const WINDOWS: u64 = 5;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it comes, in ns from the start.
    pub at: u64,
    /// Where; region 0 is home.
    pub region: usize,
    /// What it costs, in tokens.
    pub cost: u64,
}

impl Request {
    /// The window that it falls into.
    pub fn window(&self) -> u64 {
        self.at / (WINDOW_MS * 1_000_000)
    }
}

/// What came of each request, in their order, and what it took.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The number of the window that admitted it; `None` if it was refused.
    pub admitted: Vec<Option<u64>>,
    /// How long it was held, in ns.
    pub waited: Vec<u64>,
    /// Messages that the allocator had to take or send of its own accord.
    pub calls: u64,
}

/// How tokens are decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// What this project ships.
    Leased,
    /// Each region counts for itself up to the whole limit (D12: twice the limit with two regions).
    Independent,
    /// Each region has an equal part of the limit (D12: 400 + 400).
    StaticSplit,
    /// Each request asks home (D12: a round trip each).
    Central,
    /// Chunks of 100 that live for 15 s, asked for when one is used up (D13).
    FixedChunk,
    /// Each region tells the others what it admitted, ten times a second (D14).
    Gossip,
}

impl Policy {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Leased, "leasehold"),
        (Self::Central, "central"),
        (Self::FixedChunk, "chunk 100, 15 s"),
        (Self::StaticSplit, "static split"),
        (Self::Independent, "independent"),
        (Self::Gossip, "gossip"),
    ];

    /// Plays `trace` with the network of `rng`.
    pub fn play(self, trace: &Trace, rng: ChaCha8Rng) -> Run {
        let network = Network::new(trace.regions, rng);
        match self {
            Self::Leased => leased::play(trace, network),
            Self::Independent => local::play(trace, trace.limit),
            Self::StaticSplit => local::play(trace, trace.limit / trace.regions as u64),
            Self::Central => central::per_request(trace, network),
            Self::FixedChunk => central::fixed_chunk(trace, network),
            Self::Gossip => local::gossip(trace, network),
        }
    }
}

/// The way between each region and home.
#[derive(Debug)]
pub(crate) struct Network {
    rng: ChaCha8Rng,
    round_trip_ns: Vec<u64>,
}

/// A frame in a thousand is lost and sent again after this long, in ns.
const RESENT_NS: u64 = 300_000_000;

impl Network {
    /// Home is 1 ms away from the allocator, the others 80 to 120 ms.
    fn new(regions: usize, rng: ChaCha8Rng) -> Self {
        let far = |n: usize| match regions {
            0..=2 => 100_000_000,
            _ => 80_000_000 + 40_000_000 * (n as u64 - 1) / (regions as u64 - 2),
        };
        let round_trip_ns = (0..regions).map(|n| if n == 0 { 1_000_000 } else { far(n) }).collect();
        Self { rng, round_trip_ns }
    }

    /// One way between home and `region`, in ns: half of the round trip, an exponential jitter of 2 ms on average beyond
    /// home, and a loss now and then, which a stream repairs after a while.
    pub(crate) fn one_way(&mut self, region: usize) -> u64 {
        let round_trip = self.round_trip_ns.get(region).copied().unwrap_or_default();
        let jitter = if region == 0 { 0 } else { exponential(&mut self.rng, 2e6) };
        let lost = self.rng.random_range(0..1_000) == 0;
        round_trip / 2 + jitter + if lost { RESENT_NS } else { 0 }
    }
}

/// A draw of the exponential distribution with `mean`, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both are far within range")]
pub(crate) fn exponential(rng: &mut ChaCha8Rng, mean: f64) -> u64 {
    let uniform: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
    (-uniform.ln() * mean) as u64
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn score(policy: Policy, name: &str, seed: u64) -> Score {
        let draw = TRACES.iter().find(|(known, _)| *known == name).expect("a known trace").1;
        let trace = draw(&mut ChaCha8Rng::seed_from_u64(seed));
        Score::of(&trace, &policy.play(&trace, ChaCha8Rng::seed_from_u64(seed + 1_000)))
    }

    #[test]
    fn one_seed_played_twice_comes_to_the_same() {
        for (policy, name) in Policy::ALL {
            assert_eq!(score(policy, "bursty", 1), score(policy, "bursty", 1), "{name}");
        }
    }

    #[test]
    fn what_is_safe_never_overshoots_and_what_is_not_does() {
        for (name, _) in TRACES {
            for policy in [Policy::Leased, Policy::StaticSplit, Policy::Central, Policy::FixedChunk] {
                assert_eq!(score(policy, name, 2).overshoot, 0, "{policy:?} on {name}");
            }
        }
        assert!(
            score(Policy::Independent, "over3", 2).overshoot > 1_500,
            "three times the limit is asked for"
        );
        assert!(score(Policy::Gossip, "over3", 2).overshoot > 0);
    }

    #[test]
    fn central_admits_what_the_oracle_does_save_what_is_on_its_way() {
        let central = score(Policy::Central, "equal", 3);
        assert!(central.efficiency() > 0.995 && central.calls_per_1k() >= 1_000.0, "{central:?}");
    }

    #[test]
    fn leases_admit_almost_all_that_the_oracle_does() {
        for name in ["skew-home", "skew-remote", "equal", "light", "over3"] {
            let score = score(Policy::Leased, name, 4);
            assert!(score.efficiency() > 0.99, "{name}: {score:?}");
        }
    }
}
