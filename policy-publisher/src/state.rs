//! What the rollout's task and the requests share.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use leasehold_protocol::BundleVersion;
use leasehold_protocol::admin::{AgentAck, PublisherStatus};
use leasehold_protocol::envelope::{Envelope, digest};
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::publish::PublicKey;
use leasehold_rollout::Release;
use leasehold_transport::health::Readiness;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::acks::Acks;
use crate::metrics::PublisherMetrics;
use crate::publish::Request;
use crate::store::Store;

/// A bundle that is handed out.
#[derive(Debug)]
pub(crate) struct Released {
    /// Its name.
    pub(crate) release: Release,
    /// The exact bytes of its envelope.
    pub(crate) envelope: Bytes,
    /// What it says.
    pub(crate) bundle: CheckedBundle,
}

/// Why stored bytes are not the release whose name they bear.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DamagedError {
    #[error("its envelope cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("its envelope is no envelope: {0}")]
    NotAnEnvelope(String),
    #[error("its digest is {got}")]
    Digest { got: String },
    #[error("its bundle is refused: {0}")]
    Bundle(String),
}

impl Released {
    /// The release in `envelope`, if its bytes are what its name says.
    pub(crate) fn open(release: Release, envelope: Vec<u8>) -> Result<Self, DamagedError> {
        let parsed: Envelope =
            serde_json::from_slice(&envelope).map_err(|e| DamagedError::NotAnEnvelope(e.to_string()))?;
        let payload = parsed.payload_bytes().map_err(|e| DamagedError::NotAnEnvelope(e.to_string()))?;
        let got = digest(&payload);
        if got != release.digest {
            return Err(DamagedError::Digest { got });
        }
        let bundle = CheckedBundle::from_bytes(&payload).map_err(|e| DamagedError::Bundle(e.to_string()))?;
        Ok(Self { release, envelope: envelope.into(), bundle })
    }
}

/// What is shared.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The key's public part.
    pub(crate) key: PublicKey,
    /// The newest release; `None` before the first, or if its bytes are damaged.
    pub(crate) current: watch::Sender<Option<Arc<Released>>>,
    /// The files.
    pub(crate) store: Arc<Mutex<Store>>,
    /// The releases that can be fetched, the newest last.
    pub(crate) kept: Mutex<Vec<Release>>,
    /// What is not as it should be, in words.
    pub(crate) notes: Mutex<Vec<String>>,
    /// What agents said.
    pub(crate) acks: Mutex<Acks>,
    /// Publish requests on their way to the rollout's task.
    pub(crate) requests: mpsc::Sender<Request>,
    /// Sources that may be read at once.
    pub(crate) readers: Arc<Semaphore>,
    /// Polls that may wait at once.
    pub(crate) waiters: Semaphore,
    /// The metrics.
    pub(crate) metrics: PublisherMetrics,
}

impl Shared {
    /// The newest release.
    pub(crate) fn newest(&self) -> Option<Arc<Released>> {
        self.current.borrow().clone()
    }

    /// The kept release of this version.
    pub(crate) fn kept_version(&self, version: BundleVersion) -> Option<Release> {
        locked(&self.kept).iter().rev().find(|r| r.version == version).cloned()
    }

    /// Takes an agent's word.
    pub(crate) fn note_ack(&self, ack: AgentAck) {
        let who = format!("{}/{}", ack.region, ack.agent);
        let refused = ack.refused.clone();
        let noted = locked(&self.acks).note(ack);
        self.metrics.tallied(&noted.tallies);
        if let (true, Some(refused)) = (noted.is_new_refusal, refused) {
            let version = refused.version.map_or(0, |v| v.0);
            tracing::warn!(agent = %who, version, reason = %refused.reason.escape_debug(), "an agent refuses a bundle");
        }
    }

    /// `GET /v1/status`.
    pub(crate) fn status(&self) -> PublisherStatus {
        let newest = self.newest();
        PublisherStatus {
            pid: std::process::id(),
            released_version: newest.as_ref().map_or(BundleVersion(0), |r| r.release.version),
            released_digest: newest.as_ref().map(|r| r.release.digest.clone()),
            key_id: self.key.key_id.clone(),
            notes: locked(&self.notes).clone(),
            agents: locked(&self.acks).list(),
        }
    }

    /// `GET /readyz`: it has a key and an open store from its start.
    pub(crate) fn readiness(&self) -> Readiness {
        let mut reasons = locked(&self.notes).clone();
        if self.current.borrow().is_none() {
            reasons.insert(0, "no bundle is released yet".to_owned());
        }
        Readiness { ready: true, reasons }
    }
}

/// The value; a panic elsewhere does not make it unusable.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
