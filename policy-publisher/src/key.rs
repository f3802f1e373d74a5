//! The signing key and its file. Neither is ever printed or logged.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::SigningKey;
use leasehold_protocol::envelope::{Envelope, format_public_key, key_id};
use leasehold_protocol::publish::PublicKey;

/// The largest key file that is read, in bytes.
const FILE_LEN_MAX: u64 = 1_024;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system refuses.
    #[error("signing key {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than its owner may read or write it.
    #[error("signing key {path}: its mode is {mode:04o}; only its owner may read it (chmod 600)", path = path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not a key.
    #[error("signing key {path}: the file holds no 32 bytes in base64", path = path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// The system has no randomness.
    #[error("signing key {path}: no random bytes: {reason}", path = path.display())]
    NoRandomness {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A key that signs bundles.
#[derive(Clone)]
pub(crate) struct Key(SigningKey);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, secret part [redacted])", self.id())
    }
}

impl Key {
    /// The key in `path`; a new one is made there if the file does not exist.
    pub(crate) fn open_or_create(path: &Path) -> Result<Self, KeyFileError> {
        let io = |source| KeyFileError::Io { path: path.to_owned(), source };
        match Self::open(path) {
            Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let mut seed = [0_u8; 32];
        getrandom::fill(&mut seed)
            .map_err(|e| KeyFileError::NoRandomness { path: path.to_owned(), reason: e.to_string() })?;
        write_new(path, STANDARD.encode(seed).as_bytes()).map_err(io)?;
        let key = Self::open(path)?;
        tracing::info!(path = %path.display(), key_id = %key.id(), "a new signing key was made");
        Ok(key)
    }

    fn open(path: &Path) -> Result<Self, KeyFileError> {
        let io = |source| KeyFileError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.take(FILE_LEN_MAX).read_to_string(&mut text).map_err(io)?;
        let seed = STANDARD.decode(text.trim()).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        seed.map(|seed| Self(SigningKey::from_bytes(&seed)))
            .ok_or_else(|| KeyFileError::NotAKey { path: path.to_owned() })
    }

    /// Its id, hex.
    pub(crate) fn id(&self) -> String {
        key_id(&self.0.verifying_key())
    }

    /// Its public part.
    pub(crate) fn public(&self) -> PublicKey {
        PublicKey { key_id: self.id(), public_key: format_public_key(&self.0.verifying_key()) }
    }

    /// `payload`, signed.
    pub(crate) fn sign(&self, payload: &[u8]) -> Envelope {
        Envelope::sign(payload, &[&self.0])
    }
}

/// Writes a file that appears whole, with mode 0600, and never in the place of another.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.new", std::process::id()));
    let aside = PathBuf::from(aside);
    // Left over from a crash of a process with the same number.
    drop(fs::remove_file(&aside));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    // A link, unlike a rename, fails if somebody else made the key in the meantime: then theirs counts.
    let linked = written.and_then(|()| match fs::hard_link(&aside, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    });
    fs::remove_file(&aside)?;
    linked?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_and_then_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/signing.key");
        let first = Key::open_or_create(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(Key::open_or_create(&path).unwrap().id(), first.id());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signing.key");
        Key::open_or_create(&path).unwrap();
        for exposed in [0o640, 0o604, 0o620, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(exposed)).unwrap();
            let error = Key::open_or_create(&path).unwrap_err();
            assert!(matches!(error, KeyFileError::Exposed { mode, .. } if mode == exposed), "{error}");
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signing.key");
        write_new(&path, b"c2hvcnQ=").unwrap();
        assert!(matches!(Key::open_or_create(&path), Err(KeyFileError::NotAKey { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"c2hvcnQ=");
    }

    #[test]
    fn a_key_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signing.key");
        let key = Key::open_or_create(&path).unwrap();
        let secret = fs::read_to_string(&path).unwrap();
        let shown = format!("{key:?}");
        assert!(shown.contains(&key.id()) && !shown.contains(secret.trim()), "{shown}");
    }
}
