//! The other two roles as far as an agent can tell: a real ledger behind the allocator's call, a signed bundle behind
//! the publisher's.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ed25519_dalek::SigningKey;
use leasehold_agent::Settings;
use leasehold_ledger::{Command, Entry, Ledger, Notice, Outcome};
use leasehold_protocol::admin::{AgentAck, AgentStatus};
use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::bundle::{
    Algorithm, BUNDLE_FORMAT, Bundle, Enforcement, FailMode, Fallback, KeyPart, Limit, Plan, Route, Rule,
    Sharing, Tenant,
};
use leasehold_protocol::envelope::{Envelope, format_public_key};
use leasehold_protocol::lease::{AcquireAnswer, LeaseFrame, LeaseFrameAnswer};
use leasehold_protocol::{
    AgentId, BundleVersion, PlanId, Problem, ProblemKind, RegionId, RouteId, RuleId, TenantId, Tokens,
    WindowLength,
};
use leasehold_transport::clock::wall_now;
use leasehold_transport::problem::ProblemResponse;
use leasehold_transport::shutdown::{Shutdown, ShutdownTrigger};
use serde_json::Value;
use tokio::sync::broadcast;

/// A bound against hanging, not a claim about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

/// How the allocator behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// Answers after so many ms.
    Slow(u64),
    /// Accepts and never answers.
    Silent,
    Overloaded,
}

pub(crate) struct Allocator {
    ledger: Mutex<Ledger>,
    mood: Mutex<Mood>,
    /// What is pushed, a line each, with the region that it is for.
    pushes: broadcast::Sender<(RegionId, String)>,
}

