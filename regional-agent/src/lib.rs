//! The regional agent: spends leases locally, answers gateways.
