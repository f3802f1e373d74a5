//! Deterministic simulation: the very ledger and lease manager that ship, under virtual time and faults.
//!
//! One thread, one seed, one trace. What is modelled here is only what lies between the cores: the network, the
//! clocks, and a replicated log that commits, crashes, boots and elects. Nothing of a shell is used.
//!
//! Two claims are checked at every spend (DESIGN.md, section 4): by label, no window is admitted above its limit; by
//! time, no spend lies outside its window. A third is checked at the end: once faults stop, demand is served again.
//! Each [`Mutant`] breaks one rule and must be caught, which shows that the checker would notice.

pub mod agent;
pub mod allocator;
pub mod checker;
pub mod clock;
pub mod compare;
pub mod plan;
pub mod world;

pub use plan::{Mutant, Plan};
pub use world::{Report, run, run_plan};
