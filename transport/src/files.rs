//! Small files that survive a power cut whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Replaces `path` by `bytes`: written aside, synced, renamed, and the folder synced, so that a reader finds the old
/// content or the new, never a part, whatever happens.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
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

/// The content of `path`; `None` if it does not exist, an error if it is larger than `len_max` bytes.
pub fn read(path: &Path, len_max: u64) -> io::Result<Option<Vec<u8>>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_one_larger_than_its_bound_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert!(read(&path, 3).unwrap().is_none());
        replace(&path, b"abcdef").unwrap();
        replace(&path, b"abc").unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"abc");
        assert!(read(&path, 2).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
