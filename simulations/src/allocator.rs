//! A model of the replicated log around the real ledger: entries become durable after a while, leaders crash, a
//! follower with every committed entry takes over. The ledger time line is the real one.

use std::collections::VecDeque;

use leasehold_ledger::clock::{LeaderLine, LineEstimate};
use leasehold_ledger::{Command, Entry, Ledger, Outcome};
use leasehold_protocol::bundle::{Algorithm, Limit};
use leasehold_protocol::{BundleVersion, LedgerTime, Tokens};

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
    estimate: Option<LineEstimate>,
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
            .map(|clock| Replica { clock, ledger: Ledger::default(), applied: 0, estimate: None })
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
            drift_ppm,
            answer_before_durable,
        }
    }

    /// Who leads.
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
    pub fn propose(&mut self, now: TrueTime, commands: Vec<Command>, reply: T) -> Option<(Vec<Outcome>, T)> {
        let leader = self.leader?;
        let clock = self.replica(leader).clock;
        let stamp = self.line.stamp(clock.local(now), clock.wall(now));
        let entry = Entry { stamp, commands };
        let early = self.answer_before_durable.then(|| {
            let outcomes = self.replica_mut(leader).ledger.apply(&entry);
            (outcomes, reply.clone())
        });
        self.proposed.push_back(Proposal { entry, reply });
        early
    }

    /// The oldest proposal has reached a quorum: it is committed, applied at the leader, and may be answered.
    pub fn commit(&mut self) -> Option<(Vec<Outcome>, T)> {
        let leader = self.leader?;
        let Proposal { entry, reply } = self.proposed.pop_front()?;
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

    /// The stamp that a heartbeat carries now.
    pub fn heartbeat(&mut self, now: TrueTime) -> Option<LedgerTime> {
        let clock = self.replica(self.leader?).clock;
        Some(self.line.stamp(clock.local(now), clock.wall(now)))
    }

    /// A follower hears a heartbeat.
    pub fn hear(&mut self, now: TrueTime, replica: usize, stamp: LedgerTime) {
        if let Some(replica) = self.replicas.get_mut(replica) {
            let at = replica.clock.local(now);
            match &mut replica.estimate {
                Some(estimate) => estimate.observe(stamp, at),
                None => replica.estimate = Some(LineEstimate::new(stamp, at, self.drift_ppm)),
            }
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

    /// `next` takes over with the larger of a quorum's estimates (its own and `peer`'s) and the ledger's own time.
    pub fn elect(&mut self, now: TrueTime, next: usize, peer: usize) {
        self.catch_up(next);
        let estimates = [next, peer].into_iter().filter_map(|i| {
            let replica = self.replica(i);
            replica.estimate.map(|e| e.at(replica.clock.local(now)))
        });
        let base = estimates.max().unwrap_or_default().max(self.replica(next).ledger.now());
        self.line = LeaderLine::start(base, self.replica(next).clock.local(now), self.drift_ppm);
        self.line_of = next;
        self.leader = Some(next);
    }

    /// True if every replica has an estimate, so that any two of them are a quorum that can place itself in time.
    pub fn is_placed(&self) -> bool {
        self.replicas.iter().enumerate().all(|(i, r)| r.estimate.is_some() || self.leader == Some(i))
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
