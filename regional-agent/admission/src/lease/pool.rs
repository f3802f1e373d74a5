//! One pool at the agent: its windows, its demand, and what to ask the allocator for.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::lease::{Acquire, AcquireOutcome, Lease, Settle, WindowChoice};
use leasehold_protocol::{LedgerTime, LocalTime, PoolKey, Tokens, Window};

use super::LeaseSettings;
use super::demand::Demand;
use super::held::HeldWindow;

/// Acquires of one pool in flight at once (ALGORITHM.md, 4.5).
const IN_FLIGHT_MAX: usize = 4;
/// Windows kept: the current one, the next, and past ones whose last report is not confirmed.
const WINDOWS_MAX: usize = 4;

/// The allocator's word that a window's pool is empty.
#[derive(Debug, Clone)]
pub(crate) struct Exhausted {
    pub(crate) window: Window,
    /// When the window is over, by a perfect clock.
    pub(crate) until: LocalTime,
    /// Nothing can come back before then.
    pub(crate) last_word: bool,
    /// When to ask again, in case somebody gave tokens back.
    poll_at: LocalTime,
}

/// One acquire that has not been answered.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    need: Tokens,
    next: bool,
}

/// What a pool knows and wants.
#[derive(Debug, Default)]
pub(crate) struct PoolLease {
    pub(crate) windows: BTreeMap<LedgerTime, HeldWindow>,
    pub(crate) exhausted: Option<Exhausted>,
    /// Until when the allocator's "no such pool" is believed.
    pub(crate) unknown_until: Option<LocalTime>,
    /// Until when the allocator grants nothing because it cannot place itself in time.
    pub(crate) uncertain_until: Option<LocalTime>,
    /// The key under which the manager will look at this pool again.
    pub(crate) wake: Option<LocalTime>,
    demand: Demand,
    waiting: Tokens,
    in_flight: BTreeMap<u64, InFlight>,
    seq: u64,
    /// The window for whose successor tokens were asked.
    next_asked: Option<LedgerTime>,
    extend_asked: LocalTime,
    ask_after: LocalTime,
    /// The same for acquires that no request waits for.
    prefetch_after: LocalTime,
    report_after: LocalTime,
}

/// What a pool wants to send now, and when to look again.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) acquires: Vec<Acquire>,
    pub(crate) settles: Vec<Settle>,
    pub(crate) wake: Option<LocalTime>,
}

impl PoolLease {
    /// Nothing held. Numbers go on from this machine's clock in µs, so that a pool that was
    /// forgotten and asked for again never repeats one.
    pub(crate) fn new(now: LocalTime) -> Self {
        Self { seq: now.0 / 1_000, ..Self::default() }
    }

    /// Notes a request, admitted or not. True if the pool should be looked at now.
    pub(crate) fn demand(&mut self, now: LocalTime, cost: Tokens, low_ms: u64) -> bool {
        self.demand.note(now, cost);
        let held = self.usable(now).map_or(Tokens::ZERO, HeldWindow::held);
        let low = held < cost || held <= self.low_water(now, low_ms);
        let may_ask = self.in_flight.is_empty() && self.may_poll(now) && self.prefetch_after <= now;
        (low && may_ask) || self.wake.is_none()
    }

    /// A request starts to wait.
    pub(crate) fn wait(&mut self, cost: Tokens) {
        self.waiting = self.waiting.saturating_add(cost);
    }

    /// A request waits no longer.
    pub(crate) fn stop_waiting(&mut self, cost: Tokens) {
        self.waiting = self.waiting.saturating_sub(cost);
    }

    /// The lease that may be spent at `now`. When the drift margins of two windows overlap, the older one.
    pub(crate) fn usable(&self, now: LocalTime) -> Option<&HeldWindow> {
        self.windows.values().find(|w| w.is_usable(now))
    }

    /// Spends out of the lease that may be spent at `now`.
    pub(crate) fn spend(&mut self, now: LocalTime, cost: Tokens) -> bool {
        self.windows.values_mut().find(|w| w.is_usable(now)).is_some_and(|w| w.spend(now, cost))
    }

    /// The word that the pool is empty, while its window lasts.
    pub(crate) fn exhausted_at(&self, now: LocalTime) -> Option<&Exhausted> {
        self.exhausted.as_ref().filter(|e| now < e.until)
    }

