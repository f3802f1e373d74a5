//! Client of the agent for gateways and services written in Rust.
