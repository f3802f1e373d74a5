//! A policy like Northstar's, and one agent under it.

use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::bundle::{
    Algorithm, Bundle, Enforcement, FailMode, Fallback, KeyPart, Limit, Override, Plan, PlanLimit, Route,
    Rule, Sharing, Tenant,
};
use leasehold_protocol::lease::{AcquireAnswer, AcquireOutcome, Lease, LeaseFrame, LeaseFrameAnswer, Supply};
use leasehold_protocol::machine::Machine as _;
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::{
    AgentId, BundleVersion, DecisionId, Holder, Incarnation, LedgerTime, LocalTime, OverrideId, PlanId,
    RegionId, RouteId, RuleId, TenantId, Tokens, Window, WindowLength,
};

use crate::lease::{LeaseEffect, LeaseInput, LeaseManager, LeaseSettings};
use crate::{Admission, ParseError, Request, Verdict};

/// When the tests begin: 5 s into a minute and 5 s into ten seconds, by the wall clock.
pub(super) const UNIX0: u64 = 1_800_000_005_000;

pub(super) fn limited(tokens: u64) -> Limit {
    Limit::Limited { tokens: Tokens(tokens) }
}

fn window(tokens: u64, ms: u64) -> Algorithm {
    Algorithm::FixedWindow { limit: limited(tokens), window_ms: WindowLength::from_ms(ms).unwrap() }
}

fn rule(
    id: &str,
    key: &[KeyPart],
    algorithm: Algorithm,
    enforcement: Enforcement,
    fallback: Fallback,
) -> Rule {
    Rule {
        id: RuleId::new(id).unwrap(),
        key: key.to_vec(),
        algorithm,
        enforcement,
        fallback,
        sharing: Sharing::default(),
    }
}

fn route(id: &str, pattern: &str, weight: u64, rules: &[&str], fail_mode: FailMode) -> Route {
    Route {
        id: RouteId::new(id).unwrap(),
        pattern: pattern.to_owned(),
        weight: Tokens(weight),
        rules: rules.iter().map(|id| RuleId::new(id).unwrap()).collect(),
        fail_mode,
    }
}

fn bucket(capacity: u64, refill: u64) -> Fallback {
    Fallback::Bucket { capacity: Tokens(capacity), refill_tokens: Tokens(refill), refill_ms: 1_000 }
}

/// Version 1. Tests change it before they put it in force.
pub(crate) fn northstar() -> Bundle {
    use Enforcement::{Leased, Regional};
    use KeyPart::{Principal, Source, Tenant as ByTenant};
    let read = Algorithm::TokenBucket { capacity: Tokens(20), refill_tokens: Tokens(2), refill_ms: 1_000 };
    let export = Algorithm::Concurrency { limit: limited(3), slot_ttl_ms: 120_000 };
    Bundle {
        format: leasehold_protocol::bundle::BUNDLE_FORMAT,
        version: BundleVersion(1),
        issued_at_ms: UNIX0,
        max_age_s: 3_600,
        rules: vec![
            rule("P-ANON", &[Source], window(20, 10_000), Regional, Fallback::Refuse),
            rule("P-EXPORT", &[ByTenant], export, Regional, Fallback::Refuse),
            rule("P-GLOBAL", &[], window(40_000, 1_000), Leased, bucket(400, 400)),
            rule("P-READ", &[ByTenant, Principal], read, Regional, bucket(10, 1)),
            rule("P-TENANT", &[ByTenant], window(60, 60_000), Leased, Fallback::Refuse),
        ],
        plans: vec![Plan {
            id: PlanId::new("enterprise").unwrap(),
            limits: vec![PlanLimit { rule: RuleId::new("P-TENANT").unwrap(), limit: limited(1_000) }],
        }],
        tenants: ["atlas", "birch"].map(|id| tenant(id, "enterprise")).to_vec(),
        overrides: Vec::new(),
        routes: vec![
            route("catalog", "GET /catalog", 1, &["P-READ", "P-TENANT"], FailMode::Bounded),
            route("checkout", "POST /checkout", 1, &["P-READ", "P-TENANT"], FailMode::Closed),
            route(
                "export",
                "POST /reports/export",
                10,
                &["P-EXPORT", "P-READ", "P-TENANT"],
                FailMode::Closed,
            ),
            route("guarded", "GET /guarded", 1, &["P-GLOBAL"], FailMode::Bounded),
            route("login", "POST /login", 1, &["P-ANON"], FailMode::Closed),
            route(
                "status",
                "GET /status",
                1,
                &["P-TENANT"],
                FailMode::Open { reason: "It costs nothing and people look at it in an outage.".to_owned() },
            ),
        ],
    }
}