impl Allocator {
    pub(crate) fn set_mood(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Tokens that are out or spent, over all windows and pools.
    pub(crate) fn committed(&self) -> u64 {
        let views = self.ledger.lock().unwrap().pool_views();
        views.iter().map(|pool| pool.leased.0 + pool.spent.0).sum()
    }

    pub(crate) fn activate(&self, bundle: &Bundle) {
        self.apply(Command::ActivateBundle { bundle: Box::new(bundle.clone()), digest: "d".to_owned() });
    }

    fn apply(&self, command: Command) {
        let entry = Entry { stamp: wall_now(), commands: vec![command] };
        let applied = self.ledger.lock().unwrap().apply(&entry);
        self.tell(&applied.notices);
    }

    fn tell(&self, notices: &[Notice]) {
        for Notice { holder, push } in notices {
            // Nobody may listen.
            let _ = self
                .pushes
                .send((holder.region.clone(), format!("{}\n", serde_json::to_string(push).unwrap())));
        }
    }
}

async fn frame(State(allocator): State<Arc<Allocator>>, Json(frame): Json<LeaseFrame>) -> Response {
    let mood = *allocator.mood.lock().unwrap();
    match mood {
        Mood::Silent => std::future::pending().await,
        Mood::Overloaded => {
            return ProblemResponse(Problem::new(ProblemKind::Overloaded, "full")).with_retry_after_ms(1_000);
        }
        Mood::Slow(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        Mood::Well => {}
    }
    let LeaseFrame { holder, incarnation, rtt_ms, settles, acquires } = frame;
    let named: Vec<_> = acquires.iter().map(|a| (a.pool.clone(), a.seq)).collect();
    let settles =
        settles.into_iter().map(|settle| Command::Settle { holder: holder.clone(), incarnation, settle });
    let acquires =
        acquires.into_iter().map(|acquire| Command::Acquire { holder: holder.clone(), incarnation, acquire });
    let heard = Command::Hear { holder: holder.clone(), incarnation, rtt_ms };
    let commands = std::iter::once(heard).chain(settles).chain(acquires).collect();
    let mut ledger = allocator.ledger.lock().unwrap();
    let applied = ledger.apply(&Entry { stamp: wall_now(), commands });
    allocator.tell(&applied.notices);
    let leases = applied.outcomes.into_iter().filter_map(|outcome| match outcome {
        Outcome::Acquired(lease) => Some(lease),
        _ => None,
    });
    let answers =
        named.into_iter().zip(leases).map(|((pool, seq), outcome)| AcquireAnswer { pool, seq, outcome });
    let (answers, bundle_version) = (answers.collect(), ledger.bundle_version());
    Json(LeaseFrameAnswer { answers, bundle_version, pushes: Vec::new() }).into_response()
}

/// What is pushed, a line each.
async fn stream(State(allocator): State<Arc<Allocator>>, Query(listener): Query<Listener>) -> Response {
    let pushes = allocator.pushes.subscribe();
    let lines = futures_util::stream::unfold((pushes, listener.region), |(mut pushes, region)| async move {
        loop {
            let line = match tokio::time::timeout(Duration::from_millis(200), pushes.recv()).await {
                Ok(Ok((to, line))) if to == region => line,
                Ok(Ok(_)) => continue,
                Ok(Err(_)) => return None,
                Err(_) => "\n".to_owned(),
            };
            return Some((Ok::<_, std::convert::Infallible>(line), (pushes, region)));
        }
    });
    axum::body::Body::from_stream(lines).into_response()
}

#[derive(serde::Deserialize)]
struct Listener {
    region: RegionId,
}

#[derive(Default)]
pub(crate) struct Publisher {
    /// The newest envelope and its version.
    pub(crate) newest: Mutex<(u64, Vec<u8>)>,
    pub(crate) acks: Mutex<Vec<AgentAck>>,
    /// Polls so far.
    pub(crate) polls: AtomicU64,
    /// True: takes acknowledgements and never answers.
    pub(crate) is_deaf: AtomicBool,
}

#[derive(serde::Deserialize)]
struct Poll {
    after: u64,
    wait_ms: u64,
}

async fn poll(State(publisher): State<Arc<Publisher>>, Query(poll): Query<Poll>) -> Response {
    publisher.polls.fetch_add(1, Ordering::Relaxed);
    let until = Instant::now() + Duration::from_millis(poll.wait_ms.min(500));
    loop {
        let (version, bytes) = publisher.newest.lock().unwrap().clone();
        if version > poll.after {
            return bytes.into_response();
        }
        if Instant::now() >= until {
            return StatusCode::NO_CONTENT.into_response();
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

async fn ack(State(publisher): State<Arc<Publisher>>, Json(ack): Json<AgentAck>) -> StatusCode {
    publisher.acks.lock().unwrap().push(ack);
    if publisher.is_deaf.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    StatusCode::NO_CONTENT
}

/// Both, and where they are reached.
pub(crate) struct Peers {
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) publisher: Arc<Publisher>,
    allocator_url: String,
    publisher_url: String,
}

impl Peers {
    /// An allocator and a publisher that have [`policy`] at version 1.
    pub(crate) async fn start() -> Self {
        let peers = Self::without_policy().await;
        peers.release(&policy(1, 1_000));
        peers
    }

    /// An allocator and a publisher before the first bundle.
    pub(crate) async fn without_policy() -> Self {
        let allocator = Arc::new(Allocator {
            ledger: Mutex::new(Ledger::default()),
            mood: Mutex::new(Mood::Well),
            pushes: broadcast::channel(1_024).0,
        });
        let publisher = Arc::new(Publisher::default());
        let of_allocator = Router::new()
            .route("/v1/leases:frame", post(frame))
            .route("/v1/leases:stream", get(stream))
            .with_state(Arc::clone(&allocator));
        let of_publisher = Router::new()
            .route("/v1/bundles", get(poll))
            .route("/v1/acks", post(ack))
            .with_state(Arc::clone(&publisher));
        Self {
            allocator,
            publisher,
            allocator_url: serve(of_allocator).await,
            publisher_url: serve(of_publisher).await,
        }
    }

    /// Makes `bundle` the policy of both.
    pub(crate) fn release(&self, bundle: &Bundle) {
        self.allocator.activate(bundle);
        self.offer(bundle.version.0, &serde_json::to_vec(bundle).unwrap(), &key());
    }

    /// Offers `payload` as version `version`, signed by `key`.
    pub(crate) fn offer(&self, version: u64, payload: &[u8], key: &SigningKey) {
        let envelope = serde_json::to_vec(&Envelope::sign(payload, &[key])).unwrap();
        *self.publisher.newest.lock().unwrap() = (version, envelope);
    }

    pub(crate) fn settings(&self, region: &str, folder: &Path) -> Settings {
        Settings {
            region: RegionId::new(region).unwrap(),
            agent: Some(AgentId::new(format!("{region}-1")).unwrap()),
            listen: free_address(),
            data_dir: folder.join(region),
            allocators: vec![self.allocator_url.clone()],
            publisher: self.publisher_url.clone(),
            trusted_keys: vec![format_public_key(&key().verifying_key())],
            frame_deadline_ms: 400,
            ..Settings::default()
        }
    }

    pub(crate) async fn agent(&self, region: &str, folder: &Path) -> Agent {
        Agent::start(self.settings(region, folder)).await
    }
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) url: String,
    pub(crate) http: reqwest::Client,
    trigger: ShutdownTrigger,
    ended: tokio::task::JoinHandle<Result<(), leasehold_agent::RunError>>,
}

impl Agent {
    /// Starts it and waits until it answers.
    pub(crate) async fn start(settings: Settings) -> Self {
        let url = format!("http://{}", settings.listen);
        let (trigger, shutdown) = Shutdown::new();
        let ended = tokio::spawn(leasehold_agent::run(settings, shutdown));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let agent = Self { url, http, trigger, ended };
        let began = Instant::now();
        while agent.http.get(format!("{}/livez", agent.url)).send().await.is_err() {
            assert!(!agent.ended.is_finished(), "the agent has ended: {:?}", agent.ended.await);
            assert!(began.elapsed() < PATIENCE, "the agent does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        agent
    }

    pub(crate) async fn stop(self) {
        self.trigger.trigger();
        self.ended.await.unwrap().unwrap();
    }

    pub(crate) async fn until_version(&self, version: u64) {
        let began = Instant::now();
        while self.status().await.bundle_version != BundleVersion(version) {
            assert!(began.elapsed() < PATIENCE, "version {version} is not in force");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn status(&self) -> AgentStatus {
        self.http.get(format!("{}/v1/status", self.url)).send().await.unwrap().json().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.http.post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The value of a metric without labels.
    pub(crate) async fn gauge(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub(crate) async fn raw(&self, path: &str, body: &Value) -> reqwest::Response {
        self.http.post(format!("{}{path}", self.url)).json(body).send().await.unwrap()
    }

    pub(crate) async fn admit(&self, asked: &AdmitRequest) -> (u16, Value) {
        self.post("/v1/admit", &serde_json::to_value(asked).unwrap()).await
    }
}

static USERS: AtomicU64 = AtomicU64::new(0);

/// A request of Atlas's by a user of its own.
pub(crate) fn ask(route: &str) -> AdmitRequest {
    AdmitRequest {
        tenant: Some("atlas".to_owned()),
        principal: Some(format!("u-{}", USERS.fetch_add(1, Ordering::Relaxed))),
        route: route.to_owned(),
        ..AdmitRequest::default()
    }
}

/// Atlas's limit in windows of a day, so that none ends while a test runs; slots; a closed and a bounded route.
pub(crate) fn policy(version: u64, limit: u64) -> Bundle {
    policy_by(version, limit, 86_400_000)
}

/// As [`policy`], in windows of `window_ms`.
pub(crate) fn policy_by(version: u64, limit: u64, window_ms: u64) -> Bundle {
    let limited = |tokens| Limit::Limited { tokens: Tokens(tokens) };
    let id = |text: &str| RuleId::new(text).unwrap();
    let route = |name: &str, weight, rules: &[&str], fail_mode| Route {
        id: RouteId::new(name).unwrap(),
        pattern: format!("GET /{name}"),
        weight: Tokens(weight),
        rules: rules.iter().map(|rule| id(rule)).collect(),
        fail_mode,
    };
    Bundle {
        format: BUNDLE_FORMAT,
        version: BundleVersion(version),
        issued_at_ms: 0,
        max_age_s: 3_600,
        rules: vec![
            Rule {
                id: id("P-EXPORT"),
                key: vec![KeyPart::Tenant],
                algorithm: Algorithm::Concurrency { limit: limited(3), slot_ttl_ms: 60_000 },
                enforcement: Enforcement::Regional,
                fallback: Fallback::Refuse,
                sharing: Sharing::default(),
            },
            Rule {
                id: id("P-TENANT"),
                key: vec![KeyPart::Tenant],
                algorithm: Algorithm::FixedWindow {
                    limit: limited(limit),
                    window_ms: WindowLength::from_ms(window_ms).unwrap(),
                },
                enforcement: Enforcement::Leased,
                fallback: Fallback::Bucket {
                    capacity: Tokens(5),
                    refill_tokens: Tokens(1),
                    refill_ms: 3_600_000,
                },
                sharing: Sharing::default(),
            },
        ],
        plans: vec![Plan { id: PlanId::new("p").unwrap(), limits: Vec::new() }],
        tenants: vec![Tenant { id: TenantId::new("atlas").unwrap(), plan: PlanId::new("p").unwrap() }],
        overrides: Vec::new(),
        routes: vec![
            route("catalog", 1, &["P-TENANT"], FailMode::Bounded),
            route("checkout", 1, &["P-TENANT"], FailMode::Closed),
            route("export", 10, &["P-EXPORT", "P-TENANT"], FailMode::Closed),
        ],
    }
}
