//! What survives a restart: a journal of the rollout's entries, and the exact bytes of every envelope that is kept.
//!
//! ```text
//! <data_dir>/lock
//! <data_dir>/rollout.journal               one entry a line, JSON
//! <data_dir>/bundles/<version>-<digest>.json   an envelope as it was signed
//! ```
//! An envelope is durable before the entry that names it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use leasehold_protocol::envelope::ENVELOPE_BYTES_MAX;
use leasehold_rollout::Release;
use leasehold_rollout::rollout::{Entry, Record, ReplayError};
use leasehold_transport::files;

/// The largest journal that is read, in bytes.
const JOURNAL_LEN_MAX: u64 = 16 * 1024 * 1024;
/// A journal with more entries is written anew, shortly.
const JOURNAL_ENTRIES_MAX: usize = 4_096;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refuses.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path}: another process uses this data directory", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A line in the journal that nobody wrote so.
    #[error("{path}: line {line}: {reason}; nothing was changed", path = path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Why.
        reason: String,
    },
}

/// The store. One process has it at a time.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    journal: File,
    journal_entries: usize,
    _lock: File,
}

impl Store {
    /// Opens the store in `dir`, creating it if needed, and the record in it.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Record), StoreError> {
        let in_dir = |source| StoreError::Io { path: dir.to_owned(), source };
        fs::create_dir_all(dir.join("bundles")).map_err(in_dir)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join("lock"));
        let lock = lock.map_err(in_dir)?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => StoreError::InUse { path: dir.to_owned() },
            TryLockError::Error(source) => in_dir(source),
        })?;
        let path = dir.join("rollout.journal");
        let in_journal = |source| StoreError::Io { path: path.clone(), source };
        let entries = read_journal(&path)?;
        let record = Record::replay(entries).map_err(|e: ReplayError| StoreError::Damaged {
            path: path.clone(),
            line: e.number,
            reason: e.to_string(),
        })?;
        let (journal, journal_entries) = rewrite(&path, &record).map_err(in_journal)?;
        let store = Self { dir: dir.to_owned(), journal, journal_entries, _lock: lock };
        store.sweep(&record).map_err(in_dir)?;
        Ok((store, record))
    }

    /// Makes `entries` durable; `record` is what they lead to.
    pub(crate) fn append(&mut self, entries: &[Entry], record: &Record) -> io::Result<()> {
        let bytes = lines(entries)?;
        self.journal.write_all(&bytes)?;
        self.journal.sync_data()?;
        self.journal_entries = self.journal_entries.saturating_add(entries.len());
        if self.journal_entries > JOURNAL_ENTRIES_MAX {
            (self.journal, self.journal_entries) = rewrite(&self.dir.join("rollout.journal"), record)?;
        }
        Ok(())
    }

    /// Makes an envelope durable under its name.
    pub(crate) fn keep(&self, release: &Release, envelope: &[u8]) -> io::Result<()> {
        files::replace(&self.path_of(release), envelope)
    }

    /// The exact bytes of a kept envelope.
    pub(crate) fn load(&self, release: &Release) -> io::Result<Vec<u8>> {
        read(&self.path_of(release), ENVELOPE_BYTES_MAX as u64)
    }

    /// Removes what the record does not name: envelopes that are kept no longer, and drafts that ended.
    pub(crate) fn sweep(&self, record: &Record) -> io::Result<()> {
        let named: Vec<PathBuf> = record
            .kept()
            .chain(record.pending.as_ref().map(|p| &p.release))
            .map(|release| self.path_of(release))
            .collect();
        for file in fs::read_dir(self.dir.join("bundles"))? {
            let path = file?.path();
            if !named.contains(&path) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn path_of(&self, release: &Release) -> PathBuf {
        self.dir.join("bundles").join(format!("{}-{}.json", release.version, release.digest))
    }
}

fn lines(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut bytes, entry)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// The journal's entries. A last line without its end was torn by a crash before anybody relied on it.
fn read_journal(path: &Path) -> Result<Vec<Entry>, StoreError> {
    let bytes = match read(path, JOURNAL_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StoreError::Io { path: path.to_owned(), source }),
    };
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at.saturating_add(1));
    let (whole, torn) = bytes.split_at(whole);
    if !torn.is_empty() {
        tracing::warn!(path = %path.display(), bytes = torn.len(), "the journal's last line is torn and is dropped");
    }
    let written = whole.strip_suffix(b"\n").map(|w| w.split(|b| *b == b'\n'));
    written
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(i, line)| {
            serde_json::from_slice(line).map_err(|e| StoreError::Damaged {
                path: path.to_owned(),
                line: i.saturating_add(1),
                reason: e.to_string(),
            })
        })
        .collect()
}

