//! The state machine itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_protocol::bundle::{Bundle, Limit, Sharing};
use leasehold_protocol::lease::{Acquire, AcquireOutcome, Push, Settle};
use leasehold_protocol::{BundleVersion, Holder, Incarnation, LedgerTime, PoolKey, Tokens, WindowLength};
use serde::{Deserialize, Serialize};

use crate::command::{ActivateOutcome, Applied, Command, Entry, Notice, Outcome, SettleOutcome};
use crate::holders::Holders;
use crate::pairs;
use crate::pool::{Pool, RETRY_MS, Scope, Told};

/// Every pool, every lease, the policy they follow and the time they live in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    pub(crate) now: LedgerTime,
    pub(crate) policy: Option<Policy>,
    #[serde(with = "pairs")]
    pub(crate) pools: BTreeMap<PoolKey, Pool>,
    /// The latest life of each holder.
    pub(crate) holders: Holders,
    /// Pools in which somebody went hungry.
    #[serde(default)]
    pub(crate) starving: BTreeSet<PoolKey>,
    /// When each pool next has a window to close, or is to be forgotten: kept so that time passes in the windows that end, not in all.
    pub(crate) endings: BTreeSet<(LedgerTime, PoolKey)>,
}

/// The active bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Policy {
    pub(crate) bundle: Arc<Bundle>,
    pub(crate) digest: String,
}

impl Ledger {
    /// Applies one entry: time first, then its commands in order. The outcomes are in the commands' order.
    pub fn apply(&mut self, entry: &Entry) -> Applied {
        self.now = self.now.max(entry.stamp);
        self.close_windows();
        let mut applied = Applied::default();
        for command in &entry.commands {
            let outcome = self.command(command, &mut applied.notices);
            applied.outcomes.push(outcome);
        }
        debug_assert_eq!(self.check_touched(entry), Ok(()));
        applied
    }

    /// True if [`Command::Feed`] would do something: somebody is hungry where tokens are left for it.
    pub fn could_feed(&self) -> bool {
        self.starving.iter().any(|key| {
            let Some((length, contract)) = self.contract(key) else { return false };
            let sharing = self.sharing(key);
            let scope = Scope { now: self.now, length, contract, sharing: &sharing, holders: &self.holders };
            self.pools.get(key).is_some_and(|pool| pool.could_feed(&scope))
        })
    }

    /// Ledger time.
    pub fn now(&self) -> LedgerTime {
        self.now
    }

    /// The bundle whose limits the pools have.
    pub fn active_bundle(&self) -> Option<&Bundle> {
        self.policy.as_ref().map(|p| p.bundle.as_ref())
    }

    /// Its version; 0 before the first.
    pub fn bundle_version(&self) -> BundleVersion {
        self.policy.as_ref().map_or(BundleVersion(0), |p| p.bundle.version)
    }

    /// The digest of its signed bytes.
    pub fn bundle_digest(&self) -> Option<&str> {
        self.policy.as_ref().map(|p| p.digest.as_str())
    }

    /// The longest time that any lease can still be spent, in ms of ledger time; 0 when none is out. A leader that
    /// cannot place itself on the line waits this long before it sets the line anew.
    pub fn outstanding_span_ms(&self) -> u64 {
        self.pools
            .values()
            .flat_map(|pool| pool.open.values())
            .flat_map(|window| window.leases.values())
            .filter(|account| !account.kept().is_zero())
            .map(|account| account.expires_at.ms_since(self.now))
            .max()
            .unwrap_or(0)
    }

    fn command(&mut self, command: &Command, notices: &mut Vec<Notice>) -> Outcome {
        match command {
            Command::Acquire { holder, incarnation, acquire } => {
                Outcome::Acquired(self.acquire(holder, *incarnation, acquire, notices))
            }
            Command::Settle { holder, incarnation, settle } => {
                Outcome::Settled(self.settle(holder, *incarnation, settle, notices))
            }
            Command::Hear { holder, incarnation, rtt_ms } => {
                self.holders.hear(holder, *incarnation, self.now, *rtt_ms);
                Outcome::Noted
            }
            Command::Feed => {
                let keys: Vec<PoolKey> = self.starving.iter().cloned().collect();
                for key in &keys {
                    self.feed(key, notices);
                }
                Outcome::Noted
            }
            Command::ActivateBundle { bundle, digest } => {
                Outcome::Activated(self.activate(bundle, digest, notices))
            }
        }
    }

