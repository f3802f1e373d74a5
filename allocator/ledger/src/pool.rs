//! One pool: its open windows, its recent past, and the leases in each.

use std::collections::{BTreeMap, VecDeque};

use leasehold_protocol::bundle::Sharing;
use leasehold_protocol::lease::{Acquire, Lease, SESSION_MS_MAX, Settle, Supply, WindowChoice};
use leasehold_protocol::{Demand, Holder, Incarnation, LedgerTime, Tokens, Window, WindowLength};
use serde::{Deserialize, Serialize};

use crate::command::SettleOutcome;
use crate::holders::Holders;
use crate::pairs;
use crate::sequences::Sequences;

/// How many closed windows a pool remembers.
pub(crate) const CLOSED_MAX: usize = 64;

/// How many of them still take a late settle's count of spent tokens.
const SETTLEABLE: usize = 2;

/// A command id is remembered this long after its holder's last command for the pool, in ms. An agent gives a frame
/// up after a few seconds, so no retry comes later.
pub(crate) const RETRY_MS: u64 = 120_000;

/// One life of a holder.
pub(crate) type Life = (Holder, Incarnation);

/// One lease: what one life of a holder has of one window. Cumulative, so that answers can be lost or repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseAccount {
    pub(crate) granted: Tokens,
    pub(crate) returned: Tokens,
    pub(crate) spent: Tokens,
    /// Asked for and not had, because the pool had none.
    #[serde(default)]
    pub(crate) denied: Tokens,
    pub(crate) expires_at: LedgerTime,
}

impl LeaseAccount {
    /// Tokens that are the holder's: granted and not given back.
    pub(crate) fn kept(&self) -> Tokens {
        self.granted.saturating_sub(self.returned)
    }

    /// Tokens that the holder may still spend or give back at `now`, as far as it has reported.
    pub(crate) fn outstanding(&self, now: LedgerTime) -> Tokens {
        if now < self.expires_at { self.kept().saturating_sub(self.spent) } else { Tokens::ZERO }
    }
}

/// A holder that got less than it needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hunger {
    /// Tokens that it lacks.
    pub(crate) need: Tokens,
    /// The fewest that help.
    pub(crate) least: Tokens,
    /// Until when its requests wait.
    pub(crate) until: LedgerTime,
}

/// A pool in one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowPool {
    pub(crate) window: Window,
    /// The limit that policy states.
    pub(crate) contract: Tokens,
    /// Granted and not given back, over all leases. Above `contract` only after the contract was lowered.
    pub(crate) committed: Tokens,
    #[serde(with = "pairs")]
    pub(crate) leases: BTreeMap<Life, LeaseAccount>,
    /// Demand is beyond what is left: holders give back what they do not need soon.
    #[serde(default)]
    pub(crate) is_scarce: bool,
    /// Who waits for what is given back.
    #[serde(with = "pairs", default)]
    pub(crate) hungry: BTreeMap<Life, Hunger>,
}

/// Everything about a command that is not in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) now: LedgerTime,
    pub(crate) length: WindowLength,
    pub(crate) contract: Tokens,
    pub(crate) sharing: &'a Sharing,
    pub(crate) holders: &'a Holders,
}

/// What a life forecast last, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) demand: Demand,
    pub(crate) at: LedgerTime,
}

/// A lease as it stands, to be told to its holder unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) life: Life,
    pub(crate) lease: Lease,
}

impl WindowPool {
    fn new(window: Window, contract: Tokens) -> Self {
        Self {
            window,
            contract,
            committed: Tokens::ZERO,
            leases: BTreeMap::new(),
            is_scarce: false,
            hungry: BTreeMap::new(),
        }
    }

    /// Tokens that can be granted.
    pub(crate) fn remaining(&self) -> Tokens {
        self.contract.saturating_sub(self.committed)
    }

    /// Tokens that living holders other than `life` may still give back.
    fn outstanding_of_others(&self, life: &Life, scope: &Scope<'_>) -> Tokens {
        let others =
            self.leases.iter().filter(|(other, _)| *other != life && scope.holders.is_current(other));
        others.fold(Tokens::ZERO, |sum, (_, account)| sum.saturating_add(account.outstanding(scope.now)))
    }

    fn settle(&mut self, key: &Life, settle: &Settle, open: bool) -> SettleOutcome {
        let Some(account) = self.leases.get_mut(key) else { return SettleOutcome::Over };
        let spent = account.spent.max(settle.spent_total);
        let returned = if open { account.returned.max(settle.returned_total) } else { account.returned };
        match spent.checked_add(returned) {
            Some(total) if total <= account.granted => {}
            _ => return SettleOutcome::Impossible { granted: account.granted },
        }
        let back = returned.saturating_sub(account.returned);
        account.spent = spent;
        account.returned = returned;
        account.denied = account.denied.max(settle.denied_total.min(Tokens::MAX));
        self.committed = self.committed.saturating_sub(back);
        if open { SettleOutcome::Applied { returned: back } } else { SettleOutcome::Over }
    }
}

/// One pool over time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pool {
    /// Open windows by their start: the current one, and the next once somebody asked for it.
    #[serde(with = "pairs")]
    pub(crate) open: BTreeMap<LedgerTime, WindowPool>,
    /// The most recent closed windows, oldest first.
    pub(crate) closed: VecDeque<WindowPool>,
    #[serde(with = "pairs")]
    sequences: BTreeMap<Life, Sequences>,
    /// What each life forecasts; forgotten with its sequences.
    #[serde(with = "pairs", default)]
    pub(crate) reports: BTreeMap<Life, Report>,
    /// Orders the answers about this pool.
    version: u64,
}

