//! Admission and leases at the agent, without clock or socket.
//!
//! [`Admission`] evaluates all rules of a route against one bundle, all or nothing. It owns the bundle in force, the
//! counters of this agent and, in [`lease`], what it holds of the allocator's pools. Time and randomness come in as
//! values; it never waits, sends or logs.

pub mod admission;
mod check;
pub mod counters;
mod explain;
pub mod lease;
pub mod policy;
pub mod request;
pub mod source;
mod standing;
#[cfg(test)]
mod tests;
pub mod verdict;

pub use admission::{Admission, ParseError};
pub use policy::{ActivateError, ActivePolicy};
pub use request::Request;
pub use standing::{SLOT_RETRY_MS, SOFT_RETRY_MS};
pub use verdict::{Condition, Report, Verdict, Waiting};
