//! Admission and leases at the agent, without clock or socket.

pub mod lease;
