//! The log's ends, and its newest entries, in memory.

use std::collections::BTreeMap;

use openraft::entry::RaftEntry as _;

use super::codec;
use crate::types::{LogEntry, LogId, Vote};

/// Durable entries kept at most: followers that keep up are served from here.
const KEPT_LEN_MAX: usize = 1_024;

/// What is known without the disk.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    pub(crate) purged: Option<LogId>,
    last: Option<LogId>,
    /// Where a log begins of which nothing was purged: 0, but for the suite of Raft's library, whose logs begin anywhere.
    start: u64,
    #[cfg(test)]
    pub(crate) starts_anywhere: bool,
    /// Counts appends.
    seq: u64,
    /// The newest entries, each with the append that brought it.
    kept: BTreeMap<u64, (u64, LogEntry)>,
}

impl Tail {
    /// The last entry, or what was purged last.
    pub(crate) fn last_log_id(&self) -> Option<LogId> {
        self.last.or(self.purged)
    }

    /// The index after the last.
    pub(crate) fn next_index(&self) -> u64 {
        self.last_log_id().map_or(self.start, |id| id.index.saturating_add(1))
    }

    /// The first index that is there, if any is.
    pub(crate) fn first_index(&self) -> u64 {
        self.purged.map_or(self.start, |id| id.index.saturating_add(1))
    }

    /// Takes entries in that follow the last one; the number of this append. An error is a gap.
    pub(crate) fn append(&mut self, entries: &[LogEntry]) -> Result<u64, String> {
        self.seq += 1;
        #[cfg(test)]
        if let (true, None, Some(first)) = (self.starts_anywhere, self.last_log_id(), entries.first()) {
            self.start = first.index();
        }
        for (next, entry) in (self.next_index()..).zip(entries) {
            if entry.index() != next {
                return Err(format!("entry {} would stand where entry {next} belongs", entry.index()));
            }
        }
        for entry in entries {
            self.kept.insert(entry.index(), (self.seq, entry.clone()));
            self.last = Some(entry.log_id());
        }
        Ok(self.seq)
    }

    /// Forgets durable entries beyond the bound, oldest first.
    pub(crate) fn forget(&mut self, durable_seq: u64) {
        while self.kept.len() > KEPT_LEN_MAX {
            match self.kept.first_entry() {
                Some(first) if first.get().0 <= durable_seq => drop(first.remove()),
                _ => break,
            }
        }
    }

    /// Drops the entries after `last`.
    pub(crate) fn truncate_after(&mut self, last: Option<LogId>) {
        let from = last.map_or(0, |id| id.index.saturating_add(1));
        self.kept.split_off(&from);
        // A place behind the end is no new end, and one that was purged is no entry.
        self.last = last.min(self.last).filter(|id| self.purged.is_none_or(|purged| purged.index < id.index));
    }

    /// Drops the entries up to `purged`.
    pub(crate) fn purge(&mut self, purged: LogId) {
        self.kept = self.kept.split_off(&purged.index.saturating_add(1));
        self.purged = self.purged.max(Some(purged));
        self.last = self.last.filter(|last| last.index > purged.index);
    }

    /// An entry, if it is kept here.
    pub(crate) fn entry(&self, index: u64) -> Option<&LogEntry> {
        self.kept.get(&index).map(|(_, entry)| entry)
    }
}

/// The ends of a stored log. A last entry that is not whole is dropped, since nobody was told of it; anything else
/// that is wrong is an error.
pub(crate) fn recover(db: &sled::Db) -> Result<Tail, String> {
    let text = |e: std::io::Error| e.to_string();
    let purged: Option<LogId> = codec::read(db, codec::PURGED).map_err(text)?;
    let mut tail = Tail {
        vote: codec::read(db, codec::VOTE).map_err(text)?,
        committed: codec::read(db, codec::COMMITTED).map_err(text)?,
        purged,
        ..Tail::default()
    };
    // Entries that a purge had noted but not removed yet.
    let first = tail.first_index();
    let mut indices = Vec::new();
    for key in db.range(codec::log_prefix(0)..vec![codec::LOG + 1]).keys() {
        let key = key.map_err(|e| e.to_string())?;
        let index = codec::index_of(&key).ok_or_else(|| "a log key has no index".to_owned())?;
        if index < first {
            db.remove(&key).map_err(|e| e.to_string())?;
        } else if indices.last() != Some(&index) {
            indices.push(index);
        }
    }
    if let Some((found, wanted)) = indices.iter().zip(first..).find(|(found, wanted)| *found != wanted) {
        return Err(format!("the log has a gap: entry {wanted} is missing, entry {found} is there"));
    }
    let mut torn = false;
    while let Some(index) = indices.pop() {
        match read_entry(db, index) {
            Ok(entry) => {
                tail.last = Some(entry.log_id());
                break;
            }
            Err(e) if !torn => {
                tracing::warn!(index, error = %e, "the last entry is not whole and is dropped");
                torn = true;
                for key in db.scan_prefix(codec::log_prefix(index)).keys() {
                    let key = key.map_err(|e| e.to_string())?;
                    db.remove(key).map_err(|e| e.to_string())?;
                }
            }
            Err(e) => return Err(format!("entry {index}: {e}")),
        }
    }
    Ok(tail)
}

/// An entry from the disk.
pub(crate) fn read_entry(db: &sled::Db, index: u64) -> std::io::Result<LogEntry> {
    let bytes = codec::read_chunks(db, &codec::log_prefix(index))?
        .ok_or_else(|| codec::damaged(&format!("entry {index} is missing")))?;
    codec::decode(&bytes)
}
