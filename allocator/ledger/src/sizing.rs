//! How many tokens an acquire gets. Safety depends on nothing here: the ledger caps every grant at what remains.

use leasehold_protocol::Tokens;

/// What the size depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Tokens that requests wait for.
    pub need: Tokens,
    /// Tokens that the holder's forecast asks for, `need` included.
    pub want: Tokens,
    /// Tokens in the pool.
    pub remaining: Tokens,
    /// Holders that take part in this window, the asker included, at least 1.
    pub holders: u64,
}

/// Guided self-scheduling: what waits, and beyond it the forecast up to half an even share of what remains
/// (ALGORITHM.md calls it `gss`, k = 2). The lots shrink as the pool does, so that the last tokens go where requests
/// wait. When half a share is less than one token, only what waits is granted.
pub fn grant(ask: Ask) -> Tokens {
    let share = ask.remaining.0 / ask.holders.max(1).saturating_mul(2);
    let forecast = ask.want.0.min(share);
    Tokens(ask.need.0.max(forecast).min(ask.remaining.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_shrink_with_the_pool_and_never_exceed_it() {
        let ask = |need, want, remaining, holders| {
            grant(Ask { need: Tokens(need), want: Tokens(want), remaining: Tokens(remaining), holders }).0
        };
        assert_eq!(ask(0, 1_000, 1_000, 2), 250);
        assert_eq!(ask(0, 100, 1_000, 2), 100);
        assert_eq!(ask(300, 300, 1_000, 2), 300);
        assert_eq!(ask(1, 50, 3, 2), 1);
        assert_eq!(ask(0, 50, 3, 2), 0);
        assert_eq!(ask(9, 50, 3, 2), 3);
        assert_eq!(ask(u64::MAX, u64::MAX, 7, u64::MAX), 7);
        assert_eq!(ask(0, 0, 1_000, 1), 0);
    }
}
