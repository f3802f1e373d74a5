//! Concurrency slots (D18): so much at once.
//!
//! State: one entry a slot, by decision id, with its expiry. Bound: never more slots than the limit. Error: none
//! upwards; a slot whose holder crashed stays taken until it expires, so up to the limit for `slot_ttl_ms`.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{DecisionId, LocalTime};

/// The slots of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slots {
    expiry: BTreeMap<DecisionId, LocalTime>,
    by_expiry: BTreeSet<(LocalTime, DecisionId)>,
}

impl Slots {
    /// Drops the slots that have expired at `now` and says whose they were.
    pub fn expire(&mut self, now: LocalTime) -> Vec<DecisionId> {
        let mut gone = Vec::new();
        while let Some((at, _)) = self.by_expiry.first()
            && *at <= now
            && let Some((_, id)) = self.by_expiry.pop_first()
        {
            self.expiry.remove(&id);
            gone.push(id);
        }
        gone
    }

    /// Slots taken. Call [`Slots::expire`] first.
    pub fn in_flight(&self) -> usize {
        self.expiry.len()
    }

    /// Slots taken and not expired at `now`.
    pub fn in_flight_at(&self, now: LocalTime) -> usize {
        let expired = self.by_expiry.iter().take_while(|(at, _)| *at <= now).count();
        self.expiry.len().saturating_sub(expired)
    }

    /// Takes a slot for `id` until `expires`, or moves its expiry if it has one.
    pub fn take(&mut self, id: DecisionId, expires: LocalTime) {
        if let Some(old) = self.expiry.insert(id.clone(), expires) {
            self.by_expiry.remove(&(old, id.clone()));
        }
        self.by_expiry.insert((expires, id));
    }

    /// Moves the expiry of a slot that is held at `now`; false if it is not.
    pub fn keep(&mut self, id: &DecisionId, now: LocalTime, expires: LocalTime) -> bool {
        let held = self.expiry.get(id).is_some_and(|at| *at > now);
        if held {
            self.take(id.clone(), expires);
        }
        held
    }

    /// Gives a slot back; false if it was not held at `now` (again, or after its expiry: nothing changes).
    pub fn release(&mut self, id: &DecisionId, now: LocalTime) -> bool {
        match self.expiry.remove(id) {
            Some(at) => {
                self.by_expiry.remove(&(at, id.clone()));
                at > now
            }
            None => false,
        }
    }

    /// When the last slot will have expired; `None` if none is taken.
    pub fn last_expiry(&self) -> Option<LocalTime> {
        self.by_expiry.last().map(|(at, _)| *at)
    }

    /// Whose slots they are.
    pub fn holders(&self) -> impl Iterator<Item = &DecisionId> {
        self.expiry.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> DecisionId {
        DecisionId::new(format!("d-{n}")).unwrap()
    }

    fn ms(ms: u64) -> LocalTime {
        LocalTime::from_ms(ms)
    }

    #[test]
    fn a_slot_comes_back_by_release_once_and_by_expiry_without_one() {
        let mut slots = Slots::default();
        for n in 0..3 {
            slots.take(id(n), ms(60_000));
        }
        assert_eq!(slots.in_flight(), 3);
        assert!(slots.release(&id(1), ms(10)));
        assert!(!slots.release(&id(1), ms(10)), "a second release changes nothing");
        assert_eq!(slots.in_flight(), 2);
        assert_eq!(slots.expire(ms(59_999)), []);
        assert_eq!(slots.expire(ms(60_000)), [id(0), id(2)]);
        assert!(!slots.release(&id(0), ms(60_000)), "a release after expiry changes nothing");
        assert_eq!((slots.in_flight(), slots.last_expiry()), (0, None));
    }

    #[test]
    fn a_heartbeat_keeps_a_held_slot_and_does_not_revive_an_expired_one() {
        let mut slots = Slots::default();
        slots.take(id(1), ms(100));
        assert!(slots.keep(&id(1), ms(99), ms(199)));
        assert_eq!(slots.expire(ms(150)), []);
        assert!(!slots.keep(&id(1), ms(199), ms(299)));
        assert_eq!(slots.expire(ms(199)), [id(1)]);
    }

    #[test]
    fn taking_twice_for_one_decision_is_one_slot() {
        let mut slots = Slots::default();
        slots.take(id(1), ms(100));
        slots.take(id(1), ms(200));
        assert_eq!(
            (slots.in_flight(), slots.in_flight_at(ms(150)), slots.last_expiry()),
            (1, 1, Some(ms(200)))
        );
    }
}
