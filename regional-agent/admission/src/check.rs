//! The all-or-nothing check (D9): read every rule, then write every rule, or none.

use leasehold_protocol::admit::Mode;
use leasehold_protocol::bundle::{FailMode, Fallback, Route, Rule};
use leasehold_protocol::{DecisionId, LedgerTime, LocalTime, PoolKey, RuleId};

use crate::admission::Admission;
use crate::policy::ActivePolicy;
use crate::request::Request;
use crate::standing::{Judged, Reader, SOFT_RETRY_MS, Standing, Write};
use crate::verdict::{Condition, Report, Verdict, Waiting};

/// The wait that a 503 names, in ms: long enough for a new leader.
const FAIL_CLOSED_RETRY_MS: u64 = 1_000;

/// Which look at a request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The first: its demand is noted.
    First,
    /// Another one while it is held.
    Again,
    /// The last: it is held no longer.
    Last,
}

impl Admission {
    /// Decides `request`, or says what it would have to wait for. `unix` is the wall clock, for the expiry of
    /// overrides and the windows of regional rules. Notes the request's demand.
    pub fn check(&mut self, now: LocalTime, unix: LedgerTime, request: &Request, id: &DecisionId) -> Verdict {
        self.look(now, unix, request, id, Look::First)
    }

    /// Decides a request that is being held, if it can be decided now.
    pub fn check_again(
        &mut self,
        now: LocalTime,
        unix: LedgerTime,
        request: &Request,
        id: &DecisionId,
    ) -> Verdict {
        self.look(now, unix, request, id, Look::Again)
    }

    /// Decides a request that is held no longer: tokens that are still on their way count as a refusal. Never
    /// [`Verdict::Wait`].
    pub fn check_last(
        &mut self,
        now: LocalTime,
        unix: LedgerTime,
        request: &Request,
        id: &DecisionId,
    ) -> Verdict {
        self.look(now, unix, request, id, Look::Last)
    }

    fn look(
        &mut self,
        now: LocalTime,
        unix: LedgerTime,
        request: &Request,
        id: &DecisionId,
        look: Look,
    ) -> Verdict {
        let Some(policy) = &self.policy else { return Verdict::NoPolicy };
        let reparsed;
        let request = if request.version() == policy.version() {
            request
        } else {
            match request.reparsed(policy, unix) {
                Ok(again) => {
                    reparsed = again;
                    &reparsed
                }
                Err(faults) => return Verdict::Invalid(faults),
            }
        };
        let Some(route) = policy.bundle().route(request.route()) else {
            return Verdict::Invalid(Vec::new());
        };
        // Two entries a rule at most: a counter and a slot, or a fallback bucket.
        let room = self.counters.make_room(now, unix, route.rules.len().saturating_mul(2));
        let mut reader = Reader {
            now,
            unix,
            policy,
            request,
            counters: &self.counters,
            leases: &self.leases,
            room,
            refused: 0,
        };
        let judged: Vec<Judged> = policy.rules_of(route).map(|rule| reader.judge(rule)).collect();
        let mut plan = plan(&mut reader, policy, route, judged, look);
        for _ in 0..reader.refused {
            self.counters.note_refused();
        }
        if look == Look::First {
            self.note_demand(now, request, &plan.judged);
        }
        if let Outcome::Deny { by, .. } = &plan.outcome {
            let is_short = |j: &&Judged| matches!(j.standing, Standing::Deny { .. } | Standing::Pending);
            let short = plan.judged.iter().filter(|j| j.rule == *by).filter(is_short);
            for pool in short.filter_map(|j| j.pool.as_ref()) {
                self.leases.refused(now, pool, request.cost());
            }
        }
        if let Outcome::Admit = plan.outcome
            && let Err(rule) = self.write(now, unix, request, id, &mut plan)
        {
            plan.undecided.push((rule.clone(), Condition::AllocatorLost));
            plan.outcome = Outcome::FailClosed(rule);
        }
        plan.into_verdict(self.version(), request)
    }

