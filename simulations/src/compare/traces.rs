//! The demand of the study (ALGORITHM.md, section 2): drawn anew for each seed.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::{Request, WINDOW_MS, WINDOWS, exponential};

/// A limit, and who asks when.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Regions; 0 is home.
    pub regions: usize,
    /// Tokens a window, over all regions.
    pub limit: u64,
    /// In order of time.
    pub requests: Vec<Request>,
}

/// Draws a trace.
pub type Draw = fn(&mut ChaCha8Rng) -> Trace;

/// Every trace by its name.
pub const TRACES: [(&str, Draw); 13] = [
    ("skew-home", |rng| poisson(rng, 1_000, &[15.0, 1.67])),
    ("skew-remote", |rng| poisson(rng, 1_000, &[1.67, 15.0])),
    ("equal", |rng| poisson(rng, 1_000, &[3.333; 5])),
    ("light", |rng| poisson(rng, 1_000, &[1.667; 5])),
    ("bursty", bursty),
    ("flash", flash),
    ("sun", sun),
    ("last10", last_ten),
    ("herd", herd),
    ("heavy", heavy),
    ("tail20", |rng| poisson(rng, 1_000, &[0.875; 20])),
    ("over3", |rng| poisson(rng, 1_000, &[10.0; 5])),
    ("over-hot", |rng| poisson(rng, 1_000, &[1.5, 45.0, 1.5, 1.5, 1.5])),
];

const SECOND_NS: u64 = 1_000_000_000;
const END_NS: u64 = WINDOWS * WINDOW_MS * 1_000_000;

fn trace(limit: u64, regions: usize, mut requests: Vec<Request>) -> Trace {
    requests.retain(|request| request.at < END_NS);
    requests.sort_by_key(|request| (request.at, request.region));
    Trace { regions, limit, requests }
}

/// Requests of cost 1 in `region` at `rate` a second between two moments.
fn arrivals(rng: &mut ChaCha8Rng, region: usize, rate: f64, from: u64, to: u64, into: &mut Vec<Request>) {
    let mut at = from + exponential(rng, 1e9 / rate);
    while at < to {
        into.push(Request { at, region, cost: 1 });
        at += exponential(rng, 1e9 / rate);
    }
}

fn poisson(rng: &mut ChaCha8Rng, limit: u64, rates: &[f64]) -> Trace {
    let mut requests = Vec::new();
    for (region, rate) in rates.iter().enumerate() {
        arrivals(rng, region, *rate, 0, END_NS, &mut requests);
    }
    trace(limit, rates.len(), requests)
}

/// On for 3 s, off for 9 s, on average.
fn bursty(rng: &mut ChaCha8Rng) -> Trace {
    let mut requests = Vec::new();
    for region in 0..5 {
        let mut at = exponential(rng, 9e9);
        while at < END_NS {
            let on = exponential(rng, 3e9);
            arrivals(rng, region, 12.7, at, at + on, &mut requests);
            at += on + exponential(rng, 9e9);
        }
    }
    trace(1_000, 5, requests)
}

/// A crowd that moves to another region in mid-window.
fn flash(rng: &mut ChaCha8Rng) -> Trace {
    let mut requests = Vec::new();
    (0..5).for_each(|region| arrivals(rng, region, 1.0, 0, END_NS, &mut requests));
    for window in 0..WINDOWS {
        let start = window * WINDOW_MS * 1_000_000;
        let first = rng.random_range(0..5_usize);
        let second = (first + rng.random_range(1..5_usize)) % 5;
        arrivals(rng, first, 12.0, start, start + 30 * SECOND_NS, &mut requests);
        arrivals(rng, second, 12.0, start + 30 * SECOND_NS, start + 60 * SECOND_NS, &mut requests);
    }
    trace(1_000, 5, requests)
}

/// Demand that follows the day around the world, ten minutes a day.
fn sun(rng: &mut ChaCha8Rng) -> Trace {
    let mut requests = Vec::new();
    for region in 0..5_u32 {
        let mean = 0.93 * 1_000.0 / 60.0 / 5.0;
        for second in 0..u32::try_from(END_NS / SECOND_NS).unwrap_or(0) {
            let angle = std::f64::consts::TAU * (f64::from(second) / 600.0 + f64::from(region) / 5.0);
            let from = u64::from(second) * SECOND_NS;
            let rate = (mean * (1.0 + angle.cos())).max(1e-6);
            arrivals(rng, region as usize, rate, from, from + SECOND_NS, &mut requests);
        }
    }
    trace(1_000, 5, requests)
}

/// A window's whole demand in its last 10 s.
fn last_ten(rng: &mut ChaCha8Rng) -> Trace {
    let mut requests = Vec::new();
    for window in 0..WINDOWS {
        let end = (window + 1) * WINDOW_MS * 1_000_000;
        (0..5).for_each(|region| arrivals(rng, region, 20.0, end - 10 * SECOND_NS, end, &mut requests));
    }
    trace(1_000, 5, requests)
}

/// Fifty requests in each of ten regions in the first 50 ms of each window.
fn herd(rng: &mut ChaCha8Rng) -> Trace {
    let mut requests = Vec::new();
    for region in 0..10 {
        arrivals(rng, region, 0.75, 0, END_NS, &mut requests);
        for window in 0..WINDOWS {
            let start = window * WINDOW_MS * 1_000_000;
            let burst = (0..50).map(|_| start + rng.random_range(0..50_000_000));
            requests.extend(burst.map(|at| Request { at, region, cost: 1 }));
        }
    }
    trace(1_000, 10, requests)
}

/// One in ten costs 10.
fn heavy(rng: &mut ChaCha8Rng) -> Trace {
    let mut drawn = poisson(rng, 1_000, &[3.333 / 1.9; 5]);
    for request in &mut drawn.requests {
        if rng.random_range(0..10) == 0 {
            request.cost = 10;
        }
    }
    drawn
}
