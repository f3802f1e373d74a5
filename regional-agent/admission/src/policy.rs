//! The one bundle that requests are decided by.

use std::collections::BTreeMap;

use leasehold_protocol::bundle::{Route, Rule};
use leasehold_protocol::policy::CheckedBundle;
use leasehold_protocol::{BundleVersion, RouteId};

/// A bundle in force, with its routes by pattern.
#[derive(Debug, Clone)]
pub struct ActivePolicy {
    bundle: CheckedBundle,
    digest: String,
    by_pattern: BTreeMap<String, RouteId>,
}

/// Why a bundle was not activated. The one in force stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ActivateError {
    /// Not newer than the one in force: a late or repeated delivery (D22: only higher versions).
    #[error("version {got} is not higher than {active}, which is in force")]
    NotHigher {
        /// The version in force.
        active: BundleVersion,
        /// The version offered.
        got: BundleVersion,
    },
}

impl ActivePolicy {
    /// The bundle, and the digest of the bytes it came in.
    pub fn new(bundle: CheckedBundle, digest: String) -> Self {
        let by_pattern =
            bundle.routes.iter().map(|route| (route.pattern.clone(), route.id.clone())).collect();
        Self { bundle, digest, by_pattern }
    }

    /// The bundle.
    pub fn bundle(&self) -> &CheckedBundle {
        &self.bundle
    }

    /// Its version.
    pub fn version(&self) -> BundleVersion {
        self.bundle.version
    }

    /// The digest of the bytes it came in, hex.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The route of this id or pattern.
    pub fn route(&self, text: &str) -> Option<&Route> {
        match RouteId::new(text) {
            Ok(id) => self.bundle.route(&id),
            Err(_) => None,
        }
        .or_else(|| self.by_pattern.get(text).and_then(|id| self.bundle.route(id)))
    }

    /// The rules of a route, in its order.
    pub fn rules_of<'a>(&'a self, route: &'a Route) -> impl Iterator<Item = &'a Rule> {
        route.rules.iter().filter_map(|id| self.bundle.rule(id))
    }
}
