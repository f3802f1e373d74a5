//! Tests of the whole: the house's shape, its dependencies, the command line, and everything running together.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod architecture;
mod dependencies;
mod dev;
mod docs;
mod e2e;
mod metadata;
mod product;
