//! Policy source, its compiler, and a bundle's way to release.