    /// Takes the answer to acquire `seq` in. True if tokens or words came that waiting requests should hear of.
    pub(crate) fn answered(
        &mut self,
        sent: LocalTime,
        now: LocalTime,
        seq: u64,
        outcome: &AcquireOutcome,
        settings: &LeaseSettings,
    ) -> bool {
        let asked = self.in_flight.remove(&seq);
        self.unknown_until = None;
        self.uncertain_until = None;
        match outcome {
            AcquireOutcome::Lease(lease) => {
                self.take_lease(sent, now, lease, asked, settings);
                true
            }
            AcquireOutcome::UnknownPool => {
                self.unknown_until = Some(now.saturating_add_ms(settings.unknown_retry_ms));
                self.ask_after = now.saturating_add_ms(settings.unknown_retry_ms);
                true
            }
            AcquireOutcome::ClockUncertain { retry_ms } => {
                let wait = (*retry_ms).clamp(50, settings.uncertain_retry_ms.max(50));
                self.uncertain_until = Some(now.saturating_add_ms(wait.saturating_mul(2)));
                self.ask_after = now.saturating_add_ms(wait);
                true
            }
            // The manager has stopped: it has no pools any more.
            AcquireOutcome::StaleIncarnation { .. } => false,
        }
    }

    /// Forgets an acquire whose frame was given up. If it was granted after all, the next answer's total says so.
    pub(crate) fn gave_up(&mut self, seq: u64) {
        if self.in_flight.remove(&seq).is_some_and(|asked| asked.next) {
            self.next_asked = None;
        }
    }

    /// Notes that the allocator has a settle.
    pub(crate) fn confirm(&mut self, settle: &Settle) {
        if let Some(window) = self.windows.get_mut(&settle.window_start) {
            window.confirm(settle);
        }
    }

    /// Gives back all that is held, and wants nothing until somebody asks again.
    pub(crate) fn give_back(&mut self) {
        self.demand = Demand::default();
        for window in self.windows.values_mut() {
            window.give_back();
        }
        self.report_after = LocalTime(0);
    }

    /// Reports again at `at`: the last report failed, or went another way.
    pub(crate) fn report_at(&mut self, at: LocalTime) {
        self.report_after = at;
    }

    /// True if nothing is held, wanted or left to report.
    pub(crate) fn is_idle(&self, now: LocalTime, key: &PoolKey) -> bool {
        self.in_flight.is_empty()
            && self.waiting.is_zero()
            && self.demand.idle_ms(now).is_none_or(|ms| ms > 60_000)
            && self.windows.values().all(|w| w.has_lapsed(now) && w.report(key).is_none())
    }

    /// What to send now. `asking` is false once the agent drains: then only reports leave.
    pub(crate) fn wish(
        &mut self,
        now: LocalTime,
        key: &PoolKey,
        s: &LeaseSettings,
        rtt_ms: u64,
        asking: bool,
    ) -> Wish {
        self.forget_past(now, key);
        self.return_if_idle(now, s);
        let mut wish = Wish::default();
        if asking {
            self.current_wish(now, key, s, rtt_ms, &mut wish);
            self.next_wish(now, key, s, &mut wish);
        }
        self.report_wish(now, key, s, &mut wish);
        wish.wake = self.next_look(now, key, s, rtt_ms);
        wish
    }

    fn take_lease(
        &mut self,
        sent: LocalTime,
        now: LocalTime,
        lease: &Lease,
        asked: Option<InFlight>,
        s: &LeaseSettings,
    ) {
        let over = lease.expires_in_ms == 0;
        if over && !self.windows.contains_key(&lease.window.start) {
            // The window ended on the way: ask again for the one that holds now.
            return;
        }
        let held = self.windows.entry(lease.window.start).or_insert_with(|| HeldWindow::new(lease, now));
        let newest = held.version;
        let before = held.held();
        held.take(lease, sent, now, s.drift_ppm);
        let got = held.held().saturating_sub(before);
        let about = held.ends_about();
        // Words count only from an answer newer than the last (ALGORITHM.md: a reordered pair "empty", "ok" starved
        // a region while tokens sat in the pool). Tokens were credited above, whatever the order.
        if lease.version <= newest || lease.starts_in_ms > 0 {
            return;
        }
        let short = asked.is_some_and(|a| got < a.need);
        if lease.remaining.is_zero() && !over {
            self.exhausted = Some(Exhausted {
                window: lease.window,
                until: about,
                last_word: lease.outstanding.is_zero(),
                poll_at: now.saturating_add_ms(s.exhausted_poll_ms),
            });
        } else {
            self.exhausted = None;
            if got.is_zero() {
                // Too little is left to lend ahead of need.
                self.prefetch_after = now.saturating_add_ms(s.ask_gap_ms);
            }
            if short {
                // Something is left, but less than what waits needs: do not ask in a tight loop.
                self.ask_after = now.saturating_add_ms(s.ask_gap_ms);
            }
        }
    }

