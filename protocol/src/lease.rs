//! The wire between agents and the allocator: batched frames with cumulative counters.
//!
//! Loss, duplication and reordering of these messages are harmless: an answer carries the total ever granted for a
//! (pool, window, incarnation), and the agent credits the difference to what it has seen. A return carries the
//! total ever returned. Times travel as spans, never as times of day; a window's start is a label.

use serde::{Deserialize, Serialize};

use crate::amount::Tokens;
use crate::demand::Demand;
use crate::ids::{BundleVersion, Holder, Incarnation, PoolKey};
use crate::time::LedgerTime;
use crate::window::Window;

/// The most acquires plus settles one frame may carry.
pub const FRAME_ITEMS_MAX: usize = 1_000;

/// The longest life of a lease without an extension, in ms. A window no longer than this is leased to its end; a
/// longer one by sessions that extend.
pub const SESSION_MS_MAX: u64 = 600_000;

/// What an agent sends: all that it wants and reports at this moment, over all pools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseFrame {
    /// Who asks.
    pub holder: Holder,
    /// Which life of it asks.
    pub incarnation: Incarnation,
    /// Its usual round trip to the allocator, in ms; 0 if it does not know yet. Sizes and never decides.
    #[serde(default)]
    pub rtt_ms: u64,
    /// Settles first: what they give back may be granted to the acquires.
    pub settles: Vec<Settle>,
    /// Wishes for tokens.
    pub acquires: Vec<Acquire>,
}

/// Which window an acquire is for. The ledger decides what it means when the command is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowChoice {
    /// The window that holds ledger time now.
    Current,
    /// The one after it; the lease starts later.
    Next,
}

/// A wish for tokens of one pool. Its id is (holder, incarnation, pool, seq): repeating it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The pool.
    pub pool: PoolKey,
    /// The window.
    pub window: WindowChoice,
    /// Counts up from 1 per (holder, incarnation, pool).
    pub seq: u64,
    /// Tokens that requests are waiting for now, beyond what is held and asked for already.
    pub need: Tokens,
    /// The fewest tokens that let one of them through: less than this helps nobody and is not granted. 0 if none waits.
    #[serde(default)]
    pub least: Tokens,
    /// Tokens that the start of the window is expected to take at once. Counts for [`WindowChoice::Next`] alone.
    #[serde(default)]
    pub boundary: Tokens,
    /// What the holder forecasts. The ledger makes a size of it; a wish, never a right.
    #[serde(default)]
    pub demand: Demand,
    /// It only prolongs the lease's life: nothing is granted and nobody goes hungry.
    #[serde(default)]
    pub extend_only: bool,
}

/// What a holder says of one window: cumulative, applied as maxima, so repeating or reordering is harmless.
/// A settle for a window that is over changes nothing but its count of spent tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settle {
    /// The pool.
    pub pool: PoolKey,
    /// The window's label.
    pub window_start: LedgerTime,
    /// Tokens spent so far in this window by this incarnation.
    pub spent_total: Tokens,
    /// Tokens given back so far in this window by this incarnation. The holder will never spend them.
    pub returned_total: Tokens,
    /// Tokens that requests asked for so far in this window and did not get, because the pool had none for them.
    /// For the accounts alone.
    #[serde(default)]
    pub denied_total: Tokens,
    /// What the holder forecasts now.
    #[serde(default)]
    pub demand: Demand,
}

/// The allocator's answer to a frame, in the order of its acquires. It says that the settles were taken in, unless an
/// outcome is [`AcquireOutcome::ClockUncertain`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseFrameAnswer {
    /// One answer an acquire, in order.
    pub answers: Vec<AcquireAnswer>,
    /// The bundle that the allocator enforces.
    pub bundle_version: BundleVersion,
    /// What is to be told to this holder meanwhile, if no stream of it is open.
    #[serde(default)]
    pub pushes: Vec<Push>,
}

/// What the allocator tells a holder without being asked. Loss, repetition and reordering are harmless: a later answer
/// says the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// Which life of the holder is meant.
    pub incarnation: Incarnation,
    /// The pool.
    pub pool: PoolKey,
    /// The lease as it stands. Its totals and words count; its spans do not, since nobody knows how long a push was on
    /// its way, so that it never prolongs a life.
    pub lease: Lease,
}

/// The answer to one acquire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireAnswer {
    /// The pool.
    pub pool: PoolKey,
    /// The acquire's number.
    pub seq: u64,
    /// What came of it.
    pub outcome: AcquireOutcome,
}

/// What came of an acquire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AcquireOutcome {
    /// The lease as it stands, whether or not this acquire added to it.
    Lease(Lease),
    /// A later life of this holder has been seen; this one's tokens are forfeit.
    StaleIncarnation {
        /// The life that is known.
        seen: Incarnation,
    },
    /// The active bundle has no leased rule of this name, or no such tenant.
    UnknownPool,
    /// The allocator cannot place itself in time yet (after the loss of a whole quorum) and grants nothing. It took
    /// nothing of the frame in, its settles neither; a frame of settles alone gets no answer then.
    ClockUncertain {
        /// How long that can last, in ms.
        retry_ms: u64,
    },
}

/// A lease as it stands after an acquire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The window; its start is the label.
    pub window: Window,
    /// From now until the lease may be spent, in ms; 0 for the current window.
    pub starts_in_ms: u64,
    /// From now until it ends, in ms: never past the window's end (the clamp). 0 when the window is over.
    pub expires_in_ms: u64,
    /// Tokens ever granted to this incarnation in this window.
    pub granted_total: Tokens,
    /// Tokens that this incarnation has reported spent in this window. A holder that forgot a window which it had
    /// reported goes on from here.
    #[serde(default)]
    pub spent_total: Tokens,
    /// Tokens that this incarnation has given back in this window.
    #[serde(default)]
    pub returned_total: Tokens,
    /// The window's limit for all regions together.
    pub limit: Tokens,
    /// Tokens left in the pool.
    pub remaining: Tokens,
    /// Tokens that some holder has and may still give back. With `remaining` 0 too, nothing can come before the
    /// window's end: the denial is final.
    pub outstanding: Tokens,
    /// Orders the answers about this (pool, window, holder): of two, the higher is newer.
    pub version: u64,
    /// How the holder shall behave.
    #[serde(default)]
    pub supply: Supply,
}

/// How a holder shall behave, by what the pool has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supply {
    /// Demand is beyond what is left: what is not needed within seconds is to be given back.
    #[serde(default)]
    pub scarce: bool,
    /// So little is left that only waiting requests are served: asking ahead of need is no use.
    #[serde(default)]
    pub direct: bool,
    /// The pool had less than was needed. Tokens may still come by a push, until the window ends.
    #[serde(default)]
    pub short: bool,
}
