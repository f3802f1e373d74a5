//! Claims about whole decisions, by the requirement's own policies and numbers.

mod fail_modes;
mod laws;
mod policies;
mod rules;
mod world;
