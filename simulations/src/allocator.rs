//! A model of the replicated log around the real ledger: entries become durable after a while, leaders crash, a
//! follower with every committed entry takes over. The ledger time line is the real one.

use std::collections::VecDeque;

use leasehold_ledger::clock::{Accession, LeaderLine, LineAnswer, LineEstimate, accede};
use leasehold_ledger::{Applied, Command, Entry, Ledger};
use leasehold_protocol::bundle::{Algorithm, Limit};
use leasehold_protocol::{BundleVersion, LedgerTime, LocalTime, Tokens};

use crate::clock::{MachineClock, TrueTime};

/// Replicas.
pub const REPLICAS: usize = 3;

/// An entry on its way to a quorum, with what to tell whom once it is there.
#[derive(Debug, Clone)]
struct Proposal<T> {
    entry: Entry,
    reply: T,
}

/// One replica.
#[derive(Debug)]
struct Replica {
    clock: MachineClock,
    ledger: Ledger,
    applied: usize,
    /// The last reign it heard of and its estimate of that reign's line; none if its machine booted since.
    known: Option<(u64, Option<LineEstimate>)>,
}

impl Replica {
    fn learn(&mut self, reign: u64, stamp: LedgerTime, at: LocalTime, drift_ppm: u32) {
        match &mut self.known {
            Some((known, _)) if *known > reign => {}
            Some((known, Some(estimate))) if *known == reign => estimate.observe(stamp, at),
            _ => self.known = Some((reign, Some(LineEstimate::new(stamp, at, drift_ppm)))),
        }
    }

    fn answer(&self, now: TrueTime) -> LineAnswer {
        let at = self.clock.local(now);
        LineAnswer {
            reign: self.known.map(|(reign, _)| reign),
            line: self.known.and_then(|(_, estimate)| estimate.map(|e| e.at(at))),
        }
    }
}

/// The group. `T` is whatever the host needs to answer a proposal.
#[derive(Debug)]
pub struct AllocatorModel<T> {
    replicas: Vec<Replica>,
    committed: Vec<Entry>,
    /// Ledger time, the active version and what [`Self::activated`] has not told yet, by the committed entries alone.
    committed_now: LedgerTime,
    version: BundleVersion,
    activations: Vec<(LedgerTime, Tokens)>,
    proposed: VecDeque<Proposal<T>>,
    leader: Option<usize>,
    /// Counts reigns, so that what was scheduled for an old one is dropped.
    pub reign: u64,
    line: LeaderLine,
    line_of: usize,
    /// While the leader draws no line yet, it grants nothing.
    is_placed: bool,
    drift_ppm: u32,
    answer_before_durable: bool,
}

impl<T: Clone> AllocatorModel<T> {
    /// A group led by replica 0, its line set to that replica's wall clock.
    pub fn new(
        clocks: [MachineClock; REPLICAS],
        now: TrueTime,
        drift_ppm: u32,
        answer_before_durable: bool,
    ) -> Self {
        let replicas: Vec<Replica> = clocks
            .into_iter()
            .map(|clock| Replica { clock, ledger: Ledger::default(), applied: 0, known: None })
            .collect();
        let line = LeaderLine::start(clocks[0].wall(now), clocks[0].local(now), drift_ppm);
        Self {
            replicas,
            committed: Vec::new(),
            committed_now: LedgerTime(0),
            version: BundleVersion(0),
            activations: Vec::new(),
            proposed: VecDeque::new(),
            leader: Some(0),
            reign: 1,
            line,
            line_of: 0,
            is_placed: true,
            drift_ppm,
            answer_before_durable,
        }
    }

    /// Who leads, whether or not it has found its place on the line.
    pub fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// The line at `now`: the leader's, or while there is none, the last leader's as it would have gone on.
    pub fn line_at(&self, now: TrueTime) -> LedgerTime {
        let clock = self.replica(self.line_of).clock;
        self.line.clone().stamp(clock.local(now), clock.wall(now))
    }

    /// A wall clock jumps.
    pub fn jump_wall(&mut self, replica: usize, ms: i64) {
        if let Some(replica) = self.replicas.get_mut(replica) {
            replica.clock.jump_wall(ms);
        }
    }

    /// The leader stamps and proposes; the entry waits for its quorum. `Some` only if the leader answers without
    /// waiting, as it never should.
    pub fn propose(&mut self, now: TrueTime, commands: Vec<Command>, reply: T) -> Option<(Applied, T)> {
        let leader = self.leader.filter(|_| self.is_placed)?;
        let clock = self.replica(leader).clock;
        let stamp = self.line.stamp(clock.local(now), clock.wall(now));
        let entry = Entry { stamp, commands };
        let early = self.answer_before_durable.then(|| {
            let applied = self.replica_mut(leader).ledger.apply(&entry);
            (applied, reply.clone())
        });
        self.proposed.push_back(Proposal { entry, reply });
        early
    }

    /// The oldest proposal has reached a quorum, which `follower` is of and knows the reign from now on: it is
    /// committed, applied at the leader, and may be answered.
    pub fn commit(&mut self, now: TrueTime, follower: usize) -> Option<(Applied, T)> {
        let leader = self.leader?;
        let Proposal { entry, reply } = self.proposed.pop_front()?;
        self.hear(now, follower, self.reign, entry.stamp);
        self.push_committed(entry.clone());
        let len = self.committed.len();
        let replica = self.replica_mut(leader);
        replica.applied = len;
        if self.answer_before_durable {
            return None;
        }
        Some((self.replica_mut(leader).ledger.apply(&entry), reply))
    }

