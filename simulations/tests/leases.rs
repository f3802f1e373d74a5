//! Claims about ledger and lease manager together, over seeds. `LEASEHOLD_SIM_SEEDS` widens the sweep.

use leasehold_simulations::{Mutant, run};

/// Seeds of the sweep unless the environment says otherwise.
const SEEDS: u64 = 400;

fn seeds() -> u64 {
    std::env::var("LEASEHOLD_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn one_seed_run_twice_has_the_same_trace_event_for_event() {
    for seed in [1, 2, 3] {
        let (first, second) = (run(seed, Mutant::None, true), run(seed, Mutant::None, true));
        assert!(first.trace.len() > 1_000, "seed {seed} did almost nothing");
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
    assert_ne!(run(1, Mutant::None, false).trace_digest, run(2, Mutant::None, false).trace_digest);
}

#[test]
fn no_seed_breaks_a_rule() {
    let (mut admitted, mut reigns) = (0, 0);
    for seed in 0..seeds() {
        let report = run(seed, Mutant::None, false);
        assert_eq!(
            report.violation, None,
            "reproduce with leasehold_simulations::run({seed}, Mutant::None, true)"
        );
        admitted += report.admitted;
        reigns += report.reigns;
    }
    assert!(
        admitted > seeds() * 100 && reigns > seeds() * 2,
        "the sweep exercised little: {admitted}, {reigns}"
    );
}

/// The first seed below 1,000 that breaks a rule whose violation starts with `words`.
fn first_caught(mutant: Mutant, words: &str) -> Option<u64> {
    (0..1_000).find(|seed| run(*seed, mutant, false).violation.is_some_and(|v| v.starts_with(words)))
}

#[test]
fn leases_that_outlive_their_window_are_caught() {
    assert!(first_caught(Mutant::NoClamp, "late").is_some());
}

#[test]
fn answers_before_a_quorum_has_them_are_caught() {
    assert!(first_caught(Mutant::AnswerBeforeDurable, "overshoot").is_some());
}

#[test]
fn a_life_counted_from_the_receipt_is_caught() {
    assert!(first_caught(Mutant::LifeFromReceipt, "late").is_some());
}

#[test]
fn a_missing_drift_margin_is_caught() {
    assert!(first_caught(Mutant::NoDriftMargin, "").is_some());
}
