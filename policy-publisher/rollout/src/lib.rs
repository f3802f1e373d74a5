//! Policy source, its compiler, and a bundle's way to release.
//!
//! Pure: it takes sources, versions and times and returns bundles, words and effects. It parses no text, signs
//! nothing, reads no clock and performs no I/O; the publisher does.

pub mod compile;
pub mod diff;
pub mod rollout;
pub mod source;

pub use compile::{CompileError, compile, has_same_content};
pub use diff::{Comparison, compare};
pub use rollout::{Release, Rollout};
pub use source::Source;
