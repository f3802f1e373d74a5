//! The shipped cores: one ledger at home, one lease manager in each region, and the network between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use leasehold_admission::lease::{Availability, LeaseEffect, LeaseInput, LeaseManager, LeaseSettings};
use leasehold_ledger::{Applied, Command, Entry, Ledger, Notice, Outcome};
use leasehold_protocol::lease::{AcquireAnswer, LeaseFrame, LeaseFrameAnswer, Push};
use leasehold_protocol::machine::Machine as _;
use leasehold_protocol::{BundleVersion, Holder, Incarnation, LedgerTime, LocalTime, PoolKey, Tokens};

use super::{Network, Run, Trace, WINDOW_MS, WINDOWS};
use crate::agent::holder;
use crate::world::{bundle, pool};

/// How long a request is held for tokens on their way, in ns.
const HOLD_NS: u64 = 150_000_000;
/// How often the leader looks at who went hungry, in ns.
const FEED_NS: u64 = 100_000_000;
/// Ledger time when a run begins: the start of a window.
const BEGIN_MS: u64 = 1_800_000_000_000;
/// Local time when a run begins, in ns.
const BOOT_NS: u64 = 1_000_000_000;

#[derive(Debug)]
enum Event {
    Request(usize),
    HoldOver { region: usize, request: usize },
    Wake { region: usize },
    Frame { region: usize, frame_id: u64, sent: LocalTime, frame: LeaseFrame },
    Answer { region: usize, frame_id: u64, sent: LocalTime, answer: LeaseFrameAnswer },
    Push { region: usize, push: Push },
    Feed,
}

struct Region {
    leases: LeaseManager,
    held: VecDeque<usize>,
    wake: Option<u64>,
}

struct Play<'a> {
    trace: &'a Trace,
    network: Network,
    ledger: Ledger,
    pool: PoolKey,
    holders: Vec<Holder>,
    regions: Vec<Region>,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    scheduled: u64,
    /// What each region had given back when the allocator last heard.
    returned: BTreeMap<(usize, LedgerTime), Tokens>,
    run: Run,
}

pub(super) fn play(trace: &Trace, network: Network) -> Run {
    let len = trace.requests.len();
    let holders: Vec<Holder> = (0..trace.regions).map(holder).collect();
    let regions = holders.iter().enumerate().map(|(n, holder)| {
        let settings = LeaseSettings { jitter_seed: n as u64, ..LeaseSettings::default() };
        let leases = LeaseManager::new(holder.clone(), Incarnation(1), settings);
        Region { leases, held: VecDeque::new(), wake: None }
    });
    let mut play = Play {
        trace,
        network,
        ledger: Ledger::default(),
        pool: pool(),
        regions: regions.collect(),
        holders,
        now: 0,
        queue: BinaryHeap::new(),
        events: BTreeMap::new(),
        scheduled: 0,
        returned: BTreeMap::new(),
        run: Run { admitted: vec![None; len], waited: vec![0; len], calls: 0 },
    };
    let bundle = Box::new(bundle(1, Tokens(trace.limit), WINDOW_MS));
    play.apply(vec![Command::ActivateBundle { bundle, digest: String::new() }]);
    play.at(FEED_NS, Event::Feed);
    for (n, request) in trace.requests.iter().enumerate() {
        play.at(request.at, Event::Request(n));
    }
    play.until_the_end();
    play.run
}

