//! What this agent holds of one window, and until when.

use leasehold_protocol::lease::{Lease, SESSION_MS_MAX, Settle, Supply};
use leasehold_protocol::{Demand, LocalTime, PoolKey, Tokens, Window};

/// A lease as its holder keeps it. `held = granted - spent - returned - forfeited`, never negative: each of the
/// last three grows only by what is held.
#[derive(Debug, Clone)]
pub(crate) struct HeldWindow {
    pub(crate) window: Window,
    pub(crate) limit: Tokens,
    granted: Tokens,
    spent: Tokens,
    returned: Tokens,
    forfeited: Tokens,
    /// Never earlier than the window's true start.
    usable_from: LocalTime,
    /// Never later than the lease's true end.
    usable_until: LocalTime,
    /// The end as it would be with a perfect clock: for planning, never for spending.
    ends_about: LocalTime,
    /// The lease ends with its window: no extension can move its end by more than the drift margin.
    ends_with_window: bool,
    /// The newest answer whose words (not tokens) were taken.
    pub(crate) version: u64,
    /// What that answer said of the pool.
    pub(crate) supply: Supply,
    /// Asked for and not had. For the accounts alone.
    denied: Tokens,
    /// Spent, returned and denied as last confirmed by the allocator.
    confirmed: (Tokens, Tokens, Tokens),
}

impl HeldWindow {
    /// A lease of the window that an answer speaks of, before its tokens are taken. It goes on from what the
    /// allocator was told: this life may have held, reported and forgotten it before.
    pub(crate) fn new(lease: &Lease, now: LocalTime) -> Self {
        Self {
            window: lease.window,
            limit: lease.limit,
            granted: Tokens::ZERO,
            spent: lease.spent_total,
            returned: lease.returned_total,
            forfeited: Tokens::ZERO,
            usable_from: LocalTime(u64::MAX),
            usable_until: LocalTime(0),
            ends_about: now,
            ends_with_window: false,
            version: 0,
            supply: Supply::default(),
            denied: Tokens::ZERO,
            confirmed: (lease.spent_total, lease.returned_total, Tokens::ZERO),
        }
    }

    /// Takes an answer in. The life is counted from the *sending* of the request, shrunk by the drift margin, so it
    /// cannot outlast the truth; the start is counted from the *receipt*, stretched, so it cannot come early.
    /// Tokens left over when the life had lapsed are forfeit, although the answer prolongs it.
    pub(crate) fn take(&mut self, lease: &Lease, sent: LocalTime, received: LocalTime, drift_ppm: u32) {
        if self.has_lapsed(received) {
            self.forfeit();
        }
        let until = sent.plus_shrunk(lease.expires_in_ms, drift_ppm);
        self.usable_until = self.usable_until.max(until);
        self.ends_about = self.ends_about.max(sent.saturating_add_ms(lease.expires_in_ms));
        let from = if lease.starts_in_ms == 0 {
            received
        } else {
            received.plus_stretched(lease.starts_in_ms, drift_ppm)
        };
        self.usable_from = self.usable_from.min(from);
        self.granted = self.granted.max(lease.granted_total);
        if lease.version > self.version {
            self.limit = lease.limit;
            // The allocator takes one ms off.
            self.ends_with_window = lease.window.length_ms() <= SESSION_MS_MAX
                || lease.expires_in_ms.saturating_sub(lease.starts_in_ms) < SESSION_MS_MAX - 1;
        }
    }

    /// Takes in what was told unasked: tokens, whatever the order. A push never prolongs a life; what comes after the
    /// end is forfeit.
    pub(crate) fn credit(&mut self, lease: &Lease, now: LocalTime) {
        self.granted = self.granted.max(lease.granted_total);
        if self.has_lapsed(now) {
            self.forfeit();
        }
    }

    /// The next window begins `starts_in_ms` after the sending of what was answered: this one, which lasts until
    /// then, ends so much more surely.
    pub(crate) fn ends_before_next(&mut self, sent: LocalTime, starts_in_ms: u64, drift_ppm: u32) {
        if self.ends_with_window && !self.has_lapsed(sent) {
            // A stamp is rounded down to a ms.
            let until = sent.plus_shrunk(starts_in_ms.saturating_sub(1), drift_ppm);
            self.usable_until = self.usable_until.max(until);
        }
    }

