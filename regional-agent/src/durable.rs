//! The agent's folder: one user at a time, and a higher number for each life.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use leasehold_protocol::Incarnation;
use leasehold_transport::files::{read, replace};

/// A folder that this process alone uses while the value lives.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the folder if needed and locks it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(path.join("lock"))?;
        lock.try_lock().map_err(|e| match e {
            fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::AddrInUse, "another process uses this data directory")
            }
            fs::TryLockError::Error(e) => e,
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The number of this life, higher than that of any former one: stored before it is used. At least the wall
    /// clock in ms, so that a lost folder does not bring an old number back.
    pub(crate) fn next_incarnation(&self, wall_ms: u64) -> io::Result<Incarnation> {
        let path = self.file("incarnation");
        let stored = match read(&path, 32)? {
            None => 0,
            Some(bytes) => String::from_utf8_lossy(&bytes).trim().parse::<u64>().unwrap_or_else(|e| {
                tracing::warn!(path = %path.display(), error = %e, "the stored incarnation is unreadable; the wall clock stands in");
                0
            }),
        };
        let next = stored.saturating_add(1).max(wall_ms);
        replace(&path, format!("{next}\n").as_bytes())?;
        Ok(Incarnation(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_has_a_higher_number_even_if_the_wall_clock_went_back_or_the_file_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        assert_eq!(dir.next_incarnation(1_000).unwrap(), Incarnation(1_000));
        assert_eq!(dir.next_incarnation(500).unwrap(), Incarnation(1_001));
        fs::write(dir.file("incarnation"), "10").unwrap();
        assert_eq!(dir.next_incarnation(0).unwrap(), Incarnation(11));
        fs::write(dir.file("incarnation"), "1\u{0}x").unwrap();
        assert_eq!(dir.next_incarnation(2_000).unwrap(), Incarnation(2_000));
    }

    #[test]
    fn a_folder_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDir::open(folder.path()).unwrap();
        assert_eq!(DataDir::open(folder.path()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(DataDir::open(folder.path()).is_ok());
    }
}
