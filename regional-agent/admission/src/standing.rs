//! How one rule stands towards one request: read, never written.

use leasehold_protocol::admit::LimitState;
use leasehold_protocol::bundle::{Algorithm, Enforcement, Limit, Rule};
use leasehold_protocol::{LedgerTime, LocalTime, PoolKey, RuleId, Tokens, Window, WindowLength};

use crate::counters::bucket::Bucket;
use crate::counters::key::{CounterKey, Purpose};
use crate::counters::window::WindowCount;
use crate::counters::{Counter, Counters, Room, shape_of};
use crate::lease::{Availability, LeaseManager};
use crate::policy::ActivePolicy;
use crate::request::Request;
use crate::verdict::Condition;

/// The wait that a refusal for want of a slot names, in ms. It clears when some holder finishes, which nobody can
/// compute, so this is policy (D18).
pub const SLOT_RETRY_MS: u64 = 1_000;
/// The wait that a refusal names while tokens may still come back to the pool, in ms.
pub const SOFT_RETRY_MS: u64 = 1_000;
/// The largest share of a window, and the longest time in ms, by which a wait until its end is spread.
const SPREAD_SHARE: u64 = 10;
const SPREAD_MAX_MS: u64 = 5_000;
/// No wait is named that is longer, in ms: the longest window.
const RETRY_MAX_MS: u64 = 86_400_000;

/// What admitting the request would write for this rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    /// Nothing.
    None,
    /// A counter's new state.
    Put(CounterKey, Counter),
    /// A slot until its expiry.
    Slot(CounterKey, LocalTime),
    /// Tokens of a pool.
    Spend(PoolKey),
}

/// How a rule stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    /// It passes; what would be written, and what would be left then.
    Pass { write: Write, remaining: Tokens, reset_after_ms: Option<u64> },
    /// It refuses.
    Deny { retry_after_ms: u64, spread_ms: u64 },
    /// Its tokens may come in a moment.
    Pending,
    /// It cannot be decided.
    Undecided(Condition),
}

impl Standing {
    fn deny(retry_after_ms: u64, spread_ms: u64) -> Self {
        Self::Deny { retry_after_ms: retry_after_ms.min(RETRY_MAX_MS), spread_ms }
    }
}

/// A rule and how it stands. `state` is as before the request; `None` where no limit applies.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) rule: RuleId,
    pub(crate) standing: Standing,
    pub(crate) state: Option<LimitState>,
    /// The pool, for a leased rule with a limit.
    pub(crate) pool: Option<PoolKey>,
}

/// Reads rules. `room` is what there is for new counters and slots.
pub(crate) struct Reader<'a> {
    pub(crate) now: LocalTime,
    pub(crate) unix: LedgerTime,
    pub(crate) policy: &'a ActivePolicy,
    pub(crate) request: &'a Request,
    pub(crate) counters: &'a Counters,
    pub(crate) leases: &'a LeaseManager,
    pub(crate) room: Room,
    pub(crate) refused: u64,
}