fn tenant(id: &str, plan: &str) -> Tenant {
    Tenant { id: TenantId::new(id).unwrap(), plan: PlanId::new(plan).unwrap() }
}

/// An override of Atlas's.
pub(super) fn override_of(rule: &str, limit: Limit, expires_at_ms: u64) -> Override {
    Override {
        id: OverrideId::new("black-friday").unwrap(),
        tenant: TenantId::new("atlas").unwrap(),
        rule: RuleId::new(rule).unwrap(),
        limit,
        owner: "account-team".to_owned(),
        reason: "Black Friday week".to_owned(),
        expires_at_ms,
    }
}

/// A catalog read by one user of Atlas.
pub(super) fn read(user: &str) -> AdmitRequest {
    ask("catalog", "atlas", user)
}

pub(super) fn ask(route: &str, tenant: &str, user: &str) -> AdmitRequest {
    AdmitRequest {
        tenant: Some(tenant.to_owned()),
        principal: Some(user.to_owned()),
        route: route.to_owned(),
        ..AdmitRequest::default()
    }
}

/// One agent, its clock in ms since the test began, and the frames that nobody has answered.
pub(super) struct World {
    pub(super) admission: Admission,
    pub(super) now_ms: u64,
    decisions: u64,
    granted: u64,
}

impl World {
    pub(super) fn new() -> Self {
        Self::of(northstar())
    }

    pub(super) fn of(bundle: Bundle) -> Self {
        Self::sized(bundle, 10_000)
    }

    /// With room for `counters_max` counters and slots.
    pub(super) fn sized(bundle: Bundle, counters_max: usize) -> Self {
        let holder = Holder { region: RegionId::new("eu").unwrap(), agent: AgentId::new("eu-1").unwrap() };
        let leases = LeaseManager::new(holder, Incarnation(1), LeaseSettings::default());
        let mut world =
            Self { admission: Admission::new(counters_max, leases), now_ms: 0, decisions: 0, granted: 0 };
        world.activate(bundle);
        world
    }

    pub(super) fn activate(&mut self, bundle: Bundle) {
        let bundle = CheckedBundle::new(bundle).unwrap();
        self.admission.activate(self.now(), self.unix(), bundle, "digest".to_owned()).unwrap();
    }

    pub(super) fn now(&self) -> LocalTime {
        LocalTime::from_ms(1_000_000 + self.now_ms)
    }

    pub(super) fn unix(&self) -> LedgerTime {
        LedgerTime(UNIX0 + self.now_ms)
    }

    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    pub(super) fn next_id(&mut self) -> DecisionId {
        self.decisions += 1;
        DecisionId::new(format!("d-{}", self.decisions)).unwrap()
    }

    pub(super) fn parse(&self, asked: AdmitRequest) -> Result<Request, ParseError> {
        self.admission.parse(self.unix(), asked)
    }

    /// A first look.
    pub(super) fn check(&mut self, asked: AdmitRequest) -> Verdict {
        let id = self.next_id();
        self.check_as(asked, &id)
    }

    pub(super) fn check_as(&mut self, asked: AdmitRequest, id: &DecisionId) -> Verdict {
        let request = self.parse(asked).unwrap();
        let (now, unix) = (self.now(), self.unix());
        self.admission.check(now, unix, &request, id)
    }

