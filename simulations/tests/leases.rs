//! Claims about ledger and lease manager together, over seeds. `LEASEHOLD_SIM_SEEDS` widens the sweep.

use leasehold_simulations::{Mutant, Plan, run, run_plan};

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

/// By label: no window above its limit. By time: no spend outside its window. And once faults have stopped, demand is
/// served again within 5 s, and most of what a counter without any delay would have admitted is admitted.
#[test]
fn no_seed_breaks_a_rule() {
    let (mut admitted, mut reigns, mut quiet) = (0, 0, (0, 0));
    for seed in 0..seeds() {
        let report = run(seed, Mutant::None, false);
        assert_eq!(report.violation, None, "reproduce with: {}", report.reproduce());
        admitted += report.admitted;
        reigns += report.reigns;
        quiet = (quiet.0 + report.quiet.0, quiet.1 + report.quiet.1);
    }
    assert!(admitted > seeds() * 1_000 && reigns > seeds() * 2, "little happened: {admitted}, {reigns}");
    assert!(
        quiet.0 * 100 >= quiet.1 * 95,
        "of {} tokens only {} were admitted without faults",
        quiet.1,
        quiet.0
    );
}

/// Windows longer than a session: leases lapse while an agent pauses, are reported, forgotten and taken up again.
#[test]
fn no_seed_breaks_a_rule_in_windows_that_are_leased_by_sessions() {
    let mut admitted = 0;
    for seed in 0..seeds() / 2 {
        let report = run_plan(Plan::draw_sessions(seed, Mutant::None), false);
        assert_eq!(report.violation, None, "reproduce with: {}", report.reproduce());
        admitted += report.admitted;
    }
    assert!(admitted > seeds() * 100, "little happened: {admitted}");
}

/// Some seed below 1,000 shows the mutant, by the rule that it breaks.
fn is_caught(mutant: Mutant) {
    let (_, name, what) = Mutant::ALL.iter().find(|(known, _, _)| *known == mutant).expect("a known mutant");
    let caught = (0..1_000)
        .map(|seed| run(seed, mutant, false))
        .find(|report| report.violation.as_deref().is_some_and(|violation| violation.starts_with(what)));
    assert!(caught.is_some(), "no seed below 1,000 shows that {name} is broken");
    let Some(caught) = caught else { return };
    println!("{name}: {}", caught.violation.as_deref().unwrap_or_default());
    println!("reproduce with: {}", caught.reproduce());
}

#[test]
fn leases_that_outlive_their_window_are_caught() {
    is_caught(Mutant::NoClamp);
}

#[test]
fn answers_before_a_quorum_has_them_are_caught() {
    is_caught(Mutant::AnswerBeforeDurable);
}

#[test]
fn a_life_counted_from_the_receipt_is_caught() {
    is_caught(Mutant::LifeFromReceipt);
}

#[test]
fn a_missing_drift_margin_is_caught() {
    is_caught(Mutant::NoDriftMargin);
}

#[test]
fn an_agent_that_returns_under_its_old_life_is_caught() {
    is_caught(Mutant::SameLife);
}

#[test]
fn a_spend_without_a_debit_is_caught() {
    is_caught(Mutant::ForgottenSpend);
}

#[test]
fn a_line_that_jumps_while_leases_are_out_is_caught() {
    is_caught(Mutant::NoWait);
}

#[test]
fn an_allocator_that_is_safe_and_grants_nothing_is_caught() {
    is_caught(Mutant::GrantsNothing);
}

#[test]
fn a_steady_demand_of_five_times_the_limit_gets_99_percent_of_it() {
    let mut plan = Plan::draw(0, Mutant::None).without_faults();
    plan.agents = 3;
    plan.limit = 300;
    plan.window_ms = 10_000;
    plan.rates = vec![50, 50, 50];
    plan.calm_ms = 55_000;
    let report = run_plan(plan, false);
    assert_eq!(report.violation, None);
    let (admitted, ideal) = report.quiet;
    assert!(ideal >= 4 * 300 && admitted * 100 >= ideal * 99, "{admitted} of {ideal}");
}

#[test]
fn without_faults_almost_every_token_is_admitted_whoever_asks() {
    let mut sums = (0, 0);
    for seed in 0..20 {
        let report = run_plan(Plan::draw(seed, Mutant::None).without_faults(), false);
        assert_eq!(report.violation, None, "seed {seed}");
        sums = (sums.0 + report.quiet.0, sums.1 + report.quiet.1);
    }
    assert!(sums.0 * 100 >= sums.1 * 97, "{} of {}", sums.0, sums.1);
}
