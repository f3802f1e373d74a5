//! Client of a regional agent, for gateways and services written in Rust.
//!
//! [`AgentClient`] asks for decisions. [`Backoff`] is the contract of a good caller (D20): the wait that a refusal
//! names is the least, exponential and jittered beyond it, with a cap on attempts.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_gateway_client::{AgentClient, ClientSettings, Verdict};
//! use leasehold_protocol::admit::AdmitRequest;
//!
//! let agent = AgentClient::new("http://127.0.0.1:7421", ClientSettings::default())?;
//! let request = AdmitRequest {
//!     tenant: Some("atlas".to_owned()),
//!     principal: Some("u-17".to_owned()),
//!     route: "catalog".to_owned(),
//!     ..AdmitRequest::default()
//! };
//! match agent.admit(&request).await? {
//!     Verdict::Allowed(decision) => println!("go ahead: {:?}", decision.decision_id),
//!     Verdict::Denied(refusal) => println!("answer 429: {}", refusal.problem),
//!     Verdict::Undecided(refusal) => println!("answer 503: {}", refusal.problem),
//! }
//! # Ok(())
//! # }
//! ```

mod backoff;
mod client;

pub use backoff::Backoff;
pub use client::{AgentClient, AgentError, ClientSettings, Verdict};
