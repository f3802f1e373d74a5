//! One pool: its open windows, its recent past, and the leases in each.

use std::collections::{BTreeMap, VecDeque};

use leasehold_protocol::lease::{Acquire, Lease, SESSION_MS_MAX, Settle, WindowChoice};
use leasehold_protocol::{Holder, Incarnation, LedgerTime, Tokens, Window, WindowLength};
use serde::{Deserialize, Serialize};

use crate::command::SettleOutcome;
use crate::pairs;
use crate::sequences::Sequences;
use crate::sizing::{self, Ask};

/// How many closed windows a pool remembers.
pub(crate) const CLOSED_MAX: usize = 64;

/// How many of them still take a late settle's count of spent tokens.
const SETTLEABLE: usize = 2;

/// A command id is remembered this long after its holder's last command for the pool, in ms. An agent gives a frame
/// up after a few seconds, so no retry comes later.
pub(crate) const RETRY_MS: u64 = 120_000;

/// One lease: what one life of a holder has of one window. Cumulative, so that answers can be lost or repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseAccount {
    pub(crate) granted: Tokens,
    pub(crate) returned: Tokens,
    pub(crate) spent: Tokens,
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

/// A pool in one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowPool {
    pub(crate) window: Window,
    /// The limit that policy states.
    pub(crate) contract: Tokens,
    /// Granted and not given back, over all leases. Above `contract` only after the contract was lowered.
    pub(crate) committed: Tokens,
    #[serde(with = "pairs")]
    pub(crate) leases: BTreeMap<(Holder, Incarnation), LeaseAccount>,
}

impl WindowPool {
    fn new(window: Window, contract: Tokens) -> Self {
        Self { window, contract, committed: Tokens::ZERO, leases: BTreeMap::new() }
    }

    /// Tokens that can be granted.
    pub(crate) fn remaining(&self) -> Tokens {
        self.contract.saturating_sub(self.committed)
    }

    fn settle(&mut self, key: &(Holder, Incarnation), settle: &Settle, open: bool) -> SettleOutcome {
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
    sequences: BTreeMap<(Holder, Incarnation), Sequences>,
    /// Orders the answers about this pool.
    version: u64,
}

impl Pool {
    /// Takes an acquire in: opens its window, grants what sizing allows (nothing for a repeated id), extends the
    /// lease's life, and answers with the lease as it stands.
    pub(crate) fn acquire(
        &mut self,
        now: LedgerTime,
        key: &(Holder, Incarnation),
        acquire: &Acquire,
        length: WindowLength,
        contract: Tokens,
    ) -> Lease {
        let first = {
            let seen = self.sequences.entry(key.clone()).or_insert_with(|| Sequences::new(now));
            seen.active_at = now;
            seen.is_first(acquire.seq)
        };
        let mut window = self.window_at(now, length);
        if acquire.window == WindowChoice::Next {
            window = self.window_at(window.end, length);
        }
        let others_before = self.closed.back().map_or(0, |w| w.leases.len());
        let pool = self.open.entry(window.start).or_insert_with(|| WindowPool::new(window, contract));
        pool.contract = contract;
        let remaining = pool.remaining();
        let holders = pool.leases.len() + usize::from(!pool.leases.contains_key(key));
        let size = if first {
            sizing::grant(Ask {
                need: acquire.need,
                want: acquire.want,
                remaining,
                holders: u64::try_from(holders.max(others_before)).unwrap_or(u64::MAX),
            })
            .min(remaining)
        } else {
            Tokens::ZERO
        };
        let life_from = window.start.max(now);
        let account = pool.leases.entry(key.clone()).or_insert(LeaseAccount {
            granted: Tokens::ZERO,
            returned: Tokens::ZERO,
            spent: Tokens::ZERO,
            expires_at: window.start,
        });
        if account.expires_at <= now {
            // It ended without a settle, so what was left counts as spent; a new life is for new tokens.
            account.spent = account.kept();
        }
        // `size <= remaining = contract - committed`, so neither sum can pass the contract, let alone wrap.
        account.granted = account.granted.saturating_add(size);
        account.expires_at = life_from.saturating_add_ms(SESSION_MS_MAX).min(window.end);
        pool.committed = pool.committed.saturating_add(size);
        self.version = self.version.saturating_add(1);
        let LeaseAccount { granted, returned, spent, expires_at } = *account;
        Lease {
            window,
            starts_in_ms: window.start.ms_since(now),
            // A stamp is rounded down to a ms, so the line may be almost 1 ms further than `now` says.
            expires_in_ms: expires_at.ms_since(now).saturating_sub(1),
            granted_total: granted,
            spent_total: spent,
            returned_total: returned,
            limit: pool.contract,
            remaining: pool.remaining(),
            outstanding: outstanding_of_others(pool, key, now),
            version: self.version,
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
    pub(crate) fn settle(&mut self, key: &(Holder, Incarnation), settle: &Settle) -> SettleOutcome {
        if let Some(pool) = self.open.get_mut(&settle.window_start) {
            return pool.settle(key, settle, true);
        }
        let late =
            self.closed.iter_mut().rev().take(SETTLEABLE).find(|w| w.window.start == settle.window_start);
        late.map_or(SettleOutcome::Over, |pool| pool.settle(key, settle, false))
    }

    /// Closes the windows that are over at `now` and forgets what no retry can ask for.
    pub(crate) fn close(&mut self, now: LedgerTime) {
        while let Some(entry) = self.open.first_entry() {
            if now < entry.get().window.end {
                break;
            }
            self.closed.push_back(entry.remove());
        }
        while self.closed.len() > CLOSED_MAX {
            self.closed.pop_front();
        }
        self.sequences.retain(|_, s| now.ms_since(s.active_at) < RETRY_MS);
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

/// Tokens that holders other than `key` may still give back in this window.
fn outstanding_of_others(pool: &WindowPool, key: &(Holder, Incarnation), now: LedgerTime) -> Tokens {
    pool.leases
        .iter()
        .filter(|(other, _)| *other != key)
        .fold(Tokens::ZERO, |sum, (_, account)| sum.saturating_add(account.outstanding(now)))
}
