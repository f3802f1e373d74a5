//! `leasehold status`: every role's state.

use leasehold_gateway_client::AgentClient;
use leasehold_protocol::admin::{AgentStatus, ClusterView, PublisherStatus};
use leasehold_transport::client::HttpClient;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::args::{Layers, Output};
use crate::output;
use crate::target::Target;

/// One role's answer, or why there is none.
#[derive(Debug, Serialize)]
struct Answer<T> {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl<T> Answer<T> {
    fn new<E: ToString>(url: String, answer: Result<T, E>) -> Self {
        match answer {
            Ok(status) => Self { url, status: Some(status), error: None },
            Err(e) => Self { url, status: None, error: Some(e.to_string()) },
        }
    }
}

/// Everybody's.
#[derive(Debug, Serialize)]
struct Status {
    allocators: Vec<Answer<ClusterView>>,
    publisher: Answer<PublisherStatus>,
    agents: Vec<Answer<AgentStatus>>,
}

impl Status {
    fn is_well(&self) -> bool {
        self.allocators.iter().all(|a| a.status.is_some())
            && self.publisher.status.is_some()
            && self.agents.iter().all(|a| a.status.is_some())
    }
}

pub(crate) async fn run(layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let target = Target::new(layers)?;
    let http = target.http()?;
    let (allocators, publisher, agents) = tokio::join!(
        each(target.allocators.clone(), move |url| cluster(http.clone(), url)),
        publisher(&target),
        each(target.agent_clients()?.into_iter().zip(target.agents.clone()).collect(), agent),
    );
    let status = Status { allocators, publisher: publisher?, agents };
    match output {
        Output::Json => output::json(&status)?,
        Output::Table => print(&status),
    }
    Ok(status.is_well())
}

/// Asks all at once; answers in order.
async fn each<I, T, F>(asked: Vec<I>, ask: impl Fn(I) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut asking = JoinSet::new();
    for (place, one) in asked.into_iter().enumerate() {
        let answer = ask(one);
        asking.spawn(async move { (place, answer.await) });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn cluster(http: HttpClient, url: String) -> Answer<ClusterView> {
    let answer = http.get(&format!("{url}/v1/cluster")).await;
    Answer::new(url, answer)
}

async fn publisher(target: &Target) -> anyhow::Result<Answer<PublisherStatus>> {
    let answer = target.http()?.get(&format!("{}/v1/status", target.publisher)).await;
    Ok(Answer::new(target.publisher.clone(), answer))
}

async fn agent((client, url): (AgentClient, String)) -> Answer<AgentStatus> {
    Answer::new(url, client.status().await)
}

fn print(status: &Status) {
    let mut table = output::table(["ROLE", "URL", "STATE", "DETAIL"]);
    for answer in &status.allocators {
        let (name, state, detail) = match (&answer.status, &answer.error) {
            (Some(view), _) => (
                format!("allocator {}", view.node),
                view.state.clone(),
                format!(
                    "term {}, bundle {}, applied {}",
                    view.term,
                    view.bundle_version,
                    output::or_dash(view.applied_index)
                ),
            ),
            (None, error) => ("allocator".to_owned(), "down".to_owned(), output::or_dash(error.clone())),
        };
        table.add_row([name, answer.url.clone(), state, detail]);
    }
    let publisher = &status.publisher;
    let (state, detail) = match (&publisher.status, &publisher.error) {
        (Some(view), _) => {
            let behind = view.agents.iter().filter(|a| a.active_version != view.released_version).count();
            (
                "up".to_owned(),
                format!("bundle {}, {} agents, {behind} behind", view.released_version, view.agents.len()),
            )
        }
        (None, error) => ("down".to_owned(), output::or_dash(error.clone())),
    };
    table.add_row(["publisher".to_owned(), publisher.url.clone(), state, detail]);
    for answer in &status.agents {
        let (name, state, detail) = match (&answer.status, &answer.error) {
            (Some(view), _) => {
                let state = if view.fallback_engaged { "fallback" } else { "up" };
                let held: u64 = view.leases.iter().map(|lease| lease.held.0).fold(0, u64::saturating_add);
                let old = if view.bundle_stale { " (stale)" } else { "" };
                let detail = format!(
                    "bundle {}{old}, {} leases, {held} tokens",
                    view.bundle_version,
                    view.leases.len()
                );
                (format!("agent {}", view.region), state.to_owned(), detail)
            }
            (None, error) => ("agent".to_owned(), "down".to_owned(), output::or_dash(error.clone())),
        };
        table.add_row([name, answer.url.clone(), state, detail]);
    }
    output::print_table(&table);
}
