//! The replicated ledger: a deterministic state machine of pools and leases.
