//! Small files that survive a power cut whole: written aside, synced, renamed, and the folder synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use leasehold_protocol::Incarnation;

/// Replaces `path` by `bytes`: a reader finds the old content or the new, never a part.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&aside, path)?;
    File::open(folder)?.sync_all()
}

/// The content of `path`, `None` if it does not exist; an error if it is larger than `len_max` bytes.
pub(crate) fn read(path: &Path, len_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(len_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > len_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {len_max} bytes")));
    }
    Ok(Some(bytes))
}

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

    #[test]
    fn a_file_larger_than_its_bound_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert!(read(&path, 3).unwrap().is_none());
        replace(&path, b"abc").unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"abc");
        assert!(read(&path, 2).is_err());
    }
}