    /// Tokens that may still be spent, given back or lost.
    pub(crate) fn held(&self) -> Tokens {
        self.granted.saturating_sub(self.spent).saturating_sub(self.returned).saturating_sub(self.forfeited)
    }

    /// True while its tokens may be spent.
    pub(crate) fn is_usable(&self, now: LocalTime) -> bool {
        self.usable_from <= now && now < self.usable_until
    }

    /// True once it may never be spent again without a new answer.
    pub(crate) fn has_lapsed(&self, now: LocalTime) -> bool {
        self.usable_until <= now && self.usable_until > LocalTime(0)
    }

    /// Until when its tokens may be spent.
    pub(crate) fn usable_until(&self) -> LocalTime {
        self.usable_until
    }

    /// From when its tokens may be spent.
    pub(crate) fn usable_from(&self) -> LocalTime {
        self.usable_from
    }

    /// When it ends by a perfect clock.
    pub(crate) fn ends_about(&self) -> LocalTime {
        self.ends_about
    }

    /// Tokens spent in this window.
    pub(crate) fn spent(&self) -> Tokens {
        self.spent
    }

    /// When the window ends by a perfect clock, if the last answer told. For planning, never for spending.
    pub(crate) fn window_ends_about(&self) -> Option<LocalTime> {
        self.ends_with_window.then_some(self.ends_about)
    }

    /// When to ask for a longer life: a third of a session ahead, if the window goes on after the lease.
    pub(crate) fn extend_at(&self) -> Option<LocalTime> {
        let lead_ns = (SESSION_MS_MAX / 3).saturating_mul(1_000_000);
        (!self.ends_with_window).then(|| LocalTime(self.usable_until.0.saturating_sub(lead_ns)))
    }

    /// Notes a request that got nothing.
    pub(crate) fn deny(&mut self, cost: Tokens) {
        self.denied = self.denied.saturating_add(cost).min(Tokens::MAX);
    }

    /// Gives `tokens` back, or what is held: from here on it is not ours, whether or not the message arrives.
    pub(crate) fn give_back_some(&mut self, tokens: Tokens) {
        self.returned = self.returned.saturating_add(tokens.min(self.held()));
    }

    /// Spends `cost`, if it may.
    pub(crate) fn spend(&mut self, now: LocalTime, cost: Tokens) -> bool {
        if !self.is_usable(now) || self.held() < cost {
            return false;
        }
        let Some(spent) = self.spent.checked_add(cost) else { return false };
        self.spent = spent;
        true
    }

    /// Gives everything that is held back: from here on it is not ours, whether or not the message arrives.
    pub(crate) fn give_back(&mut self) -> Tokens {
        let back = self.held();
        self.returned = self.returned.saturating_add(back);
        back
    }

    /// Gives everything that is held up: a later life or a lapse took it.
    pub(crate) fn forfeit(&mut self) {
        self.forfeited = self.forfeited.saturating_add(self.held());
    }

    /// What the allocator has not confirmed yet, as totals.
    pub(crate) fn report(&self, pool: &PoolKey, demand: Demand) -> Option<Settle> {
        let totals = (self.spent, self.returned, self.denied);
        (self.confirmed != totals).then(|| Settle {
            pool: pool.clone(),
            window_start: self.window.start,
            spent_total: self.spent,
            returned_total: self.returned,
            denied_total: self.denied,
            demand,
        })
    }

    /// True if the allocator has confirmed all of it.
    pub(crate) fn is_reported(&self) -> bool {
        self.confirmed == (self.spent, self.returned, self.denied)
    }

    /// Notes that the allocator has these totals.
    pub(crate) fn confirm(&mut self, settle: &Settle) {
        let (spent, returned, denied) = &mut self.confirmed;
        *spent = (*spent).max(settle.spent_total);
        *returned = (*returned).max(settle.returned_total);
        *denied = (*denied).max(settle.denied_total);
    }
}
