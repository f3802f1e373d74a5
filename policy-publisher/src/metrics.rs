//! What the publisher measures. Labels are bounded: results, and versions that some agent enforces.

use leasehold_protocol::BundleVersion;
use leasehold_transport::health::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::acks::Tally;

/// What came of something.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// A bundle's version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabel {
    version: u64,
}

/// The publisher's metrics.
#[derive(Debug, Default)]
pub(crate) struct PublisherMetrics {
    released_version: Gauge,
    register_version: Gauge,
    in_step: Gauge,
    publishes: Family<ResultLabel, Counter>,
    agents: Family<VersionLabel, Gauge>,
    waiting_polls: Gauge,
}

impl PublisherMetrics {
    /// Makes the metrics visible.
    pub(crate) fn register(&self, to: &Metrics) {
        let (released, register) = (self.released_version.clone(), self.register_version.clone());
        to.register("publisher_released_version", "The newest released bundle; 0 before the first", released);
        to.register(
            "publisher_register_version",
            "The bundle active at the allocator; -1 if unknown",
            register,
        );
        to.register(
            "publisher_in_step",
            "1 if the allocator enforces what is released here",
            self.in_step.clone(),
        );
        to.register("publisher_publishes", "Publish requests by result", self.publishes.clone());
        to.register("publisher_agents", "Agents by the bundle they enforce", self.agents.clone());
        to.register(
            "publisher_waiting_polls",
            "Polls that wait for a newer bundle",
            self.waiting_polls.clone(),
        );
    }

    /// How release and register stand.
    pub(crate) fn stands(&self, released: BundleVersion, register: Option<BundleVersion>, in_step: bool) {
        let whole = |v: BundleVersion| i64::try_from(v.0).unwrap_or(i64::MAX);
        self.released_version.set(whole(released));
        self.register_version.set(register.map_or(-1, whole));
        self.in_step.set(i64::from(in_step));
    }

    /// What came of a publish request.
    pub(crate) fn published(&self, result: &'static str) {
        self.publishes.get_or_create(&ResultLabel { result }).inc();
    }

    /// How many agents enforce these versions now.
    pub(crate) fn tallied(&self, tallies: &[Tally]) {
        for (version, count) in tallies {
            let label = VersionLabel { version: version.0 };
            if *count == 0 {
                self.agents.remove(&label);
            } else {
                self.agents.get_or_create(&label).set(i64::try_from(*count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Counts a poll while the value lives.
    pub(crate) fn waiting(&self) -> impl Drop + use<> {
        self.waiting_polls.inc();
        Waiting(self.waiting_polls.clone())
    }
}

/// See [`PublisherMetrics::waiting`].
struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}
