//! `cargo run --release -p leasehold-simulations --example compare -- [SEEDS]`: plays every trace with every policy and
//! prints the table of docs/benchmarks/efficiency.md.

use leasehold_simulations::compare::{Policy, Score, Sum, TRACES, WINDOWS};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    println!("{seeds} seeds of {WINDOWS} windows each\n");
    println!(
        "| trace | policy | efficiency | false denials /1k | calls /1k | held > 2 ms % | fairness | overshoot |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    for (name, draw) in TRACES {
        for (policy, label) in Policy::ALL {
            let mut sum = Sum::default();
            for seed in 0..seeds {
                let trace = draw(&mut ChaCha8Rng::seed_from_u64(seed));
                let run = policy.play(&trace, ChaCha8Rng::seed_from_u64(seed ^ 0x5EED_0000));
                sum.add(&Score::of(&trace, &run));
            }
            println!(
                "| {name} | {label} | {:.4} | {:.1} | {:.1} | {:.2} | {:.3} | {} |",
                sum.efficiency(),
                sum.false_denials_per_1k(),
                sum.calls_per_1k(),
                sum.waited_percent(),
                sum.least_fair(),
                sum.overshoot
            );
        }
    }
    Ok(())
}
