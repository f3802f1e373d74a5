//! The token bucket (D2), in integer millitokens.
//!
//! State: a level in millitokens, what is left over below one millitoken, and when both were right. Bound: over any
//! T it admits at most `capacity + rate * T`. Error: none; the refill's remainder is carried, so nothing is lost or
//! minted by rounding, however often the bucket is read.

use leasehold_protocol::{LocalTime, Millitokens, Tokens};

/// How a bucket fills. `capacity` and `refill_tokens` are 1 to 10^15, `refill_ms` 1 ms to 24 h (the bundle's check).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketShape {
    /// The most it holds, in tokens.
    pub capacity: Tokens,
    /// Tokens that flow in each `refill_ms`.
    pub refill_tokens: Tokens,
    /// The time for `refill_tokens`, in ms.
    pub refill_ms: u64,
}

impl BucketShape {
    fn capacity_milli(self) -> Millitokens {
        self.capacity.to_millitokens().unwrap_or(Millitokens(u64::MAX))
    }

    /// Fractions of a millitoken in one: with `refill_tokens * ns` as numerator, this is the denominator.
    fn parts(self) -> u128 {
        // tokens * 1,000 millitokens over ms * 1,000,000 ns: a millitoken takes `refill_ms * 1,000 / tokens` ns.
        u128::from(self.refill_ms.max(1)) * 1_000
    }

    /// The least time in ms, rounded up, in which `missing` flows in.
    pub fn ms_for(self, missing: Millitokens) -> u64 {
        let ns = (u128::from(missing.0) * self.parts()).div_ceil(u128::from(self.refill_tokens.0.max(1)));
        u64::try_from(ns.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The time from empty to full, in ms, rounded up.
    pub fn ms_to_fill(self) -> u64 {
        self.ms_for(self.capacity_milli())
    }
}

/// One bucket. A bucket that is not stored is a full one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    level: Millitokens,
    /// Below one millitoken, in `BucketShape::parts` of it.
    leftover: u128,
    at: LocalTime,
}

impl Bucket {
    /// A full bucket.
    pub fn full(shape: BucketShape, now: LocalTime) -> Self {
        Self { level: shape.capacity_milli(), leftover: 0, at: now }
    }

    /// The bucket as it is at `now`. A `now` before the last one mints nothing and moves nothing back.
    #[must_use]
    pub fn at(self, shape: BucketShape, now: LocalTime) -> Self {
        let capacity = shape.capacity_milli();
        if now <= self.at {
            return Self { level: self.level.min(capacity), ..self };
        }
        let ns = u128::from(now.0.saturating_sub(self.at.0));
        let flow = ns * u128::from(shape.refill_tokens.0) + self.leftover;
        let whole = u64::try_from(flow / shape.parts()).unwrap_or(u64::MAX);
        match self.level.checked_add(Millitokens(whole)) {
            Some(level) if level < capacity => Self { level, leftover: flow % shape.parts(), at: now },
            _ => Self { level: capacity, leftover: 0, at: now },
        }
    }

    /// The bucket after `cost`, or how long until it could pay, in ms: at least 1. `u64::MAX` where it never could.
    pub fn take(self, shape: BucketShape, cost: Tokens) -> Result<Self, u64> {
        let Some(cost_milli) = cost.to_millitokens().filter(|_| cost <= shape.capacity) else {
            return Err(u64::MAX);
        };
        let missing = || Millitokens(cost_milli.0.saturating_sub(self.level.0));
        self.level
            .checked_sub(cost_milli)
            .map(|level| Self { level, ..self })
            .ok_or_else(|| shape.ms_for(missing()).max(1))
    }

    /// Whole tokens in it.
    pub fn tokens(self) -> Tokens {
        self.level.whole_tokens()
    }

    /// What is in it, in thousandths.
    pub fn millitokens(self) -> Millitokens {
        self.level
    }

    /// Until it is full again, in ms, rounded up.
    pub fn ms_until_full(self, shape: BucketShape) -> u64 {
        shape.ms_for(Millitokens(shape.capacity_milli().0.saturating_sub(self.level.0)))
    }

