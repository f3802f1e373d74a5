//! Claims about the ledger, each on entries as the log would bring them.

mod laws;
mod leases;
mod limits;
mod supply;
mod windows;

use leasehold_protocol::bundle::{
    Algorithm, BUNDLE_FORMAT, Bundle, Enforcement, FailMode, Fallback, KeyPart, Limit, Plan, Route, Rule,
    Sharing, Tenant,
};
use leasehold_protocol::lease::{Acquire, AcquireOutcome, Lease, Settle, WindowChoice};
use leasehold_protocol::{
    AgentId, BundleVersion, Demand, Holder, Incarnation, LedgerTime, PlanId, PoolKey, RegionId, RouteId,
    RuleId, TenantId, Tokens, WindowLength,
};

use crate::{ActivateOutcome, Command, Entry, Ledger, Outcome, SettleOutcome};

/// A minute's start.
const T0: u64 = 1_790_000_040_000;
const MINUTE: u64 = 60_000;
const DAY: u64 = 86_400_000;

fn rule_id() -> RuleId {
    RuleId::new("P-TENANT").unwrap()
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn pool_of(name: &str) -> PoolKey {
    PoolKey { rule: rule_id(), tenant: Some(tenant(name)) }
}

fn pool() -> PoolKey {
    pool_of("atlas")
}

fn holder(n: u64) -> Holder {
    let region = RegionId::new(format!("r{n}")).unwrap();
    Holder { agent: AgentId::new(format!("r{n}-1")).unwrap(), region }
}

/// Two tenants, one leased rule.
fn bundle(version: u64, limit: Limit, window_ms: u64) -> Bundle {
    let plan = PlanId::new("standard").unwrap();
    Bundle {
        format: BUNDLE_FORMAT,
        version: BundleVersion(version),
        issued_at_ms: 0,
        max_age_s: 3_600,
        rules: vec![Rule {
            id: rule_id(),
            key: vec![KeyPart::Tenant],
            algorithm: Algorithm::FixedWindow { limit, window_ms: WindowLength::from_ms(window_ms).unwrap() },
            enforcement: Enforcement::Leased,
            fallback: Fallback::Refuse,
            sharing: Sharing::default(),
        }],
        plans: vec![Plan { id: plan.clone(), limits: vec![] }],
        tenants: ["atlas", "birch"].map(|id| Tenant { id: tenant(id), plan: plan.clone() }).to_vec(),
        overrides: vec![],
        routes: vec![Route {
            id: RouteId::new("catalog").unwrap(),
            pattern: "GET /catalog".to_owned(),
            weight: Tokens(1),
            rules: vec![rule_id()],
            fail_mode: FailMode::Closed,
        }],
    }
}

fn limited(tokens: u64) -> Limit {
    Limit::Limited { tokens: Tokens(tokens) }
}

fn activate(bundle: Bundle) -> Command {
    let digest = format!("{:064x}", bundle.version.0);
    Command::ActivateBundle { bundle: Box::new(bundle), digest }
}

fn apply(ledger: &mut Ledger, at: u64, command: Command) -> Outcome {
    let outcomes = ledger.apply(&Entry { stamp: LedgerTime(at), commands: vec![command] }).outcomes;
    assert_eq!(outcomes.len(), 1);
    assert_eq!(ledger.check_invariants(), Ok(()));
    outcomes.into_iter().next().unwrap()
}

/// A ledger with a limit, at [`T0`].
fn ledger(limit: Limit, window_ms: u64) -> Ledger {
    let mut ledger = Ledger::default();
    publish(&mut ledger, T0, limit, window_ms);
    ledger
}

fn publish(ledger: &mut Ledger, at: u64, limit: Limit, window_ms: u64) {
    let version = ledger.bundle_version().0 + 1;
    let outcome = apply(ledger, at, activate(bundle(version, limit, window_ms)));
    assert_eq!(outcome, Outcome::Activated(ActivateOutcome::Active { version: BundleVersion(version) }));
}

/// Holder `n` in its first life wants `need` tokens, by its command `seq`.
fn wish(n: u64, seq: u64, window: WindowChoice, need: u64) -> Command {
    let (need, pool) = (Tokens(need), pool());
    let acquire = Acquire {
        pool,
        window,
        seq,
        need,
        least: Tokens(0),
        boundary: Tokens(0),
        demand: Demand::default(),
        extend_only: false,
    };
    Command::Acquire { holder: holder(n), incarnation: Incarnation(1), acquire }
}

fn acquire(ledger: &mut Ledger, at: u64, n: u64, seq: u64, need: u64) -> Lease {
    lease(apply(ledger, at, wish(n, seq, WindowChoice::Current, need)))
}

fn acquire_next(ledger: &mut Ledger, at: u64, n: u64, seq: u64, need: u64) -> Lease {
    lease(apply(ledger, at, wish(n, seq, WindowChoice::Next, need)))
}

fn lease(outcome: Outcome) -> Lease {
    let Outcome::Acquired(AcquireOutcome::Lease(lease)) = outcome else { panic!("{outcome:?}") };
    lease
}

fn settle(
    ledger: &mut Ledger,
    at: u64,
    n: u64,
    window_start: LedgerTime,
    spent: u64,
    returned: u64,
) -> SettleOutcome {
    let (spent_total, returned_total) = (Tokens(spent), Tokens(returned));
    let settle = Settle {
        pool: pool(),
        window_start,
        spent_total,
        returned_total,
        denied_total: Tokens(0),
        demand: Demand::default(),
    };
    let command = Command::Settle { holder: holder(n), incarnation: Incarnation(1), settle };
    let Outcome::Settled(outcome) = apply(ledger, at, command) else { panic!("a settle settles") };
    outcome
}

/// Limit, debt, remaining, leased and spent of the window that starts at `start`.
fn numbers(ledger: &Ledger, start: u64) -> [u64; 5] {
    let start = LedgerTime(start).to_rfc3339();
    let views = ledger.pool_views();
    let view = views.iter().find(|view| view.window_start == start).expect("the window is known");
    [view.limit.unwrap().0, view.debt.0, view.remaining.0, view.leased.0, view.spent.0]
}

/// Through the format of snapshots on the wire and on disk, and back.
fn restored(ledger: &Ledger) -> Ledger {
    let json: Ledger = serde_json::from_str(&serde_json::to_string(ledger).unwrap()).unwrap();
    let packed: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec(ledger).unwrap()).unwrap();
    let named: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(ledger).unwrap()).unwrap();
    assert_eq!(json, packed);
    assert_eq!(json, named);
    json
}