    /// Notes what each pool is asked for, unless another rule refuses anyway: tokens leased for such demand would
    /// lie idle.
    fn note_demand(&mut self, now: LocalTime, request: &Request, judged: &[Judged]) {
        let denying = |j: &&Judged| matches!(j.standing, Standing::Deny { .. });
        let denials = judged.iter().filter(denying).count();
        for j in judged {
            let others = denials - usize::from(denying(&j));
            if let (0, Some(pool)) = (others, &j.pool) {
                self.leases.demand(now, pool, request.cost());
            }
        }
    }

    /// Slots first, leased tokens second, counters last (D18). The only step that can fail is a spend that the
    /// reading allowed a moment ago: then the slots are undone, and what was spent stays spent.
    fn write(
        &mut self,
        now: LocalTime,
        unix: LedgerTime,
        request: &Request,
        id: &DecisionId,
        plan: &mut Plan,
    ) -> Result<(), RuleId> {
        let writes = std::mem::take(&mut plan.writes);
        for (_, write) in &writes {
            if let Write::Slot(key, expires) = write {
                self.counters.expire_slots(key, now);
                self.counters.take_slot(key, id, *expires, now, unix);
                plan.holds_slot = true;
            }
        }
        for (rule, write) in &writes {
            if let Write::Spend(pool) = write
                && !self.leases.spend(now, pool, request.cost())
            {
                debug_assert!(false, "{pool}: availability said enough, and the spend failed");
                self.counters.release(id, now);
                plan.holds_slot = false;
                return Err(rule.clone());
            }
        }
        for (_, write) in writes {
            if let Write::Put(key, counter) = write {
                self.counters.put(key, counter, now, unix);
            }
        }
        Ok(())
    }

    /// A held request starts to wait. Pair each with one [`Admission::end_wait`].
    pub fn start_wait(&mut self, now: LocalTime, waiting: &Waiting) {
        for pool in &waiting.pools {
            self.leases.waiting(now, pool, waiting.cost);
        }
    }

    /// A held request waits no longer, whatever became of it.
    pub fn end_wait(&mut self, waiting: &Waiting) {
        for pool in &waiting.pools {
            self.leases.not_waiting(pool, waiting.cost);
        }
    }
}

enum Outcome {
    Admit,
    Deny { by: RuleId, retry_after_ms: u64, spread_ms: u64 },
    FailClosed(RuleId),
    Wait(Vec<PoolKey>),
}

/// What is to be done: everything is read by now and nothing written.
struct Plan {
    outcome: Outcome,
    mode: Mode,
    judged: Vec<Judged>,
    writes: Vec<(RuleId, Write)>,
    undecided: Vec<(RuleId, Condition)>,
    holds_slot: bool,
}

/// Folds how the rules stand into what is to be done. A refusal by any rule stands whatever the others say; then
/// what cannot be decided goes to the fail mode; then what is on its way is waited for.
fn plan(
    reader: &mut Reader<'_>,
    policy: &ActivePolicy,
    route: &Route,
    judged: Vec<Judged>,
    look: Look,
) -> Plan {
    let undecided: Vec<(RuleId, Condition)> = judged
        .iter()
        .filter_map(|j| match j.standing {
            Standing::Undecided(condition) => Some((j.rule.clone(), condition)),
            _ => None,
        })
        .collect();
    let mut plan = Plan {
        outcome: Outcome::Admit,
        mode: Mode::Normal,
        judged,
        writes: Vec::new(),
        undecided,
        holds_slot: false,
    };
    if let Some(denied) = denial(plan.judged.iter().map(|j| (&j.rule, &j.standing))) {
        plan.outcome = denied;
        return plan;
    }
    if !plan.undecided.is_empty()
        && let Some(outcome) = fail_mode(reader, policy, route, &mut plan)
    {
        plan.outcome = outcome;
        return plan;
    }
    let pending = || plan.judged.iter().filter(|j| j.standing == Standing::Pending);
    if let Some(first) = pending().next() {
        plan.outcome = if look == Look::Last {
            let (retry_after_ms, spread_ms) = (SOFT_RETRY_MS, SOFT_RETRY_MS);
            Outcome::Deny { by: first.rule.clone(), retry_after_ms, spread_ms }
        } else {
            Outcome::Wait(pending().filter_map(|j| j.pool.clone()).collect())
        };
        return plan;
    }
    for j in &plan.judged {
        if let Standing::Pass { write, .. } = &j.standing
            && *write != Write::None
        {
            plan.writes.push((j.rule.clone(), write.clone()));
        }
    }
    plan
}