    /// The limits that committed bundles state, with the ledger time of each, since the last call.
    pub fn activated(&mut self) -> Vec<(LedgerTime, Tokens)> {
        std::mem::take(&mut self.activations)
    }

    fn push_committed(&mut self, entry: Entry) {
        self.committed_now = self.committed_now.max(entry.stamp);
        for command in &entry.commands {
            if let Command::ActivateBundle { bundle, .. } = command
                && bundle.version.0 == self.version.0 + 1
            {
                self.version = bundle.version;
                let limits = bundle.rules.iter().filter_map(|rule| match rule.algorithm {
                    Algorithm::FixedWindow { limit: Limit::Limited { tokens }, .. } => Some(tokens),
                    _ => None,
                });
                self.activations.extend(limits.map(|tokens| (self.committed_now, tokens)));
            }
        }
        self.committed.push(entry);
    }

    /// A follower applies what is committed, however late.
    pub fn catch_up(&mut self, replica: usize) {
        if self.leader == Some(replica) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(replica) else { return };
        for entry in self.committed.iter().skip(replica.applied) {
            replica.ledger.apply(entry);
        }
        replica.applied = self.committed.len();
    }

    /// The stamp that a heartbeat carries now. The leader keeps it as its own estimate, too.
    pub fn heartbeat(&mut self, now: TrueTime) -> Option<LedgerTime> {
        let leader = self.leader.filter(|_| self.is_placed)?;
        let clock = self.replica(leader).clock;
        let stamp = self.line.stamp(clock.local(now), clock.wall(now));
        self.hear(now, leader, self.reign, stamp);
        Some(stamp)
    }

    /// A replica hears a stamp of `reign`.
    pub fn hear(&mut self, now: TrueTime, replica: usize, reign: u64, stamp: LedgerTime) {
        let drift_ppm = self.drift_ppm;
        if let Some(replica) = self.replicas.get_mut(replica) {
            replica.learn(reign, stamp, replica.clock.local(now), drift_ppm);
        }
    }

    /// A replica's machine boots: its clock's readings of before mean nothing any more.
    pub fn boot(&mut self, replica: usize) {
        if let Some((_, estimate)) = self.replicas.get_mut(replica).and_then(|r| r.known.as_mut()) {
            *estimate = None;
        }
    }

    /// The leader is gone. Of what it had proposed, the first `survive` had reached a quorum though nobody knew it.
    pub fn crash(&mut self, survive: usize) {
        let proposed = std::mem::take(&mut self.proposed);
        for proposal in proposed.into_iter().take(survive) {
            self.push_committed(proposal.entry);
        }
        if let Some(leader) = self.leader.take() {
            // It comes back as a follower with what is on its disk: all that was committed, nothing else.
            let replica = self.replica_mut(leader);
            replica.ledger = Ledger::default();
            replica.applied = 0;
        }
        self.reign += 1;
    }

    /// `next` takes over and finds its place on the line by what a quorum knows, itself and `peer`. `Some` if it must
    /// wait before [`Self::begin`], in ms by its own clock.
    pub fn elect(&mut self, now: TrueTime, next: usize, peer: usize) -> Option<u64> {
        self.catch_up(next);
        self.leader = Some(next);
        self.is_placed = false;
        let answers = [next, peer].map(|i| self.replica(i).answer(now));
        let leader = self.replica(next);
        let (applied, outstanding) = (leader.ledger.now(), leader.ledger.outstanding_span_ms());
        match accede(&answers, applied, outstanding, leader.clock.wall(now), self.drift_ppm) {
            Accession::From(base) => self.begin(now, base),
            Accession::AfterMs(ms) => return Some(ms),
        }
        None
    }

    /// The leader draws its line from `base` on, or without one from its wall clock.
    pub fn begin(&mut self, now: TrueTime, base: impl Into<Option<LedgerTime>>) {
        let Some(leader) = self.leader else { return };
        let replica = self.replica(leader);
        let (clock, applied) = (replica.clock, replica.ledger.now());
        let base = base.into().unwrap_or_else(|| clock.wall(now).max(applied));
        self.line = LeaderLine::start(base, clock.local(now), self.drift_ppm);
        self.line_of = leader;
        self.is_placed = true;
        self.hear(now, leader, self.reign, base);
    }

    /// True while the leader draws a line.
    pub fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// When the leader's clock will have run for `ms`.
    pub fn after_at_leader(&self, now: TrueTime, ms: u64) -> TrueTime {
        let Some(leader) = self.leader else { return now };
        let clock = self.replica(leader).clock;
        clock.when(clock.local(now).saturating_add_ms(ms), now)
    }

    /// The leader's ledger.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.leader.map(|leader| &self.replica(leader).ledger)
    }

    /// After everybody caught up: true if all replicas are equal, bit for bit.
    pub fn replicas_agree(&mut self) -> bool {
        (0..REPLICAS).for_each(|replica| self.catch_up(replica));
        let mut ledgers = self.replicas.iter().map(|r| &r.ledger);
        let first = ledgers.next();
        ledgers.all(|ledger| Some(ledger) == first)
    }

    fn replica(&self, at: usize) -> &Replica {
        self.replicas.get(at).expect("replicas are numbered below REPLICAS")
    }

    fn replica_mut(&mut self, at: usize) -> &mut Replica {
        self.replicas.get_mut(at).expect("replicas are numbered below REPLICAS")
    }
}
