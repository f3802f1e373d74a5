//! Commands into the log: many requests to one entry, one stamp for each entry.

use std::sync::Arc;
use std::time::Duration;

use leasehold_ledger::{Command, Entry, Outcome};
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::impls::leader_id_std::LeaderId;
use openraft::vote::RaftLeaderId as _;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::metrics::AllocatorMetrics;
use crate::reign::Line;
use crate::types::{Proposal, Raft};

/// Whether this replica draws the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reigning {
    /// It does not lead.
    No,
    /// It leads and finds its place on the line.
    Beginning,
    /// It leads, but nobody could say where the line is: nothing is granted until this instant.
    Waiting {
        /// When it will be drawn.
        until: Instant,
    },
    /// It leads and draws the line of this reign.
    Yes {
        /// The term.
        reign: u64,
    },
}

/// Why commands have no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProposeError {
    /// Another replica leads, or none.
    #[error("this replica is not the leader")]
    NotLeader,
    /// The queue is full.
    #[error("more requests wait than the queue takes")]
    Overloaded,
    /// No quorum in time; the commands may or may not be committed, and may be repeated.
    #[error("the commands were not committed in time; they may be later, and may be repeated")]
    Timeout,
    /// The line cannot be placed yet.
    #[error("ledger time is uncertain for {retry_ms} ms more")]
    ClockUncertain {
        /// How long that lasts, in ms.
        retry_ms: u64,
    },
    /// Raft has stopped.
    #[error("Raft has stopped: {0}")]
    Stopped(String),
}

type Reply = oneshot::Sender<Result<Vec<Outcome>, ProposeError>>;

struct Job {
    commands: Vec<Command>,
    reply: Reply,
}

/// The queue's near end, and what is known of the reign.
#[derive(Debug)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Job>,
    reigning: watch::Receiver<Reigning>,
    deadline: Duration,
}

/// The queue's far end: what [`drive`] runs on.
pub(crate) struct Queue {
    jobs: mpsc::Receiver<Job>,
    reigning: watch::Receiver<Reigning>,
}

/// Bounds of the queue and of what it fills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) queue_len_max: usize,
    pub(crate) batch_len_max: usize,
    pub(crate) entries_in_flight: usize,
    pub(crate) deadline: Duration,
}

impl Proposer {
    /// A queue with both its ends.
    pub(crate) fn new(bounds: Bounds, reigning: watch::Receiver<Reigning>) -> (Self, Queue) {
        let (queue, jobs) = mpsc::channel(bounds.queue_len_max);
        let proposer = Self { queue, reigning: reigning.clone(), deadline: bounds.deadline };
        (proposer, Queue { jobs, reigning })
    }

    /// Whether this replica draws the line.
    pub(crate) fn reigning(&self) -> Reigning {
        *self.reigning.borrow()
    }

    /// Returns once this replica no longer draws the line.
    pub(crate) async fn until_reign_ends(&self) {
        let mut reigning = self.reigning.clone();
        // An error means that the keeper is gone, and the reign with it.
        let _ = reigning.wait_for(|now| !matches!(now, Reigning::Yes { .. })).await;
    }

    /// Requests that wait.
    pub(crate) fn queue_len(&self) -> usize {
        self.queue.max_capacity().saturating_sub(self.queue.capacity())
    }

    /// Commits `commands` and returns their outcomes, in order. No commands: an entry is committed all the same, which
    /// proves that a quorum follows.
    pub(crate) async fn propose(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, ProposeError> {
        let until = Instant::now() + self.deadline;
        let mut reigning = self.reigning.clone();
        let settled = timeout_at(until, reigning.wait_for(|now| *now != Reigning::Beginning)).await;
        match settled.map_err(|_| ProposeError::Timeout)?.map(|now| *now) {
            Ok(Reigning::Yes { .. }) => {}
            Ok(Reigning::Waiting { until }) => {
                let left = until.saturating_duration_since(Instant::now()).as_millis();
                let retry_ms = u64::try_from(left).unwrap_or(u64::MAX).max(1);
                return Err(ProposeError::ClockUncertain { retry_ms });
            }
            Ok(Reigning::No | Reigning::Beginning) | Err(_) => return Err(ProposeError::NotLeader),
        }
        let (reply, answer) = oneshot::channel();
        self.queue.try_send(Job { commands, reply }).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => ProposeError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => ProposeError::Stopped("it is shutting down".to_owned()),
        })?;
        match timeout_at(until, answer).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(_)) => Err(ProposeError::Stopped("it is shutting down".to_owned())),
            Err(_) => Err(ProposeError::Timeout),
        }
    }
}

