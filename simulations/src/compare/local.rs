//! Regions that decide by what they know themselves.

use std::collections::BTreeMap;

use super::{Network, Run, Trace, WINDOW_MS, WINDOWS};

/// How often a region tells its count, in ns.
const GOSSIP_NS: u64 = 100_000_000;

/// Each region has `limit` a window.
pub(super) fn play(trace: &Trace, limit: u64) -> Run {
    let mut counts: BTreeMap<(u64, usize), u64> = BTreeMap::new();
    let admitted = trace.requests.iter().map(|request| {
        let window = request.window();
        let count = counts.entry((window, request.region)).or_default();
        (*count + request.cost <= limit).then(|| {
            *count += request.cost;
            window
        })
    });
    let admitted: Vec<Option<u64>> = admitted.collect();
    Run { waited: vec![0; admitted.len()], admitted, calls: 0 }
}

/// Each region admits while its own count and the others' as last heard leave room.
pub(super) fn gossip(trace: &Trace, mut network: Network) -> Run {
    let regions = trace.regions;
    let mut own: BTreeMap<(u64, usize), u64> = BTreeMap::new();
    // (arrives, to, window, from, count), in the order of arrival.
    let mut news: BTreeMap<(u64, u64), (usize, u64, usize, u64)> = BTreeMap::new();
    let mut heard: BTreeMap<(usize, u64, usize), u64> = BTreeMap::new();
    let (mut tick, mut number, mut run) = (GOSSIP_NS, 0, Run::default());
    for request in &trace.requests {
        while tick <= request.at && tick < WINDOWS * WINDOW_MS * 1_000_000 {
            let window = (tick - 1) / (WINDOW_MS * 1_000_000);
            for from in 0..regions {
                let count = own.get(&(window, from)).copied().unwrap_or_default();
                for to in (0..regions).filter(|to| *to != from) {
                    let way = network.one_way(from) + network.one_way(to);
                    number += 1;
                    news.insert((tick + way, number), (to, window, from, count));
                }
                run.calls += 1;
            }
            tick += GOSSIP_NS;
        }
        while let Some(entry) = news.first_entry()
            && entry.key().0 <= request.at
        {
            let (to, window, from, count) = entry.remove();
            let known = heard.entry((to, window, from)).or_default();
            *known = (*known).max(count);
        }
        let window = request.window();
        let others: u64 =
            (0..regions).filter_map(|from| heard.get(&(request.region, window, from))).copied().sum();
        let count = own.entry((window, request.region)).or_default();
        let fits = *count + others + request.cost <= trace.limit;
        if fits {
            *count += request.cost;
        }
        run.admitted.push(fits.then_some(window));
        run.waited.push(0);
    }
    run
}
