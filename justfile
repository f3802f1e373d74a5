# Thin names over cargo. `just check` never writes; `just fix` does.

check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings

fix:
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all

test *args:
    scripts/test {{args}}

dev *args:
    cargo run --release -- dev {{args}}

# More seeds than the tests try.
sweep from="0" to="10000":
    cargo run --release -p leasehold-simulations --example sweep -- {{from}} {{to}}

ci:
    .ci/run
