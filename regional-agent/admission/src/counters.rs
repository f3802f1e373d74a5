//! The counters of one agent: a bounded store in memory.
//!
//! It owns every regional counter and every fallback bucket, and never evicts a live one: a counter leaves when it
//! says nothing any more (a window that is over, a bucket that is full, no slot taken), because a missing counter
//! means just that. When nothing can leave, a new key finds no room, and its rule cannot be decided.

pub mod bucket;
pub mod key;
pub mod slots;
pub mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_protocol::bundle::{Algorithm, Bundle, Fallback, Rule};
use leasehold_protocol::{DecisionId, LedgerTime, LocalTime, WindowLength};

use self::bucket::{Bucket, BucketShape};
use self::key::{CounterKey, Purpose};
use self::slots::Slots;
use self::window::WindowCount;

/// How many due counters one request looks at, at most, to make room for a new one.
const SWEEP_MAX: usize = 32;

/// One counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Counter {
    /// A fixed window and its length.
    Window(WindowCount, WindowLength),
    /// A token bucket and its shape.
    Bucket(Bucket, BucketShape),
    /// Slots.
    Slots(Slots),
}

impl Counter {
    /// From when on the counter says nothing any more: an estimate that [`Counter::is_idle`] confirms.
    fn idle_from(&self, now: LocalTime, unix: LedgerTime) -> LocalTime {
        match self {
            Self::Window(count, _) => now.saturating_add_ms(count.window().end.ms_since(unix)),
            Self::Bucket(bucket, shape) => {
                now.saturating_add_ms(bucket.at(*shape, now).ms_until_full(*shape))
            }
            Self::Slots(slots) => slots.last_expiry().unwrap_or(now),
        }
    }

    fn is_idle(&self, now: LocalTime, unix: LedgerTime) -> bool {
        match self {
            Self::Window(count, _) => count.window().end <= unix,
            Self::Bucket(bucket, shape) => bucket.at(*shape, now).ms_until_full(*shape) == 0,
            Self::Slots(slots) => slots.last_expiry().is_none_or(|at| at <= now),
        }
    }
}

/// The shape of a rule's bucket for `purpose`, if it has one.
pub(crate) fn shape_of(rule: &Rule, purpose: Purpose) -> Option<BucketShape> {
    let shape = |capacity, refill_tokens, refill_ms| BucketShape { capacity, refill_tokens, refill_ms };
    match (purpose, rule.algorithm, rule.fallback) {
        (Purpose::Rule, Algorithm::TokenBucket { capacity, refill_tokens, refill_ms }, _)
        | (Purpose::Fallback, _, Fallback::Bucket { capacity, refill_tokens, refill_ms }) => {
            Some(shape(capacity, refill_tokens, refill_ms))
        }
        _ => None,
    }
}

#[derive(Debug)]
struct Stored {
    counter: Counter,
    /// Where it stands in `Counters::due`.
    due: (LocalTime, u64),
}

/// The store. Its size is counters plus slots, never above its bound.
#[derive(Debug)]
pub struct Counters {
    len_max: usize,
    stored: BTreeMap<Arc<CounterKey>, Stored>,
    /// Each counter once, by a time at which it is not expected to be idle before. Corrected when it comes up.
    due: BTreeMap<(LocalTime, u64), Arc<CounterKey>>,
    /// Which counters hold a decision's slots, so that a release needs no policy.
    slots: BTreeMap<DecisionId, Vec<Arc<CounterKey>>>,
    slots_len: usize,
    sequence: u64,
    refused: u64,
}

impl Counters {
    /// An empty store for at most `len_max` counters and slots together.
    pub fn new(len_max: usize) -> Self {
        Self {
            len_max,
            stored: BTreeMap::new(),
            due: BTreeMap::new(),
            slots: BTreeMap::new(),
            slots_len: 0,
            sequence: 0,
            refused: 0,
        }
    }

    /// Counters and slots in memory.
    pub fn len(&self) -> usize {
        self.stored.len() + self.slots_len
    }

    /// True if nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bound on [`Counters::len`].
    pub fn len_max(&self) -> usize {
        self.len_max
    }

