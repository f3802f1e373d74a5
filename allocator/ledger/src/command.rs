//! What goes into the log and what comes out of applying it.

use leasehold_protocol::bundle::Bundle;
use leasehold_protocol::lease::{Acquire, AcquireOutcome, Push, Settle};
use leasehold_protocol::{BundleVersion, Holder, Incarnation, LedgerTime, Tokens};
use serde::{Deserialize, Serialize};

/// One entry of the log: a batch of commands under one stamp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's reading of the ledger's line when it proposed this. Ledger time becomes the larger of this and
    /// what it was.
    pub stamp: LedgerTime,
    /// Applied in order.
    pub commands: Vec<Command>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A holder wants tokens.
    Acquire {
        /// Who.
        holder: Holder,
        /// Which life of it.
        incarnation: Incarnation,
        /// What.
        acquire: Acquire,
    },
    /// A holder reports what it spent and gives back.
    Settle {
        /// Who.
        holder: Holder,
        /// Which life of it.
        incarnation: Incarnation,
        /// What.
        settle: Settle,
    },
    /// A holder lives. Heads every frame.
    Hear {
        /// Who.
        holder: Holder,
        /// Which life of it.
        incarnation: Incarnation,
        /// Its usual round trip, in ms; 0 if unknown.
        rtt_ms: u64,
    },
    /// Time for those that went hungry to get what is left.
    Feed,
    /// A verified bundle becomes the policy of the ledger, if its version is the next one.
    ActivateBundle {
        /// The bundle.
        bundle: Box<Bundle>,
        /// The digest of its signed bytes, hex.
        digest: String,
    },
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Of an acquire.
    Acquired(AcquireOutcome),
    /// Of a settle.
    Settled(SettleOutcome),
    /// Of an activation.
    Activated(ActivateOutcome),
    /// Of what needs no answer.
    Noted,
}

/// What came of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// One for each command, in order.
    pub outcomes: Vec<Outcome>,
    /// What holders are to be told unasked. Whoever applied the entry as leader tells them; losing one costs time, never
    /// tokens.
    pub notices: Vec<Notice>,
}

/// Something to be told to a holder unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whom.
    pub holder: Holder,
    /// What.
    pub push: Push,
}

/// What came of a settle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleOutcome {
    /// Taken in; `returned` tokens went back to the pool now.
    Applied {
        /// Tokens that went back by this command.
        returned: Tokens,
    },
    /// The window is over, or this holder never had a lease in it: nothing to give back.
    Over,
    /// It claims more than was granted. Nothing was changed.
    Impossible {
        /// What was granted.
        granted: Tokens,
    },
}

/// What came of an activation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivateOutcome {
    /// It is the policy now.
    Active {
        /// Its version.
        version: BundleVersion,
    },
    /// It was the policy already: a repeated command.
    AlreadyActive {
        /// Its version.
        version: BundleVersion,
    },
    /// Its version is not the next one: another publisher came first, or it is old.
    Conflict {
        /// The active version.
        active: BundleVersion,
        /// The active digest.
        active_digest: Option<String>,
    },
}
