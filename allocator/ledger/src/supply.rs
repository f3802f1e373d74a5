//! Who gets what a pool has: grants by size, recall when there is too little, and feeding those that went hungry
//! (ALGORITHM.md, 4.4). Every grant is debited here, and only out of what remains.

use leasehold_protocol::demand::{Horizons, real, seconds};
use leasehold_protocol::lease::{Acquire, WindowChoice};
use leasehold_protocol::{LedgerTime, Tokens, Window};

use crate::pool::{Hunger, Life, Pool, Scope, Told, WindowPool};
use crate::sizing::{Ask, Party, Scene, Size};

/// How long the requests behind an acquire wait, in ms: at least the usual hold.
const WAIT_MS: u64 = 200;
/// Scarcity ends only when this many times the shortfall is left.
const RELIEF: f64 = 1.5;
/// Recall begins when what is left lasts for less than this, in seconds.
const LOW_WATER_S: f64 = 2.0;

/// The parties of one window, in the order of `lives`.
struct Table {
    lives: Vec<Life>,
    parties: Vec<Party>,
    left: f64,
    is_ahead: bool,
    spans: Horizons,
    remaining: f64,
    limit: f64,
}

impl Table {
    fn scene(&self, scope: &Scope<'_>) -> Scene<'_> {
        Scene {
            parties: &self.parties,
            remaining: self.remaining,
            limit: self.limit,
            left: self.left,
            is_ahead: self.is_ahead,
            order: scope.sharing.order,
            spans: self.spans,
        }
    }

    fn place(&self, life: &Life) -> Option<usize> {
        self.lives.iter().position(|known| known == life)
    }

    /// What the region of `life` holds.
    fn region_held(&self, life: &Life) -> f64 {
        let pairs = self.lives.iter().zip(&self.parties);
        pairs.filter(|((holder, _), _)| holder.region == life.0.region).map(|(_, party)| party.held).sum()
    }
}

impl Pool {
    /// Serves an acquire that is seen for the first time. True if there is too little to lend ahead of need.
    pub(crate) fn supply(
        &mut self,
        scope: &Scope<'_>,
        window: Window,
        life: &Life,
        acquire: &Acquire,
        told: &mut Vec<Told>,
    ) -> bool {
        let is_next = acquire.window == WindowChoice::Next;
        self.end_scarcity(scope, window.start);
        let Some(size) = self.size(scope, window.start, life, acquire) else { return false };
        let granted = Tokens(size.tokens);
        let Some(pool) = self.open.get_mut(&window.start) else { return false };
        pool.grant(life, granted);
        let is_short = granted < acquire.need || granted.is_zero();
        let is_just_asking = size.direct && acquire.need.is_zero() && !pool.remaining().is_zero();
        if is_next {
            return size.direct;
        }
        if is_short && !is_just_asking {
            let need = acquire.need.saturating_sub(granted).max(Tokens(1));
            let until = scope.now.saturating_add_ms(WAIT_MS);
            pool.hungry.insert(life.clone(), Hunger { need, least: acquire.least, until });
            if !pool.is_scarce {
                pool.is_scarce = true;
                self.recall(scope, window.start, life, told);
            }
        } else {
            pool.hungry.remove(life);
            if !pool.is_scarce && self.is_low(scope, window.start) {
                if let Some(pool) = self.open.get_mut(&window.start) {
                    pool.is_scarce = true;
                }
                self.recall(scope, window.start, life, told);
            }
        }
        size.direct
    }

    fn size(&self, scope: &Scope<'_>, start: LedgerTime, life: &Life, acquire: &Acquire) -> Option<Size> {
        let pool = self.open.get(&start)?;
        let table = self.table(scope, pool);
        let me = table.place(life)?;
        let region = table.region_held(life);
        let ask = Ask {
            need: acquire.need.0,
            least: acquire.least.0,
            boundary: acquire.boundary.min(Tokens::MAX).0,
        };
        Some(table.scene(scope).size(me, ask, pool.is_scarce, region))
    }

    /// Everybody who takes part in a window: the latest lives that forecast something, each with what it has.
    fn table(&self, scope: &Scope<'_>, pool: &WindowPool) -> Table {
        let now = scope.now;
        let is_ahead = pool.window.start > now;
        let mut table = Table {
            lives: Vec::new(),
            parties: Vec::new(),
            left: seconds(if is_ahead { pool.window.length_ms() } else { pool.window.end.ms_since(now) }),
            is_ahead,
            spans: Horizons::of(pool.window.length_ms()),
            remaining: real(pool.remaining().0),
            limit: real(pool.contract.0),
        };
        for (life, report) in self.reports.iter().filter(|(life, _)| scope.holders.is_current(life)) {
            let account = pool.leases.get(life);
            let hunger = pool.hungry.get(life).filter(|hunger| now < hunger.until);
            table.lives.push(life.clone());
            table.parties.push(Party {
                fast: report.demand.fast(),
                sustained: report.demand.sustained(),
                age: seconds(now.ms_since(report.at)),
                held: account.map_or(0.0, |account| real(account.outstanding(now).0)),
                got: account.map_or(0.0, |account| real(account.kept().0)),
                waiting: hunger.map_or(0.0, |hunger| real(hunger.need.0)),
                weight: f64::from(scope.sharing.weight(&life.0.region)),
                is_reachable: scope.holders.is_reachable(life, now),
            });
        }
        // Agents of one region share its part.
        let regions: Vec<_> = table.lives.iter().map(|(holder, _)| holder.region.clone()).collect();
        for (party, region) in table.parties.iter_mut().zip(&regions) {
            let agents = regions.iter().filter(|other| *other == region).count();
            party.weight /= f64::from(u32::try_from(agents).unwrap_or(u32::MAX).max(1));
        }
        table
    }