    /// How often a new counter or slot found no room.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn get(&self, key: &CounterKey) -> Option<&Counter> {
        self.stored.get(key).map(|stored| &stored.counter)
    }

    /// Makes room for `wanted` more entries by dropping idle counters; says how much room there is, up to `wanted`.
    pub(crate) fn make_room(&mut self, now: LocalTime, unix: LedgerTime, wanted: usize) -> usize {
        if self.len().saturating_add(wanted) > self.len_max {
            self.sweep(now, unix, SWEEP_MAX);
        }
        self.len_max.saturating_sub(self.len()).min(wanted)
    }

    /// A new counter or slot found no room.
    pub(crate) fn note_refused(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    /// Drops idle counters, looking at `looks_max` that are due; says how many it dropped. For the host's timer, so
    /// that memory falls although no request comes.
    pub fn sweep(&mut self, now: LocalTime, unix: LedgerTime, looks_max: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..looks_max {
            let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= now) else { break };
            let key = entry.remove();
            self.expire_slots(&key, now);
            let Some(stored) = self.stored.get(&key) else { continue };
            if stored.counter.is_idle(now, unix) {
                self.stored.remove(&key);
                dropped += 1;
            } else {
                let later = stored.counter.idle_from(now, unix).max(LocalTime(now.0.saturating_add(1)));
                self.enqueue(&key, later);
            }
        }
        dropped
    }

    fn enqueue(&mut self, key: &Arc<CounterKey>, at: LocalTime) {
        self.sequence = self.sequence.saturating_add(1);
        let due = (at, self.sequence);
        if let Some(stored) = self.stored.get_mut(key) {
            stored.due = due;
            self.due.insert(due, Arc::clone(key));
        }
    }

    /// Stores a counter's new state. Room for a new one was made before.
    pub(crate) fn put(&mut self, key: CounterKey, counter: Counter, now: LocalTime, unix: LedgerTime) {
        if let Some(stored) = self.stored.get_mut(&key) {
            stored.counter = counter;
            return;
        }
        let idle_from = counter.idle_from(now, unix);
        let key = Arc::new(key);
        self.stored.insert(Arc::clone(&key), Stored { counter, due: (idle_from, 0) });
        self.enqueue(&key, idle_from);
    }

    /// Drops a key's expired slots.
    pub(crate) fn expire_slots(&mut self, key: &CounterKey, now: LocalTime) {
        let Some(Stored { counter: Counter::Slots(slots), .. }) = self.stored.get_mut(key) else { return };
        for id in slots.expire(now) {
            self.slots_len = self.slots_len.saturating_sub(1);
            forget_slot(&mut self.slots, &id, key);
        }
    }

    /// Takes a slot. Room for it was made before.
    pub(crate) fn take_slot(
        &mut self,
        key: &CounterKey,
        id: &DecisionId,
        expires: LocalTime,
        now: LocalTime,
        unix: LedgerTime,
    ) {
        if !self.stored.contains_key(key) {
            let mut slots = Slots::default();
            slots.take(id.clone(), expires);
            self.put(key.clone(), Counter::Slots(slots), now, unix);
        } else if let Some(Stored { counter: Counter::Slots(slots), .. }) = self.stored.get_mut(key) {
            slots.take(id.clone(), expires);
        }
        let Some((key, _)) = self.stored.get_key_value(key) else { return };
        let holding = self.slots.entry(id.clone()).or_default();
        if !holding.contains(key) {
            holding.push(Arc::clone(key));
            self.slots_len = self.slots_len.saturating_add(1);
        }
    }

    /// Gives back every slot of a decision: true if it held one until now. Needs no policy.
    pub fn release(&mut self, id: &DecisionId, now: LocalTime) -> bool {
        let mut held = false;
        for key in self.slots.remove(id).unwrap_or_default() {
            self.slots_len = self.slots_len.saturating_sub(1);
            let Some(stored) = self.stored.get_mut(&key) else { continue };
            let Counter::Slots(slots) = &mut stored.counter else { continue };
            held |= slots.release(id, now);
            if slots.in_flight() == 0 {
                self.due.remove(&stored.due);
                self.stored.remove(&key);
            }
        }
        held
    }

    /// Keeps every slot of a decision for its rule's `slot_ttl_ms` from `now`: true if it holds one. A slot whose
    /// time to live `ttl_ms_of` does not know is not kept.
    pub fn heartbeat(
        &mut self,
        id: &DecisionId,
        now: LocalTime,
        ttl_ms_of: impl Fn(&CounterKey) -> Option<u64>,
    ) -> bool {
        let mut held = false;
        for key in self.slots.get(id).into_iter().flatten() {
            let Some(Stored { counter: Counter::Slots(slots), .. }) = self.stored.get_mut(key) else {
                continue;
            };
            let Some(ttl_ms) = ttl_ms_of(key) else { continue };
            held |= slots.keep(id, now, now.saturating_add_ms(ttl_ms));
        }
        held
    }

    /// Takes the counters over to another bundle: those stay whose rule still has that id, key and kind of
    /// algorithm. Levels are kept up to a new capacity, never refilled; used tokens and slots stay.
    pub fn migrate(&mut self, to: &Bundle, now: LocalTime, unix: LedgerTime) {
        let all = std::mem::take(&mut self.stored);
        self.due.clear();
        for (key, Stored { counter, .. }) in all {
            match to
                .rule(&key.rule)
                .filter(|rule| key.fits(rule))
                .and_then(|rule| migrated(&counter, rule, key.purpose, now, unix))
            {
                Some(counter) => {
                    let idle_from = counter.idle_from(now, unix);
                    self.stored.insert(Arc::clone(&key), Stored { counter, due: (idle_from, 0) });
                    self.enqueue(&key, idle_from);
                }
                None => {
                    if let Counter::Slots(slots) = counter {
                        for id in slots.holders() {
                            self.slots_len = self.slots_len.saturating_sub(1);
                            forget_slot(&mut self.slots, id, &key);
                        }
                    }
                }
            }
        }
    }
}

