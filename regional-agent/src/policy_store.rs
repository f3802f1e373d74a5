//! The last good bundle on disk: the very bytes that were signed, and the version below which nothing is taken.

use std::io;

use leasehold_protocol::BundleVersion;
use leasehold_protocol::envelope::{ENVELOPE_BYTES_MAX, Envelope, EnvelopeError, TrustedKeys, digest};
use leasehold_protocol::policy::{BundleError, CheckedBundle};
use leasehold_transport::files;

use crate::durable::DataDir;

const BUNDLE_FILE: &str = "bundle.json";
const FLOOR_FILE: &str = "bundle.floor";

/// A bundle that verified, with the bytes it came in.
#[derive(Debug)]
pub(crate) struct VerifiedBundle {
    pub(crate) bundle: CheckedBundle,
    /// Of the signed bytes, hex.
    pub(crate) digest: String,
    envelope: Vec<u8>,
}

/// Why bytes are no bundle of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefusedError {
    #[error("an envelope of {len} bytes; at most {ENVELOPE_BYTES_MAX} are allowed")]
    TooLarge { len: usize },
    #[error("not an envelope: {0}")]
    NotAnEnvelope(String),
    #[error(transparent)]
    Signature(#[from] EnvelopeError),
    #[error("signed, but {source}")]
    Bundle { version: Option<BundleVersion>, source: BundleError },
    #[error("version {got} is below {floor}, which was in force here before")]
    BelowFloor { got: BundleVersion, floor: BundleVersion },
    #[error("version {got} is not newer than {in_force}, which is in force")]
    NotNewer { got: BundleVersion, in_force: BundleVersion },
    #[error("reading it ended in a fault of ours")]
    Fault,
}

impl RefusedError {
    /// The version that the refused bundle claims, if it could be read.
    pub(crate) fn version(&self) -> Option<BundleVersion> {
        match self {
            Self::Bundle { version, .. } => *version,
            Self::BelowFloor { got, .. } | Self::NotNewer { got, .. } => Some(*got),
            _ => None,
        }
    }
}

/// Verifies in order: size, envelope, signatures, bundle. A panic on the way is a refusal too: the last good bundle
/// stays in force whatever is offered.
pub(crate) fn verify(keys: &TrustedKeys, envelope: Vec<u8>) -> Result<VerifiedBundle, RefusedError> {
    if envelope.len() > ENVELOPE_BYTES_MAX {
        return Err(RefusedError::TooLarge { len: envelope.len() });
    }
    let read = std::panic::catch_unwind(|| {
        let parsed: Envelope =
            serde_json::from_slice(&envelope).map_err(|e| RefusedError::NotAnEnvelope(e.to_string()))?;
        let payload = keys.open(&parsed)?;
        let bundle = CheckedBundle::from_bytes(&payload)
            .map_err(|source| RefusedError::Bundle { version: claimed_version(&payload), source })?;
        Ok((bundle, digest(&payload)))
    });
    let (bundle, digest) = read.unwrap_or(Err(RefusedError::Fault))?;
    Ok(VerifiedBundle { bundle, digest, envelope })
}

fn claimed_version(payload: &[u8]) -> Option<BundleVersion> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    value.get("version")?.as_u64().map(BundleVersion)
}

/// The store.
#[derive(Debug)]
pub(crate) struct PolicyStore {
    dir: DataDir,
    floor: BundleVersion,
}

impl PolicyStore {
    /// The store in `dir`, and the bundle in it if it is whole and verifies. One that is torn, or signed by keys that
    /// are trusted no longer, is left where it is, said loudly, and fetched again.
    pub(crate) fn open(dir: DataDir, keys: &TrustedKeys) -> io::Result<(Self, Option<VerifiedBundle>)> {
        let floor = match files::read(&dir.file(FLOOR_FILE), 32)? {
            None => 0,
            Some(bytes) => String::from_utf8_lossy(&bytes).trim().parse().unwrap_or_else(|e| {
                tracing::warn!(error = %e, "the stored version floor is unreadable; the stored bundle's version stands in");
                0
            }),
        };
        let mut store = Self { dir, floor: BundleVersion(floor) };
        let stored = files::read(&store.dir.file(BUNDLE_FILE), ENVELOPE_BYTES_MAX as u64);
        let bytes = match stored {
            Ok(None) => return Ok((store, None)),
            Ok(Some(bytes)) => bytes,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(error = %e, "the stored bundle is refused and will be fetched again");
                return Ok((store, None));
            }
            Err(e) => return Err(e),
        };
        match verify(keys, bytes).and_then(|verified| store.admit(verified, BundleVersion(0))) {
            Ok(verified) => {
                store.floor = store.floor.max(verified.bundle.version);
                Ok((store, Some(verified)))
            }
            Err(e) => {
                tracing::warn!(error = %e, "the stored bundle is refused and will be fetched again");
                Ok((store, None))
            }
        }
    }

    /// The bundle, unless it is older than one that was in force here before, or not newer than the one that is:
    /// what is stored is what is in force, so another bundle of the same version must not take its place.
    pub(crate) fn admit(
        &self,
        verified: VerifiedBundle,
        in_force: BundleVersion,
    ) -> Result<VerifiedBundle, RefusedError> {
        let got = verified.bundle.version;
        if got < self.floor {
            return Err(RefusedError::BelowFloor { got, floor: self.floor });
        }
        if got <= in_force {
            return Err(RefusedError::NotNewer { got, in_force });
        }
        Ok(verified)
    }

    /// Makes the bundle and the floor under it durable, before the first decision by it.
    pub(crate) fn keep(&mut self, verified: &VerifiedBundle) -> io::Result<()> {
        files::replace(&self.dir.file(BUNDLE_FILE), &verified.envelope)?;
        let floor = self.floor.max(verified.bundle.version);
        files::replace(&self.dir.file(FLOOR_FILE), format!("{floor}\n").as_bytes())?;
        self.floor = floor;
        Ok(())
    }
}
