//! Identifiers. Each is a newtype, so that a tenant cannot be passed where a rule is meant.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest identifier, in bytes.
pub const ID_LEN_MAX: usize = 64;

/// Why a text is no identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing between the quotes.
    #[error("is empty; the shortest is one letter")]
    Empty,
    /// More than [`ID_LEN_MAX`] bytes.
    #[error("has {len} bytes; at most {ID_LEN_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A character outside the grammar.
    #[error("has {found:?} at byte {at}; allowed are {allowed}")]
    BadCharacter {
        /// The character.
        found: char,
        /// Its offset in bytes.
        at: usize,
        /// The grammar in words.
        allowed: &'static str,
    },
}

fn check(text: &str, upper: bool) -> Result<(), IdError> {
    let allowed = if upper {
        "letters, digits and . _ - after a first letter"
    } else {
        "a-z, digits and . _ - after a first a-z"
    };
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > ID_LEN_MAX {
        return Err(IdError::TooLong { len: text.len() });
    }
    for (at, found) in text.char_indices() {
        let letter = found.is_ascii_lowercase() || (upper && found.is_ascii_uppercase());
        let inner = found.is_ascii_digit() || matches!(found, '.' | '_' | '-');
        if !(letter || (at > 0 && inner)) {
            return Err(IdError::BadCharacter { found, at, allowed });
        }
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $upper:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The identifier, if `text` follows the grammar.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check(text, $upper)?;
                Ok(Self(text.into()))
            }

            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text_id!(
    /// A tenant: whose quota is spent. `[a-z][a-z0-9._-]{0,63}`.
    TenantId, false);
text_id!(
    /// A plan: a tier of limits. `[a-z][a-z0-9._-]{0,63}`.
    PlanId, false);
text_id!(
    /// A route group. `[a-z][a-z0-9._-]{0,63}`.
    RouteId, false);
text_id!(
    /// A region. `[a-z][a-z0-9._-]{0,63}`.
    RegionId, false);
text_id!(
    /// A rule, such as `P-TENANT`. `[A-Za-z][A-Za-z0-9._-]{0,63}`; no two may differ by case alone.
    RuleId, true);
text_id!(
    /// An override. `[a-z][a-z0-9._-]{0,63}`.
    OverrideId, false);
text_id!(
    /// One regional agent, stable over restarts. `[a-z][a-z0-9._-]{0,63}`.
    AgentId, false);
text_id!(
    /// One admission decision, unique over agents and their restarts.
    DecisionId, false);

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number_id!(
    /// An allocator replica.
    NodeId);
number_id!(
    /// One life of an agent process; a later life has a higher number. Tokens of an earlier life are forfeit.
    Incarnation);
number_id!(
    /// A bundle's version. Strictly increasing; 0 means none.
    BundleVersion);

/// Who holds a lease: one agent in one region.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Its region.
    pub region: RegionId,
    /// The agent.
    pub agent: AgentId,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.region, self.agent)
    }
}

/// A pool without its window: one rule, and the tenant whose tokens it holds (none: shared by the fleet).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolKey {
    /// The rule.
    pub rule: RuleId,
    /// The tenant; `None` for a rule whose key names no tenant.
    pub tenant: Option<TenantId>,
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            Some(tenant) => write!(f, "{}/{tenant}", self.rule),
            None => write!(f, "{}/*", self.rule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_the_grammar_are_refused_with_the_place() {
        assert_eq!(TenantId::new(""), Err(IdError::Empty));
        assert_eq!(TenantId::new("a".repeat(65)), Err(IdError::TooLong { len: 65 }));
        for bad in ["Atlas", "1atlas", "at las", "at{las}", "at/las", "atlas\u{0}", "atl\u{430}s", "-atlas"] {
            assert!(TenantId::new(bad).is_err(), "{bad:?}");
        }
        assert!(RuleId::new("P-TENANT").is_ok());
        assert!(TenantId::new("a1.b_c-d").is_ok());
    }

    #[test]
    fn ids_are_checked_when_they_are_read() {
        assert!(serde_json::from_str::<TenantId>("\"At\"").is_err());
        assert_eq!(serde_json::from_str::<TenantId>("\"atlas\"").ok(), TenantId::new("atlas").ok());
    }
}
