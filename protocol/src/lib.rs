//! The words of Leasehold: ids, amounts, times, wire messages, problem types and the bundle format.
//!
//! This crate owns what two roles must agree on. It performs no I/O, reads no clock and holds no state.

pub mod admin;
pub mod admit;
pub mod amount;
pub mod bundle;
pub mod demand;
pub mod envelope;
pub mod ids;
pub mod lease;
pub mod machine;
pub mod policy;
pub mod problem;
pub mod publish;
pub mod time;
pub mod window;

pub use amount::{Millitokens, Tokens};
pub use demand::Demand;
pub use ids::{
    AgentId, BundleVersion, DecisionId, Holder, IdError, Incarnation, NodeId, OverrideId, PlanId, PoolKey,
    RegionId, RouteId, RuleId, TenantId,
};
pub use problem::{InvalidField, Problem, ProblemKind};
pub use time::{LedgerTime, LocalTime};
pub use window::{Window, WindowLength};
