//! One pool at the agent: its windows, its demand, and what to ask the allocator for (ALGORITHM.md, 4.3).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::demand::{Horizons, real, seconds, whole};
use leasehold_protocol::lease::{Acquire, AcquireOutcome, Lease, Settle, WindowChoice};
use leasehold_protocol::{LedgerTime, LocalTime, PoolKey, Tokens, Window};

use super::LeaseSettings;
use super::held::HeldWindow;
use super::signals::{Phase, Signals};

/// Acquires of one pool in flight at once, unless a burst comes.
const IN_FLIGHT_MAX: usize = 4;
/// The same while a burst comes: each of the further ones asks for as much as all before it, so that these are enough
/// for a thousand times the first.
const IN_FLIGHT_BURST_MAX: usize = 14;
/// Windows kept: the current one, the next, and past ones whose last report is not confirmed.
const WINDOWS_MAX: usize = 4;
/// How often surplus is looked for while tokens are scarce, in ms.
const SURPLUS_MS: u64 = 100;
/// The part of what is held that must be surplus to be worth a return.
const SURPLUS_PART: f64 = 0.25;
/// A pool that is asked for less than this many tokens a window, or a minute if that is shorter, and whose window's start
/// takes less than [`BOUNDARY_MIN`], is not asked for ahead of the window.
const AHEAD_MIN: f64 = 12.0;
/// See [`AHEAD_MIN`].
const BOUNDARY_MIN: f64 = 1.5;
/// How much more than the last start took is asked for the next one.
const BOUNDARY_PART: f64 = 1.1;
/// Agents and pools ask for the next window over this long, in ms at most.
const SPREAD_MS: u64 = 190;
/// A pool that nobody asked for during this long, in ms, is forgotten.
const FORGET_MS: u64 = 60_000;

/// The allocator's word that a window's pool had less than was needed.
#[derive(Debug, Clone)]
pub(crate) struct Exhausted {
    pub(crate) window: Window,
    /// When the window is over, by a perfect clock.
    pub(crate) until: LocalTime,
    /// Nothing can come back before then.
    pub(crate) last_word: bool,
    /// Until then requests are held all the same: what was recalled may arrive.
    held_until: LocalTime,
    /// When to ask again, in case a push was lost.
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
    exhausted: Option<Exhausted>,
    /// Until when the allocator's "no such pool" is believed.
    pub(crate) unknown_until: Option<LocalTime>,
    /// Until when the allocator grants nothing because it cannot place itself in time.
    pub(crate) uncertain_until: Option<LocalTime>,
    /// The key under which the manager will look at this pool again.
    pub(crate) wake: Option<LocalTime>,
    signals: Signals,
    /// The window's length as the last answer told it, in ms; 0 before the first.
    length_ms: u64,
    /// Costs of waiting requests, and how many wait with each.
    waiters: BTreeMap<Tokens, u64>,
    waiting: Tokens,
    /// The cost of a request that was refused while nothing was on its way: where none is held, the next one's need.
    missed: Tokens,
    /// Somebody asked since the last look: only then is anything asked for ahead of need.
    is_touched: bool,
    in_flight: BTreeMap<u64, InFlight>,
    seq: u64,
    /// The window for whose successor tokens were asked.
    next_asked: Option<LedgerTime>,
    extend_asked: LocalTime,
    ask_after: LocalTime,
    report_after: LocalTime,
    surplus_after: LocalTime,
    /// Sets this pool's asking ahead apart from others', in ms.
    spread_ms: u64,
}

/// What a pool wants to send now, and when to look again.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) acquires: Vec<Acquire>,
    pub(crate) settles: Vec<Settle>,
    pub(crate) wake: Option<LocalTime>,
}

/// What a look at a pool goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) now: LocalTime,
    pub(crate) settings: &'a LeaseSettings,
    /// The usual round trip to the allocator, in ms.
    pub(crate) rtt_ms: u64,
    /// False once the agent drains: then only reports leave.
    pub(crate) is_asking: bool,
}

impl PoolLease {
    /// Nothing held. Numbers go on from this machine's clock in µs, so that a pool that was
    /// forgotten and asked for again never repeats one.
    pub(crate) fn new(now: LocalTime, spread: u64) -> Self {
        Self { seq: now.0 / 1_000, spread_ms: spread % (SPREAD_MS + 1), ..Self::default() }
    }

