//! The allocator: Raft replicas that own every pool.
