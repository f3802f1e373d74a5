//! The first policy: published by itself if the allocator has none.

use std::io::Read as _;
use std::path::Path;

use leasehold_protocol::bundle::BUNDLE_BYTES_MAX;
use leasehold_protocol::{BundleVersion, Problem, ProblemKind};
use leasehold_rollout::Source;
use leasehold_rollout::rollout::MintError;

use super::{DiskError, Publishing, Refusal, blocking};
use crate::read;

impl Publishing {
    /// Publishes the bootstrap policy once the register is known to be empty. While the allocator does not answer it
    /// stays due; whatever else comes of it settles it.
    pub(super) async fn bootstrap(&mut self) -> Result<(), DiskError> {
        let Some(path) = self.bootstrap.clone() else { return Ok(()) };
        match self.rollout.next_version() {
            Ok(BundleVersion(1)) => {}
            Err(MintError::Unasked | MintError::Busy { version: BundleVersion(1) }) => return Ok(()),
            Ok(_) | Err(_) => {
                tracing::info!(path = %path.display(), "the allocator has a policy: the bootstrap policy is not needed");
                self.bootstrap = None;
                return Ok(());
            }
        }
        let published = match read_file(&path).await {
            Ok(source) => self.publish(source, Some(BundleVersion(0))).await,
            Err(problem) => Err(Refusal::Problem(problem)),
        };
        match published {
            Ok(published) => {
                tracing::info!(path = %path.display(), version = %published.version, "the bootstrap policy is published");
                for warning in &published.warnings {
                    tracing::warn!("bootstrap policy: {warning}");
                }
                self.bootstrap = None;
            }
            Err(Refusal::Disk(e)) => return Err(e),
            Err(Refusal::Problem(problem)) if problem.kind() == Some(ProblemKind::Unavailable) => {}
            Err(Refusal::Problem(problem)) if problem.kind() == Some(ProblemKind::Conflict) => {
                tracing::info!(path = %path.display(), %problem, "the bootstrap policy is not needed");
                self.bootstrap = None;
            }
            Err(Refusal::Problem(problem)) => {
                tracing::error!(path = %path.display(), %problem, "the bootstrap policy is not published");
                self.bootstrap_fault =
                    Some(format!("the bootstrap policy {} is not published: {problem}", path.display()));
                self.bootstrap = None;
                self.show();
            }
        }
        Ok(())
    }
}

async fn read_file(path: &Path) -> Result<Source, Box<Problem>> {
    let path = path.to_owned();
    blocking(move || {
        let unreadable = |e: std::io::Error| Problem::new(ProblemKind::InvalidInput, e.to_string());
        let file = std::fs::File::open(&path).map_err(unreadable)?;
        let mut text = Vec::new();
        file.take(BUNDLE_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
        if text.len() > BUNDLE_BYTES_MAX {
            let detail = format!("larger than {BUNDLE_BYTES_MAX} bytes");
            return Err(Problem::new(ProblemKind::BodyTooLarge, detail).into());
        }
        Ok(read::source(&text)?)
    })
    .await?
}
