//! The bound on memory, and that nothing is forgotten or left behind.

use leasehold_protocol::bundle::KeyPart;
use leasehold_protocol::{RuleId, Tokens};
use proptest::prelude::*;

use super::*;
use crate::source::SourceKey;

const SHAPE: BucketShape = BucketShape { capacity: Tokens(20), refill_tokens: Tokens(2), refill_ms: 1_000 };

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
    if counters.get(&key).is_none() && !counters.make_room(now, LedgerTime(0), 1).take(&key, 1) {
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

/// The same rule's key for an address.
fn from_source(n: u32) -> CounterKey {
    CounterKey { source: Some(SourceKey::V4(n.into())), principal: None, ..key("") }
}

#[test]
fn addresses_find_room_in_half_of_the_store_and_known_callers_in_the_rest() {
    let mut counters = Counters::new(10);
    let put = |counters: &mut Counters, key: CounterKey| {
        let has_room = counters.make_room(ms(0), LedgerTime(0), 1).take(&key, 1);
        if has_room {
            let used = Bucket::full(SHAPE, ms(0)).take(SHAPE, Tokens(1)).unwrap();
            counters.put(key, Counter::Bucket(used, SHAPE), ms(0), LedgerTime(0));
        }
        has_room
    };
    let addresses = (0..100).filter(|n| put(&mut counters, from_source(*n))).count();
    let users = (0..100).filter(|n| put(&mut counters, key(&format!("u-{n}")))).count();
    assert_eq!((addresses, users), (5, 5));
    counters.sweep(ms(500), LedgerTime(0), 100);
    let users = (0..100).filter(|n| put(&mut counters, key(&format!("u-{n}")))).count();
    assert_eq!(users, 10, "what addresses do not use is everybody's");
}

/// One thing that happens to a store.
#[derive(Debug, Clone)]
enum Step {
    Spend(u8, bool),
    Take(u8, u8, bool),
    Release(u8),
    Keep(u8),
    Sweep,
    Migrate { keeps_rule: bool, refill: u64 },
    PassMs(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..6, any::<bool>()).prop_map(|(k, s)| Step::Spend(k, s)),
        4 => (0_u8..8, 0_u8..3, any::<bool>()).prop_map(|(d, k, s)| Step::Take(d, k, s)),
        2 => (0_u8..8).prop_map(Step::Release),
        1 => (0_u8..8).prop_map(Step::Keep),
        1 => Just(Step::Sweep),
        1 => (any::<bool>(), 1_u64..4).prop_map(|(keeps_rule, refill)| Step::Migrate { keeps_rule, refill }),
        3 => (0_u64..900).prop_map(Step::PassMs),
    ]
}

/// A bundle whose two rules, slots and buckets, are keyed by tenant and by source, or by neither.
fn bundle(keeps_rule: bool, refill: u64) -> Bundle {
    let mut bundle = crate::tests::northstar();
    for rule in &mut bundle.rules {
        rule.key = if keeps_rule { vec![KeyPart::Source] } else { vec![] };
        if let Algorithm::TokenBucket { refill_tokens, .. } = &mut rule.algorithm {
            *refill_tokens = Tokens(refill);
        }
    }
    bundle
}

fn either(rule: &str, n: u8, sourced: bool) -> CounterKey {
    let source = sourced.then(|| SourceKey::V4(u32::from(n).into()));
    CounterKey { rule: RuleId::new(rule).unwrap(), principal: None, source, ..key("") }
}

proptest! {
    #[test]
    fn the_books_of_the_store_agree_with_what_is_in_it(steps in prop::collection::vec(step(), 1..120)) {
        let mut counters = Counters::new(12);
        let mut now = 0;
        let id = |n: u8| DecisionId::new(format!("d-{n}")).unwrap();
        for step in steps {
            let at = ms(now);
            match step {
                Step::Spend(n, sourced) => {
                    let key = either("P-READ", n, sourced);
                    let room = counters.make_room(at, LedgerTime(now), 1).take(&key, 1);
                    if room || counters.get(&key).is_some() {
                        let used = Bucket::full(SHAPE, at).take(SHAPE, Tokens(1)).unwrap();
                        counters.put(key, Counter::Bucket(used, SHAPE), at, LedgerTime(now));
                    }
                }
                Step::Take(d, n, sourced) => {
                    let key = either("P-EXPORT", n, sourced);
                    if counters.make_room(at, LedgerTime(now), 2).take(&key, 2) {
                        counters.expire_slots(&key, at);
                        counters.take_slot(&key, &id(d), ms(now + 1_000), at, LedgerTime(now));
                    }
                }
                Step::Release(d) => {
                    counters.release(&id(d), at);
                    prop_assert!(!counters.release(&id(d), at));
                }
                Step::Keep(d) => {
                    counters.heartbeat(&id(d), at, |_| Some(1_000));
                }
                Step::Sweep => {
                    counters.sweep(at, LedgerTime(now), 50);
                }
                Step::Migrate { keeps_rule, refill } => {
                    counters.migrate(&bundle(keeps_rule, refill), at, LedgerTime(now));
                }
                Step::PassMs(ms) => now += ms,
            }
            let slots_of = |stored: &Stored| match &stored.counter {
                Counter::Slots(slots) => slots.in_flight(),
                _ => 0,
            };
            let entries = counters.stored.iter().map(|(key, stored)| (key.source.is_some(), 1 + slots_of(stored)));
            let (sourced, others): (Vec<_>, Vec<_>) = entries.partition(|(sourced, _)| *sourced);
            let sum = |entries: Vec<(bool, usize)>| entries.into_iter().map(|(_, n)| n).sum::<usize>();
            let (sourced, others) = (sum(sourced), sum(others));
            prop_assert_eq!((counters.sourced, counters.len()), (sourced, sourced + others));
            prop_assert!(sourced <= 6 && sourced + others <= 12);
            prop_assert_eq!(counters.due.len(), counters.stored.len());
            for (key, stored) in &counters.stored {
                prop_assert_eq!(counters.due.get(&stored.due), Some(key));
            }
            let held: usize = counters.slots.values().map(Vec::len).sum();
            prop_assert_eq!(held, counters.slots_len);
        }
        counters.sweep(ms(now + 86_400_000), LedgerTime(now + 86_400_000), 100);
        prop_assert!(counters.is_empty() && counters.due.is_empty() && counters.slots.is_empty());
    }
}