    /// The same bucket under another shape: what is in it stays, up to the new capacity; it is never refilled, and
    /// what was below a millitoken is dropped.
    #[must_use]
    pub fn reshaped(self, old: BucketShape, new: BucketShape, now: LocalTime) -> Self {
        let kept = self.at(old, now);
        Self { level: kept.level.min(new.capacity_milli()), leftover: 0, at: kept.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P_READ: BucketShape =
        BucketShape { capacity: Tokens(20), refill_tokens: Tokens(2), refill_ms: 1_000 };

    fn ms(ms: u64) -> LocalTime {
        LocalTime::from_ms(ms)
    }

    #[test]
    fn twenty_pass_at_once_and_the_next_waits_half_a_second() {
        let mut bucket = Bucket::full(P_READ, ms(0));
        for _ in 0..20 {
            bucket = bucket.at(P_READ, ms(0)).take(P_READ, Tokens(1)).unwrap();
        }
        assert_eq!(bucket.take(P_READ, Tokens(1)), Err(500));
        assert!(bucket.at(P_READ, ms(499)).take(P_READ, Tokens(1)).is_err());
        assert!(bucket.at(P_READ, ms(500)).take(P_READ, Tokens(1)).is_ok());
    }

    #[test]
    fn three_hundred_ms_at_two_a_second_are_six_hundred_millitokens() {
        let empty = Bucket { level: Millitokens(0), leftover: 0, at: ms(0) };
        assert_eq!(empty.at(P_READ, ms(300)).millitokens(), Millitokens(600));
        assert_eq!(empty.at(P_READ, ms(5_000)).tokens(), Tokens(10));
        assert_eq!(empty.at(P_READ, ms(10_000)).tokens(), Tokens(20));
        assert_eq!(empty.at(P_READ, ms(99_000)).tokens(), Tokens(20));
    }

    #[test]
    fn a_deficit_of_seven_takes_three_and_a_half_seconds() {
        let three = Bucket { level: Millitokens(3_000), leftover: 0, at: ms(0) };
        assert_eq!(three.take(P_READ, Tokens(10)), Err(3_500));
    }

    #[test]
    fn a_cost_that_never_fits_is_refused_and_nothing_wraps() {
        let full = Bucket::full(P_READ, ms(0));
        for cost in [21, u64::MAX / 1_000, u64::MAX] {
            assert_eq!(full.take(P_READ, Tokens(cost)), Err(u64::MAX));
        }
        let largest =
            BucketShape { capacity: Tokens::MAX, refill_tokens: Tokens::MAX, refill_ms: 86_400_000 };
        assert_eq!(Bucket::full(largest, ms(0)).at(largest, LocalTime(u64::MAX)).tokens(), Tokens::MAX);
    }

    #[test]
    fn time_that_goes_back_mints_nothing() {
        let mut bucket = Bucket { level: Millitokens(0), leftover: 0, at: ms(10_000) };
        for step in 0..1_000 {
            bucket = bucket.at(P_READ, ms(10_000 - step % 2 * 5_000));
        }
        assert_eq!(bucket.millitokens(), Millitokens(0));
    }

    #[test]
    fn another_shape_keeps_the_level_and_never_refills() {
        let wide = BucketShape { capacity: Tokens(100), ..P_READ };
        let narrow = BucketShape { capacity: Tokens(5), ..P_READ };
        let half = Bucket { level: Millitokens(10_000), leftover: 7, at: ms(0) };
        assert_eq!(half.reshaped(P_READ, wide, ms(0)).tokens(), Tokens(10));
        assert_eq!(half.reshaped(P_READ, narrow, ms(0)).tokens(), Tokens(5));
        assert_eq!(half.reshaped(P_READ, wide, ms(1_000)).tokens(), Tokens(12));
    }

    fn shapes() -> impl Strategy<Value = BucketShape> {
        (1_u64..50, 1_u64..50, 1_u64..5_000).prop_map(|(capacity, refill, refill_ms)| BucketShape {
            capacity: Tokens(capacity),
            refill_tokens: Tokens(refill),
            refill_ms,
        })
    }

    proptest! {
        #[test]
        fn a_bucket_never_admits_more_than_its_capacity_and_what_flowed_in(
            shape in shapes(),
            steps in proptest::collection::vec((0_u64..3_000_000_000, 1_u64..60), 1..200),
        ) {
            let mut bucket = Bucket::full(shape, LocalTime(0));
            let mut now = 0_u64;
            let mut admitted = 0_u128;
            for (ns, cost) in steps {
                now += ns;
                bucket = bucket.at(shape, LocalTime(now));
                if let Ok(after) = bucket.take(shape, Tokens(cost)) {
                    bucket = after;
                    admitted += u128::from(cost);
                }
                // admitted <= capacity + refill * t / refill_ms, without a division
                let per = u128::from(shape.refill_ms) * 1_000_000;
                let most = u128::from(shape.capacity.0) * per
                    + u128::from(shape.refill_tokens.0) * u128::from(now);
                prop_assert!(admitted * per <= most);
            }
        }

        #[test]
        fn reading_a_bucket_often_changes_nothing(
            shape in shapes(),
            steps in proptest::collection::vec(0_u64..40_000_000, 1..200),
        ) {
            let empty = Bucket { level: Millitokens(0), leftover: 0, at: LocalTime(0) };
            let mut often = empty;
            let mut now = 0;
            for ns in steps {
                now += ns;
                often = often.at(shape, LocalTime(now));
            }
            prop_assert_eq!(often.millitokens(), empty.at(shape, LocalTime(now)).millitokens());
        }

        #[test]
        fn the_wait_it_names_is_the_least_that_suffices(shape in shapes(), level in 0_u64..50_000, cost in 1_u64..50) {
            let bucket = Bucket { level: Millitokens(level), leftover: 0, at: LocalTime(0) }.at(shape, LocalTime(0));
            if let Err(wait) = bucket.take(shape, Tokens(cost))
                && wait != u64::MAX
            {
                prop_assert!(bucket.at(shape, ms(wait)).take(shape, Tokens(cost)).is_ok());
                prop_assert!(bucket.at(shape, ms(wait - 1)).take(shape, Tokens(cost)).is_err());
            }
        }
    }
}
