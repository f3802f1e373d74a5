//! The replica's disk: Raft's log and vote, ledger snapshots, and the time record, in one sled tree
//! (docs/decisions/0001-sled-and-where.md).
//!
//! One thread writes ([`writer`]). What it says is durable has been through `fdatasync`. Whoever appends can read the
//! entry back at once, out of a tail kept in memory until it is durable.

mod codec;
mod identity;
mod log;
mod tail;
mod writer;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::types::{LogId, SnapshotMeta, Vote};

pub(crate) use self::identity::Identity;
use self::tail::Tail;
use self::writer::{Op, Then, Writer};

/// sled's page cache, in bytes; its own default is 1 GiB.
const CACHE_BYTES: u64 = 16 * 1024 * 1024;

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory belongs to somebody else, or to another version. Nothing in it was touched.
    #[error("data directory {path}: {reason}", path = path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        reason: String,
    },
    /// Another process has it, or a former one has not quite ended.
    #[error("data directory {path}: another process uses it", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("data directory {path}: {source}", path = path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is stored is not what was written.
    #[error("data directory {path} is damaged: {reason}", path = path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// Where and how.
        reason: String,
    },
}

/// A stored ledger snapshot.
#[derive(Debug, Clone)]
pub(crate) struct StoredSnapshot {
    pub(crate) meta: SnapshotMeta,
    pub(crate) bytes: Vec<u8>,
}

/// What the snapshot's chunks hang from.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
pub(crate) struct SnapshotRecord {
    generation: u64,
    meta: SnapshotMeta,
}

/// The disk of one replica. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    db: sled::Db,
    tail: Mutex<Tail>,
    writer: Writer,
}

impl Store {
    /// Opens the store of `identity` in `dir`, or makes a new one in an empty or missing directory.
    pub(crate) fn open(dir: &Path, identity: &Identity) -> Result<Self, StoreError> {
        identity::admit(dir, identity)?;
        let path = dir.join("raft");
        let in_dir = |source: io::Error| StoreError::Io { path: dir.to_owned(), source };
        if is_locked(&path.join("db")).map_err(in_dir)? {
            return Err(StoreError::InUse { path: dir.to_owned() });
        }
        let db = sled::Config::new()
            .path(&path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None)
            .open()
            .map_err(|e| in_dir(e.into()))?;
        let file = File::options().write(true).open(path.join("db")).map_err(in_dir)?;
        Self::with_sync(dir, db, Box::new(move || file.sync_data()))
    }

    /// As [`Store::open`], with what makes sled's writes durable given by the caller.
    fn with_sync(
        dir: &Path,
        db: sled::Db,
        sync: Box<dyn FnMut() -> io::Result<()> + Send>,
    ) -> Result<Self, StoreError> {
        let damaged = |reason: String| StoreError::Damaged { path: dir.to_owned(), reason };
        let tail = tail::recover(&db).map_err(damaged)?;
        let shared = Shared { writer: Writer::start(db.clone(), sync), db, tail: Mutex::new(tail) };
        let store = Self { shared: Arc::new(shared) };
        // A snapshot that cannot be read is found now, not when a follower needs it.
        store.snapshot().map_err(|e| damaged(e.to_string()))?;
        Ok(store)
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.shared.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raft's vote.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.tail().vote
    }

    /// Stores the vote; durable when this returns.
    async fn put_vote(&self, vote: &Vote) -> io::Result<()> {
        let batch = writer::small_batch(codec::VOTE, &codec::encode(vote)?);
        let (then, told) = Then::told();
        let room = self.shared.writer.room().await?;
        {
            // Under the lock, so that the queue's order is the tail's order.
            let mut tail = self.tail();
            tail.vote = Some(*vote);
            room.send(Op::Put { batch, then });
        }
        told.wait().await
    }

    /// Stores a small record under a name of its own; durable when this returns.
    pub(crate) async fn put_record(&self, name: &str, record: &impl Serialize) -> io::Result<()> {
        let batch = writer::small_batch(&codec::record_key(name), &codec::encode(record)?);
        let (then, told) = Then::told();
        self.shared.writer.send(Op::Put { batch, then }).await?;
        told.wait().await
    }

    /// A small record, if there is one.
    pub(crate) fn record<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        codec::read(&self.shared.db, &codec::record_key(name))
    }

    /// Stores a snapshot in place of the one before; durable when this returns.
    pub(crate) async fn put_snapshot(&self, snapshot: StoredSnapshot) -> io::Result<()> {
        let (then, told) = Then::told();
        self.shared.writer.send(Op::Snapshot { snapshot, then }).await?;
        told.wait().await
    }

    /// The stored snapshot, if there is one.
    pub(crate) fn snapshot(&self) -> io::Result<Option<StoredSnapshot>> {
        let Some(record) = codec::read::<SnapshotRecord>(&self.shared.db, codec::SNAPSHOT)? else {
            return Ok(None);
        };
        let bytes = codec::read_chunks(&self.shared.db, &codec::snapshot_prefix(record.generation))?
            .ok_or_else(|| codec::damaged("the snapshot's content is missing"))?;
        Ok(Some(StoredSnapshot { meta: record.meta, bytes }))
    }

    /// The last entry, or what was purged last.
    pub(crate) fn last_log_id(&self) -> Option<LogId> {
        self.tail().last_log_id()
    }

    /// How the writer does: batches, and seconds spent in making them durable.
    pub(crate) fn writer_stats(&self) -> Arc<writer::Stats> {
        self.shared.writer.stats()
    }
}

/// Whether somebody has sled's file open: sled's own error says it in words alone. Threads of sled may hold it for a
/// moment longer than the last handle lives.
fn is_locked(db: &Path) -> io::Result<bool> {
    let file = match File::open(db) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests;
