//! Home decides: on each request, or on each chunk.

use std::collections::BTreeMap;

use super::{Network, Run, Trace, WINDOW_MS};

/// A chunk's size in tokens and life in ns (D13).
const CHUNK: u64 = 100;
const LIFE_NS: u64 = 15_000_000_000;
/// A region that was told "empty" does not ask again for this long, in ns (D10).
const NEGATIVE_NS: u64 = 250_000_000;

fn window_of(at: u64) -> u64 {
    at / (WINDOW_MS * 1_000_000)
}

/// Each request travels home and back; who comes first is served.
pub(super) fn per_request(trace: &Trace, mut network: Network) -> Run {
    let len = trace.requests.len();
    let mut run = Run { admitted: vec![None; len], waited: vec![0; len], calls: len as u64 };
    let mut arrivals: Vec<(u64, usize)> = Vec::with_capacity(len);
    for (n, request) in trace.requests.iter().enumerate() {
        arrivals.push((request.at + network.one_way(request.region), n));
    }
    arrivals.sort_unstable();
    let mut left: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, n) in arrivals {
        let Some(request) = trace.requests.get(n) else { continue };
        let window = window_of(at);
        let left = left.entry(window).or_insert(trace.limit);
        if let Some(rest) = left.checked_sub(request.cost) {
            *left = rest;
            if let (Some(admitted), Some(waited)) = (run.admitted.get_mut(n), run.waited.get_mut(n)) {
                *admitted = Some(window);
                *waited = at + network.one_way(request.region) - request.at;
            }
        }
    }
    run
}

#[derive(Debug, Clone, Default)]
struct Region {
    tokens: u64,
    window: u64,
    until: u64,
    quiet_until: u64,
    /// An answer on its way: when it arrives, for which window, how many tokens.
    answer: Option<(u64, u64, u64)>,
}

/// A region asks for a chunk when it has none, and refuses until the answer is there. What is not spent when a chunk
/// ends is lost.
pub(super) fn fixed_chunk(trace: &Trace, mut network: Network) -> Run {
    let mut regions = vec![Region::default(); trace.regions];
    let mut left: BTreeMap<u64, u64> = BTreeMap::new();
    let mut run = Run::default();
    for request in &trace.requests {
        let (now, window) = (request.at, request.window());
        let Some(region) = regions.get_mut(request.region) else { continue };
        if let Some((at, of, tokens)) = region.answer.filter(|(at, ..)| *at <= now) {
            region.answer = None;
            if tokens == 0 {
                region.quiet_until = at + NEGATIVE_NS;
            } else if of == window {
                let end = (window + 1) * WINDOW_MS * 1_000_000;
                (region.tokens, region.window, region.until) = (tokens, of, end.min(at + LIFE_NS));
            }
        }
        let is_held = region.window == window && now < region.until && region.tokens >= request.cost;
        if is_held {
            region.tokens -= request.cost;
        } else if region.answer.is_none() && now >= region.quiet_until {
            let reaches = now + network.one_way(request.region);
            let of = window_of(reaches);
            let left = left.entry(of).or_insert(trace.limit);
            let tokens = CHUNK.min(*left);
            *left -= tokens;
            region.answer = Some((reaches + network.one_way(request.region), of, tokens));
            run.calls += 1;
        }
        run.admitted.push(is_held.then_some(window));
        run.waited.push(0);
    }
    run
}