impl Pool {
    /// Takes an acquire in: opens its window, grants what sizing allows (nothing for a repeated id), extends the
    /// lease's life, and answers with the lease as it stands. `told` gets what others are to be told.
    pub(crate) fn acquire(
        &mut self,
        scope: &Scope<'_>,
        life: &Life,
        acquire: &Acquire,
        told: &mut Vec<Told>,
    ) -> Lease {
        let now = scope.now;
        let is_first = {
            let seen = self.sequences.entry(life.clone()).or_insert_with(|| Sequences::new(now));
            seen.active_at = now;
            seen.is_first(acquire.seq)
        };
        let mut window = self.window_at(now, scope.length);
        if acquire.window == WindowChoice::Next {
            window = self.window_at(window.end, scope.length);
        }
        let pool = self.open.entry(window.start).or_insert_with(|| WindowPool::new(window, scope.contract));
        pool.contract = scope.contract;
        let account = pool.leases.entry(life.clone()).or_insert(LeaseAccount {
            granted: Tokens::ZERO,
            returned: Tokens::ZERO,
            spent: Tokens::ZERO,
            denied: Tokens::ZERO,
            expires_at: window.start,
        });
        if account.expires_at <= now {
            // It ended without a settle, so what was left counts as spent; a new life is for new tokens.
            account.spent = account.kept();
        }
        account.expires_at = window.start.max(now).saturating_add_ms(SESSION_MS_MAX).min(window.end);
        let mut is_direct = false;
        if is_first && !acquire.extend_only {
            self.reports.insert(life.clone(), Report { demand: acquire.demand, at: now });
            is_direct = self.supply(scope, window, life, acquire, told);
        }
        self.lease(window.start, life, scope, is_direct)
    }

    /// The lease of `life` in the window that starts at `start`, which are known.
    pub(crate) fn lease(
        &mut self,
        start: LedgerTime,
        life: &Life,
        scope: &Scope<'_>,
        is_direct: bool,
    ) -> Lease {
        let now = scope.now;
        self.version = self.version.saturating_add(1);
        let nothing = WindowPool::new(Window { start, end: start }, Tokens::ZERO);
        let pool = self.open.get(&start).unwrap_or(&nothing);
        let empty = LeaseAccount {
            granted: Tokens::ZERO,
            returned: Tokens::ZERO,
            spent: Tokens::ZERO,
            denied: Tokens::ZERO,
            expires_at: start,
        };
        let account = pool.leases.get(life).unwrap_or(&empty);
        Lease {
            window: pool.window,
            starts_in_ms: start.ms_since(now),
            // A stamp is rounded down to a ms, so the line may be almost 1 ms further than `now` says.
            expires_in_ms: account.expires_at.ms_since(now).saturating_sub(1),
            granted_total: account.granted,
            spent_total: account.spent,
            returned_total: account.returned,
            limit: pool.contract,
            remaining: pool.remaining(),
            outstanding: pool.outstanding_of_others(life, scope),
            version: self.version,
            supply: Supply {
                scarce: pool.is_scarce,
                direct: is_direct,
                short: pool.hungry.contains_key(life),
            },
        }
    }

    /// The window that holds `at`: an open one, or the one that would be opened. Windows are aligned to the epoch;
    /// after a change of length the first is cut at its front, and one before a window that is open already at its
    /// end, so that no two overlap or share a label.
    fn window_at(&self, at: LedgerTime, length: WindowLength) -> Window {
        if let Some(open) = self.open.values().find(|w| w.window.contains(at)) {
            return open.window;
        }
        let Window { start, end } = Window::containing(at, length);
        let closed = self.closed.back().map(|w| w.window.end);
        let before = self.open.values().map(|w| w.window.end).filter(|end| *end <= at).max().max(closed);
        let after = self.open.keys().find(|start| **start > at);
        Window {
            start: before.map_or(start, |before| start.max(before)),
            end: after.map_or(end, |after| end.min(*after)),
        }
    }

    /// Takes a settle in, for an open window or one that closed a moment ago.
    pub(crate) fn settle(&mut self, now: LedgerTime, life: &Life, settle: &Settle) -> SettleOutcome {
        if let Some(pool) = self.open.get_mut(&settle.window_start) {
            let outcome = pool.settle(life, settle, true);
            if matches!(outcome, SettleOutcome::Applied { .. })
                && pool.window.start <= now
                && let Some(report) = self.reports.get_mut(life)
            {
                *report = Report { demand: settle.demand, at: now };
            }
            return outcome;
        }
        let late =
            self.closed.iter_mut().rev().take(SETTLEABLE).find(|w| w.window.start == settle.window_start);
        late.map_or(SettleOutcome::Over, |pool| pool.settle(life, settle, false))
    }

    /// Closes the windows that are over at `now` and forgets what no retry can ask for.
    pub(crate) fn close(&mut self, now: LedgerTime) {
        while let Some(entry) = self.open.first_entry() {
            if now < entry.get().window.end {
                break;
            }
            let mut over = entry.remove();
            over.hungry.clear();
            self.closed.push_back(over);
        }
        while self.closed.len() > CLOSED_MAX {
            self.closed.pop_front();
        }
        self.sequences.retain(|_, s| now.ms_since(s.active_at) < RETRY_MS);
        self.reports.retain(|life, _| self.sequences.contains_key(life));
    }

    /// True while it knows which commands of some holder it has seen.
    pub(crate) fn remembers_commands(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// States a new limit for the open windows; `None` when policy no longer has this pool.
    pub(crate) fn set_contract(&mut self, contract: Option<Tokens>) {
        for pool in self.open.values_mut() {
            pool.contract = contract.unwrap_or(Tokens::ZERO);
        }
    }
}
