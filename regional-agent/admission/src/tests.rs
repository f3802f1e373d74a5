//! Claims about whole decisions, by the requirement's own policies and numbers.

mod bounds;
mod fail_modes;
mod laws;
mod policies;
mod rules;
mod world;

pub(crate) use world::northstar;
