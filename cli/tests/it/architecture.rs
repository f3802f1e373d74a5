//! Holds the arrows of ARCHITECTURE.md: who may depend on whom.

use std::collections::BTreeSet;

use crate::metadata::{members, text};

/// A crate, the crates of this house that it may depend on, and whether it is pure.
const TABLE: [(&str, &[&str], bool); 11] = [
    ("leasehold-protocol", &[], true),
    ("leasehold-ledger", &["leasehold-protocol"], true),
    ("leasehold-admission", &["leasehold-protocol"], true),
    ("leasehold-rollout", &["leasehold-protocol"], true),
    ("leasehold-transport", &["leasehold-protocol"], false),
    ("leasehold-allocator", &["leasehold-ledger", "leasehold-protocol", "leasehold-transport"], false),
    ("leasehold-agent", &["leasehold-admission", "leasehold-protocol", "leasehold-transport"], false),
    ("leasehold-publisher", &["leasehold-protocol", "leasehold-rollout", "leasehold-transport"], false),
    ("leasehold-gateway-client", &["leasehold-protocol"], false),
    ("leasehold-simulations", &["leasehold-admission", "leasehold-ledger", "leasehold-protocol"], true),
    (
        "leasehold",
        &[
            "leasehold-agent",
            "leasehold-allocator",
            "leasehold-gateway-client",
            "leasehold-protocol",
            "leasehold-publisher",
            "leasehold-transport",
        ],
        false,
    ),
];

/// What a core may use beside `protocol`; more needs a decision record.
const CORE_LIBRARIES: [&str; 2] = ["serde", "thiserror"];
/// What no pure crate may use, whatever else it needs.
const IMPURE: [&str; 8] = ["tokio", "axum", "reqwest", "openraft", "sled", "tracing", "rand", "getrandom"];

fn normal_dependencies(package: &'static serde_json::Value) -> BTreeSet<&'static str> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|d| d["kind"].is_null()).map(|d| text(d, "name")).collect()
}

#[test]
fn every_crate_depends_on_what_the_table_allows_and_nothing_else_of_the_house() {
    let known: BTreeSet<&str> = TABLE.iter().map(|(name, ..)| *name).collect();
    let found: BTreeSet<&str> = members().map(|package| text(package, "name")).collect();
    assert_eq!(found, known, "a crate without a place in the table, or the reverse");
    for package in members() {
        let name = text(package, "name");
        let (_, allowed, _) = TABLE.iter().find(|(known, ..)| *known == name).unwrap();
        for used in normal_dependencies(package).into_iter().filter(|used| known.contains(used)) {
            assert!(allowed.contains(&used), "{name} must not depend on {used}");
        }
    }
}

#[test]
fn cores_use_no_clock_socket_task_or_random_source() {
    for package in members() {
        let name = text(package, "name");
        let (_, _, is_pure) = TABLE.iter().find(|(known, ..)| *known == name).unwrap();
        let used = normal_dependencies(package);
        let is_core = ["leasehold-ledger", "leasehold-admission", "leasehold-rollout"].contains(&name);
        for library in used.into_iter().filter(|used| !used.starts_with("leasehold")) {
            // The simulator draws its faults from a seeded generator.
            let seeded = name == "leasehold-simulations" && library == "rand";
            assert!(!is_pure || seeded || !IMPURE.contains(&library), "{name} is pure and uses {library}");
            assert!(!is_core || CORE_LIBRARIES.contains(&library), "{name} is a core and uses {library}");
        }
    }
}

#[test]
fn each_core_bans_clocks_threads_and_unordered_maps_in_its_own_clippy_settings() {
    for package in members() {
        let name = text(package, "name");
        if !["leasehold-ledger", "leasehold-admission", "leasehold-rollout"].contains(&name) {
            continue;
        }
        let settings = std::path::Path::new(text(package, "manifest_path")).with_file_name("clippy.toml");
        let bans = std::fs::read_to_string(&settings).unwrap_or_default();
        for banned in ["Instant::now", "SystemTime::now", "thread::spawn", "HashMap"] {
            assert!(bans.contains(banned), "{name}: {} does not ban {banned}", settings.display());
        }
    }
}
