//! The counters of one agent: a bounded store in memory.
//!
//! It owns every regional counter and every fallback bucket, and never evicts a live one: a counter leaves when it
//! says nothing any more (a window that is over, a bucket that is full, no slot taken), because a missing counter
//! means just that. When nothing can leave, a new key finds no room, and its rule cannot be decided. Keys that name a
//! source find room in half of it only: addresses cost a stranger nothing, and must not crowd out known tenants (D8).

pub mod bucket;
pub mod key;
pub mod slots;
pub mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_protocol::bundle::{Algorithm, Bundle, Enforcement, Fallback, Rule};
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
            Self::Window(count, _) => now.saturating_add_ms(count.lasts_ms(unix, now)),
            Self::Bucket(bucket, shape) => {
                now.saturating_add_ms(bucket.at(*shape, now).ms_until_full(*shape))
            }
            Self::Slots(slots) => slots.last_expiry().unwrap_or(now),
        }
    }

    fn is_idle(&self, now: LocalTime, unix: LedgerTime) -> bool {
        match self {
            Self::Window(count, _) => count.is_over(unix, now),
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

/// How many new entries find room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    any: usize,
    sourced: usize,
}

impl Room {
    /// Takes room for `n` entries of `key`; false if there is not as much, and then nothing is taken.
    pub(crate) fn take(&mut self, key: &CounterKey, n: usize) -> bool {
        let sourced = if key.source.is_some() { n } else { 0 };
        let (Some(any), Some(rest)) = (self.any.checked_sub(n), self.sourced.checked_sub(sourced)) else {
            return false;
        };
        *self = Self { any, sourced: rest };
        true
    }
}

/// The store. Its size is counters plus slots, never above its bound.
#[derive(Debug)]
pub struct Counters {
    len_max: usize,
    /// Counters and slots whose key names a source.
    sourced: usize,
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
            sourced: 0,
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

    /// Makes room for `wanted` more entries by dropping idle counters; says how much room there is.
    pub(crate) fn make_room(&mut self, now: LocalTime, unix: LedgerTime, wanted: usize) -> Room {
        let room = self.room();
        if room.any.min(room.sourced) < wanted {
            self.sweep(now, unix, SWEEP_MAX);
        }
        self.room()
    }

    fn room(&self) -> Room {
        let sourced_max = self.len_max.div_ceil(2);
        Room {
            any: self.len_max.saturating_sub(self.len()),
            sourced: sourced_max.saturating_sub(self.sourced),
        }
    }

    /// `n` entries of `key` came.
    fn count_in(&mut self, key: &CounterKey, n: usize) {
        self.sourced = self.sourced.saturating_add(if key.source.is_some() { n } else { 0 });
    }

    /// `n` entries of `key` left.
    fn count_out(&mut self, key: &CounterKey, n: usize) {
        self.sourced = self.sourced.saturating_sub(if key.source.is_some() { n } else { 0 });
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
                self.count_out(&key, 1);
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
        self.count_in(&key, 1);
        let key = Arc::new(key);
        self.stored.insert(Arc::clone(&key), Stored { counter, due: (idle_from, 0) });
        self.enqueue(&key, idle_from);
    }

    /// Drops a key's expired slots.
    pub(crate) fn expire_slots(&mut self, key: &CounterKey, now: LocalTime) {
        let Some(Stored { counter: Counter::Slots(slots), .. }) = self.stored.get_mut(key) else { return };
        let gone = slots.expire(now);
        self.slots_len = self.slots_len.saturating_sub(gone.len());
        self.count_out(key, gone.len());
        for id in gone {
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
        let Some((stored_key, _)) = self.stored.get_key_value(key) else { return };
        let holding = self.slots.entry(id.clone()).or_default();
        if !holding.contains(stored_key) {
            holding.push(Arc::clone(stored_key));
            self.slots_len = self.slots_len.saturating_add(1);
            self.count_in(key, 1);
        }
    }

    /// Gives back every slot of a decision: true if it held one until now. Needs no policy.
    pub fn release(&mut self, id: &DecisionId, now: LocalTime) -> bool {
        let mut held = false;
        for key in self.slots.remove(id).unwrap_or_default() {
            self.slots_len = self.slots_len.saturating_sub(1);
            self.count_out(&key, 1);
            let Some(stored) = self.stored.get_mut(&key) else { continue };
            let Counter::Slots(slots) = &mut stored.counter else { continue };
            held |= slots.release(id, now);
            if slots.in_flight() == 0 {
                self.remove(&key);
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
    /// algorithm. Levels are kept up to a new capacity, never refilled; used tokens and slots stay. In place, since
    /// requests wait meanwhile: what does not change is only looked at.
    pub fn migrate(&mut self, to: &Bundle, now: LocalTime, unix: LedgerTime) {
        let mut gone = Vec::new();
        let mut moved = Vec::new();
        let mut rule: Option<&Rule> = None;
        for (key, stored) in &mut self.stored {
            // Keys are sorted by rule.
            if rule.is_none_or(|rule| rule.id != key.rule) {
                rule = to.rule(&key.rule);
            }
            let Some(rule) = rule.filter(|rule| key.fits(rule)) else {
                gone.push(Arc::clone(key));
                continue;
            };
            match migrated(&stored.counter, rule, key.purpose, now, unix) {
                Migrated::Kept => {}
                Migrated::Changed(counter) => {
                    moved.push((Arc::clone(key), stored.due, counter.idle_from(now, unix)));
                    stored.counter = counter;
                }
                Migrated::Gone => gone.push(Arc::clone(key)),
            }
        }
        for (key, due, idle_from) in moved {
            self.due.remove(&due);
            self.enqueue(&key, idle_from);
        }
        for key in gone {
            self.remove(&key);
        }
    }

    /// Removes a counter, with its slots if it has any.
    fn remove(&mut self, key: &CounterKey) {
        let Some(stored) = self.stored.remove(key) else { return };
        self.due.remove(&stored.due);
        let mut entries = 1;
        if let Counter::Slots(slots) = &stored.counter {
            entries += slots.in_flight();
            self.slots_len = self.slots_len.saturating_sub(slots.in_flight());
            for id in slots.holders() {
                forget_slot(&mut self.slots, id, key);
            }
        }
        self.count_out(key, entries);
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

/// What becomes of a counter under another bundle.
enum Migrated {
    /// It counts on as it is.
    Kept,
    /// It counts on like this.
    Changed(Counter),
    /// It means something else now.
    Gone,
}

fn migrated(counter: &Counter, rule: &Rule, purpose: Purpose, now: LocalTime, unix: LedgerTime) -> Migrated {
    let is_regional = rule.enforcement == Enforcement::Regional;
    match (counter, rule.algorithm) {
        (Counter::Bucket(bucket, old), _) => match shape_of(rule, purpose) {
            None => Migrated::Gone,
            Some(new) if new == *old => Migrated::Kept,
            Some(new) => Migrated::Changed(Counter::Bucket(bucket.reshaped(*old, new, now), new)),
        },
        (Counter::Window(count, old), Algorithm::FixedWindow { window_ms, .. }) if is_regional => {
            if *old == window_ms {
                Migrated::Kept
            } else {
                let resized = count.resized(*old, window_ms, unix, now);
                Migrated::Changed(Counter::Window(resized, window_ms))
            }
        }
        (Counter::Slots(_), Algorithm::Concurrency { .. }) => Migrated::Kept,
        _ => Migrated::Gone,
    }
}

#[cfg(test)]
mod tests;
