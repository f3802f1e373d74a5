//! Deterministic simulation: the very ledger and lease manager that ship, under virtual time and faults.
//!
//! One thread, one seed, one trace. What is modelled here is only what lies between the cores: the network, the
//! clocks, and a replicated log that commits, crashes and elects. Nothing of a shell is used.

pub mod agent;
pub mod allocator;
pub mod checker;
pub mod clock;
pub mod plan;
pub mod world;

pub use plan::{Mutant, Plan};
pub use world::{Report, run, run_plan};
