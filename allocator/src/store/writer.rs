//! The one thread that writes. It drains its queue, applies each operation in order, makes all of them durable at
//! once, and only then says so, in order. After an error it writes no more: a replica that cannot write must not vote.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use openraft::storage::IOFlushed;
use tokio::sync::{mpsc, oneshot};

use super::{SnapshotRecord, StoredSnapshot, codec};
use crate::types::TypeConfig;

/// Operations that may wait; beyond it, whoever appends waits.
const QUEUE_LEN_MAX: usize = 1_024;
/// Operations made durable together.
const DRAIN_LEN_MAX: usize = 256;
/// Values put or removed in one of sled's batches while much is written at once.
const BATCH_LEN: usize = 1_024;

/// One operation.
pub(crate) enum Op {
    /// Puts these values, all or none.
    Put { batch: sled::Batch, then: Then },
    /// As `Put`, but nobody waits for it: durable with whatever comes next.
    PutLazily { batch: sled::Batch },
    /// Removes the entries from `index` on, the last first.
    Truncate { from: u64, then: Then },
    /// Notes what is purged, then removes the entries up to `index`, the first first.
    Purge { record: Vec<u8>, upto: u64, then: Then },
    /// Writes a snapshot beside the stored one, then points at it.
    Snapshot { snapshot: StoredSnapshot, then: Then },
}

/// What to do once an operation is durable.
pub(crate) enum Then {
    /// Tell Raft, and note the sequence number as durable.
    Flushed { flushed: IOFlushed<TypeConfig>, seq: u64 },
    /// Tell whoever waits.
    Tell(oneshot::Sender<io::Result<()>>),
    /// Nothing.
    Nothing,
}

impl Then {
    /// Tells whoever waits.
    pub(crate) fn told() -> (Self, Told) {
        let (sender, receiver) = oneshot::channel();
        (Self::Tell(sender), Told(receiver))
    }
}

/// Waits for an operation to be durable.
pub(crate) struct Told(oneshot::Receiver<io::Result<()>>);

impl Told {
    /// Returns once it is durable, or with why it is not.
    pub(crate) async fn wait(self) -> io::Result<()> {
        self.0.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the store has ended")
}

/// How the writer does.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// How often something was made durable.
    pub(crate) syncs: AtomicU64,
    /// Microseconds spent in it.
    pub(crate) sync_us: AtomicU64,
    /// Operations.
    pub(crate) ops: AtomicU64,
    /// The highest append that is durable.
    pub(crate) durable_seq: AtomicU64,
}

/// The queue's near end.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Op>,
    stats: Arc<Stats>,
}

impl Writer {
    /// Starts the thread. It ends when the last sender is dropped.
    pub(crate) fn start(db: sled::Db, sync: Box<dyn FnMut() -> io::Result<()> + Send>) -> Self {
        let (queue, ops) = mpsc::channel(QUEUE_LEN_MAX);
        let stats = Arc::new(Stats::default());
        let thread = Thread { db, sync, stats: Arc::clone(&stats), failed: None };
        let spawned = std::thread::Builder::new().name("store-writer".to_owned()).spawn(|| thread.run(ops));
        if let Err(e) = spawned {
            // The queue's far end is gone, so that every operation fails.
            tracing::error!(error = %e, "the store's writer cannot be started");
        }
        Self { queue, stats }
    }

    /// How it does.
    pub(crate) fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Room for one operation, waited for before its place in the order is fixed.
    pub(crate) async fn room(&self) -> io::Result<mpsc::OwnedPermit<Op>> {
        self.queue.clone().reserve_owned().await.map_err(|_| ended())
    }

    /// Queues an operation, waiting for room.
    pub(crate) async fn send(&self, op: Op) -> io::Result<()> {
        self.queue.send(op).await.map_err(|_| ended())
    }

    /// Queues a small value that nobody waits for; left out if there is no room.
    pub(crate) fn put_lazily(&self, key: &[u8], bytes: &[u8]) {
        let batch = small_batch(key, bytes);
        // What is not noted is found again from the log.
        let _ = self.queue.try_send(Op::PutLazily { batch });
    }
}

/// One value in chunks.
pub(crate) fn small_batch(key: &[u8], bytes: &[u8]) -> sled::Batch {
    let mut batch = sled::Batch::default();
    for (key, value) in codec::chunks(key, bytes) {
        batch.insert(key, value);
    }
    batch
}

struct Thread {
    db: sled::Db,
    sync: Box<dyn FnMut() -> io::Result<()> + Send>,
    stats: Arc<Stats>,
    failed: Option<String>,
}

