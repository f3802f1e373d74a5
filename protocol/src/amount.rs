//! Amounts: whole tokens and thousandths. Arithmetic is checked; nothing wraps and nothing is a float.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whole tokens, the unit of every limit, cost and lease.
///
/// ```
/// use leasehold_protocol::Tokens;
/// assert_eq!(Tokens(3).checked_add(Tokens(4)), Some(Tokens(7)));
/// assert_eq!(Tokens(u64::MAX).checked_add(Tokens(1)), None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

impl Tokens {
    /// No tokens.
    pub const ZERO: Tokens = Tokens(0);
    /// The largest limit or cost: 10^15 tokens. A thousand of them still fit 64 bits as millitokens.
    pub const MAX: Tokens = Tokens(1_000_000_000_000_000);

    /// The sum, or `None` where it would wrap.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference, or `None` below zero.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// The difference, or zero below zero: for views and estimates, never for what is owed.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, or the largest amount: for views and estimates, never for what is owed.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// True for zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The same amount in thousandths, or `None` where it would wrap.
    pub fn to_millitokens(self) -> Option<Millitokens> {
        self.0.checked_mul(1_000).map(Millitokens)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Thousandths of a token, the unit in which a token bucket refills (D2: 2 tokens a second for 300 ms
/// are 600 millitokens).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millitokens(pub u64);

impl Millitokens {
    /// The sum, or `None` where it would wrap.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference, or `None` below zero.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// Whole tokens, rounded down.
    pub fn whole_tokens(self) -> Tokens {
        Tokens(self.0 / 1_000)
    }
}
