//! `cargo run --release -p leasehold-simulations --example sweep -- FROM TO [MUTANT [sessions]]`: runs seeds, stops at
//! the first that breaks a rule and prints the line that reproduces it.

use leasehold_simulations::{Mutant, Plan, run_plan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| args.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>());
    let (from, to) = (number(0, 0)?, number(1, 1_000)?);
    let mutant: Mutant = args.get(2).map_or(Ok(Mutant::None), |name| name.parse())?;
    let draw = if args.iter().any(|arg| arg == "sessions") { Plan::draw_sessions } else { Plan::draw };
    let (mut admitted, mut refused, mut quiet, mut worst) = (0_u64, 0_u64, (0_u64, 0_u64), (100, from));
    for seed in from..to {
        let report = run_plan(draw(seed, mutant), false);
        if let Some(violation) = &report.violation {
            println!("{violation}\nreproduce with: {}", report.reproduce());
            std::process::exit(1);
        }
        admitted += report.admitted;
        refused += report.refused;
        quiet = (quiet.0 + report.quiet.0, quiet.1 + report.quiet.1);
        if let Some(percent) = (report.quiet.0 * 100).checked_div(report.quiet.1) {
            worst = worst.min((percent, seed));
        }
    }
    println!("{} seeds: no violation, {admitted} admitted, {refused} refused", to - from);
    println!(
        "without faults {} of {} tokens; least in one run {} % (seed {})",
        quiet.0, quiet.1, worst.0, worst.1
    );
    Ok(())
}
