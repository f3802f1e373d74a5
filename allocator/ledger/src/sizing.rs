//! How many tokens an acquire gets (ALGORITHM.md, 4.4). Safety depends on nothing here: the ledger caps every grant at
//! what remains.
//!
//! Real numbers are used, by operations that IEEE 754 defines to the bit, so that replicas agree (decision record 5);
//! what comes out is a whole number of tokens before anything is written.

use leasehold_protocol::bundle::Order;
use leasehold_protocol::demand::{Horizons, decay, forecast, real, whole};

/// Part of an entitlement that is granted ahead of need while there is less than plenty.
const LOT: f64 = 0.5;
/// With this many times the demand in the pool, the whole forecast is granted at once.
const PLENTY: f64 = 2.0;
/// The most of a limit that one region shall hold: so much a crash or a partition can cost.
const EXPOSURE: f64 = 0.2;
/// Below this entitlement, in tokens, only what waits is granted.
const DIRECT_BELOW: f64 = 6.0;
/// With fewer tokens than this for each holder, order of arrival is the fairer rule.
const FCFS_BELOW: f64 = 20.0;
/// The longest span of demand that is granted at once, in seconds: a session.
const SESSION_S: f64 = 600.0;

/// One holder as sizing sees it. Rates in tokens a second, spans in seconds, the rest in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Party {
    /// As it reported, `age` ago.
    pub(crate) fast: f64,
    /// As it reported, `age` ago.
    pub(crate) sustained: f64,
    /// Since its last report.
    pub(crate) age: f64,
    /// What it had at its last report and was granted since.
    pub(crate) held: f64,
    /// Granted and not given back in this window.
    pub(crate) got: f64,
    /// What its requests wait for, while they live.
    pub(crate) waiting: f64,
    /// Its share against the others'.
    pub(crate) weight: f64,
    /// False once nothing has been heard of it for too long to count on it.
    pub(crate) is_reachable: bool,
}

/// What is likely true of a holder by now.
#[derive(Debug, Clone, Copy)]
struct Likely {
    fast: f64,
    sustained: f64,
    held: f64,
}

impl Party {
    /// Silence says something: a holder that wanted more would have asked.
    fn likely(&self) -> Likely {
        let sustained = if self.age > 1.0 && self.held > 0.0 {
            self.sustained.min((self.held + 1.0) / self.age)
        } else {
            self.sustained
        };
        Likely {
            fast: (self.fast * decay(self.age)).max(sustained),
            sustained,
            held: (self.held - sustained * self.age).max(self.held.min(1.0)),
        }
    }

    /// As far as a window that has not begun is concerned.
    fn ahead(&self) -> Likely {
        Likely { fast: self.sustained, sustained: self.sustained, held: self.held }
    }
}

/// A pool in one window, and the time that is left of it.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    /// Who takes part.
    pub(crate) parties: &'a [Party],
    /// Tokens in the pool.
    pub(crate) remaining: f64,
    /// The limit.
    pub(crate) limit: f64,
    /// Until the window ends; its whole length if it has not begun.
    pub(crate) left: f64,
    /// True for a window that has not begun.
    pub(crate) is_ahead: bool,
    /// How a pool that is too small is shared.
    pub(crate) order: Order,
    /// Spans for windows of this length.
    pub(crate) spans: Horizons,
}

/// What a holder has a claim to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Entitlement {
    /// Tokens.
    pub(crate) tokens: f64,
    /// Tokens in the pool for each token of demand.
    plenty: f64,
}

/// What an acquire gets, and in which manner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Tokens.
    pub(crate) tokens: u64,
    /// Too little is left to lend ahead of need.
    pub(crate) direct: bool,
}

/// What an acquire asks for, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    /// What requests wait for.
    pub(crate) need: u64,
    /// The fewest that help one of them.
    pub(crate) least: u64,
    /// What the start of a window that has not begun will take at once.
    pub(crate) boundary: u64,
}

