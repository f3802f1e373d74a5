//! Who leases: the latest life of each holder, and when it was heard.

use std::collections::BTreeMap;

use leasehold_protocol::{Holder, Incarnation, LedgerTime};
use serde::{Deserialize, Serialize};

use crate::pairs;
use crate::pool::Life;

/// A holder that was not heard for longer than this, in ms, is not counted on: nothing is kept back for it. An agent
/// sends a frame every second.
pub(crate) const UNHEARD_MS: u64 = 3_000;

/// What is known of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    incarnation: Incarnation,
    heard_at: LedgerTime,
    rtt_ms: u64,
}

/// Every holder that was ever heard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Holders {
    #[serde(with = "pairs")]
    known: BTreeMap<Holder, Known>,
}

impl Holders {
    /// The later life, if `incarnation` is not the latest.
    pub(crate) fn later_than(&self, holder: &Holder, incarnation: Incarnation) -> Option<Incarnation> {
        self.known.get(holder).map(|known| known.incarnation).filter(|seen| *seen > incarnation)
    }

    /// Notes that a life was heard; `rtt_ms` of 0 says nothing. A life before the latest is not noted.
    pub(crate) fn hear(&mut self, holder: &Holder, incarnation: Incarnation, now: LedgerTime, rtt_ms: u64) {
        let fresh = Known { incarnation, heard_at: now, rtt_ms };
        let Some(known) = self.known.get_mut(holder) else {
            self.known.insert(holder.clone(), fresh);
            return;
        };
        if known.incarnation < incarnation {
            *known = fresh;
        } else if known.incarnation == incarnation {
            known.heard_at = now;
            if rtt_ms > 0 {
                known.rtt_ms = rtt_ms;
            }
        }
    }

    /// True for the latest life of its holder.
    pub(crate) fn is_current(&self, (holder, incarnation): &Life) -> bool {
        self.known.get(holder).is_some_and(|known| known.incarnation == *incarnation)
    }

    /// True if it was heard a moment ago.
    pub(crate) fn is_reachable(&self, (holder, _): &Life, now: LedgerTime) -> bool {
        self.known.get(holder).is_some_and(|known| now.ms_since(known.heard_at) <= UNHEARD_MS)
    }

    /// Half of its round trip, in ms: how long a push takes.
    pub(crate) fn push_ms(&self, (holder, _): &Life) -> u64 {
        self.known.get(holder).map_or(0, |known| known.rtt_ms / 2)
    }
}
