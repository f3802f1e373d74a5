//! What an agent measures. Labels are bounded: rules of the policy, outcomes, modes, conditions (D23); never a
//! tenant's user, key or address.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use leasehold_admission::{Admission, Report, Verdict};
use leasehold_protocol::admit::Mode;
use leasehold_transport::health::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::clock::local_now;
use crate::state::Agent;

/// The most rules that get a label of their own over an agent's life; later ones share `other`.
const RULE_LABELS_MAX: usize = 500;

/// A decision by the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    /// The denying rule; empty if allowed.
    rule: String,
    outcome: &'static str,
    mode: &'static str,
}

/// A rule that could not be decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UndecidedLabels {
    rule: String,
    condition: &'static str,
}

/// What came of something.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The agent's metrics.
#[derive(Debug)]
pub(crate) struct AgentMetrics {
    decisions: Family<DecisionLabels, Counter>,
    undecided: Family<UndecidedLabels, Counter>,
    hold_seconds: Histogram,
    frames: Family<ResultLabel, Counter>,
    pushes: Counter,
    stream_open: Gauge,
    bundles: Family<ResultLabel, Counter>,
    leases: Gauge,
    leased_tokens: Gauge,
    allocator_age: Gauge<f64, AtomicU64>,
    fallback_engaged: Gauge,
    bundle_version: Gauge,
    bundle_age: Gauge<f64, AtomicU64>,
    bundle_stale: Gauge,
    counters: Gauge,
    counters_max: Gauge,
    counters_refused: Gauge,
    held: Gauge,
    rules: Mutex<BTreeSet<String>>,
}

impl Default for AgentMetrics {
    fn default() -> Self {
        Self {
            decisions: Family::default(),
            undecided: Family::default(),
            hold_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 12)),
            frames: Family::default(),
            pushes: Counter::default(),
            stream_open: Gauge::default(),
            bundles: Family::default(),
            leases: Gauge::default(),
            leased_tokens: Gauge::default(),
            allocator_age: Gauge::default(),
            fallback_engaged: Gauge::default(),
            bundle_version: Gauge::default(),
            bundle_age: Gauge::default(),
            bundle_stale: Gauge::default(),
            counters: Gauge::default(),
            counters_max: Gauge::default(),
            counters_refused: Gauge::default(),
            held: Gauge::default(),
            rules: Mutex::default(),
        }
    }
}

impl AgentMetrics {
    /// Makes the metrics visible.
    pub(crate) fn register(&self, to: &Metrics) {
        to.register("agent_decisions", "Decisions by denying rule, outcome and mode", self.decisions.clone());
        to.register(
            "agent_undecided",
            "Rules that could not be decided, by condition",
            self.undecided.clone(),
        );
        to.register(
            "agent_hold_seconds",
            "How long requests were held for leased tokens",
            self.hold_seconds.clone(),
        );
        to.register("agent_frames", "Lease frames by result", self.frames.clone());
        to.register("agent_pushes", "What the allocator said unasked", self.pushes.clone());
        to.register("agent_push_stream_open", "1 while the allocator can say so", self.stream_open.clone());
        to.register("agent_bundles", "Offered bundles by result", self.bundles.clone());
        to.register("agent_leases", "Leases that may be spent now", self.leases.clone());
        to.register("agent_leased_tokens", "Tokens in them", self.leased_tokens.clone());
        to.register(
            "agent_allocator_age_seconds",
            "Since the allocator answered; -1 if never",
            self.allocator_age.clone(),
        );
        to.register(
            "agent_fallback_engaged",
            "1 while the allocator counts as lost",
            self.fallback_engaged.clone(),
        );
        to.register(
            "agent_bundle_version",
            "The bundle in force; 0 before the first",
            self.bundle_version.clone(),
        );
        to.register(
            "agent_bundle_age_seconds",
            "Since the publisher answered; -1 if never",
            self.bundle_age.clone(),
        );
        to.register(
            "agent_bundle_stale",
            "1 if the bundle is past its maximum age",
            self.bundle_stale.clone(),
        );
        to.register("agent_counters", "Counters and slots in memory", self.counters.clone());
        to.register("agent_counters_max", "Their bound", self.counters_max.clone());
        to.register(
            "agent_counters_refused",
            "New counters that found no room, so far",
            self.counters_refused.clone(),
        );
        to.register("agent_held_requests", "Requests held now", self.held.clone());
    }