impl Scene<'_> {
    fn likely(&self, party: &Party) -> Likely {
        if self.is_ahead { party.ahead() } else { party.likely() }
    }

    /// What `other` will surely need beyond what it holds: the lower confidence bound of a Poisson count whose rate was
    /// itself measured over a short time. More is not kept back for it.
    fn reserve(&self, other: &Party) -> f64 {
        if !other.is_reachable {
            return 0.0;
        }
        let Likely { fast, sustained, held } = self.likely(other);
        let expected = forecast(fast, sustained, (self.left - 1.0).max(0.0));
        let spread = (expected * (1.0 + self.left / (2.0 * self.spans.sustained))).sqrt();
        (expected - spread - held).max(0.0).max(other.waiting)
    }

    /// What `me` has a claim to if it needs `need` tokens now.
    pub(crate) fn entitlement(&self, me: usize, need: f64) -> Entitlement {
        let Some(party) = self.parties.get(me) else { return Entitlement { tokens: 0.0, plenty: 0.0 } };
        let Likely { fast, sustained, .. } = self.likely(party);
        // The need comes on top of what is held.
        let own = ((forecast(fast, sustained, self.left) - party.held).max(0.0) + need).max(1.0);
        let wanted = |n: usize, other: &Party| if n == me { own } else { self.reserve(other) };
        let total: f64 = self.parties.iter().enumerate().map(|(n, other)| wanted(n, other)).sum();
        let plenty = self.remaining / total.max(1.0);
        let tokens = if total <= self.remaining {
            let count = real(u64::try_from(self.parties.len()).unwrap_or(u64::MAX));
            own + (0.2 * (self.remaining - total) / count).min(0.5 * own + 2.0)
        } else if self.is_fcfs() {
            (self.remaining * own / total).max(1.0)
        } else {
            let level = self.level(&wanted);
            own.min((level * party.weight - party.got).max(0.0))
        };
        Entitlement { tokens, plenty }
    }

    fn is_fcfs(&self) -> bool {
        let count = real(u64::try_from(self.parties.len()).unwrap_or(u64::MAX));
        self.order == Order::Fcfs || self.limit < FCFS_BELOW * count
    }

    /// The level up to which everybody's weighted part is filled when the pool is dealt out max-min fairly.
    fn level(&self, wanted: &dyn Fn(usize, &Party) -> f64) -> f64 {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        let wants: Vec<f64> = self.parties.iter().enumerate().map(|(n, party)| wanted(n, party)).collect();
        for (party, want) in self.parties.iter().zip(&wants) {
            high = high.max((party.got + want) / party.weight);
        }
        for _ in 0..64 {
            let level = f64::midpoint(low, high);
            let dealt: f64 = self
                .parties
                .iter()
                .zip(&wants)
                .map(|(party, want)| want.min((level * party.weight - party.got).max(0.0)))
                .sum();
            if dealt > self.remaining { high = level } else { low = level }
        }
        low
    }

    /// The size of a grant to `me`; `region_held` is what its region holds.
    pub(crate) fn size(&self, me: usize, ask: Ask, is_scarce: bool, region_held: f64) -> Size {
        let Some(party) = self.parties.get(me) else { return Size { tokens: 0, direct: true } };
        let boundary = if self.is_ahead { real(ask.boundary) } else { 0.0 };
        let Entitlement { tokens: claim, plenty } = self.entitlement(me, real(ask.need) + boundary);
        let Likely { fast, sustained, .. } = self.likely(party);
        let span = if is_scarce { self.spans.scarce } else { self.spans.plenty };
        let cap = (forecast(fast, sustained, span.min(self.left)) - party.held).max(1.0);
        let mut lot = if plenty >= PLENTY && !is_scarce {
            // A holder that forecasts nothing gets what it needs.
            let ahead = forecast(fast, sustained, self.left.min(SESSION_S));
            let spare = if ahead > 0.0 { ahead * 1.5 + 2.0 } else { 0.0 };
            claim.min(spare + real(ask.need)).floor()
        } else {
            (LOT * claim).min(cap).floor()
        };
        if self.is_ahead {
            lot = lot.max(boundary.min(claim).floor());
        }
        lot = lot.min((EXPOSURE * self.limit - region_held).floor());
        let direct = claim < DIRECT_BELOW || lot < 1.0;
        let served = ask.need.min(whole(claim.ceil()));
        let granted = if direct { served } else { whole(lot).max(served) };
        let granted = granted.min(whole(self.remaining));
        Size { tokens: if granted < ask.least { 0 } else { granted }, direct }
    }

    /// What a hungry holder is fed with; 0 if so little that it is better gathered for later.
    pub(crate) fn feed(&self, me: usize, least: u64) -> u64 {
        let Some(party) = self.parties.get(me) else { return 0 };
        let is_waiting = party.waiting > 0.0;
        let claim = self.entitlement(me, party.waiting.max(1.0)).tokens.ceil();
        let fast = self.likely(party).fast;
        let lot = fast.min(fast * self.left / 2.0).max(1.0);
        if !is_waiting && claim < lot {
            return 0;
        }
        let ahead = claim.min((fast * self.spans.scarce).ceil());
        let granted = whole(ahead.max(party.waiting.min(claim))).min(whole(self.remaining));
        if is_waiting && granted < least { 0 } else { granted }
    }

    /// Tokens that all will ask for until the window's end beyond what they hold.
    pub(crate) fn shortfall(&self) -> f64 {
        let parties = self.parties.iter().filter(|party| party.is_reachable);
        parties
            .map(|party| {
                let Likely { fast, sustained, held } = self.likely(party);
                (forecast(fast, sustained, self.left) - held).max(0.0)
            })
            .sum()
    }

    /// Tokens that all ask for within `span` seconds.
    pub(crate) fn rate_over(&self, span: f64) -> f64 {
        self.parties.iter().map(|party| self.likely(party).sustained * span.min(self.left)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(rate: f64, got: f64) -> Party {
        Party {
            fast: rate,
            sustained: rate,
            age: 0.0,
            held: 0.0,
            got,
            waiting: 0.0,
            weight: 1.0,
            is_reachable: true,
        }
    }

    fn scene(parties: &[Party], remaining: f64, left: f64) -> Scene<'_> {
        Scene {
            parties,
            remaining,
            limit: 1_000.0,
            left,
            is_ahead: false,
            order: Order::MaxMin,
            spans: Horizons::of(60_000),
        }
    }

    const ONE: Ask = Ask { need: 1, least: 1, boundary: 0 };

    #[test]
    fn with_plenty_in_the_pool_the_forecast_is_granted_up_to_the_exposure_of_a_region() {
        let parties = [party(1.0, 0.0), party(1.0, 0.0)];
        let size = scene(&parties, 1_000.0, 60.0).size(0, ONE, false, 0.0);
        assert!((60..=95).contains(&size.tokens) && !size.direct, "{size:?}");
        let parties = [party(8.0, 0.0)];
        for (region_held, granted) in [(0.0, 200), (150.0, 50), (200.0, 1)] {
            assert_eq!(scene(&parties, 1_000.0, 60.0).size(0, ONE, false, region_held).tokens, granted);
        }
        let parties = [party(12.0, 0.0)];
        assert_eq!(scene(&parties, 1_000.0, 60.0).size(0, ONE, false, 0.0).tokens, 180, "15 s ahead");
    }

    #[test]
    fn the_last_tokens_go_where_requests_wait_and_never_as_a_fragment() {
        let parties = [party(10.0, 500.0), party(10.0, 495.0)];
        let last = scene(&parties, 5.0, 10.0);
        assert_eq!(last.size(1, ONE, true, 0.0), Size { tokens: 1, direct: true });
        assert_eq!(last.size(1, Ask { need: 10, least: 10, boundary: 0 }, true, 0.0).tokens, 0);
        assert_eq!(last.size(1, Ask { need: 0, least: 0, boundary: 0 }, true, 0.0).tokens, 0);
    }

    #[test]
    fn whoever_had_less_has_the_larger_claim_by_maxmin_and_not_by_order_of_arrival() {
        let parties = [party(40.0, 600.0), party(40.0, 100.0)];
        let mut pool = scene(&parties, 300.0, 20.0);
        assert!(pool.entitlement(0, 1.0).tokens < 1.0);
        assert!((pool.entitlement(1, 1.0).tokens - 300.0).abs() < 1e-6);
        pool.order = Order::Fcfs;
        assert!(pool.entitlement(0, 1.0).tokens > 100.0);
    }

    #[test]
    fn weights_scale_the_level() {
        let parties = [party(40.0, 0.0), Party { weight: 3.0, ..party(40.0, 0.0) }];
        let pool = scene(&parties, 400.0, 30.0);
        assert!((pool.entitlement(0, 1.0).tokens - 100.0).abs() < 1e-6);
        assert!((pool.entitlement(1, 1.0).tokens - 300.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_is_kept_back_for_a_holder_that_is_not_heard_of() {
        let gone = Party { is_reachable: false, ..party(40.0, 0.0) };
        let parties = [party(10.0, 0.0), gone];
        assert!((scene(&parties, 300.0, 20.0).entitlement(0, 0.0).tokens - 210.0).abs() < 1.0 + 20.0);
    }

    #[test]
    fn absurd_reports_size_nothing_beyond_the_pool() {
        let huge = Party { fast: f64::MAX, sustained: f64::MAX, ..party(0.0, 0.0) };
        let parties = [huge, huge];
        for is_ahead in [false, true] {
            let pool = Scene { is_ahead, ..scene(&parties, 7.0, 60.0) };
            let ask = Ask { need: u64::MAX, least: 0, boundary: u64::MAX };
            assert!(pool.size(0, ask, false, 0.0).tokens <= 7);
            assert!(pool.feed(1, 0) <= 7);
        }
    }
}