fn forget_slot(slots: &mut BTreeMap<DecisionId, Vec<Arc<CounterKey>>>, id: &DecisionId, key: &CounterKey) {
    if let Some(holding) = slots.get_mut(id) {
        holding.retain(|held| held.as_ref() != key);
        if holding.is_empty() {
            slots.remove(id);
        }
    }
}

/// The counter as `rule` would count on with it, or `None` where it means something else now.
fn migrated(
    counter: &Counter,
    rule: &Rule,
    purpose: Purpose,
    now: LocalTime,
    unix: LedgerTime,
) -> Option<Counter> {
    use leasehold_protocol::bundle::Enforcement;
    let regional = rule.enforcement == Enforcement::Regional;
    match (counter, rule.algorithm) {
        (Counter::Bucket(bucket, old), _) => {
            let new = shape_of(rule, purpose)?;
            let kept = if *old == new { *bucket } else { bucket.reshaped(*old, new, now) };
            Some(Counter::Bucket(kept, new))
        }
        (Counter::Window(count, old), Algorithm::FixedWindow { window_ms, .. }) if regional => {
            Some(Counter::Window(count.resized(*old, window_ms, unix), window_ms))
        }
        (Counter::Slots(slots), Algorithm::Concurrency { .. }) => Some(Counter::Slots(slots.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_protocol::{RuleId, Tokens};

    const SHAPE: BucketShape =
        BucketShape { capacity: Tokens(20), refill_tokens: Tokens(2), refill_ms: 1_000 };

    fn key(name: &str) -> CounterKey {
        CounterKey {
            rule: RuleId::new("P-READ").unwrap(),
            purpose: Purpose::Rule,
            tenant: None,
            principal: Some(name.into()),
            source: None,
        }
    }

    fn ms(ms: u64) -> LocalTime {
        LocalTime::from_ms(ms)
    }

    fn spend(counters: &mut Counters, name: &str, now: LocalTime) -> bool {
        let key = key(name);
        if counters.get(&key).is_none() && counters.make_room(now, LedgerTime(0), 1) == 0 {
            counters.note_refused();
            return false;
        }
        let bucket = match counters.get(&key) {
            Some(Counter::Bucket(bucket, _)) => bucket.at(SHAPE, now),
            _ => Bucket::full(SHAPE, now),
        };
        let after = bucket.take(SHAPE, Tokens(1)).unwrap();
        counters.put(key, Counter::Bucket(after, SHAPE), now, LedgerTime(0));
        true
    }

    #[test]
    fn at_the_bound_a_new_key_finds_no_room_until_a_counter_says_nothing_any_more() {
        let mut counters = Counters::new(3);
        for name in ["a", "b", "c"] {
            assert!(spend(&mut counters, name, ms(0)));
        }
        assert!(spend(&mut counters, "c", ms(300)), "a known key needs no room");
        assert!(!spend(&mut counters, "d", ms(499)));
        assert_eq!((counters.len(), counters.refused()), (3, 1));
        assert!(spend(&mut counters, "d", ms(500)), "a and b are full again");
        assert_eq!(counters.len(), 2, "c and d: both full buckets left");
        assert!(counters.get(&key("c")).is_some(), "a live counter is never evicted");
    }

    #[test]
    fn more_keys_than_room_leave_memory_at_its_bound() {
        let mut counters = Counters::new(100);
        let mut now = 0;
        for n in 0..20_000_u64 {
            now += u64::from(n % 7 == 0);
            spend(&mut counters, &n.to_string(), ms(now));
            assert!(counters.len() <= 100);
        }
        assert!(counters.refused() > 0);
        assert_eq!(counters.due.len(), counters.stored.len());
        counters.sweep(ms(now + 500), LedgerTime(0), 1_000);
        assert!(counters.is_empty());
    }

    #[test]
    fn slots_count_towards_the_bound_and_leave_nothing_behind() {
        let mut counters = Counters::new(10);
        let id = |n: u32| DecisionId::new(format!("d-{n}")).unwrap();
        for n in 0..3 {
            counters.take_slot(&key("a"), &id(n), ms(1_000), ms(0), LedgerTime(0));
        }
        counters.take_slot(&key("b"), &id(0), ms(1_000), ms(0), LedgerTime(0));
        assert_eq!(counters.len(), 2 + 4);
        assert!(counters.release(&id(0), ms(1)), "both slots of the decision");
        assert!(!counters.release(&id(0), ms(1)));
        assert_eq!(counters.len(), 1 + 2);
        assert!(counters.heartbeat(&id(1), ms(900), |_| Some(1_000)));
        counters.sweep(ms(1_000), LedgerTime(0), 10);
        assert_eq!(counters.len(), 1 + 1, "the one with a heartbeat stays");
        counters.sweep(ms(1_900), LedgerTime(0), 10);
        assert!(counters.is_empty() && counters.slots.is_empty() && counters.due.is_empty());
    }
}