    fn acquire(
        &mut self,
        holder: &Holder,
        incarnation: Incarnation,
        acquire: &Acquire,
        notices: &mut Vec<Notice>,
    ) -> AcquireOutcome {
        if let Some(seen) = self.holders.later_than(holder, incarnation) {
            return AcquireOutcome::StaleIncarnation { seen };
        }
        let Some((length, contract)) = self.contract(&acquire.pool) else {
            return AcquireOutcome::UnknownPool;
        };
        self.holders.hear(holder, incarnation, self.now, 0);
        let life = (holder.clone(), incarnation);
        let sharing = self.sharing(&acquire.pool);
        let holders = &self.holders;
        let scope = Scope { now: self.now, length, contract, sharing: &sharing, holders };
        let pool = self.pools.entry(acquire.pool.clone()).or_default();
        let mut told = Vec::new();
        let lease = pool.acquire(&scope, &life, acquire, &mut told);
        self.endings.insert((lease.window.end, acquire.pool.clone()));
        if lease.supply.short {
            self.starving.insert(acquire.pool.clone());
        }
        tell(&acquire.pool, told, notices);
        AcquireOutcome::Lease(lease)
    }

    fn settle(
        &mut self,
        holder: &Holder,
        incarnation: Incarnation,
        settle: &Settle,
        notices: &mut Vec<Notice>,
    ) -> SettleOutcome {
        let life = (holder.clone(), incarnation);
        let Some(pool) = self.pools.get_mut(&settle.pool) else { return SettleOutcome::Over };
        let outcome = pool.settle(self.now, &life, settle);
        if matches!(outcome, SettleOutcome::Applied { returned } if !returned.is_zero()) {
            self.feed(&settle.pool, notices);
        }
        outcome
    }

    /// Gives what a pool has to those that went hungry.
    fn feed(&mut self, key: &PoolKey, notices: &mut Vec<Notice>) {
        if !self.starving.contains(key) {
            return;
        }
        let Some((length, contract)) = self.contract(key) else { return };
        let sharing = self.sharing(key);
        let scope = Scope { now: self.now, length, contract, sharing: &sharing, holders: &self.holders };
        let mut told = Vec::new();
        let is_starving = self.pools.get_mut(key).is_some_and(|pool| {
            pool.feed(&scope, &mut told);
            pool.open.values().any(|window| !window.hungry.is_empty())
        });
        if !is_starving {
            self.starving.remove(key);
        }
        tell(key, told, notices);
    }

    /// How regions share a pool.
    fn sharing(&self, key: &PoolKey) -> Sharing {
        let rule = self.policy.as_ref().and_then(|p| p.bundle.rules.iter().find(|rule| rule.id == key.rule));
        rule.map(|rule| rule.sharing.clone()).unwrap_or_default()
    }

    fn activate(&mut self, bundle: &Bundle, digest: &str, notices: &mut Vec<Notice>) -> ActivateOutcome {
        let active = self.bundle_version();
        if bundle.version == active && self.bundle_digest() == Some(digest) {
            return ActivateOutcome::AlreadyActive { version: active };
        }
        if active.0.checked_add(1) != Some(bundle.version.0) {
            return ActivateOutcome::Conflict {
                active,
                active_digest: self.bundle_digest().map(str::to_owned),
            };
        }
        self.policy = Some(Policy { bundle: Arc::new(bundle.clone()), digest: digest.to_owned() });
        let keys: Vec<PoolKey> = self.pools.keys().cloned().collect();
        for key in keys {
            let contract = self.contract(&key).map(|(_, tokens)| tokens);
            if let Some(pool) = self.pools.get_mut(&key) {
                pool.set_contract(contract);
            }
            // A higher limit feeds who went hungry by the lower one.
            self.feed(&key, notices);
        }
        ActivateOutcome::Active { version: bundle.version }
    }