    /// A last look, for a request whose hold is over.
    pub(super) fn check_last(&mut self, asked: AdmitRequest) -> Verdict {
        let (request, id) = (self.parse(asked).unwrap(), self.next_id());
        let (now, unix) = (self.now(), self.unix());
        self.admission.check_last(now, unix, &request, &id)
    }

    /// The frames that the lease manager sends now.
    pub(super) fn frames(&mut self) -> Vec<(u64, LeaseFrame)> {
        let now = self.now();
        let effects = self.admission.leases_mut().step(now, LeaseInput::Tick);
        let sends = effects.then.into_iter().filter_map(|effect| match effect {
            LeaseEffect::Send { frame_id, frame } => Some((frame_id, frame)),
            _ => None,
        });
        sends.collect()
    }

    /// Lets Atlas's read ask for tokens and the allocator grant `tokens` more for the current minute.
    pub(super) fn grant(&mut self, tokens: u64) {
        self.grant_with(tokens, 500, 0);
    }

    /// As [`World::grant`], with what the pool and the other holders have left.
    pub(super) fn grant_with(&mut self, tokens: u64, remaining: u64, outstanding: u64) {
        self.granted += tokens;
        // Something must be asked for, or there is no frame to answer.
        let ask = self.check(ask("checkout", "atlas", "asker"));
        assert!(matches!(ask, Verdict::Wait(_)), "tokens are there already: {ask:?}");
        let minute = WindowLength::from_ms(60_000).unwrap();
        let window = Window::containing(self.unix(), minute);
        let lease = Lease {
            window,
            starts_in_ms: 0,
            expires_in_ms: window.end.ms_since(self.unix()),
            granted_total: Tokens(self.granted),
            spent_total: Tokens(0),
            returned_total: Tokens(0),
            limit: Tokens(1_000),
            remaining: Tokens(remaining),
            outstanding: Tokens(outstanding),
            version: self.granted + 1,
            supply: Supply { short: remaining == 0 && tokens == 0, ..Supply::default() },
        };
        self.answer(&AcquireOutcome::Lease(lease));
    }

    /// Answers every acquire that is sent now with `outcome`.
    pub(super) fn answer(&mut self, outcome: &AcquireOutcome) {
        let frames = self.frames();
        assert!(!frames.is_empty(), "nothing is asked");
        let now = self.now();
        for (frame_id, frame) in frames {
            let answers = frame.acquires.iter().map(|acquire| AcquireAnswer {
                pool: acquire.pool.clone(),
                seq: acquire.seq,
                outcome: outcome.clone(),
            });
            let answer = LeaseFrameAnswer {
                answers: answers.collect(),
                bundle_version: BundleVersion(1),
                pushes: vec![],
            };
            let _ =
                self.admission.leases_mut().step(now, LeaseInput::Answered { sent: now, frame_id, answer });
        }
    }

    /// Lets the allocator go silent for so long that it counts as lost.
    pub(super) fn lose_allocator(&mut self) {
        for _ in 0..400 {
            for (frame_id, _) in self.frames() {
                let now = self.now();
                let _ = self.admission.leases_mut().step(now, LeaseInput::Failed { frame_id });
            }
            if self.admission.leases().is_allocator_lost(self.now()) {
                return;
            }
            self.pass_ms(10);
        }
        panic!("a silent allocator never counts as lost");
    }

    /// Tokens that Atlas's pool holds here.
    pub(super) fn held(&self) -> u64 {
        let leases = self.admission.leases().held_leases(self.now());
        leases.iter().filter(|l| l.rule.as_str() == "P-TENANT").map(|l| l.held.0).sum()
    }
}

/// The rule that refused, if it was a refusal.
pub(super) fn denied_by(verdict: &Verdict) -> Option<(&str, u64)> {
    match verdict {
        Verdict::Denied(report) => Some((report.denied_by.as_ref()?.as_str(), report.retry_after_ms?)),
        _ => None,
    }
}

pub(super) fn is_allowed(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Allowed(_))
}
