//! What every role shares: HTTP (listeners, bearer tokens, problem documents, health, metrics, clients), logs, the
//! host's clocks and small durable files.
//!
//! Shared by the shells alone; it knows no limit, lease or rule, and no core depends on it
//! (docs/decisions/0004-one-transport-crate.md).

pub mod auth;
pub mod client;
pub mod clock;
pub mod files;
pub mod health;
pub mod listen;
pub mod problem;
pub mod secret;
pub mod settings;
pub mod shutdown;
pub mod takeover;
pub mod telemetry;
