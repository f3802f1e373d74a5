//! The replicated ledger: a deterministic state machine that owns every pool and every lease.
//!
//! Raft decides the order of [`Entry`]s; [`Ledger::apply`] does the rest. Nothing here reads a clock, draws a random
//! number or can fail: a refusal is an [`Outcome`]. Two replicas that applied the same entries are equal.
//!
//! Invariants, which [`Ledger::check_invariants`] states one by one (DESIGN.md, section 4):
//! 1. `remaining + leased + spent = limit + debt` for every pool, none of them negative.
//! 2. A token is in one lease at most.
//! 3. A command's id decides its effect once.
//! 4. What is not given back while the window is open counts as spent.
//! 5. No clock is read.

pub mod clock;
mod command;
mod holders;
mod ledger;
mod pairs;
mod pool;
mod sequences;
mod sizing;
mod supply;
#[cfg(test)]
mod tests;
mod views;

pub use command::{ActivateOutcome, Applied, Command, Entry, Notice, Outcome, SettleOutcome};
pub use ledger::Ledger;