impl Play<'_> {
    fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled)));
        self.events.insert(self.scheduled, event);
    }

    fn local(&self) -> LocalTime {
        LocalTime(BOOT_NS + self.now)
    }

    fn until_the_end(&mut self) {
        while let Some(Reverse((at, id))) = self.queue.pop() {
            if at > WINDOWS * WINDOW_MS * 1_000_000 + HOLD_NS {
                return;
            }
            self.now = at;
            match self.events.remove(&id) {
                Some(Event::Request(n)) => self.request(n),
                Some(Event::HoldOver { region, request }) => self.hold_over(region, request),
                Some(Event::Wake { region }) => self.wake(region),
                Some(Event::Frame { region, frame_id, sent, frame }) => {
                    self.frame(region, frame_id, sent, frame);
                }
                Some(Event::Answer { region, frame_id, sent, answer }) => {
                    self.step(region, LeaseInput::Answered { sent, frame_id, answer });
                }
                Some(Event::Push { region, push }) => self.step(region, LeaseInput::Pushed(push)),
                Some(Event::Feed) => {
                    if self.ledger.could_feed() {
                        self.apply(vec![Command::Feed]);
                    }
                    self.at(self.now + FEED_NS, Event::Feed);
                }
                None => {}
            }
        }
    }

    fn apply(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let stamp = LedgerTime(BEGIN_MS + self.now / 1_000_000);
        let Applied { outcomes, notices } = self.ledger.apply(&Entry { stamp, commands });
        for Notice { holder, push } in notices {
            if let Some(region) = self.holders.iter().position(|known| *known == holder) {
                self.run.calls += 1;
                let way = self.network.one_way(region);
                self.at(self.now + way, Event::Push { region, push });
            }
        }
        outcomes
    }

    fn request(&mut self, n: usize) {
        let Some(request) = self.trace.requests.get(n).copied() else { return };
        let (now, cost) = (self.local(), Tokens(request.cost));
        if let Some(region) = self.regions.get_mut(request.region) {
            region.leases.demand(now, &self.pool, cost);
        }
        if self.look(n) {
            if let Some(region) = self.regions.get_mut(request.region) {
                region.held.push_back(n);
                region.leases.waiting(now, &self.pool, cost);
            }
            self.at(self.now + HOLD_NS, Event::HoldOver { region: request.region, request: n });
        }
        self.reschedule(request.region);
    }

    /// Admits or refuses a request, as an agent does; true if it is to be held.
    fn look(&mut self, n: usize) -> bool {
        let Some(request) = self.trace.requests.get(n).copied() else { return false };
        let (now, cost) = (self.local(), Tokens(request.cost));
        let Some(region) = self.regions.get_mut(request.region) else { return false };
        match region.leases.availability(now, &self.pool, cost) {
            Availability::Enough { window, .. } => {
                if region.leases.spend(now, &self.pool, cost) {
                    let number = window.start.0.saturating_sub(BEGIN_MS) / WINDOW_MS;
                    if let (Some(admitted), Some(waited)) =
                        (self.run.admitted.get_mut(n), self.run.waited.get_mut(n))
                    {
                        *admitted = Some(number);
                        *waited = self.now - request.at;
                    }
                }
                false
            }
            Availability::Pending { .. } => true,
            _ => {
                region.leases.refused(now, &self.pool, cost);
                false
            }
        }
    }

    fn look_at_held(&mut self, at: usize) {
        let held =
            self.regions.get_mut(at).map(|region| std::mem::take(&mut region.held)).unwrap_or_default();
        for n in held {
            let is_held = self.look(n);
            let cost = self.trace.requests.get(n).map_or(0, |request| request.cost);
            let Some(region) = self.regions.get_mut(at) else { return };
            if is_held {
                region.held.push_back(n);
            } else {
                region.leases.not_waiting(&self.pool, Tokens(cost));
            }
        }
    }

    fn hold_over(&mut self, at: usize, n: usize) {
        let (now, cost) = (self.local(), self.trace.requests.get(n).map_or(0, |request| request.cost));
        let Some(region) = self.regions.get_mut(at) else { return };
        let Some(place) = region.held.iter().position(|held| *held == n) else { return };
        region.held.remove(place);
        region.leases.not_waiting(&self.pool, Tokens(cost));
        region.leases.refused(now, &self.pool, Tokens(cost));
        self.reschedule(at);
    }

    fn wake(&mut self, at: usize) {
        let now = self.now;
        let is_due =
            self.regions.get_mut(at).is_some_and(|region| region.wake.take_if(|due| *due <= now).is_some());
        if is_due {
            self.step(at, LeaseInput::Tick);
        }
    }

    fn frame(&mut self, region: usize, frame_id: u64, sent: LocalTime, frame: LeaseFrame) {
        let LeaseFrame { holder, incarnation, rtt_ms, settles, acquires } = frame;
        let mut commands = vec![Command::Hear { holder: holder.clone(), incarnation, rtt_ms }];
        for settle in settles {
            // A report of what was spent rides along or waits; a return is a message of its own.
            let known = self.returned.entry((region, settle.window_start)).or_default();
            if settle.returned_total > *known {
                *known = settle.returned_total;
                self.run.calls += 1;
            }
            commands.push(Command::Settle { holder: holder.clone(), incarnation, settle });
        }
        let named: Vec<_> = acquires.iter().map(|acquire| (acquire.pool.clone(), acquire.seq)).collect();
        self.run.calls += named.len() as u64;
        commands.extend(acquires.into_iter().map(|acquire| {
            let holder = holder.clone();
            Command::Acquire { holder, incarnation, acquire }
        }));
        let acquired = self.apply(commands).into_iter().filter_map(|outcome| match outcome {
            Outcome::Acquired(acquired) => Some(acquired),
            _ => None,
        });
        let answers = named.into_iter().zip(acquired);
        let answers = answers.map(|((pool, seq), outcome)| AcquireAnswer { pool, seq, outcome }).collect();
        let answer = LeaseFrameAnswer { answers, bundle_version: BundleVersion(1), pushes: Vec::new() };
        let way = self.network.one_way(region);
        self.at(self.now + way, Event::Answer { region, frame_id, sent, answer });
    }

    fn step(&mut self, at: usize, input: LeaseInput) {
        let now = self.local();
        let Some(region) = self.regions.get_mut(at) else { return };
        for effect in region.leases.step(now, input).then {
            match effect {
                LeaseEffect::Send { frame_id, frame } => {
                    let way = self.network.one_way(at);
                    self.at(self.now + way, Event::Frame { region: at, frame_id, sent: now, frame });
                }
                LeaseEffect::Changed => self.look_at_held(at),
                LeaseEffect::Superseded { .. } => {}
            }
        }
        self.reschedule(at);
    }

    fn reschedule(&mut self, at: usize) {
        let now = self.now;
        let Some(region) = self.regions.get_mut(at) else { return };
        let Some(next) = region.leases.next_wakeup() else { return };
        let due = next.0.saturating_sub(BOOT_NS).max(now + 1);
        if region.wake.is_none_or(|wake| due < wake || wake <= now) {
            region.wake = Some(due);
            self.at(due, Event::Wake { region: at });
        }
    }
}
