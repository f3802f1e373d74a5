//! Requests: what a gateway asks, checked against the bundle in force.

use std::net::IpAddr;
use std::sync::Arc;

use leasehold_protocol::admit::{ATTRIBUTES_MAX, AdmitRequest, TEXT_LEN_MAX};
use leasehold_protocol::bundle::{Algorithm, KeyPart, Limit, Route, Rule};
use leasehold_protocol::{BundleVersion, InvalidField, LedgerTime, RouteId, TenantId, Tokens};

use crate::policy::ActivePolicy;
use crate::source::SourceKey;

/// Who asks, as far as counters care.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Whose quota.
    pub tenant: Option<TenantId>,
    /// Which identity inside the tenant.
    pub principal: Option<Arc<str>>,
    /// From where.
    pub source: Option<SourceKey>,
}

/// A request that the bundle `version` can decide: every identity that its rules' keys need is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    asked: AdmitRequest,
    version: BundleVersion,
    route: RouteId,
    identity: Identity,
    cost: Tokens,
}

impl Request {
    /// The request that `asked` is under `policy`, or every field that is wrong.
    pub fn parse(
        policy: &ActivePolicy,
        unix: LedgerTime,
        asked: AdmitRequest,
    ) -> Result<Self, Vec<InvalidField>> {
        let mut faults = Vec::new();
        let identity = identity_of(policy, &asked, &mut faults);
        extras(&asked, &mut faults);
        let Some(route) = policy.route(&asked.route) else {
            faults.push(InvalidField::new(
                "route",
                &asked.route,
                format!("no route has this id or pattern in bundle version {}", policy.version()),
            ));
            return Err(faults);
        };
        let cost = asked.cost.unwrap_or(route.weight);
        if cost.is_zero() || cost > Tokens::MAX {
            faults.push(InvalidField::new("cost", cost, format!("must be 1 to {}", Tokens::MAX)));
        }
        for rule in policy.rules_of(route) {
            missing(rule, route, &asked, &mut faults);
            if asked.cost.is_some() && cost <= Tokens::MAX {
                above_capacity(policy, rule, identity.tenant.as_ref(), unix, cost, &mut faults);
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let route = route.id.clone();
        Ok(Self { version: policy.version(), route, identity, cost, asked })
    }

    /// The same question under another bundle.
    pub(crate) fn reparsed(
        &self,
        policy: &ActivePolicy,
        unix: LedgerTime,
    ) -> Result<Self, Vec<InvalidField>> {
        Self::parse(policy, unix, self.asked.clone())
    }

    /// The bundle it was checked against.
    pub fn version(&self) -> BundleVersion {
        self.version
    }

    /// Its route.
    pub fn route(&self) -> &RouteId {
        &self.route
    }

    /// Who asks.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its cost in tokens, at least 1.
    pub fn cost(&self) -> Tokens {
        self.cost
    }
}

/// The identity in the parts of a request; what is wrong with a part is added to `faults`.
fn identity_of(policy: &ActivePolicy, asked: &AdmitRequest, faults: &mut Vec<InvalidField>) -> Identity {
    let tenant = asked.tenant.as_ref().and_then(|text| match TenantId::new(text) {
        Ok(id) if policy.bundle().has_tenant(&id) => Some(id),
        Ok(id) => {
            let rule = format!("no such tenant in bundle version {}", policy.version());
            faults.push(InvalidField::new("tenant", id, rule));
            None
        }
        Err(e) => {
            faults.push(InvalidField::new("tenant", text.escape_debug(), e));
            None
        }
    });
    if let Some(principal) = &asked.principal {
        text("principal", principal, faults);
    }
    Identity {
        tenant,
        principal: asked.principal.as_deref().map(Arc::from),
        source: asked.source.map(|address: IpAddr| SourceKey::from(address)),
    }
}

/// Checks the parts that no counter hangs from.
fn extras(asked: &AdmitRequest, faults: &mut Vec<InvalidField>) {
    if let Some(gateway) = &asked.gateway {
        text("gateway", gateway, faults);
    }
    let Some(attributes) = &asked.attributes else { return };
    if attributes.len() > ATTRIBUTES_MAX {
        let rule = format!("at most {ATTRIBUTES_MAX} attributes");
        faults.push(InvalidField::new("attributes", attributes.len(), rule));
        return;
    }
    for (name, value) in attributes {
        text("attributes", name, faults);
        if !value.is_empty() {
            text("attributes", value, faults);
        }
    }
}

fn text(field: &str, value: &str, faults: &mut Vec<InvalidField>) {
    let shown = value.escape_debug();
    if value.is_empty() {
        faults.push(InvalidField::new(field, shown, "must not be empty; leave it out instead"));
    } else if value.len() > TEXT_LEN_MAX {
        faults.push(InvalidField::new(field, shown, format!("at most {TEXT_LEN_MAX} bytes")));
    } else if value.chars().any(char::is_control) {
        faults.push(InvalidField::new(field, shown, "control characters are not allowed"));
    }
}

fn missing(rule: &Rule, route: &Route, asked: &AdmitRequest, faults: &mut Vec<InvalidField>) {
    for part in &rule.key {
        let (field, there) = match part {
            KeyPart::Tenant => ("tenant", asked.tenant.is_some()),
            KeyPart::Principal => ("principal", asked.principal.is_some()),
            KeyPart::Source => ("source", asked.source.is_some()),
        };
        if !there && !faults.iter().any(|fault| fault.field == field) {
            let why = format!("rule {} of route {} is keyed by it", rule.id, route.id);
            faults.push(InvalidField::new(field, "missing", why));
        }
    }
}

/// A cost that no state of the rule could ever pay (D17).
fn above_capacity(
    policy: &ActivePolicy,
    rule: &Rule,
    tenant: Option<&TenantId>,
    unix: LedgerTime,
    cost: Tokens,
    faults: &mut Vec<InvalidField>,
) {
    let most = match rule.algorithm {
        Algorithm::Concurrency { .. } => return,
        Algorithm::TokenBucket { capacity, .. } => capacity,
        Algorithm::FixedWindow { .. } => match policy.bundle().limit_at(rule, tenant, unix) {
            Some((Limit::Limited { tokens }, _)) => tokens,
            _ => return,
        },
    };
    if cost > most {
        let why = format!("rule {} never holds more than {most}, so it could never pass", rule.id);
        faults.push(InvalidField::new("cost", cost, why));
    }
}