/// The first refusal by name, with the longest of all waits: before it the request cannot pass.
fn denial<'a>(standings: impl Iterator<Item = (&'a RuleId, &'a Standing)>) -> Option<Outcome> {
    let mut found: Option<(&RuleId, u64, u64)> = None;
    for (rule, standing) in standings {
        if let Standing::Deny { retry_after_ms, spread_ms } = standing {
            let (by, retry, spread) = found.unwrap_or((rule, 0, 0));
            found = Some((by, retry.max(*retry_after_ms), spread.max(*spread_ms)));
        }
    }
    found.map(|(by, retry_after_ms, spread_ms)| Outcome::Deny { by: by.clone(), retry_after_ms, spread_ms })
}

/// Lets the route's fail mode stand in for the rules that cannot be decided (D15). `None`: go on.
fn fail_mode(
    reader: &mut Reader<'_>,
    policy: &ActivePolicy,
    route: &Route,
    plan: &mut Plan,
) -> Option<Outcome> {
    let first = plan.undecided.first().map(|(rule, _)| rule.clone())?;
    match &route.fail_mode {
        FailMode::Closed => return Some(Outcome::FailClosed(first)),
        FailMode::Open { .. } => plan.mode = Mode::Fallback,
        FailMode::Bounded => {
            plan.mode = Mode::Fallback;
            let stand_ins: Vec<(RuleId, Option<Standing>)> = plan
                .undecided
                .iter()
                .map(|(id, _)| (id.clone(), policy.bundle().rule(id).and_then(|rule| stand_in(reader, rule))))
                .collect();
            for (rule, standing) in &stand_ins {
                match standing {
                    Some(Standing::Pass { write, .. }) => plan.writes.push((rule.clone(), write.clone())),
                    Some(Standing::Deny { .. }) => {}
                    _ => {
                        plan.mode = Mode::Normal;
                        return Some(Outcome::FailClosed(rule.clone()));
                    }
                }
            }
            return denial(stand_ins.iter().filter_map(|(rule, s)| s.as_ref().map(|s| (rule, s))));
        }
    }
    None
}

fn stand_in(reader: &mut Reader<'_>, rule: &Rule) -> Option<Standing> {
    match rule.fallback {
        Fallback::Refuse => None,
        Fallback::Bucket { .. } => reader.judge_fallback(rule),
    }
}

impl Plan {
    fn into_verdict(self, bundle_version: leasehold_protocol::BundleVersion, request: &Request) -> Verdict {
        let admitted = matches!(self.outcome, Outcome::Admit);
        let limits = self.judged.into_iter().filter_map(|j| {
            let mut state = j.state?;
            if let (true, Standing::Pass { remaining, reset_after_ms, .. }) = (admitted, j.standing) {
                state.remaining = remaining;
                state.reset_after_ms = reset_after_ms;
            }
            Some(state)
        });
        let mut report = Report {
            bundle_version,
            mode: self.mode,
            denied_by: None,
            retry_after_ms: None,
            spread_ms: 0,
            limits: limits.collect(),
            undecided: self.undecided,
            holds_slot: self.holds_slot,
        };
        match self.outcome {
            Outcome::Admit => Verdict::Allowed(report),
            Outcome::Deny { by, retry_after_ms, spread_ms } => {
                report.denied_by = Some(by);
                report.retry_after_ms = Some(retry_after_ms);
                report.spread_ms = spread_ms;
                Verdict::Denied(report)
            }
            Outcome::FailClosed(by) => {
                report.denied_by = Some(by);
                report.retry_after_ms = Some(FAIL_CLOSED_RETRY_MS);
                report.spread_ms = FAIL_CLOSED_RETRY_MS;
                Verdict::FailClosed(report)
            }
            Outcome::Wait(pools) => Verdict::Wait(Waiting { cost: request.cost(), pools }),
        }
    }
}
