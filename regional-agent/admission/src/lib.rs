//! Admission and leases at the agent, without clock or socket.
