//! Whose directory it is: a plain file, read before anything is opened, so that a foreign directory stays untouched.

use std::fs;
use std::io;
use std::path::Path;

use leasehold_protocol::NodeId;
use leasehold_transport::files;
use serde::{Deserialize, Serialize};

use super::StoreError;

/// The format that this version writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;
const FILE: &str = "identity.json";

/// A replica of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// The replica.
    pub(crate) node_id: NodeId,
}

/// Only the format, which every version writes.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl Identity {
    /// The identity of a replica in this version's format.
    pub(crate) fn new(cluster: &str, node_id: NodeId) -> Self {
        Self { format: FORMAT, cluster: cluster.to_owned(), node_id }
    }
}

/// Lets `ours` use `dir`: it is theirs already, or it is empty or missing and becomes theirs.
pub(crate) fn admit(dir: &Path, ours: &Identity) -> Result<(), StoreError> {
    let in_dir = |source: io::Error| StoreError::Io { path: dir.to_owned(), source };
    let foreign = |reason: String| StoreError::Foreign { path: dir.to_owned(), reason };
    let file = dir.join(FILE);
    match fs::read(&file) {
        Ok(bytes) => {
            let found: FormatOnly =
                serde_json::from_slice(&bytes).map_err(|e| foreign(format!("{FILE} cannot be read: {e}")))?;
            if found.format > FORMAT {
                let reason = format!("its format is {}; this version knows up to {FORMAT}", found.format);
                return Err(foreign(reason));
            }
            let found: Identity =
                serde_json::from_slice(&bytes).map_err(|e| foreign(format!("{FILE} cannot be read: {e}")))?;
            if found.cluster != ours.cluster {
                return Err(foreign(format!(
                    "it belongs to cluster {:?}, not {:?}",
                    found.cluster, ours.cluster
                )));
            }
            if found.node_id != ours.node_id {
                return Err(foreign(format!(
                    "it belongs to replica {}, not {}",
                    found.node_id, ours.node_id
                )));
            }
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let is_empty = match fs::read_dir(dir) {
                Ok(mut entries) => entries.next().is_none(),
                Err(e) if e.kind() == io::ErrorKind::NotFound => true,
                Err(e) => return Err(in_dir(e)),
            };
            if !is_empty {
                return Err(foreign(format!("it is not empty and has no {FILE}")));
            }
            claim(dir, ours).map_err(in_dir)
        }
        Err(e) => Err(in_dir(e)),
    }
}

/// There is a whole identity or none.
fn claim(dir: &Path, ours: &Identity) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    files::replace(&dir.join(FILE), &serde_json::to_vec_pretty(ours)?)
}