    fn spans(&self) -> Horizons {
        Horizons::of(if self.length_ms == 0 { 60_000 } else { self.length_ms })
    }

    /// Where in its window `now` lies, as far as known.
    fn phase(&self, now: LocalTime) -> Option<Phase> {
        let length_ns = self.length_ms.saturating_mul(1_000_000);
        self.windows.values().find_map(|w| {
            let began = LocalTime(w.window_ends_about()?.0.saturating_sub(length_ns));
            let is_now = began <= now && now.0 < began.0.saturating_add(length_ns);
            is_now.then_some(Phase { start: w.window.start, began })
        })
    }

    /// Notes a request, admitted or not. True if the pool should be looked at now.
    pub(crate) fn demand(&mut self, now: LocalTime, cost: Tokens, rtt_ms: u64) -> bool {
        self.signals.note(now, cost, self.phase(now), self.spans());
        self.is_touched = true;
        let usable = self.usable(now);
        let held = usable.map_or(Tokens::ZERO, HeldWindow::held);
        let is_direct = usable.is_some_and(|w| w.supply.direct);
        let is_low = held < cost || (!is_direct && real(held.0) <= self.signals.low_water(rtt_ms));
        (is_low && self.in_flight.is_empty() && now >= self.ask_after && self.may_poll(now))
            || self.wake.is_none()
    }

    /// A request was refused for want of this pool's tokens.
    pub(crate) fn refused(&mut self, now: LocalTime, cost: Tokens) {
        if let Some(window) = self.windows.values_mut().find(|w| w.is_usable(now)) {
            window.deny(cost);
        }
        if self.in_flight.is_empty() && self.waiters.is_empty() {
            self.missed = cost.min(Tokens::MAX);
        }
    }

    /// A request starts to wait.
    pub(crate) fn wait(&mut self, cost: Tokens) {
        let count = self.waiters.entry(cost).or_default();
        *count = count.saturating_add(1);
        self.waiting = self.waiting.saturating_add(cost);
    }

