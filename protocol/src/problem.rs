//! Problem details (RFC 9457): every error on HTTP, by a stable type.

use serde::{Deserialize, Serialize};

/// The prefix of every problem type.
pub const TYPE_PREFIX: &str = "urn:leasehold:problem:";

/// What kind of problem it is. The wire form is [`TYPE_PREFIX`] and the kind's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// A rule refused a request (429).
    QuotaExceeded,
    /// The route is fail-closed and the decision could not be made (503).
    FailClosed,
    /// No policy has been received yet (503).
    NoPolicy,
    /// The input is wrong (400).
    InvalidInput,
    /// The body is not JSON of the right shape (400).
    MalformedBody,
    /// The body is larger than allowed (413).
    BodyTooLarge,
    /// No such resource (404).
    NotFound,
    /// No such method on this resource (405).
    MethodNotAllowed,
    /// A token is missing or wrong (401).
    Unauthorized,
    /// Another change came first (409).
    Conflict,
    /// The policy source does not compile (422).
    PolicyRefused,
    /// A signature or digest does not verify (422).
    SignatureRefused,
    /// This replica is not the leader (503); the detail names who is, if known.
    NotLeader,
    /// More work than the bounded queue takes (503).
    Overloaded,
    /// A remote role did not answer in time (503).
    Unavailable,
    /// A deadline passed (504).
    Timeout,
    /// A fault of ours (500).
    Internal,
}

impl ProblemKind {
    /// Every kind, for documentation and tests.
    pub const ALL: [ProblemKind; 17] = [
        Self::QuotaExceeded,
        Self::FailClosed,
        Self::NoPolicy,
        Self::InvalidInput,
        Self::MalformedBody,
        Self::BodyTooLarge,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Unauthorized,
        Self::Conflict,
        Self::PolicyRefused,
        Self::SignatureRefused,
        Self::NotLeader,
        Self::Overloaded,
        Self::Unavailable,
        Self::Timeout,
        Self::Internal,
    ];

    /// The last part of the type, its title and its HTTP status.
    pub fn describe(self) -> (&'static str, &'static str, u16) {
        match self {
            Self::QuotaExceeded => ("quota-exceeded", "Quota exceeded", 429),
            Self::FailClosed => {
                ("fail-closed", "The decision cannot be made and this route fails closed", 503)
            }
            Self::NoPolicy => ("no-policy", "No policy bundle has been received yet", 503),
            Self::InvalidInput => ("invalid-input", "Invalid input", 400),
            Self::MalformedBody => ("malformed-body", "Malformed body", 400),
            Self::BodyTooLarge => ("body-too-large", "Body too large", 413),
            Self::NotFound => ("not-found", "Not found", 404),
            Self::MethodNotAllowed => ("method-not-allowed", "Method not allowed", 405),
            Self::Unauthorized => ("unauthorized", "A valid bearer token is required", 401),
            Self::Conflict => ("conflict", "Another change came first", 409),
            Self::PolicyRefused => ("policy-refused", "The policy source was refused", 422),
            Self::SignatureRefused => ("signature-refused", "The bundle does not verify", 422),
            Self::NotLeader => ("not-leader", "This replica is not the leader", 503),
            Self::Overloaded => ("overloaded", "Overloaded", 503),
            Self::Unavailable => ("unavailable", "A dependency did not answer", 503),
            Self::Timeout => ("timeout", "The deadline passed", 504),
            Self::Internal => ("internal", "Internal fault", 500),
        }
    }

    /// The kind of a wire type.
    pub fn from_type(r#type: &str) -> Option<Self> {
        let name = r#type.strip_prefix(TYPE_PREFIX)?;
        Self::ALL.into_iter().find(|kind| kind.describe().0 == name)
    }
}

/// One field of the input that is wrong, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvalidField {
    /// Which field, as a path such as `acquires[3].need`.
    pub field: String,
    /// The value as given, shortened to 100 characters.
    pub value: String,
    /// The rule it broke.
    pub rule: String,
}

impl InvalidField {
    /// Names the field, the value and the broken rule.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass fresh texts and plain values")]
    pub fn new(field: impl Into<String>, value: impl ToString, rule: impl ToString) -> Self {
        let value: String = value.to_string().chars().take(100).collect();
        Self { field: field.into(), value, rule: rule.to_string() }
    }
}

/// A problem document (RFC 9457, section 3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The stable type, a URN.
    pub r#type: String,
    /// The type in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// This occurrence in words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// The offending fields.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<InvalidField>,
    /// The base URL of the leader, where the problem is that this replica is not it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leader: Option<String>,
}

impl Problem {
    /// A problem of `kind` with `detail`.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        let (name, title, status) = kind.describe();
        Self {
            r#type: format!("{TYPE_PREFIX}{name}"),
            title: title.to_owned(),
            status,
            detail: Some(detail.into()),
            errors: Vec::new(),
            leader: None,
        }
    }

    /// Wrong input in these fields.
    pub fn invalid(errors: Vec<InvalidField>) -> Self {
        let detail = errors
            .iter()
            .map(|e| format!("`{}` = {:?}: {}", e.field, e.value, e.rule))
            .collect::<Vec<_>>()
            .join("; ");
        Self { errors, ..Self::new(ProblemKind::InvalidInput, detail) }
    }

    /// Its kind, if this version knows it.
    pub fn kind(&self) -> Option<ProblemKind> {
        ProblemKind::from_type(&self.r#type)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}", self.title),
            None => f.write_str(&self.title),
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_again_by_its_type_and_no_two_share_one() {
        for kind in ProblemKind::ALL {
            assert_eq!(Problem::new(kind, "x").kind(), Some(kind));
        }
    }
}
