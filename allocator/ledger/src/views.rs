//! The ledger as operators see it.

use leasehold_protocol::admin::{LeaseView, PoolView};
use leasehold_protocol::{PoolKey, Tokens};

use crate::ledger::Ledger;
use crate::pool::WindowPool;

impl Ledger {
    /// Every pool's open windows and recent past, by pool, oldest window first.
    pub fn pool_views(&self) -> Vec<PoolView> {
        let mut views = Vec::new();
        for (key, pool) in &self.pools {
            views.extend(pool.closed.iter().map(|window| self.pool_view(key, window, "closed")));
            for window in pool.open.values() {
                let state = if window.window.start <= self.now { "open" } else { "next" };
                views.push(self.pool_view(key, window, state));
            }
        }
        views
    }

    /// Every lease of an open window, by pool, window and holder.
    pub fn lease_views(&self) -> Vec<LeaseView> {
        let mut views = Vec::new();
        for (key, pool) in &self.pools {
            for window in pool.open.values() {
                views.extend(window.leases.iter().map(|((holder, incarnation), account)| LeaseView {
                    rule: key.rule.clone(),
                    tenant: key.tenant.clone(),
                    window_start: window.window.start.to_rfc3339(),
                    holder: holder.clone(),
                    incarnation: *incarnation,
                    granted: account.granted,
                    returned: account.returned,
                    spent: account.spent,
                    expires_in_ms: account.expires_at.ms_since(self.now),
                }));
            }
        }
        views
    }

    /// How many pools there are.
    pub fn pools_len(&self) -> usize {
        self.pools.len()
    }

    /// How many leases are in open windows.
    pub fn leases_len(&self) -> usize {
        self.pools.values().flat_map(|p| p.open.values()).map(|w| w.leases.len()).sum()
    }

    fn pool_view(&self, key: &PoolKey, window: &WindowPool, state: &str) -> PoolView {
        let closed = state == "closed";
        let leased = if closed {
            Tokens::ZERO
        } else {
            let out = window.leases.values().map(|a| a.outstanding(self.now));
            out.fold(Tokens::ZERO, Tokens::saturating_add)
        };
        let reported = window.leases.values().fold(Tokens::ZERO, |sum, a| sum.saturating_add(a.spent));
        PoolView {
            rule: key.rule.clone(),
            tenant: key.tenant.clone(),
            window_start: window.window.start.to_rfc3339(),
            window_end: window.window.end.to_rfc3339(),
            state: state.to_owned(),
            limit: Some(window.contract),
            debt: window.committed.saturating_sub(window.contract),
            remaining: window.remaining(),
            leased,
            spent: window.committed.saturating_sub(leased),
            reported,
        }
    }
}
