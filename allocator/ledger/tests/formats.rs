//! What version 1 wrote stays readable, and means the same: a log that it wrote leads to the same ledger.
//!
//! A change that breaks this needs a new format and a step that upgrades the old one, not a new file here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use leasehold_ledger::{Entry, Ledger};

const ENTRIES: &str = include_str!("formats/entries-1.json");
const LEDGER: &str = include_str!("formats/ledger-1.json");

#[test]
fn a_log_of_version_1_leads_to_the_ledger_of_version_1() {
    let entries: Vec<Entry> = serde_json::from_str(ENTRIES).unwrap();
    let mut ledger = Ledger::default();
    for entry in &entries {
        ledger.apply(entry);
    }
    ledger.check_invariants().unwrap();
    let stored = serde_json::from_str::<Ledger>(LEDGER).ok();
    let now = serde_json::to_string(&ledger).unwrap();
    assert_eq!(Some(&ledger), stored.as_ref(), "as JSON it is now: {now}");
}
