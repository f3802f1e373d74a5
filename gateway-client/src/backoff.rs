//! How long to wait before trying again (D20).

/// The back-off contract: the named wait is the least, exponential beyond it, jittered, capped in attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Attempts in all, the first included.
    pub attempts_max: u32,
    /// The first exponential step, in ms.
    pub base_ms: u64,
    /// The largest exponential step, in ms. A longer wait that a refusal names is still kept.
    pub cap_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { attempts_max: 4, base_ms: 100, cap_ms: 10_000 }
    }
}

impl Backoff {
    /// The wait in ms after attempt number `attempt` (from 1) was refused with `retry_after_ms`; `None` when there
    /// shall be no further one. `random` is any 64 random bits: the exponential part is drawn evenly from zero to its
    /// full step ("full jitter"), on top of the named wait, so that callers refused together do not return together.
    pub fn wait_ms(&self, attempt: u32, retry_after_ms: Option<u64>, random: u64) -> Option<u64> {
        if attempt >= self.attempts_max {
            return None;
        }
        let doublings = attempt.saturating_sub(1).min(63);
        let step = self.base_ms.saturating_mul(1 << doublings).min(self.cap_ms);
        let jitter = step.checked_add(1).map_or(random, |n| random % n);
        Some(retry_after_ms.unwrap_or(0).saturating_add(jitter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_wait_is_the_least_and_attempts_end() {
        let backoff = Backoff { attempts_max: 3, base_ms: 100, cap_ms: 150 };
        assert_eq!(backoff.wait_ms(1, Some(4_000), 0), Some(4_000));
        assert_eq!(backoff.wait_ms(1, Some(4_000), 100), Some(4_100));
        assert_eq!(backoff.wait_ms(2, None, 150), Some(150), "the second step is capped");
        assert_eq!(backoff.wait_ms(3, Some(1), 7), None);
    }

    #[test]
    fn no_numbers_make_it_wrap_or_panic() {
        let backoff = Backoff { attempts_max: u32::MAX, base_ms: u64::MAX, cap_ms: u64::MAX };
        assert_eq!(backoff.wait_ms(u32::MAX - 1, Some(u64::MAX), u64::MAX), Some(u64::MAX));
    }
}