    fn low_water(&mut self, now: LocalTime, low_ms: u64) -> Tokens {
        let rate = u128::from(self.demand.rate_per_s(now));
        Tokens(u64::try_from((rate * u128::from(low_ms)).div_ceil(1_000)).unwrap_or(u64::MAX))
    }

    /// What the forecast asks for over `horizon_ms`, a wish to the allocator and nothing else.
    fn forecast(&mut self, now: LocalTime, horizon_ms: u64) -> u64 {
        let rate = u128::from(self.demand.rate_per_s(now));
        u64::try_from((rate * u128::from(horizon_ms)).div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    fn may_poll(&self, now: LocalTime) -> bool {
        self.exhausted_at(now).is_none_or(|e| !e.last_word && e.poll_at <= now)
    }

    fn current_wish(
        &mut self,
        now: LocalTime,
        key: &PoolKey,
        s: &LeaseSettings,
        rtt_ms: u64,
        wish: &mut Wish,
    ) {
        if now < self.ask_after || !self.may_poll(now) {
            return;
        }
        let usable = self.usable(now);
        let held = usable.map_or(Tokens::ZERO, HeldWindow::held);
        let left_ms = usable.map_or(s.horizon_ms, |w| w.usable_until().ms_since(now));
        let extend = usable
            .filter(|w| !w.held().is_zero())
            .and_then(|w| w.extend_at(extend_lead_ms(rtt_ms)))
            .is_some_and(|at| at <= now && self.extend_asked < at);
        let asked =
            self.in_flight.values().filter(|a| !a.next).fold(Tokens::ZERO, |n, a| n.saturating_add(a.need));
        let asking = self.in_flight.values().filter(|a| !a.next).count();
        let need = self.waiting.saturating_sub(held).saturating_sub(asked);
        let is_wanted = self.demand.idle_ms(now).is_some_and(|ms| ms < s.idle_return_ms);
        let low = is_wanted
            && now >= self.prefetch_after
            && self.demand.rate_per_s(now) > 0
            && held <= self.low_water(now, low_water_ms(rtt_ms));
        let fire = if asking == 0 {
            !need.is_zero() || low || extend
        } else {
            asking < IN_FLIGHT_MAX && !need.is_zero()
        };
        if !fire {
            return;
        }
        let horizon = s.horizon_ms.min(left_ms.max(1));
        let forecast = if low || !need.is_zero() { self.forecast(now, horizon) } else { 0 };
        let want = Tokens(forecast).saturating_sub(held).max(need);
        if extend {
            self.extend_asked = now;
        }
        if self.exhausted_at(now).is_some()
            && let Some(word) = &mut self.exhausted
        {
            word.poll_at = now.saturating_add_ms(s.exhausted_poll_ms);
        }
        wish.acquires.push(self.acquire(key, WindowChoice::Current, need, want));
    }

    /// Asks for the next window's tokens while the current one still runs, so that its first request need not wait.
    fn next_wish(&mut self, now: LocalTime, key: &PoolKey, s: &LeaseSettings, wish: &mut Wish) {
        let Some((start, length_ms, ends)) = self
            .usable(now)
            .and_then(|w| w.window_ends_about().map(|ends| (w.window.start, w.window.length_ms(), ends)))
        else {
            return;
        };
        let lead = s.next_lead_ms.min(length_ms / 2);
        if self.next_asked == Some(start)
            || ends.ms_since(now) > lead
            || self.in_flight.len() >= IN_FLIGHT_MAX
        {
            return;
        }
        let want = self.forecast(now, s.horizon_ms.min(length_ms));
        if want == 0 {
            return;
        }
        self.next_asked = Some(start);
        wish.acquires.push(self.acquire(key, WindowChoice::Next, Tokens::ZERO, Tokens(want)));
    }

    fn acquire(&mut self, key: &PoolKey, window: WindowChoice, need: Tokens, want: Tokens) -> Acquire {
        self.seq = self.seq.saturating_add(1);
        self.in_flight.insert(self.seq, InFlight { need, next: window == WindowChoice::Next });
        let (need, want) = (need.min(Tokens::MAX), want.min(Tokens::MAX));
        Acquire { pool: key.clone(), window, seq: self.seq, need, want }
    }

    fn report_wish(&mut self, now: LocalTime, key: &PoolKey, s: &LeaseSettings, wish: &mut Wish) {
        let due = now >= self.report_after;
        // An acquire travels anyway, so the report rides along.
        if due || !wish.acquires.is_empty() {
            wish.settles.extend(self.windows.values().filter_map(|w| w.report(key)));
            if !wish.settles.is_empty() {
                self.report_after = now.saturating_add_ms(s.report_ms);
            }
        }
    }

    fn return_if_idle(&mut self, now: LocalTime, s: &LeaseSettings) {
        let idle = self.demand.idle_ms(now).is_none_or(|ms| ms >= s.idle_return_ms);
        if idle && self.waiting.is_zero() {
            let mut back = Tokens::ZERO;
            for window in self.windows.values_mut().filter(|w| !w.has_lapsed(now)) {
                back = back.saturating_add(window.give_back());
            }
            if !back.is_zero() {
                self.report_after = now;
            }
        }
    }

    /// Drops windows that lapsed and are reported, and the oldest beyond the bound: what they did not report counts
    /// as spent at the allocator.
    ///
    /// A lapsed window need not be over, and an answer may bring it back. Therefore only what is reported is dropped,
    /// and nothing while an acquire is on its way: the answer to a later one says what was reported, an earlier one
    /// does not. The oldest of more than [`WINDOWS_MAX`] is over, since the allocator has opened the one after the
    /// next.
    fn forget_past(&mut self, now: LocalTime, key: &PoolKey) {
        let is_quiet = self.in_flight.is_empty();
        self.windows.retain(|_, w| {
            if w.has_lapsed(now) {
                w.forfeit();
            }
            !(is_quiet && w.has_lapsed(now) && now >= w.ends_about() && w.report(key).is_none())
        });
        while self.windows.len() > WINDOWS_MAX {
            self.windows.pop_first();
        }
        if self.exhausted_at(now).is_none() {
            self.exhausted = None;
        }
    }

    fn next_look(
        &mut self,
        now: LocalTime,
        key: &PoolKey,
        s: &LeaseSettings,
        rtt_ms: u64,
    ) -> Option<LocalTime> {
        let mut looks = BTreeSet::new();
        for window in self.windows.values() {
            looks.insert(window.usable_from());
            looks.insert(window.usable_until());
            looks.insert(window.ends_about());
            looks.extend(window.extend_at(extend_lead_ms(rtt_ms)));
            if let Some(ends) = window.window_ends_about() {
                let lead = s.next_lead_ms.min(window.window.length_ms() / 2);
                looks.insert(LocalTime(ends.0.saturating_sub(lead.saturating_mul(1_000_000))));
            }
            if window.report(key).is_some() {
                looks.insert(self.report_after);
            }
            if !window.held().is_zero() && self.waiting.is_zero() {
                let idle = self.demand.idle_ms(now).unwrap_or(0);
                looks.insert(now.saturating_add_ms(s.idle_return_ms.saturating_sub(idle).max(1)));
            }
        }
        if !self.waiting.is_zero() && self.in_flight.is_empty() {
            looks.insert(self.ask_after);
        }
        if let Some(word) = &self.exhausted {
            looks.insert(word.until);
            if !word.last_word {
                looks.insert(word.poll_at);
            }
        }
        looks.into_iter().find(|at| *at > now && *at < LocalTime(u64::MAX))
    }
}

/// A prefetch starts when what is held lasts for no longer than this: one and a half round trips and a little.
pub(crate) fn low_water_ms(rtt_ms: u64) -> u64 {
    rtt_ms.saturating_mul(3) / 2 + 20
}

fn extend_lead_ms(rtt_ms: u64) -> u64 {
    rtt_ms.saturating_mul(2) + 20
}
