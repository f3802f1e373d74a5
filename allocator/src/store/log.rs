//! The store as Raft sees it.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::Ordering;

use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, RaftTypeConfig};

use super::writer::{Op, Then};
use super::{Store, codec, tail};
use crate::types::{LogEntry, LogId, TypeConfig, Vote};

impl RaftLogReader<TypeConfig> for Store {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<LogEntry>, io::Error> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        let (wanted, kept) = {
            let tail = self.tail();
            let wanted = from.max(tail.first_index())..to.min(tail.next_index());
            let kept: Vec<Option<LogEntry>> =
                wanted.clone().map(|index| tail.entry(index).cloned()).collect();
            (wanted, kept)
        };
        // What is not kept in memory is on the disk.
        wanted
            .zip(kept)
            .map(|(index, kept)| kept.map_or_else(|| tail::read_entry(&self.shared.db, index), Ok))
            .collect()
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.vote())
    }
}

impl RaftLogStorage<TypeConfig> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let tail = self.tail();
        Ok(LogState { last_purged_log_id: tail.purged, last_log_id: tail.last_log_id() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.put_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.tail().committed = committed;
        if let Some(committed) = committed {
            self.shared.writer.put_lazily(codec::COMMITTED, &codec::encode(&committed)?);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let tail = self.tail();
        // It may have been noted before an entry that was torn.
        Ok(tail.committed.min(tail.last_log_id()))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = <TypeConfig as RaftTypeConfig>::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let mut batch = sled::Batch::default();
        for entry in &entries {
            for (key, value) in codec::chunks(&codec::log_prefix(entry.index()), &codec::encode(entry)?) {
                batch.insert(key, value);
            }
        }
        let room = self.shared.writer.room().await?;
        let durable = self.shared.writer.stats().durable_seq.load(Ordering::Acquire);
        let mut tail = self.tail();
        let seq = tail.append(&entries).map_err(|gap| io::Error::new(io::ErrorKind::InvalidInput, gap))?;
        tail.forget(durable);
        // Queued under the lock, so that the queue's order is the tail's order.
        room.send(Op::Put { batch, then: Then::Flushed { flushed: callback, seq } });
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let (then, told) = Then::told();
        let room = self.shared.writer.room().await?;
        {
            let mut tail = self.tail();
            tail.truncate_after(last_log_id);
            let from = last_log_id.map_or(0, |id| id.index.saturating_add(1));
            room.send(Op::Truncate { from, then });
        }
        told.wait().await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let record = codec::encode(&log_id)?;
        let (then, told) = Then::told();
        let room = self.shared.writer.room().await?;
        {
            let mut tail = self.tail();
            tail.purge(log_id);
            room.send(Op::Purge { record, upto: log_id.index, then });
        }
        told.wait().await
    }
}
