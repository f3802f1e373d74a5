//! What was admitted in each window, by region.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use leasehold_protocol::admit::{Decision, Mode};
use leasehold_protocol::{RegionId, RuleId, TenantId};
use serde::Serialize;

use crate::output::time_of_day;

/// The rule whose windows are drawn.
pub(super) const DRAWN_RULE: &str = "P-TENANT";
/// The width of a full bar, in characters.
const BAR_WIDTH: u64 = 24;

/// One tenant's window.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct WindowRow {
    /// The tenant's limit in tokens for all regions together.
    pub limit: u64,
    /// Tokens admitted, by region.
    pub admitted: BTreeMap<RegionId, u64>,
    /// Requests refused, by rule.
    pub refused: BTreeMap<RuleId, u64>,
    /// Requests that could not be decided.
    pub undecided: u64,
    /// Requests decided by a fallback.
    pub fallback: u64,
}

impl WindowRow {
    /// Tokens admitted in all regions.
    pub(super) fn total(&self) -> u64 {
        self.admitted.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// All windows seen so far.
#[derive(Debug)]
pub(super) struct Board {
    regions: Vec<RegionId>,
    windows: BTreeMap<(TenantId, String), WindowRow>,
    last_window: BTreeMap<TenantId, String>,
    printed: BTreeSet<(TenantId, String)>,
    /// Calls without an answer.
    pub unanswered: u64,
}

/// The whole as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// By tenant and window label.
    pub windows: Vec<SummaryRow>,
    /// Calls without an answer.
    pub unanswered: u64,
}

/// One row of it.
#[derive(Debug, Serialize)]
pub(super) struct SummaryRow {
    /// The tenant.
    pub tenant: TenantId,
    /// The window's label.
    pub window_start: String,
    /// The row.
    #[serde(flatten)]
    pub row: WindowRow,
}

impl Board {
    /// A board of these regions, in their order.
    pub(super) fn new(regions: Vec<RegionId>) -> Self {
        Self {
            regions,
            windows: BTreeMap::new(),
            last_window: BTreeMap::new(),
            printed: BTreeSet::new(),
            unanswered: 0,
        }
    }

    /// Notes an allowed request of `cost` tokens.
    pub(super) fn allowed(&mut self, tenant: &TenantId, region: &RegionId, cost: u64, decision: &Decision) {
        let Some(row) = self.row(tenant, decision) else { return };
        let admitted = row.admitted.entry(region.clone()).or_default();
        *admitted = admitted.saturating_add(cost);
        row.fallback += u64::from(decision.mode == Mode::Fallback);
    }

    /// Notes a refused request.
    pub(super) fn refused(&mut self, tenant: &TenantId, decision: &Decision) {
        let Some(row) = self.row(tenant, decision) else { return };
        if let Some(rule) = &decision.denied_by {
            *row.refused.entry(rule.clone()).or_default() += 1;
        }
    }

    /// Notes a request that could not be decided.
    pub(super) fn undecided(&mut self, tenant: &TenantId, decision: &Decision) {
        if let Some(row) = self.row(tenant, decision) {
            row.undecided += 1;
        }
    }

    /// The row of a decision's window; of the tenant's last one where a refusal names none.
    fn row(&mut self, tenant: &TenantId, decision: &Decision) -> Option<&mut WindowRow> {
        let state = decision.limits.iter().find(|state| state.rule.as_str() == DRAWN_RULE);
        let label =
            state.and_then(|s| s.window_start.clone()).or_else(|| self.last_window.get(tenant).cloned())?;
        let last = self.last_window.entry(tenant.clone()).or_insert_with(|| label.clone());
        if *last < label {
            last.clone_from(&label);
        }
        let row = self.windows.entry((tenant.clone(), label)).or_default();
        if let Some(state) = state {
            row.limit = row.limit.max(state.limit.0);
        }
        Some(row)
    }

    /// True if no window admitted more than its limit.
    pub(super) fn is_within_limits(&self) -> bool {
        self.windows.values().all(|row| row.total() <= row.limit)
    }

    /// Rows of windows that a later one has followed, each once.
    pub(super) fn take_finished(&mut self) -> Vec<String> {
        let last = &self.last_window;
        let done = self.windows.keys().filter(|key| last.get(&key.0).is_some_and(|label| *label > key.1));
        let done: Vec<_> = done.filter(|key| !self.printed.contains(*key)).cloned().collect();
        let rows =
            done.iter().filter_map(|key| self.windows.get(key).map(|row| self.line(key, row))).collect();
        self.printed.extend(done);
        rows
    }

