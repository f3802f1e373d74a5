//! The policy publisher: compiles, signs and distributes bundles.