impl Thread {
    fn run(mut self, mut ops: mpsc::Receiver<Op>) {
        let mut drained = Vec::new();
        while ops.blocking_recv_many(&mut drained, DRAIN_LEN_MAX) > 0 {
            self.stats.ops.fetch_add(drained.len() as u64, Ordering::Relaxed);
            let mut waiting = Vec::with_capacity(drained.len());
            let mut is_due = false;
            let mut done = Ok(());
            for op in drained.drain(..) {
                is_due |= !matches!(op, Op::PutLazily { .. });
                if done.is_ok() {
                    let (then, applied) = self.apply(op);
                    waiting.push(then);
                    done = applied;
                } else {
                    waiting.push(op.into_then());
                }
            }
            if is_due && done.is_ok() {
                done = self.make_durable();
            }
            if let Err(e) = &done {
                tracing::error!(error = %e, "the store cannot be written; nothing will be written any more");
                self.failed.get_or_insert_with(|| e.to_string());
            }
            for then in waiting {
                self.conclude(then, &done);
            }
        }
        if self.failed.is_none()
            && let Err(e) = self.make_durable()
        {
            tracing::error!(error = %e, "the last writes may not be durable");
        }
    }

    fn conclude(&self, then: Then, done: &io::Result<()>) {
        let result = match done {
            Ok(()) => Ok(()),
            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
        };
        match then {
            Then::Flushed { flushed, seq } => {
                if result.is_ok() {
                    self.stats.durable_seq.fetch_max(seq, Ordering::Release);
                }
                flushed.io_completed(result);
            }
            // Whoever waited may be gone.
            Then::Tell(sender) => drop(sender.send(result)),
            Then::Nothing => {}
        }
    }

    fn make_durable(&mut self) -> io::Result<()> {
        let began = Instant::now();
        self.db.flush()?;
        // sled's flush alone ends in `sync_file_range`, which a power cut does not respect.
        (self.sync)()?;
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.stats.syncs.fetch_add(1, Ordering::Relaxed);
        self.stats.sync_us.fetch_add(us, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&mut self, op: Op) -> (Then, io::Result<()>) {
        if let Some(reason) = &self.failed {
            let error = io::Error::other(format!("an earlier write failed: {reason}"));
            return (op.into_then(), Err(error));
        }
        match op {
            Op::Put { batch, then } => (then, self.db.apply_batch(batch).map_err(Into::into)),
            Op::PutLazily { batch } => (Then::Nothing, self.db.apply_batch(batch).map_err(Into::into)),
            Op::Truncate { from, then } => (then, self.truncate(from)),
            Op::Purge { record, upto, then } => (then, self.purge(&record, upto)),
            Op::Snapshot { snapshot, then } => (then, self.snapshot(snapshot)),
        }
    }

    /// From the end backwards, so that a crash in between leaves no gap.
    fn truncate(&self, from: u64) -> io::Result<()> {
        let range = codec::log_prefix(from)..vec![codec::LOG + 1];
        self.remove(self.db.range(range).rev().map(|found| found.map(|(key, _)| key)))
    }

    /// The record first, so that a crash in between leaves entries that are known to be purged.
    fn purge(&mut self, record: &[u8], upto: u64) -> io::Result<()> {
        self.db.apply_batch(small_batch(codec::PURGED, record))?;
        self.make_durable()?;
        self.remove(self.db.range(vec![codec::LOG]..codec::log_prefix(upto.saturating_add(1))).keys())
    }

    fn remove(&self, keys: impl Iterator<Item = sled::Result<sled::IVec>>) -> io::Result<()> {
        let mut batch = sled::Batch::default();
        let mut len = 0;
        for key in keys {
            batch.remove(key?);
            len += 1;
            if len == BATCH_LEN {
                self.db.apply_batch(std::mem::take(&mut batch))?;
                len = 0;
            }
        }
        self.db.apply_batch(batch)?;
        Ok(())
    }

    /// The chunks first, durable, then the record that points at them, durable, then the old chunks go.
    fn snapshot(&mut self, snapshot: StoredSnapshot) -> io::Result<()> {
        let stored = codec::read::<SnapshotRecord>(&self.db, codec::SNAPSHOT)?;
        let generation = stored.map_or(1, |record| record.generation.saturating_add(1));
        let prefix = codec::snapshot_prefix(generation);
        // What an interrupted attempt left under the same number.
        self.remove(self.db.scan_prefix(&prefix).keys())?;
        let mut batch = sled::Batch::default();
        for (n, (key, value)) in codec::chunks(&prefix, &snapshot.bytes).enumerate() {
            batch.insert(key, value);
            if n % BATCH_LEN == BATCH_LEN - 1 {
                self.db.apply_batch(std::mem::take(&mut batch))?;
            }
        }
        self.db.apply_batch(batch)?;
        self.make_durable()?;
        let record = codec::encode(&SnapshotRecord { generation, meta: snapshot.meta })?;
        self.db.apply_batch(small_batch(codec::SNAPSHOT, &record))?;
        self.make_durable()?;
        self.remove(self.db.range(vec![codec::CHUNKS]..prefix).keys())
    }
}

impl Op {
    fn into_then(self) -> Then {
        match self {
            Self::Put { then, .. }
            | Self::Truncate { then, .. }
            | Self::Purge { then, .. }
            | Self::Snapshot { then, .. } => then,
            Self::PutLazily { .. } => Then::Nothing,
        }
    }
}