    /// A request waits no longer.
    pub(crate) fn stop_waiting(&mut self, cost: Tokens) {
        let Some(count) = self.waiters.get_mut(&cost) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.waiters.remove(&cost);
        }
        self.waiting = self.waiters.iter().fold(Tokens::ZERO, |sum, (cost, count)| {
            sum.saturating_add(Tokens(cost.0.saturating_mul(*count)))
        });
    }

    /// The lease that may be spent at `now`. When the drift margins of two windows overlap, the older one.
    pub(crate) fn usable(&self, now: LocalTime) -> Option<&HeldWindow> {
        self.windows.values().find(|w| w.is_usable(now))
    }

    /// Spends out of the lease that may be spent at `now`.
    pub(crate) fn spend(&mut self, now: LocalTime, cost: Tokens) -> bool {
        self.windows.values_mut().find(|w| w.is_usable(now)).is_some_and(|w| w.spend(now, cost))
    }

    /// The word that the pool is short, while its window lasts and nothing recalled is expected any moment.
    pub(crate) fn exhausted_at(&self, now: LocalTime) -> Option<&Exhausted> {
        self.exhausted.as_ref().filter(|e| e.held_until <= now && now < e.until)
    }

    /// Policy changed: what was said of the pool may hold no longer.
    pub(crate) fn policy_changed(&mut self) {
        self.exhausted = None;
        self.unknown_until = None;
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
                self.take_lease(sent, now, lease, settings);
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
                if asked.is_some_and(|asked| asked.next) {
                    self.next_asked = None;
                }
                true
            }
            // The manager has stopped: it has no pools any more.
            AcquireOutcome::StaleIncarnation { .. } => false,
        }
    }

    /// Takes in what the allocator said unasked. True if waiting requests should hear of it.
    pub(crate) fn pushed(&mut self, now: LocalTime, lease: &Lease, settings: &LeaseSettings) -> bool {
        // Without an answer before it nobody knows how long the lease lives; the next answer brings the total.
        let Some(held) = self.windows.get_mut(&lease.window.start) else { return false };
        held.credit(lease, now);
        let is_direct = held.supply.direct;
        self.take_words(now, lease, settings);
        if let Some(held) = self.windows.get_mut(&lease.window.start) {
            held.supply.direct = is_direct;
        }
        true
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
        self.signals = Signals::default();
        self.is_touched = false;
        self.missed = Tokens::ZERO;
        for window in self.windows.values_mut() {
            window.give_back();
        }
        self.report_after = LocalTime(0);
    }

    /// Reports again at `at`: the last report failed, or went another way.
    pub(crate) fn report_at(&mut self, at: LocalTime) {
        self.report_after = at;
    }

    /// Everything to report now, at once: the agent stops.
    pub(crate) fn last_report(&mut self, key: &PoolKey) -> Vec<Settle> {
        let demand = self.signals.demand();
        self.windows.values().filter_map(|w| w.report(key, demand)).collect()
    }

    /// True if nothing is held, wanted or left to report.
    pub(crate) fn is_idle(&self, now: LocalTime) -> bool {
        self.in_flight.is_empty()
            && self.waiters.is_empty()
            && self.signals.idle_ms(now).is_none_or(|ms| ms > FORGET_MS)
            && self.windows.values().all(|w| w.has_lapsed(now) && w.is_reported())
    }

    /// What to send now.
    pub(crate) fn wish(&mut self, look: Look<'_>, key: &PoolKey) -> Wish {
        let now = look.now;
        self.signals.pass(now, self.spans());
        self.forget_past(now);
        self.return_surplus(look);
        let mut wish = Wish::default();
        if look.is_asking {
            self.current_wish(look, key, &mut wish);
            self.next_wish(look, key, &mut wish);
        }
        self.is_touched = false;
        self.report_wish(look, key, &mut wish);
        wish.wake = self.next_look(look);
        wish
    }

    fn take_lease(&mut self, sent: LocalTime, now: LocalTime, lease: &Lease, s: &LeaseSettings) {
        if lease.starts_in_ms > 0
            && let Some(current) = self.windows.values_mut().find(|w| w.window.end == lease.window.start)
        {
            current.ends_before_next(sent, lease.starts_in_ms, s.drift_ppm);
        }
        if lease.expires_in_ms == 0 && !self.windows.contains_key(&lease.window.start) {
            // The window ended on the way: ask again for the one that holds now.
            return;
        }
        let held = self.windows.entry(lease.window.start).or_insert_with(|| HeldWindow::new(lease, now));
        held.take(lease, sent, now, s.drift_ppm);
        if lease.starts_in_ms > 0 {
            return;
        }
        self.length_ms = lease.window.length_ms();
        if let Some(phase) = self.phase(now) {
            self.signals.place(phase, Horizons::of(self.length_ms));
        }
        self.take_words(now, lease, s);
    }

    /// Words count only from what is newer than the last (ALGORITHM.md: a reordered pair "empty", "ok" starved a
    /// region while tokens sat in the pool). Tokens are credited before, whatever the order.
    fn take_words(&mut self, now: LocalTime, lease: &Lease, s: &LeaseSettings) {
        let Some(held) = self.windows.get_mut(&lease.window.start) else { return };
        if lease.version <= held.version {
            return;
        }
        held.version = lease.version;
        held.limit = lease.limit;
        held.supply = lease.supply;
        let until = held.ends_about();
        if lease.supply.scarce {
            self.surplus_after = self.surplus_after.min(now);
        }
        let last_word = lease.remaining.is_zero() && lease.outstanding.is_zero();
        if now >= until || !(lease.supply.short || last_word) {
            self.exhausted = None;
            return;
        }
        let was_short = self.exhausted.as_ref().is_some_and(|e| now < e.until && !e.last_word);
        let recall_ms = if last_word || was_short { 0 } else { s.recall_ms };
        self.exhausted = Some(Exhausted {
            window: lease.window,
            until,
            last_word,
            held_until: now.saturating_add_ms(recall_ms),
            poll_at: now.saturating_add_ms(self.poll_ms(s)),
        });
    }

    /// Half to one and a half times the setting, by this pool's last number.
    fn poll_ms(&self, s: &LeaseSettings) -> u64 {
        let draw = self.seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (s.poll_ms / 2).saturating_add(draw.checked_rem(s.poll_ms).unwrap_or(0))
    }

    /// True unless the pool is known to be short and it is not time to ask again.
    fn may_poll(&self, now: LocalTime) -> bool {
        let word = self.exhausted.as_ref().filter(|e| now < e.until);
        word.is_none_or(|e| !e.last_word && e.poll_at <= now)
    }

    /// Tokens that are asked for and not answered, and how many acquires that is.
    fn asked(&self) -> (Tokens, usize) {
        let current = self.in_flight.values().filter(|asked| !asked.next);
        current.fold((Tokens::ZERO, 0), |(sum, n), asked| (sum.saturating_add(asked.need), n + 1))
    }

    fn current_wish(&mut self, look: Look<'_>, key: &PoolKey, wish: &mut Wish) {
        let now = look.now;
        let usable = self.usable(now);
        let held = usable.map_or(Tokens::ZERO, HeldWindow::held);
        let is_direct = usable.is_some_and(|w| w.supply.direct);
        let extend = usable
            .filter(|w| !w.held().is_zero())
            .and_then(HeldWindow::extend_at)
            .is_some_and(|at| at <= now && self.extend_asked < at);
        if extend && now >= self.ask_after && self.in_flight.len() < IN_FLIGHT_MAX {
            self.extend_asked = now;
            let extension = self.acquire(key, WindowChoice::Current, Tokens::ZERO);
            wish.acquires.push(Acquire { extend_only: true, ..extension });
        }
        if now < self.ask_after || !self.may_poll(now) {
            return;
        }
        let (asked, asking) = self.asked();
        let mut need = self.waiting.saturating_sub(held).saturating_sub(asked);
        if asking == 0 && need.is_zero() && self.is_touched {
            need = self.missed.saturating_sub(held);
        }
        let is_low = self.is_touched && !is_direct && real(held.0) <= self.signals.low_water(look.rtt_ms);
        let fire = match asking {
            0 => !need.is_zero() || is_low,
            1..IN_FLIGHT_MAX => !need.is_zero(),
            _ => asking < IN_FLIGHT_BURST_MAX && need >= asked,
        };
        if !fire {
            return;
        }
        self.missed = Tokens::ZERO;
        let poll_ms = self.poll_ms(look.settings);
        if let Some(word) = &mut self.exhausted {
            word.poll_at = now.saturating_add_ms(poll_ms);
        }
        let smallest = self.waiters.keys().next().copied().unwrap_or(need);
        let least = smallest.saturating_sub(held).max(Tokens(1)).min(need);
        let acquire = self.acquire(key, WindowChoice::Current, need);
        wish.acquires.push(Acquire { least: least.min(Tokens::MAX), ..acquire });
    }

    /// Asks for the next window's tokens while the current one still runs, so that its first request need not wait.
    fn next_wish(&mut self, look: Look<'_>, key: &PoolKey, wish: &mut Wish) {
        let Some((start, ask_at)) = self.ask_next_at(look.now) else { return };
        let spans = self.spans();
        let is_worth = self.signals.sustained() * spans.window.min(60.0) >= AHEAD_MIN
            || self.signals.boundary() >= BOUNDARY_MIN;
        if self.next_asked == Some(start)
            || look.now < ask_at
            || look.now < self.ask_after
            || !is_worth
            || self.in_flight.len() >= IN_FLIGHT_MAX
        {
            return;
        }
        self.next_asked = Some(start);
        let boundary = Tokens(whole((self.signals.boundary() * BOUNDARY_PART).ceil())).min(Tokens::MAX);
        let acquire = self.acquire(key, WindowChoice::Next, Tokens::ZERO);
        wish.acquires.push(Acquire { boundary, ..acquire });
    }

    /// When to ask for the successor of the window that may be spent at `now`.
    fn ask_next_at(&self, now: LocalTime) -> Option<(LedgerTime, LocalTime)> {
        let usable = self.usable(now)?;
        let ends = usable.window_ends_about()?;
        let lead_ms = whole(self.spans().lead * 1_000.0);
        let lead_ms = lead_ms.saturating_add(self.spread_ms.min(lead_ms / 10));
        Some((usable.window.start, LocalTime(ends.0.saturating_sub(lead_ms.saturating_mul(1_000_000)))))
    }

    fn acquire(&mut self, key: &PoolKey, window: WindowChoice, need: Tokens) -> Acquire {
        self.seq = self.seq.saturating_add(1);
        self.in_flight.insert(self.seq, InFlight { need, next: window == WindowChoice::Next });
        Acquire {
            pool: key.clone(),
            window,
            seq: self.seq,
            need: need.min(Tokens::MAX),
            least: Tokens::ZERO,
            boundary: Tokens::ZERO,
            demand: self.signals.demand(),
            extend_only: false,
        }
    }

    fn report_wish(&mut self, look: Look<'_>, key: &PoolKey, wish: &mut Wish) {
        // An acquire travels anyway, so the report rides along.
        if look.now >= self.report_after || !wish.acquires.is_empty() {
            let demand = self.signals.demand();
            wish.settles.extend(self.windows.values().filter_map(|w| w.report(key, demand)));
            if !wish.settles.is_empty() {
                self.report_after = look.now.saturating_add_ms(self.report_ms(look.settings));
            }
        }
    }

    /// When a change at `now` is to be reported at the latest.
    pub(crate) fn report_due(&self, now: LocalTime, s: &LeaseSettings) -> LocalTime {
        now.saturating_add_ms(self.report_ms(s))
    }

    fn report_ms(&self, s: &LeaseSettings) -> u64 {
        if self.length_ms == 0 { s.report_ms } else { s.report_ms.min(self.length_ms / 2) }
    }

    /// While tokens are scarce: gives back what will not be needed soon; in the window's last seconds to the last
    /// token. Not in trickles, and not when it would arrive after the end.
    fn return_surplus(&mut self, look: Look<'_>) {
        let now = look.now;
        if now < self.surplus_after || !self.waiters.is_empty() {
            return;
        }
        let spans = self.spans();
        let steady = self.signals.sustained();
        let Some(window) = self.windows.values_mut().find(|w| w.is_usable(now)) else { return };
        let left_ms = window.ends_about().ms_since(now);
        if !window.supply.scarce || window.held().is_zero() || left_ms <= look.rtt_ms / 2 {
            return;
        }
        self.surplus_after = now.saturating_add_ms(SURPLUS_MS);
        let left = seconds(left_ms);
        let span = left.min(spans.scarce);
        let is_tail = left < spans.tail;
        let keep = if is_tail { steady * span } else { self.signals.forecast(span) };
        let held = real(window.held().0);
        let surplus = held - keep;
        let back = if surplus >= (SURPLUS_PART * held).max(1.0) {
            whole(surplus)
        } else if is_tail && surplus >= 0.5 {
            whole(surplus + 0.5)
        } else {
            return;
        };
        window.give_back_some(Tokens(back));
        self.report_after = now;
    }

    /// Drops windows that lapsed and are reported, and the oldest beyond the bound: what they did not report counts
    /// as spent at the allocator.
    ///
    /// A lapsed window need not be over, and an answer may bring it back. Therefore only what is reported is dropped,
    /// and nothing while an acquire is on its way: the answer to a later one says what was reported, an earlier one
    /// does not. The oldest of more than [`WINDOWS_MAX`] is over, since the allocator has opened the one after the
    /// next.
    fn forget_past(&mut self, now: LocalTime) {
        let is_quiet = self.in_flight.is_empty();
        self.windows.retain(|_, w| {
            if w.has_lapsed(now) {
                w.forfeit();
            }
            !(is_quiet && w.has_lapsed(now) && now >= w.ends_about() && w.is_reported())
        });
        while self.windows.len() > WINDOWS_MAX {
            self.windows.pop_first();
        }
        if self.exhausted.as_ref().is_some_and(|e| now >= e.until) {
            self.exhausted = None;
        }
    }

    fn next_look(&self, look: Look<'_>) -> Option<LocalTime> {
        let mut looks = BTreeSet::new();
        for window in self.windows.values() {
            looks.insert(window.usable_from());
            looks.insert(window.usable_until());
            looks.insert(window.ends_about());
            looks.extend(window.extend_at().filter(|_| !window.held().is_zero()));
            if !window.is_reported() {
                looks.insert(self.report_after);
            }
        }
        if let Some((start, ask_at)) = self.ask_next_at(look.now)
            && self.next_asked != Some(start)
        {
            looks.insert(ask_at.max(self.ask_after));
        }
        if self.usable(look.now).is_some_and(|w| w.supply.scarce && !w.held().is_zero()) {
            looks.insert(self.surplus_after);
        }
        if !self.waiters.is_empty() && self.in_flight.is_empty() {
            looks.insert(self.ask_after);
            looks.extend(self.exhausted.as_ref().filter(|e| !e.last_word).map(|e| e.poll_at));
        }
        looks.extend(self.exhausted.as_ref().map(|e| e.until));
        looks.into_iter().find(|at| *at > look.now && *at < LocalTime(u64::MAX))
    }
}
