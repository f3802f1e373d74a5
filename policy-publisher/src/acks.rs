//! What each agent last said, in memory, for at most so many agents.

use std::collections::BTreeMap;

use leasehold_protocol::admin::AgentAck;
use leasehold_protocol::{BundleVersion, Holder};

/// The most agents that are remembered; beyond it the one that was silent the longest is forgotten.
pub(crate) const AGENTS_MAX: usize = 10_000;

/// The agents' words.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    by_agent: BTreeMap<Holder, (u64, AgentAck)>,
    by_age: BTreeMap<u64, Holder>,
    by_version: BTreeMap<BundleVersion, u64>,
    next: u64,
}

/// How many agents enforce a version now.
pub(crate) type Tally = (BundleVersion, u64);

/// What an agent's word changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The tallies that change.
    pub(crate) tallies: Vec<Tally>,
    /// True if it refuses a bundle that it did not refuse before.
    pub(crate) is_new_refusal: bool,
}

impl Acks {
    /// Takes an agent's word.
    pub(crate) fn note(&mut self, ack: AgentAck) -> Noted {
        let holder = Holder { region: ack.region.clone(), agent: ack.agent.clone() };
        let known = self.by_agent.get(&holder).and_then(|(_, before)| before.refused.as_ref());
        let is_new_refusal = ack.refused.is_some() && known != ack.refused.as_ref();
        let mut touched = vec![ack.active_version];
        if let Some((age, before)) = self.by_agent.remove(&holder) {
            self.by_age.remove(&age);
            touched.push(self.uncount(before.active_version));
        } else if self.by_agent.len() >= AGENTS_MAX
            && let Some((_, silent)) = self.by_age.pop_first()
            && let Some((_, before)) = self.by_agent.remove(&silent)
        {
            touched.push(self.uncount(before.active_version));
        }
        let count = self.by_version.entry(ack.active_version).or_default();
        *count = count.saturating_add(1);
        self.by_age.insert(self.next, holder.clone());
        self.by_agent.insert(holder, (self.next, ack));
        self.next = self.next.saturating_add(1);
        let tallies =
            touched.into_iter().map(|v| (v, self.by_version.get(&v).copied().unwrap_or(0))).collect();
        Noted { tallies, is_new_refusal }
    }

    fn uncount(&mut self, version: BundleVersion) -> BundleVersion {
        if let Some(count) = self.by_version.get_mut(&version) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_version.remove(&version);
            }
        }
        version
    }

    /// Every agent's last word, by region and agent.
    pub(crate) fn list(&self) -> Vec<AgentAck> {
        self.by_agent.values().map(|(_, ack)| ack.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::admin::RefusedBundle;
    use leasehold_protocol::{AgentId, RegionId};

    use super::*;

    fn ack(n: usize, version: u64) -> AgentAck {
        AgentAck {
            region: RegionId::new("eu").unwrap(),
            agent: AgentId::new(format!("a{n}")).unwrap(),
            active_version: BundleVersion(version),
            refused: None,
        }
    }

    #[test]
    fn an_agent_counts_once_under_its_last_version() {
        let mut acks = Acks::default();
        assert_eq!(acks.note(ack(1, 1)).tallies, [(BundleVersion(1), 1)]);
        assert_eq!(acks.note(ack(2, 1)).tallies, [(BundleVersion(1), 2)]);
        assert_eq!(acks.note(ack(1, 2)).tallies, [(BundleVersion(2), 1), (BundleVersion(1), 1)]);
        assert_eq!(acks.list(), [ack(1, 2), ack(2, 1)]);
    }

    #[test]
    fn a_refusal_that_is_said_again_is_not_new() {
        let mut acks = Acks::default();
        let refusing = |reason: &str| AgentAck {
            refused: Some(RefusedBundle { version: None, reason: reason.to_owned() }),
            ..ack(1, 1)
        };
        let news = [ack(1, 1), refusing("a"), refusing("a"), refusing("b"), ack(1, 1), refusing("b")];
        assert_eq!(news.map(|ack| acks.note(ack).is_new_refusal), [false, true, false, true, false, true]);
    }

    #[test]
    fn beyond_the_bound_the_agent_that_was_silent_the_longest_is_forgotten() {
        let mut acks = Acks::default();
        for n in 0..AGENTS_MAX {
            acks.note(ack(n, 1));
        }
        acks.note(ack(0, 1));
        assert_eq!(
            acks.note(ack(AGENTS_MAX, 2)).tallies,
            [(BundleVersion(2), 1), (BundleVersion(1), AGENTS_MAX as u64 - 1)]
        );
        let list = acks.list();
        assert_eq!(list.len(), AGENTS_MAX);
        assert!(list.contains(&ack(0, 1)) && !list.contains(&ack(1, 1)));
    }
}
