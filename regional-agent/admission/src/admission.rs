//! One agent's admission: the bundle in force, its counters and its leases.

use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::bundle::Algorithm;
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::{BundleVersion, DecisionId, InvalidField, LedgerTime, LocalTime};

use crate::counters::Counters;
use crate::lease::LeaseManager;
use crate::policy::{ActivateError, ActivePolicy};
use crate::request::Request;

/// See the module. Its host calls it from one place at a time.
#[derive(Debug)]
pub struct Admission {
    pub(crate) policy: Option<ActivePolicy>,
    pub(crate) counters: Counters,
    pub(crate) leases: LeaseManager,
}

/// Why a question is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// There is no bundle to check it against.
    #[error("no policy bundle has been received yet")]
    NoPolicy,
    /// These fields are wrong.
    #[error("{} fields are wrong", .0.len())]
    Invalid(Vec<InvalidField>),
}

impl Admission {
    /// Without a bundle, with at most `counters_max` counters and slots together.
    pub fn new(counters_max: usize, leases: LeaseManager) -> Self {
        Self { policy: None, counters: Counters::new(counters_max), leases }
    }

    /// The request that `asked` is under the bundle in force.
    pub fn parse(&self, unix: LedgerTime, asked: AdmitRequest) -> Result<Request, ParseError> {
        let policy = self.policy.as_ref().ok_or(ParseError::NoPolicy)?;
        Request::parse(policy, unix, asked).map_err(ParseError::Invalid)
    }

    /// Puts a newer bundle in force, in one step: every later check is by it alone. Counters stay whose rule and
    /// key are unchanged; pools that it no longer knows are given back.
    pub fn activate(
        &mut self,
        now: LocalTime,
        unix: LedgerTime,
        bundle: CheckedBundle,
        digest: String,
    ) -> Result<BundleVersion, ActivateError> {
        let (active, got) = (self.version(), bundle.version);
        if got <= active {
            return Err(ActivateError::NotHigher { active, got });
        }
        self.counters.migrate(&bundle, now, unix);
        self.leases.retain_pools(now, |pool| bundle.pool_at(pool, unix).is_some());
        self.policy = Some(ActivePolicy::new(bundle, digest));
        Ok(got)
    }

    /// The bundle in force.
    pub fn policy(&self) -> Option<&ActivePolicy> {
        self.policy.as_ref()
    }

    /// Its version; 0 before the first.
    pub fn version(&self) -> BundleVersion {
        self.policy.as_ref().map(ActivePolicy::version).unwrap_or_default()
    }

    /// Gives a decision's slots back: true if it held one until now. Needs no policy.
    pub fn release(&mut self, id: &DecisionId, now: LocalTime) -> bool {
        self.counters.release(id, now)
    }

    /// Keeps a decision's slots for another time to live: true if it holds one.
    pub fn heartbeat(&mut self, id: &DecisionId, now: LocalTime) -> bool {
        let policy = self.policy.as_ref();
        self.counters.heartbeat(id, now, |key| {
            match policy.and_then(|p| p.bundle().rule(&key.rule)).map(|rule| rule.algorithm) {
                Some(Algorithm::Concurrency { slot_ttl_ms, .. }) => Some(slot_ttl_ms),
                _ => None,
            }
        })
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counters, to sweep.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// The leases.
    pub fn leases(&self) -> &LeaseManager {
        &self.leases
    }

    /// The leases, to step.
    pub fn leases_mut(&mut self) -> &mut LeaseManager {
        &mut self.leases
    }
}
