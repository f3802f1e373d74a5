//! Three replicas in one process, over real HTTP and real disks.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod cluster;
mod faults;
mod grants;
mod input;
mod policy;