    /// The window length and limit that policy gives a pool now; `None` for a pool that policy does not lease from,
    /// an unlimited one included.
    pub(crate) fn contract(&self, key: &PoolKey) -> Option<(WindowLength, Tokens)> {
        let (length, limit) = self.policy.as_ref()?.bundle.pool_at(key, self.now)?;
        match limit {
            Limit::Limited { tokens } => Some((length, tokens)),
            Limit::Blocked => Some((length, Tokens::ZERO)),
            Limit::Unlimited => None,
        }
    }

    /// Closes every window that is over. A pool that policy no longer has goes after its last open window, when no
    /// retry of its commands can come any more.
    fn close_windows(&mut self) {
        while let Some((end, _)) = self.endings.first()
            && *end <= self.now
        {
            let Some((_, key)) = self.endings.pop_first() else { break };
            let known = self.contract(&key).is_some();
            if let Some(pool) = self.pools.get_mut(&key) {
                pool.close(self.now);
                if pool.open.values().all(|window| window.hungry.is_empty()) {
                    self.starving.remove(&key);
                }
                if !known && pool.open.is_empty() {
                    if pool.remembers_commands() {
                        self.endings.insert((self.now.saturating_add_ms(RETRY_MS), key));
                    } else {
                        self.pools.remove(&key);
                    }
                }
            }
        }
    }

    /// States each invariant of DESIGN.md, section 4, that the state alone can show, or the one that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.pools.iter().try_for_each(|(key, pool)| self.check_pool(key, pool))
    }

    /// The same for what `entry` can have changed, so that a debug build keeps its speed with many pools.
    fn check_touched(&self, entry: &Entry) -> Result<(), String> {
        for command in &entry.commands {
            let key = match command {
                Command::Acquire { acquire, .. } => &acquire.pool,
                Command::Settle { settle, .. } => &settle.pool,
                Command::Hear { .. } => continue,
                Command::Feed | Command::ActivateBundle { .. } => return self.check_invariants(),
            };
            if let Some(pool) = self.pools.get(key) {
                self.check_pool(key, pool)?;
            }
        }
        Ok(())
    }

    fn check_pool(&self, key: &PoolKey, pool: &Pool) -> Result<(), String> {
        for window in pool.open.values().chain(&pool.closed) {
            let label = window.window.start;
            let mut kept = Tokens::ZERO;
            for ((holder, life), account) in &window.leases {
                let used = account.spent.checked_add(account.returned);
                if used.is_none_or(|used| used > account.granted) {
                    return Err(format!("{key} {label} {holder}#{life}: spent + returned > granted"));
                }
                if account.expires_at > window.window.end {
                    return Err(format!("{key} {label} {holder}#{life}: the lease outlives its window"));
                }
                kept = kept.checked_add(account.kept()).ok_or("the sum of leases wraps")?;
            }
            if kept != window.committed {
                return Err(format!("{key} {label}: leases hold {kept}, the pool gave {}", window.committed));
            }
        }
        for (start, window) in &pool.open {
            if window.window.end <= self.now || *start != window.window.start {
                return Err(format!("{key} {start}: a window that is over is still open"));
            }
            if !self.endings.contains(&(window.window.end, key.clone())) {
                return Err(format!("{key} {start}: nothing will close this window"));
            }
        }
        let mut windows = pool.closed.iter().chain(pool.open.values()).map(|w| w.window);
        let mut last = windows.next();
        for window in windows {
            if last.is_some_and(|last| last.end > window.start) || window.start >= window.end {
                return Err(format!("{key} {}: the window overlaps the one before it", window.start));
            }
            last = Some(window);
        }
        Ok(())
    }
}

fn tell(pool: &PoolKey, told: Vec<Told>, notices: &mut Vec<Notice>) {
    notices.extend(told.into_iter().map(|Told { life: (holder, incarnation), lease }| Notice {
        holder,
        push: Push { incarnation, pool: pool.clone(), lease },
    }));
}
