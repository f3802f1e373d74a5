//! `cargo run --release -p leasehold-simulations --example sweep -- FROM TO [MUTANT]`: runs seeds and stops at the
//! first that breaks a rule.

use leasehold_simulations::{Mutant, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| args.get(at).map_or(Ok(otherwise), |text| text.parse::<u64>());
    let (from, to) = (number(0, 0)?, number(1, 1_000)?);
    let mutant = match args.get(2).map(String::as_str) {
        None => Mutant::None,
        Some("no-clamp") => Mutant::NoClamp,
        Some("answer-before-durable") => Mutant::AnswerBeforeDurable,
        Some("life-from-receipt") => Mutant::LifeFromReceipt,
        Some("no-drift-margin") => Mutant::NoDriftMargin,
        Some(other) => return Err(format!("no mutant is called {other:?}").into()),
    };
    let (mut admitted, mut refused) = (0_u64, 0_u64);
    for seed in from..to {
        let report = run(seed, mutant, false);
        if let Some(violation) = report.violation {
            println!("seed {seed}: {violation}");
            std::process::exit(1);
        }
        admitted += report.admitted;
        refused += report.refused;
    }
    println!("{} seeds, {admitted} admitted, {refused} refused, no violation", to - from);
    Ok(())
}
