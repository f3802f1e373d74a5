//! Deterministic simulation of the pure cores under faults.
