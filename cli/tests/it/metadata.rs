//! What `cargo metadata` says of this workspace.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// The whole answer, read once.
fn metadata() -> &'static Value {
    static READ: OnceLock<Value> = OnceLock::new();
    READ.get_or_init(|| {
        let out = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host()])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    })
}

/// The packages, members and dependencies alike.
pub(crate) fn packages() -> impl Iterator<Item = &'static Value> {
    metadata()["packages"].as_array().unwrap().iter()
}

/// The workspace's own packages.
pub(crate) fn members() -> impl Iterator<Item = &'static Value> {
    packages().filter(|package| package["source"].is_null())
}

/// A text member of a JSON object.
pub(crate) fn text(value: &'static Value, name: &str) -> &'static str {
    value[name].as_str().unwrap_or_default()
}

/// This machine's triple: crates of other platforms need not be there.
fn host() -> String {
    let out = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}
