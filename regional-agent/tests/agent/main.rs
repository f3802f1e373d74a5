//! Whole agents over real HTTP, against the wire contracts of allocator and publisher.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod decisions;
mod outages;
mod peers;
mod policies;
mod surface;
