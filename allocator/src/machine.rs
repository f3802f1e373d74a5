//! The ledger as Raft's state machine. It lives in memory; snapshots of it are on the disk, and after a restart the
//! entries behind the last snapshot are applied again.

use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::{Stream, TryStreamExt as _};
use leasehold_ledger::{Applied, Ledger};
use openraft::entry::RaftEntry as _;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use serde::{Deserialize, Serialize};

use crate::pushes::Pushes;
use crate::store::{Store, StoredSnapshot};
use crate::types::{LogId, Outcomes, Snapshot, SnapshotMeta, StoredMembership, TypeConfig};

/// The format of a snapshot's content that this version writes, and the newest that it reads.
const SNAPSHOT_FORMAT: u32 = 1;

/// What has been applied.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) last_applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

/// A snapshot's content.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    format: u32,
    ledger: Ledger,
}

/// The state machine. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    state: Arc<RwLock<State>>,
    store: Store,
    pushes: Arc<Pushes>,
}

impl Machine {
    /// An empty state over `store`; Raft installs the stored snapshot by itself. What holders are to be told goes to
    /// `pushes`.
    pub(crate) fn new(store: Store, pushes: Arc<Pushes>) -> Self {
        Self { state: Arc::default(), store, pushes }
    }

    /// What has been applied, for reading.
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.state();
        Ok((state.last_applied, state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let applied = {
                let mut state = self.state_mut();
                state.last_applied = Some(entry.log_id());
                match &entry.payload {
                    EntryPayload::Blank => Applied::default(),
                    EntryPayload::Normal(proposal) => state.ledger.apply(&proposal.0),
                    EntryPayload::Membership(members) => {
                        state.membership = StoredMembership::new(Some(entry.log_id()), members.clone());
                        Applied::default()
                    }
                }
            };
            // Proposed here: this replica leads, so that its streams are the ones that holders listen to.
            if let Some(responder) = responder {
                self.pushes.tell(applied.notices);
                responder.send(Outcomes(applied.outcomes));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Vec<u8>) -> Result<(), io::Error> {
        let content: Content = rmp_serde::from_slice(&snapshot).map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot cannot be read: {e}"))
        })?;
        if content.format > SNAPSHOT_FORMAT {
            let text =
                format!("the snapshot's format is {}; this version knows {SNAPSHOT_FORMAT}", content.format);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let stored = self.store.snapshot()?.map(|stored| stored.meta);
        if stored.as_ref() != Some(meta) {
            self.store.put_snapshot(StoredSnapshot { meta: meta.clone(), bytes: snapshot }).await?;
        }
        let mut state = self.state_mut();
        state.ledger = content.ledger;
        state.last_applied = meta.last_log_id;
        state.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let stored = self.store.snapshot()?;
        Ok(stored.map(|stored| Snapshot { meta: stored.meta, snapshot: stored.bytes }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (content, meta) = {
            let state = self.state();
            let meta =
                SnapshotMeta { last_log_id: state.last_applied, last_membership: state.membership.clone() };
            (Content { format: SNAPSHOT_FORMAT, ledger: state.ledger.clone() }, meta)
        };
        let bytes = tokio::task::spawn_blocking(move || rmp_serde::to_vec_named(&content))
            .await
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
        self.store.put_snapshot(StoredSnapshot { meta: meta.clone(), bytes: bytes.clone() }).await?;
        Ok(Snapshot { meta, snapshot: bytes })
    }
}
