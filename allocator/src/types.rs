//! The types that Raft carries here.

use std::fmt;

use leasehold_ledger::{Entry, Outcome};
use openraft::impls::leader_id_std;
use openraft::vote::RaftLeaderId;
use serde::{Deserialize, Serialize};

/// An entry's content: a batch of ledger commands under one stamp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proposal(pub(crate) Entry);

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands at {}", self.0.commands.len(), self.0.stamp)
    }
}

/// What applying it came to, in the order of its commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcomes(pub(crate) Vec<Outcome>);

openraft::declare_raft_types!(
    /// One leader a term, as in the Raft paper, so that a term names a reign.
    pub(crate) TypeConfig:
        D = Proposal,
        R = Outcomes,
        NodeId = u64,
        Node = openraft::impls::BasicNode,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
);

/// Names a reign in the log.
pub(crate) type CommittedLeaderId = <leader_id_std::LeaderId<u64, u64> as RaftLeaderId>::Committed;
/// A place in the log.
pub(crate) type LogId = openraft::LogId<CommittedLeaderId>;
/// A vote.
pub(crate) type Vote = openraft::impls::Vote<leader_id_std::LeaderId<u64, u64>>;
/// A log entry.
pub(crate) type LogEntry = openraft::type_config::alias::EntryOf<TypeConfig>;
/// The members at some place in the log.
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
/// What a snapshot covers.
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
/// A snapshot: what it covers and the ledger's bytes.
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, Vec<u8>>;
/// The replica's Raft.
pub(crate) type Raft = openraft::Raft<TypeConfig, crate::machine::Machine>;
