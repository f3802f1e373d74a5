//! What the documents say is there.

use std::path::{Path, PathBuf};

use leasehold_protocol::ProblemKind;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every Markdown file of the project.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name == "target" || name == "leasehold-data" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            documents(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut all = Vec::new();
    documents(&root(), &mut all);
    assert!(all.len() > 10);
    for document in all {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{} links to {link}", document.display());
        }
    }
}

#[test]
fn every_problem_type_is_described() {
    let text = std::fs::read_to_string(root().join("docs/api.md")).unwrap();
    for kind in ProblemKind::ALL {
        let (name, _, status) = kind.describe();
        assert!(text.contains(&format!("`{name}`")), "{name} is not in docs/api.md");
        assert!(text.contains(&status.to_string()), "{status} of {name} is not in docs/api.md");
    }
}