impl Reader<'_> {
    /// How `rule` stands.
    pub(crate) fn judge(&mut self, rule: &Rule) -> Judged {
        let judged = |standing, state| Judged { rule: rule.id.clone(), standing, state, pool: None };
        let tenant = self.request.identity().tenant.as_ref();
        let Some(key) = CounterKey::of(rule, Purpose::Rule, self.request.identity()) else {
            // Parsing saw to it that every key has its parts.
            return judged(Standing::Undecided(Condition::UnknownPool), None);
        };
        // A bucket has a capacity and a refill instead of a limit.
        let Some(limit) = self.policy.bundle().limit_value_at(rule, tenant, self.unix) else {
            let (standing, state) = self.bucket(rule, key);
            return judged(standing, state);
        };
        match (rule.algorithm, rule.enforcement) {
            (Algorithm::FixedWindow { window_ms, .. }, Enforcement::Leased) => {
                self.leased(rule, tenant.filter(|_| !rule.key.is_empty()).cloned(), limit, window_ms)
            }
            (Algorithm::FixedWindow { window_ms, .. }, Enforcement::Regional) => {
                let (standing, state) = self.window(rule, key, limit, window_ms);
                judged(standing, state)
            }
            (Algorithm::TokenBucket { .. }, _) => {
                let (standing, state) = self.bucket(rule, key);
                judged(standing, state)
            }
            (Algorithm::Concurrency { slot_ttl_ms, .. }, _) => {
                let (standing, state) = self.slots(rule, key, limit, slot_ttl_ms);
                judged(standing, state)
            }
        }
    }

    /// How the local stand-in of `rule` stands (D16). `None` where it has none that could ever pay the cost.
    pub(crate) fn judge_fallback(&mut self, rule: &Rule) -> Option<Standing> {
        let key = CounterKey::of(rule, Purpose::Fallback, self.request.identity())?;
        let shape = shape_of(rule, Purpose::Fallback).filter(|s| self.request.cost() <= s.capacity)?;
        Some(self.draw(key, shape).0)
    }

    /// True if there is room for `n` more entries of `key`.
    fn reserve(&mut self, key: &CounterKey, n: usize) -> bool {
        let has_room = self.room.take(key, n);
        self.refused = self.refused.saturating_add(u64::from(!has_room));
        has_room
    }

    fn window(
        &mut self,
        rule: &Rule,
        key: CounterKey,
        limit: Limit,
        length: WindowLength,
    ) -> (Standing, Option<LimitState>) {
        let stored = match self.counters.get(&key) {
            Some(Counter::Window(count, _)) => Some(count.at(length, self.unix, self.now)),
            _ => None,
        };
        let count = stored.unwrap_or_else(|| WindowCount::empty(length, self.unix, self.now));
        let end_ms = count.ms_until_end(self.unix, self.now);
        let state = |limit: Tokens, used: Tokens| LimitState {
            rule: rule.id.clone(),
            limit,
            remaining: limit.saturating_sub(used),
            window_s: Some(length.as_ms() / 1_000),
            reset_after_ms: Some(end_ms),
            window_start: None,
        };
        let cost = self.request.cost();
        let tokens = match limit {
            Limit::Blocked => {
                return (
                    Standing::deny(end_ms, spread_ms(length.as_ms())),
                    Some(state(Tokens::ZERO, Tokens::ZERO)),
                );
            }
            Limit::Unlimited => {
                let write = if stored.is_some() || self.reserve(&key, 1) {
                    Write::Put(key, Counter::Window(count.count(cost), length))
                } else {
                    Write::None
                };
                return (Standing::Pass { write, remaining: Tokens::MAX, reset_after_ms: None }, None);
            }
            Limit::Limited { tokens } => tokens,
        };
        let standing = match count.take(tokens, cost, self.unix, self.now) {
            Err(wait) => Standing::deny(wait, spread_ms(length.as_ms())),
            Ok(_) if stored.is_none() && !self.reserve(&key, 1) => {
                Standing::Undecided(Condition::CountersFull)
            }
            Ok(after) => Standing::Pass {
                write: Write::Put(key, Counter::Window(after, length)),
                remaining: tokens.saturating_sub(after.used()),
                reset_after_ms: Some(end_ms),
            },
        };
        (standing, Some(state(tokens, count.used())))
    }

    fn bucket(&mut self, rule: &Rule, key: CounterKey) -> (Standing, Option<LimitState>) {
        let Some(shape) = shape_of(rule, Purpose::Rule) else {
            return (Standing::Undecided(Condition::UnknownPool), None);
        };
        let (standing, bucket) = self.draw(key, shape);
        let state = LimitState {
            rule: rule.id.clone(),
            limit: shape.capacity,
            remaining: bucket.tokens(),
            window_s: Some(shape.ms_to_fill().div_ceil(1_000)),
            reset_after_ms: Some(bucket.ms_until_full(shape)),
            window_start: None,
        };
        (standing, Some(state))
    }

    fn draw(&mut self, key: CounterKey, shape: crate::counters::bucket::BucketShape) -> (Standing, Bucket) {
        let stored = match self.counters.get(&key) {
            Some(Counter::Bucket(bucket, _)) => Some(bucket.at(shape, self.now)),
            _ => None,
        };
        let bucket = stored.unwrap_or_else(|| Bucket::full(shape, self.now));
        let standing = match bucket.take(shape, self.request.cost()) {
            Err(wait) => Standing::deny(wait, (wait / SPREAD_SHARE).clamp(100, SPREAD_MAX_MS)),
            Ok(_) if stored.is_none() && !self.reserve(&key, 1) => {
                Standing::Undecided(Condition::CountersFull)
            }
            Ok(after) => Standing::Pass {
                write: Write::Put(key, Counter::Bucket(after, shape)),
                remaining: after.tokens(),
                reset_after_ms: Some(after.ms_until_full(shape)),
            },
        };
        (standing, bucket)
    }

    fn slots(
        &mut self,
        rule: &Rule,
        key: CounterKey,
        limit: Limit,
        slot_ttl_ms: u64,
    ) -> (Standing, Option<LimitState>) {
        let (stored, in_flight) = match self.counters.get(&key) {
            Some(Counter::Slots(slots)) => (true, slots.in_flight_at(self.now)),
            _ => (false, 0),
        };
        let in_flight = Tokens(u64::try_from(in_flight).unwrap_or(u64::MAX));
        let expires = self.now.saturating_add_ms(slot_ttl_ms);
        let entries = if stored { 1 } else { 2 };
        let state = |limit: Tokens| LimitState {
            rule: rule.id.clone(),
            limit,
            remaining: limit.saturating_sub(in_flight),
            window_s: None,
            reset_after_ms: None,
            window_start: None,
        };
        match limit {
            Limit::Blocked => (Standing::deny(SLOT_RETRY_MS, SLOT_RETRY_MS), Some(state(Tokens::ZERO))),
            Limit::Unlimited => {
                let write = if self.reserve(&key, entries) { Write::Slot(key, expires) } else { Write::None };
                (Standing::Pass { write, remaining: Tokens::MAX, reset_after_ms: None }, None)
            }
            Limit::Limited { tokens } if in_flight >= tokens => {
                (Standing::deny(SLOT_RETRY_MS, SLOT_RETRY_MS), Some(state(tokens)))
            }
            Limit::Limited { tokens } if !self.reserve(&key, entries) => {
                (Standing::Undecided(Condition::CountersFull), Some(state(tokens)))
            }
            Limit::Limited { tokens } => {
                let remaining = tokens.saturating_sub(in_flight).saturating_sub(Tokens(1));
                let pass =
                    Standing::Pass { write: Write::Slot(key, expires), remaining, reset_after_ms: None };
                (pass, Some(state(tokens)))
            }
        }
    }

    fn leased(
        &mut self,
        rule: &Rule,
        tenant: Option<leasehold_protocol::TenantId>,
        limit: Limit,
        length: WindowLength,
    ) -> Judged {
        let state = |limit: Tokens, remaining: Tokens, reset: Option<u64>, window: Option<Window>| {
            Some(LimitState {
                rule: rule.id.clone(),
                limit,
                remaining,
                window_s: Some(length.as_ms() / 1_000),
                reset_after_ms: reset,
                window_start: window.map(|w| w.start.to_rfc3339()),
            })
        };
        // By the wall clock, so an estimate: a hint, never a decision.
        let end_ms = Window::containing(self.unix, length).end.ms_since(self.unix);
        let spread = spread_ms(length.as_ms());
        let judged = |standing, state, pool| Judged { rule: rule.id.clone(), standing, state, pool };
        let tokens = match limit {
            Limit::Blocked => {
                let state = state(Tokens::ZERO, Tokens::ZERO, Some(end_ms), None);
                return judged(Standing::deny(end_ms, spread), state, None);
            }
            Limit::Unlimited => {
                let pass =
                    Standing::Pass { write: Write::None, remaining: Tokens::MAX, reset_after_ms: None };
                return judged(pass, None, None);
            }
            Limit::Limited { tokens } => tokens,
        };
        let pool = PoolKey { rule: rule.id.clone(), tenant };
        let cost = self.request.cost();
        let (standing, state) = match self.leases.availability(self.now, &pool, cost) {
            Availability::Enough { remaining, window, limit, usable_until } => {
                let reset = if length.as_ms() > leasehold_protocol::lease::SESSION_MS_MAX {
                    window.end.ms_since(self.unix)
                } else {
                    usable_until.ms_since(self.now)
                };
                let pass = Standing::Pass {
                    write: Write::Spend(pool.clone()),
                    remaining: remaining.saturating_sub(cost),
                    reset_after_ms: Some(reset),
                };
                (pass, state(limit, remaining, Some(reset), Some(window)))
            }
            Availability::Exhausted { retry_after_ms, window, limit, held, last_word } => {
                let deny = if last_word {
                    Standing::deny(retry_after_ms, spread)
                } else {
                    Standing::deny(retry_after_ms.min(SOFT_RETRY_MS), SOFT_RETRY_MS)
                };
                (deny, state(limit, held, Some(retry_after_ms), Some(window)))
            }
            Availability::Pending { held, limit } => {
                (Standing::Pending, state(limit.unwrap_or(tokens), held, None, None))
            }
            Availability::Lost { held } => {
                (Standing::Undecided(Condition::AllocatorLost), state(tokens, held, None, None))
            }
            Availability::UnknownPool => {
                (Standing::Undecided(Condition::UnknownPool), state(tokens, Tokens::ZERO, None, None))
            }
        };
        judged(standing, state, Some(pool))
    }
}

/// By how much a wait for the end of a window of `length_ms` is spread, in ms.
fn spread_ms(length_ms: u64) -> u64 {
    (length_ms / SPREAD_SHARE).min(SPREAD_MAX_MS)
}