    /// The newest `most` windows of each tenant as text.
    pub(super) fn draw(&self, most: usize) -> String {
        let regions = self.regions.iter().map(RegionId::as_str).collect::<Vec<_>>().join(" + ");
        let mut text = format!("{DRAWN_RULE}: tokens admitted in each window, {regions}\n");
        for tenant in self.last_window.keys() {
            let rows: Vec<_> = self.windows.iter().filter(|((t, _), _)| t == tenant).collect();
            for (key, row) in rows.iter().skip(rows.len().saturating_sub(most)) {
                text.push_str(&self.line(key, row));
                text.push('\n');
            }
        }
        if self.unanswered > 0 {
            let _ = writeln!(text, "{} calls had no answer", self.unanswered);
        }
        text.trim_end().to_owned()
    }

    fn line(&self, (tenant, label): &(TenantId, String), row: &WindowRow) -> String {
        let total = row.total();
        let full = total.saturating_mul(BAR_WIDTH).checked_div(row.limit).unwrap_or(0).min(BAR_WIDTH);
        let bar: String = (0..BAR_WIDTH).map(|i| if i < full { '\u{2588}' } else { '\u{2591}' }).collect();
        let shares: Vec<String> = (self.regions.iter())
            .map(|region| format!("{region} {}", row.admitted.get(region).copied().unwrap_or(0)))
            .collect();
        let mut line = format!(
            "{} {tenant:<6} {bar} {total:>5} / {:<5} {}",
            time_of_day(label),
            row.limit,
            shares.join(" + ")
        );
        let mut notes: Vec<String> =
            row.refused.iter().map(|(rule, count)| format!("{rule} refused {count}")).collect();
        if row.undecided > 0 {
            notes.push(format!("undecided {}", row.undecided));
        }
        if row.fallback > 0 {
            notes.push(format!("by fallback {}", row.fallback));
        }
        if !notes.is_empty() {
            let _ = write!(line, "\n                {}", notes.join(", "));
        }
        line
    }

    /// Everything, for programs.
    pub(super) fn summary(&self) -> Summary {
        let rows = self.windows.iter().map(|((tenant, label), row)| SummaryRow {
            tenant: tenant.clone(),
            window_start: label.clone(),
            row: row.clone(),
        });
        Summary { windows: rows.collect(), unanswered: self.unanswered }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::admit::LimitState;
    use leasehold_protocol::{BundleVersion, DecisionId, Tokens};

    use super::*;

    fn decision(label: Option<&str>, denied_by: Option<&str>) -> Decision {
        Decision {
            decision_id: DecisionId::new("d").unwrap(),
            bundle_version: BundleVersion(1),
            mode: Mode::Normal,
            denied_by: denied_by.map(|rule| RuleId::new(rule).unwrap()),
            retry_after_ms: None,
            limits: vec![LimitState {
                rule: RuleId::new(DRAWN_RULE).unwrap(),
                limit: Tokens(10),
                remaining: Tokens(0),
                window_s: Some(60),
                reset_after_ms: None,
                window_start: label.map(str::to_owned),
            }],
        }
    }

    #[test]
    fn windows_are_counted_by_label_and_an_excess_shows() {
        let (eu, us) = (RegionId::new("eu").unwrap(), RegionId::new("us").unwrap());
        let atlas = TenantId::new("atlas").unwrap();
        let mut board = Board::new(vec![eu.clone(), us.clone()]);
        let first = decision(Some("2026-12-01T12:00:00.000Z"), None);
        board.allowed(&atlas, &eu, 6, &first);
        board.allowed(&atlas, &us, 4, &first);
        board.refused(&atlas, &decision(None, Some(DRAWN_RULE)));
        assert!(board.take_finished().is_empty());
        board.allowed(&atlas, &us, 3, &decision(Some("2026-12-01T12:01:00.000Z"), None));
        assert!(board.is_within_limits());
        let finished = board.take_finished();
        assert_eq!(finished.len(), 1);
        assert!(finished[0].contains("12:00:00 atlas") && finished[0].contains("10 / 10"), "{finished:?}");
        assert!(
            finished[0].contains("eu 6 + us 4") && finished[0].contains("P-TENANT refused 1"),
            "{finished:?}"
        );
        assert!(board.take_finished().is_empty());
        board.allowed(&atlas, &eu, 8, &decision(Some("2026-12-01T12:01:00.000Z"), None));
        assert!(!board.is_within_limits());
    }
}
