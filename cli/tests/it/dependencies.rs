//! What comes from outside: from where, under which licence, and how often.
//!
//! Known vulnerabilities are not checked here, since the advisory database is not part of a build: run
//! `cargo audit` or `cargo deny check advisories` where there is a network (CONTRIBUTING.md).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::metadata::{packages, text};

/// Licences that an Apache-2.0 program may be linked with.
const LICENCES: [&str; 12] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that are built in two versions, and who holds the older one.
const TWICE: [(&str, &str); 8] = [
    ("block-buffer", "openraft's quorum-set is at sha2 0.10"),
    ("cpufeatures", "openraft's quorum-set is at sha2 0.10"),
    ("crypto-common", "openraft's quorum-set is at sha2 0.10"),
    ("digest", "openraft's quorum-set is at sha2 0.10"),
    ("parking_lot", "sled 0.34 is at 0.11"),
    ("parking_lot_core", "sled 0.34 is at parking_lot 0.11"),
    ("sha2", "openraft's quorum-set is at 0.10"),
    ("syn", "derive macros move from 2 to 3 one by one; only the build is longer"),
];

/// True if one alternative of the expression consists of allowed licences. `/` is an old way to write `OR`.
fn is_allowed(expression: &str) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], " ");
    plain.split(" OR ").any(|alternative| {
        alternative.split(" AND ").all(|licence| {
            let licence = licence.split_whitespace().collect::<Vec<_>>().join(" ");
            LICENCES.contains(&licence.as_str())
        })
    })
}

#[test]
fn every_dependency_comes_from_the_public_registry() {
    for package in packages().filter(|package| !package["source"].is_null()) {
        let source = text(package, "source");
        let name = text(package, "name");
        assert_eq!(
            source, "registry+https://github.com/rust-lang/crates.io-index",
            "{name} comes from elsewhere"
        );
    }
}

#[test]
fn every_dependency_has_a_licence_that_can_be_combined_with_ours() {
    let refused: Vec<String> = packages()
        .filter(|package| !is_allowed(text(package, "license")))
        .map(|package| format!("{} ({:?})", text(package, "name"), package["license"]))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn an_expression_is_allowed_if_one_of_its_alternatives_is() {
    assert!(is_allowed("MIT OR Apache-2.0") && is_allowed("GPL-3.0 OR MIT") && is_allowed("Unlicense/MIT"));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!is_allowed("GPL-3.0") && !is_allowed("") && !is_allowed("GPL-3.0 AND MIT"));
}

/// Name and version of each package that the binary is built from. `cargo metadata` would add what only tests use.
fn built_from() -> BTreeSet<(String, String)> {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal", "--package", "leasehold", "--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(" v"));
    lines.map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap().to_owned())).collect()
}

#[test]
fn no_crate_is_built_in_twice_but_those_whose_reason_is_known() {
    let mut versions: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in built_from() {
        *versions.entry(name).or_default() += 1;
    }
    let twice: BTreeSet<&str> =
        versions.iter().filter(|(_, n)| **n > 1).map(|(name, _)| name.as_str()).collect();
    let known: BTreeSet<&str> = TWICE.iter().map(|(name, _)| *name).collect();
    assert_eq!(twice, known, "found on the left, listed with a reason on the right");
}