    /// Counts a final verdict.
    pub(crate) fn decided(&self, verdict: &Verdict) {
        let (outcome, report) = match verdict {
            Verdict::Allowed(report) => ("allowed", report),
            Verdict::Denied(report) => ("denied", report),
            Verdict::FailClosed(report) => ("fail_closed", report),
            Verdict::NoPolicy => return self.count("", "no_policy", Mode::Normal),
            Verdict::Invalid(_) | Verdict::Wait(_) => return,
        };
        self.count(report.denied_by.as_ref().map_or("", |rule| rule.as_str()), outcome, report.mode);
        self.undecided(report);
    }

    fn count(&self, rule: &str, outcome: &'static str, mode: Mode) {
        let mode = match mode {
            Mode::Normal => "normal",
            Mode::Fallback => "fallback",
        };
        let labels = DecisionLabels { rule: self.rule_label(rule), outcome, mode };
        self.decisions.get_or_create(&labels).inc();
    }

    fn undecided(&self, report: &Report) {
        for (rule, condition) in &report.undecided {
            let labels =
                UndecidedLabels { rule: self.rule_label(rule.as_str()), condition: condition.as_str() };
            self.undecided.get_or_create(&labels).inc();
        }
    }

    fn rule_label(&self, rule: &str) -> String {
        let mut known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(rule) {
            if known.len() >= RULE_LABELS_MAX {
                return "other".to_owned();
            }
            known.insert(rule.to_owned());
        }
        rule.to_owned()
    }

    /// A request was held this long.
    pub(crate) fn held_for(&self, span: std::time::Duration) {
        self.hold_seconds.observe(span.as_secs_f64());
    }

    /// What came of a lease frame.
    pub(crate) fn frame(&self, result: &'static str) {
        self.frames.get_or_create(&ResultLabel { result }).inc();
    }

    /// The allocator said something unasked.
    pub(crate) fn pushed(&self) {
        self.pushes.inc();
    }

    /// Whether it can.
    pub(crate) fn stream_open(&self, is_open: bool) {
        self.stream_open.set(i64::from(is_open));
    }

    /// What came of an offered bundle.
    pub(crate) fn bundle(&self, result: &'static str) {
        self.bundles.get_or_create(&ResultLabel { result }).inc();
    }

    /// Brings the gauges up to date.
    pub(crate) fn refresh(&self, agent: &Agent, admission: &Admission) {
        let now = local_now();
        let (leases, tokens) = admission.leases().held_totals(now);
        let seconds = |age_ms: Option<u64>| {
            age_ms.map_or(-1.0, |ms| std::time::Duration::from_millis(ms).as_secs_f64())
        };
        self.leases.set(whole(leases));
        self.leased_tokens.set(whole(tokens.0));
        self.allocator_age
            .set(seconds(admission.leases().allocator_answered_at().map(|at| now.ms_since(at))));
        self.fallback_engaged.set(i64::from(admission.leases().is_allocator_lost(now)));
        self.bundle_version.set(whole(admission.version().0));
        self.bundle_age.set(seconds(agent.policy_age_ms(now)));
        self.bundle_stale.set(i64::from(agent.is_policy_stale(admission, now)));
        self.counters.set(whole(admission.counters().len() as u64));
        self.counters_max.set(whole(admission.counters().len_max() as u64));
        self.counters_refused.set(whole(admission.counters().refused()));
        let free = agent.held.available_permits();
        self.held.set(whole(agent.settings.held_max.saturating_sub(free) as u64));
    }
}

fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