/// Replaces the journal by the shortest one for `record`, and opens it for more.
fn rewrite(path: &Path, record: &Record) -> io::Result<(File, usize)> {
    let entries = record.entries();
    files::replace(path, &lines(&entries)?)?;
    Ok((OpenOptions::new().append(true).open(path)?, entries.len()))
}

fn read(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    files::read(path, len_max)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::BundleVersion;

    use super::*;

    fn release(n: u64) -> Release {
        Release { version: BundleVersion(n), digest: format!("d{n}") }
    }

    fn released(n: u64) -> Vec<Entry> {
        let version = BundleVersion(n);
        vec![Entry::Drafted(release(n)), Entry::Registered(version), Entry::Released(version)]
    }

    fn filled(dir: &Path) -> Record {
        let (mut store, record) = Store::open(dir).unwrap();
        assert_eq!(record, Record::default());
        store.keep(&release(1), b"one").unwrap();
        store.append(&released(1), &record).unwrap();
        Record::replay(released(1)).unwrap()
    }

    #[test]
    fn what_was_appended_is_there_after_a_restart_with_its_exact_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let record = filled(dir.path());
        let (store, again) = Store::open(dir.path()).unwrap();
        assert_eq!(again, record);
        assert_eq!(store.load(&release(1)).unwrap(), b"one");
    }

    #[test]
    fn a_second_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _store = Store::open(dir.path()).unwrap();
        assert!(matches!(Store::open(dir.path()), Err(StoreError::InUse { .. })));
    }

    #[test]
    fn any_torn_tail_is_dropped_and_nothing_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let record = filled(dir.path());
        let path = dir.path().join("rollout.journal");
        let whole = fs::read(&path).unwrap();
        let next = lines(&[Entry::Drafted(release(2))]).unwrap();
        for cut in 1..next.len() {
            let mut torn = whole.clone();
            torn.extend_from_slice(&next[..cut]);
            fs::write(&path, &torn).unwrap();
            let (_, again) = Store::open(dir.path()).unwrap();
            assert_eq!(again, record, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_that_nobody_wrote_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let path = dir.path().join("rollout.journal");
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] = b'#';
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(Store::open(dir.path()), Err(StoreError::Damaged { line: 1, .. })));
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn what_the_record_does_not_name_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        fs::write(dir.path().join("bundles/9-dead.json"), b"orphan").unwrap();
        fs::write(dir.path().join("bundles/2-d2.json.new"), b"torn").unwrap();
        let (store, _) = Store::open(dir.path()).unwrap();
        assert_eq!(store.load(&release(1)).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path().join("bundles")).unwrap().count(), 1);
    }

    #[test]
    fn a_long_journal_is_written_anew_and_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let record = filled(dir.path());
        let (mut store, _) = Store::open(dir.path()).unwrap();
        let round = [Entry::Drafted(release(2)), Entry::Withdrawn(BundleVersion(2))];
        for _ in 0..=JOURNAL_ENTRIES_MAX / 2 {
            store.append(&round, &record).unwrap();
        }
        assert!(store.journal_entries < 10);
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().1, record);
    }
}