    /// With hysteresis, and not in the window's last seconds: there is enough for everybody again.
    fn end_scarcity(&mut self, scope: &Scope<'_>, start: LedgerTime) {
        let Some(pool) = self.open.get(&start) else { return };
        if !pool.is_scarce || !pool.hungry.is_empty() {
            return;
        }
        let table = self.table(scope, pool);
        let is_over =
            table.left > table.spans.tail && table.remaining >= RELIEF * table.scene(scope).shortfall();
        if is_over && let Some(pool) = self.open.get_mut(&start) {
            pool.is_scarce = false;
        }
    }

    /// True when what is left lasts for a moment only and will not do until the window's end.
    fn is_low(&self, scope: &Scope<'_>, start: LedgerTime) -> bool {
        let Some(pool) = self.open.get(&start) else { return false };
        let table = self.table(scope, pool);
        let scene = table.scene(scope);
        let span = LOW_WATER_S.min(table.spans.window / 30.0);
        table.remaining < scene.rate_over(span) && scene.shortfall() > table.remaining
    }

    /// Tells every other holder that tokens are scarce: by what the ledger knows to be held, since silence means that
    /// tokens are still held.
    fn recall(&mut self, scope: &Scope<'_>, start: LedgerTime, life: &Life, told: &mut Vec<Told>) {
        let Some(pool) = self.open.get(&start) else { return };
        let holding = pool.leases.iter().filter(|(other, account)| {
            *other != life && scope.holders.is_current(other) && !account.outstanding(scope.now).is_zero()
        });
        let lives: Vec<Life> = holding.map(|(other, _)| other.clone()).collect();
        for life in lives {
            let lease = self.lease(start, &life, scope, false);
            told.push(Told { life, lease });
        }
    }

    /// Gives what is left to those that went hungry, the one that has had least for its weight first.
    pub(crate) fn feed(&mut self, scope: &Scope<'_>, told: &mut Vec<Told>) {
        let Some(start) = self.current(scope.now) else { return };
        for life in self.queue(scope, start) {
            let granted = self.portion(scope, start, &life);
            if granted.is_zero() {
                continue;
            }
            if let Some(pool) = self.open.get_mut(&start) {
                pool.grant(&life, granted);
                pool.hungry.remove(&life);
            }
            let lease = self.lease(start, &life, scope, false);
            told.push(Told { life, lease });
        }
    }

    /// True if [`Self::feed`] would give anybody anything.
    pub(crate) fn could_feed(&self, scope: &Scope<'_>) -> bool {
        let Some(start) = self.current(scope.now) else { return false };
        self.queue(scope, start).iter().any(|life| !self.portion(scope, start, life).is_zero())
    }

    /// The label of the open window that holds `now`.
    fn current(&self, now: LedgerTime) -> Option<LedgerTime> {
        self.open.values().find(|pool| pool.window.contains(now)).map(|pool| pool.window.start)
    }

    /// What a hungry life is to be fed with: nothing if it would come too late, or not help.
    fn portion(&self, scope: &Scope<'_>, start: LedgerTime, life: &Life) -> Tokens {
        let Some(pool) = self.open.get(&start) else { return Tokens::ZERO };
        let Some(hunger) = pool.hungry.get(life) else { return Tokens::ZERO };
        let ends = pool.leases.get(life).map_or(start, |account| account.expires_at);
        let is_late = scope.now.saturating_add_ms(scope.holders.push_ms(life)) >= ends;
        if is_late || pool.remaining().is_zero() || !scope.holders.is_current(life) {
            return Tokens::ZERO;
        }
        let table = self.table(scope, pool);
        let Some(me) = table.place(life) else { return Tokens::ZERO };
        Tokens(table.scene(scope).feed(me, hunger.least.0))
    }

    /// The hungry, in the order in which they are fed.
    fn queue(&self, scope: &Scope<'_>, start: LedgerTime) -> Vec<Life> {
        let Some(pool) = self.open.get(&start) else { return Vec::new() };
        if pool.hungry.is_empty() || pool.remaining().is_zero() {
            return Vec::new();
        }
        let had = |life: &Life| {
            let kept = pool.leases.get(life).map_or(0, |account| account.kept().0);
            let weight = u64::from(scope.sharing.weight(&life.0.region));
            kept.saturating_mul(1_000) / weight
        };
        let mut queue: Vec<Life> = pool.hungry.keys().cloned().collect();
        queue.sort_by_key(had);
        queue
    }
}

impl WindowPool {
    /// Debits what is granted: never more than remains.
    fn grant(&mut self, life: &Life, tokens: Tokens) {
        let tokens = tokens.min(self.remaining());
        if let Some(account) = self.leases.get_mut(life) {
            // `tokens <= contract - committed`, so neither sum can pass the contract, let alone wrap.
            account.granted = account.granted.saturating_add(tokens);
            self.committed = self.committed.saturating_add(tokens);
        }
    }
}
