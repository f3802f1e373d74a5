//! Calls to the allocator's policy register, and their answers as the rollout's inputs.

use std::sync::Arc;

use leasehold_protocol::admin::PolicyView;
use leasehold_protocol::envelope::Envelope;
use leasehold_protocol::{Problem, ProblemKind};
use leasehold_rollout::Release;
use leasehold_rollout::rollout::Input;
use leasehold_transport::client::ClientError;
use tokio::task::JoinSet;

use super::Publishing;

/// The register's path.
const REGISTER: &str = "/v1/policy";

impl Publishing {
    /// Reads the register at every replica and goes by the highest answer: a replica says what it has applied, which
    /// may be old. Less than half of them is no answer; nothing could be registered then either.
    pub(super) async fn ask(&self) -> Input {
        let mut calls = JoinSet::new();
        for base in &self.allocators {
            let (http, url) = (self.http.clone(), format!("{}{REGISTER}", base.trim_end_matches('/')));
            calls.spawn(async move { http.get::<PolicyView>(&url).await });
        }
        let mut answers = Vec::new();
        while let Some(answer) = calls.join_next().await {
            match answer {
                Ok(Ok(view)) => answers.push(view),
                Ok(Err(e)) => tracing::debug!(error = %e, "a replica's register cannot be read"),
                Err(e) => tracing::error!(error = %e, "a call ended by itself"),
            }
        }
        let is_majority = answers.len() > self.allocators.len() / 2;
        match answers.into_iter().max_by_key(|view| view.active_version) {
            Some(view) if is_majority => Input::Says(view),
            _ => Input::Unanswered,
        }
    }

    /// Offers the draft.
    pub(super) async fn register(&mut self, release: &Release) -> Input {
        let envelope = match self.envelope_of(release).await {
            Ok(envelope) => envelope,
            Err(reason) => return Input::Refused { reason },
        };
        match self.leader.post::<Envelope, PolicyView>(REGISTER, &envelope).await {
            Ok(view) => Input::Accepted(view),
            Err(ClientError::Problem(problem)) => self.judge(*problem),
            Err(e) => {
                tracing::warn!(version = %release.version, error = %e, "the allocator does not answer");
                Input::Unanswered
            }
        }
    }

    fn judge(&mut self, problem: Problem) -> Input {
        let reason = problem.to_string();
        match problem.kind() {
            Some(ProblemKind::Conflict) => Input::Conflict,
            Some(
                ProblemKind::PolicyRefused
                | ProblemKind::SignatureRefused
                | ProblemKind::InvalidInput
                | ProblemKind::MalformedBody
                | ProblemKind::BodyTooLarge
                | ProblemKind::NotFound
                | ProblemKind::MethodNotAllowed,
            ) => {
                self.refusal = Some(problem);
                Input::Refused { reason }
            }
            Some(ProblemKind::Unauthorized) => {
                let detail = "the allocator refuses this publisher's admin token";
                self.refusal = Some(Problem::new(ProblemKind::Unavailable, detail));
                Input::Refused { reason }
            }
            _ => {
                tracing::warn!(%problem, "the allocator cannot take the bundle now");
                Input::Unanswered
            }
        }
    }

    /// The draft's envelope: from memory, or after a restart from disk.
    async fn envelope_of(&mut self, release: &Release) -> Result<Arc<Envelope>, String> {
        if let Some((named, envelope)) = &self.draft
            && named == release
        {
            return Ok(Arc::clone(envelope));
        }
        let named = release.clone();
        let bytes = self.on_disk(move |store| store.load(&named)).await.map_err(|e| e.to_string())?;
        let envelope: Envelope = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        let envelope = Arc::new(envelope);
        self.draft = Some((release.clone(), Arc::clone(&envelope)));
        Ok(envelope)
    }
}
