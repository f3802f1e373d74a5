//! `cargo run -p leasehold-simulations --example replay -- SEED [MUTANT [sessions]]`: one run, every event in words,
//! the verdict last.

use leasehold_simulations::{Mutant, Plan, run_plan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seed: u64 = args.first().ok_or("which seed?")?.parse()?;
    let mutant: Mutant = args.get(1).map_or(Ok(Mutant::None), |name| name.parse())?;
    let draw = if args.iter().any(|arg| arg == "sessions") { Plan::draw_sessions } else { Plan::draw };
    let plan = draw(seed, mutant);
    println!("{plan:?}");
    let report = run_plan(plan, true);
    for event in &report.trace {
        println!("{event}");
    }
    println!("{} admitted, {} refused, quiet {:?}", report.admitted, report.refused, report.quiet);
    println!("{}", report.violation.as_deref().unwrap_or("no violation"));
    Ok(())
}
