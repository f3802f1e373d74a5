//! The contract between a pure core and whoever hosts it: a service or the simulator.

/// What a step of a [`Machine`] asks its host to do. `then` waits until `append` is durable, so that
/// "durable, then answer" is a value and not a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effects<E, O> {
    /// Entries that must survive a crash, in order.
    pub append: Vec<E>,
    /// Messages, answers and observations, to be released once `append` is durable.
    pub then: Vec<O>,
}

impl<E, O> Default for Effects<E, O> {
    fn default() -> Self {
        Self { append: Vec::new(), then: Vec::new() }
    }
}

/// A pure core: takes events and a time, returns effects. It holds no clock, socket, task or random source.
pub trait Machine {
    /// Whose clock it is, as a type.
    type Time;
    /// Everything that can happen to it.
    type Input;
    /// What must survive a crash.
    type Entry;
    /// Messages, answers, observations.
    type Outgoing;

    /// Takes one event.
    fn step(&mut self, now: Self::Time, input: Self::Input) -> Effects<Self::Entry, Self::Outgoing>;

    /// When it wants to be stepped again although nothing happens.
    fn next_wakeup(&self) -> Option<Self::Time>;
}
