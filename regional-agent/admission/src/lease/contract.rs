//! What goes into the lease manager and what comes out of it.

use leasehold_protocol::lease::{LeaseFrame, LeaseFrameAnswer, Push};
use leasehold_protocol::{Incarnation, LocalTime, Tokens, Window};

/// What a pool can give at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// A usable lease holds at least the cost.
    Enough {
        /// Tokens held before this spend.
        remaining: Tokens,
        /// The window's label and span.
        window: Window,
        /// The window's limit for all regions together.
        limit: Tokens,
        /// Until when the lease may be spent.
        usable_until: LocalTime,
    },
    /// The pool said no for this window.
    Exhausted {
        /// Until the window ends, in ms.
        retry_after_ms: u64,
        /// The window.
        window: Window,
        /// Its limit.
        limit: Tokens,
        /// Tokens held, fewer than the cost.
        held: Tokens,
        /// Nothing can come back before the window ends.
        last_word: bool,
    },
    /// Not enough is held and an answer may come soon: the request may be held for a moment and asked again.
    Pending {
        /// Tokens held, fewer than the cost.
        held: Tokens,
        /// The window's limit, if an answer has told it.
        limit: Option<Tokens>,
    },
    /// Not enough is held and the allocator cannot decide: it counts as lost, or cannot place itself in time.
    Lost {
        /// Tokens held, fewer than the cost.
        held: Tokens,
    },
    /// The allocator knows no such pool: its bundle is another than ours.
    UnknownPool,
}

/// What can happen to a lease manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseInput {
    /// Time passed, or demand made it due.
    Tick,
    /// A frame was answered.
    Answered {
        /// When this sending of the frame left, read *before* it left.
        sent: LocalTime,
        /// Which frame.
        frame_id: u64,
        /// The answer.
        answer: LeaseFrameAnswer,
    },
    /// The allocator said something unasked.
    Pushed(Push),
    /// A frame's sending failed or passed its deadline. Whether it was applied is unknown.
    Failed {
        /// Which frame.
        frame_id: u64,
    },
    /// The agent stops: give everything back.
    Drain,
}

/// What a lease manager asks its host to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEffect {
    /// Send this frame to the allocator's leader. A repetition has the same id and content.
    Send {
        /// Which frame.
        frame_id: u64,
        /// The frame.
        frame: LeaseFrame,
    },
    /// Tokens or words arrived: look at held requests again.
    Changed,
    /// Another process has this agent's name and a later life. Nothing will be leased again.
    Superseded {
        /// The life that the allocator knows.
        seen: Incarnation,
    },
}