/// Fills entries from the queue until its near end is gone.
pub(crate) async fn drive(
    mut queue: Queue,
    raft: Raft,
    line: Arc<Line>,
    bounds: Bounds,
    metrics: AllocatorMetrics,
) {
    let in_flight = Arc::new(Semaphore::new(bounds.entries_in_flight));
    let mut waiting: Option<Job> = None;
    loop {
        // While all entries are on their way, requests gather for the next one.
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        let Some(first) = (match waiting.take() {
            Some(job) => Some(job),
            None => queue.jobs.recv().await,
        }) else {
            return;
        };
        let mut len = first.commands.len();
        let mut jobs = vec![first];
        while len < bounds.batch_len_max
            && jobs.len() < bounds.batch_len_max
            && let Ok(job) = queue.jobs.try_recv()
        {
            if len.saturating_add(job.commands.len()) > bounds.batch_len_max {
                waiting = Some(job);
                break;
            }
            len += job.commands.len();
            jobs.push(job);
        }
        // The stamp is read as late as can be: just before the entry is handed over.
        let reigning = *queue.reigning.borrow();
        let drawn = match reigning {
            Reigning::Yes { reign } => line.stamp(reign).map(|stamp| (reign, stamp)),
            _ => None,
        };
        let Some((reign, stamp)) = drawn else {
            refuse(jobs, &ProposeError::NotLeader);
            continue;
        };
        metrics.batch(jobs.len(), len);
        let (commands, replies) = unzip(jobs);
        let (responder, done) = ProgressResponder::complete_only();
        let proposal = Proposal(Entry { stamp, commands });
        // Only in the reign whose line the stamp is of.
        let leader = LeaderId { term: reign, voted_for: *raft.node_id() }.to_committed();
        if let Err(e) = raft.write(proposal).with_leader(leader).responder(responder).await {
            answer(replies, &Err(ProposeError::Stopped(e.to_string())));
            continue;
        }
        let (deadline, metrics) = (bounds.deadline, metrics.clone());
        tokio::spawn(async move {
            let began = Instant::now();
            let outcome = match timeout(deadline, done).await {
                Ok(Ok(Ok(written))) => Ok(written.data.0),
                Ok(Ok(Err(ClientWriteError::ForwardToLeader(_)))) => Err(ProposeError::NotLeader),
                Ok(Ok(Err(ClientWriteError::LogEntryDiscarded(_)))) | Err(_) => Err(ProposeError::Timeout),
                Ok(Ok(Err(e))) => Err(ProposeError::Stopped(e.to_string())),
                Ok(Err(e)) => Err(ProposeError::Stopped(e.to_string())),
            };
            metrics.committed(outcome.is_ok(), began.elapsed());
            answer(replies, &outcome);
            drop(permit);
        });
    }
}

/// A reply and how many outcomes are its own.
type Due = (Reply, usize);

fn unzip(jobs: Vec<Job>) -> (Vec<Command>, Vec<Due>) {
    let mut commands = Vec::new();
    let mut replies = Vec::with_capacity(jobs.len());
    for job in jobs {
        replies.push((job.reply, job.commands.len()));
        commands.extend(job.commands);
    }
    (commands, replies)
}

fn answer(replies: Vec<Due>, outcome: &Result<Vec<Outcome>, ProposeError>) {
    let mut rest: &[Outcome] = outcome.as_deref().unwrap_or_default();
    for (reply, len) in replies {
        let own = match outcome {
            Err(e) => Err(e.clone()),
            Ok(_) => match rest.split_at_checked(len) {
                Some((own, after)) => {
                    rest = after;
                    Ok(own.to_vec())
                }
                None => Err(ProposeError::Stopped("an entry has fewer outcomes than commands".to_owned())),
            },
        };
        // Whoever asked may be gone.
        let _ = reply.send(own);
    }
}

fn refuse(jobs: Vec<Job>, error: &ProposeError) {
    for job in jobs {
        let _ = job.reply.send(Err(error.clone()));
    }
}
