//! Replicas that a test starts, stops and asks.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use leasehold_allocator::{Member, RunError, Settings};
use leasehold_protocol::admin::{ClusterView, Page, PolicyView, PoolView};
use leasehold_protocol::bundle::{
    Algorithm, BUNDLE_FORMAT, Bundle, Enforcement, FailMode, Fallback, KeyPart, Limit, Plan, Route, Rule,
    Sharing, Tenant,
};
use leasehold_protocol::envelope::{Envelope, format_public_key};
use leasehold_protocol::lease::{Acquire, LeaseFrame, LeaseFrameAnswer, Settle, WindowChoice};
use leasehold_protocol::{
    AgentId, BundleVersion, Demand, Holder, Incarnation, NodeId, PlanId, PoolKey, RegionId, RouteId, RuleId,
    TenantId, Tokens, WindowLength,
};
use leasehold_transport::client::{ClientError, HttpClient, LeaderClient};
use leasehold_transport::secret::Secret;
use leasehold_transport::shutdown::{Shutdown, ShutdownTrigger};
use tokio::task::JoinHandle;

/// A bound against hanging, not a claim about speed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
pub(crate) const TOKEN: &str = "a-token-for-tests";

pub(crate) fn signing_key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

struct Running {
    trigger: ShutdownTrigger,
    ended: JoinHandle<Result<(), RunError>>,
}

pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    members: Vec<Member>,
    tune: fn(&mut Settings),
    running: Vec<Option<Running>>,
    client: LeaderClient,
}

impl Cluster {
    /// Three replicas with a leader and the policy of [`bundle`] at version 1.
    pub(crate) async fn start() -> Self {
        Self::start_tuned(|_| {}).await
    }

    pub(crate) async fn start_tuned(tune: fn(&mut Settings)) -> Self {
        let ports: Vec<u16> = {
            let listeners: Vec<TcpListener> =
                (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            listeners.iter().map(|l| l.local_addr().unwrap().port()).collect()
        };
        let members: Vec<Member> = (1..=3)
            .zip(&ports)
            .map(|(n, port)| Member { node_id: NodeId(n), url: format!("http://127.0.0.1:{port}") })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let client = LeaderClient::new(Self::http(), members.iter().map(|m| m.url.clone()).collect());
        let mut cluster = Self { folder, members, tune, running: vec![None, None, None], client };
        for n in 0..3 {
            cluster.start_replica(n).await;
        }
        cluster.leader().await;
        cluster.activate(&bundle(1, 100)).await.unwrap();
        cluster
    }

    pub(crate) fn settings(&self, n: usize) -> Settings {
        let member = &self.members[n];
        let listen: SocketAddr = member.url.strip_prefix("http://").unwrap().parse().unwrap();
        let mut settings = Settings {
            node_id: member.node_id,
            listen,
            data_dir: self.folder.path().join(n.to_string()),
            members: self.members.clone(),
            admin_token: Some(Secret::new(TOKEN)),
            trusted_keys: vec![format_public_key(&signing_key().verifying_key())],
            ..Settings::default()
        };
        (self.tune)(&mut settings);
        settings
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a replica and waits until it answers.
    pub(crate) async fn start_replica(&mut self, n: usize) {
        let (trigger, shutdown) = Shutdown::new();
        let ended = tokio::spawn(leasehold_allocator::run(self.settings(n), shutdown));
        let began = Instant::now();
        while Self::http().get::<ClusterView>(&format!("{}/v1/cluster", self.url(n))).await.is_err() {
            assert!(!ended.is_finished(), "replica {n} does not start: {:?}", ended.await);
            assert!(began.elapsed() < PATIENCE, "replica {n} does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.running[n] = Some(Running { trigger, ended });
    }

    pub(crate) async fn stop_replica(&mut self, n: usize) {
        let Running { trigger, ended } = self.running[n].take().unwrap();
        trigger.trigger();
        ended.await.unwrap().unwrap();
    }

    pub(crate) fn url(&self, n: usize) -> &str {
        &self.members[n].url
    }

    pub(crate) fn http() -> HttpClient {
        HttpClient::new(Some(Secret::new(TOKEN)), Duration::from_secs(10)).unwrap()
    }

    pub(crate) fn client(&self) -> &LeaderClient {
        &self.client
    }

    /// Which of the running replicas leads, once one does and its line is drawn.
    pub(crate) async fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            for n in (0..3).filter(|n| self.running[*n].is_some()) {
                let view = Self::http().get::<ClusterView>(&format!("{}/v1/cluster", self.url(n))).await;
                let probe = LeaseFrame {
                    holder: holder("probe"),
                    incarnation: Incarnation(1),
                    rtt_ms: 0,
                    settles: Vec::new(),
                    acquires: Vec::new(),
                };
                if view.is_ok_and(|view| view.state == "leader")
                    && Self::http()
                        .post::<_, LeaseFrameAnswer>(&format!("{}/v1/leases:frame", self.url(n)), &probe)
                        .await
                        .is_ok()
                {
                    return n;
                }
            }
            assert!(began.elapsed() < PATIENCE, "nobody leads");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn activate(&self, bundle: &Bundle) -> Result<PolicyView, ClientError> {
        let bytes = serde_json::to_vec(bundle).unwrap();
        self.client().post("/v1/policy", &Envelope::sign(&bytes, &[&signing_key()])).await
    }

    pub(crate) async fn frame(&self, frame: &LeaseFrame) -> LeaseFrameAnswer {
        let began = Instant::now();
        loop {
            match self.client().post("/v1/leases:frame", frame).await {
                Ok(answer) => return answer,
                Err(e) => assert!(began.elapsed() < PATIENCE, "{e}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What a replica says of itself.
    pub(crate) async fn view(&self, n: usize) -> ClusterView {
        Self::http().get(&format!("{}/v1/cluster", self.url(n))).await.unwrap()
    }

    /// A replica's pools, all pages.
    pub(crate) async fn pools(&self, n: usize, limit: usize) -> Vec<PoolView> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let url = format!("{}/v1/pools?limit={limit}{cursor}", self.url(n));
            let page: Page<PoolView> = Self::http().get(&url).await.unwrap();
            all.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }
}

pub(crate) fn holder(name: &str) -> Holder {
    Holder { region: RegionId::new("eu").unwrap(), agent: AgentId::new(name).unwrap() }
}

pub(crate) fn pool(tenant: &str) -> PoolKey {
    PoolKey { rule: RuleId::new("P-TENANT").unwrap(), tenant: Some(TenantId::new(tenant).unwrap()) }
}

pub(crate) fn acquire(tenant: &str, seq: u64, need: u64) -> Acquire {
    Acquire {
        pool: pool(tenant),
        window: WindowChoice::Current,
        seq,
        need: Tokens(need),
        least: Tokens(0),
        boundary: Tokens(0),
        demand: Demand::default(),
        extend_only: false,
    }
}

pub(crate) fn frame(name: &str, settles: Vec<Settle>, acquires: Vec<Acquire>) -> LeaseFrame {
    LeaseFrame { holder: holder(name), incarnation: Incarnation(1), rtt_ms: 0, settles, acquires }
}

/// One leased rule with windows of a day, so that no window ends while a test runs, for tenants `t-0` to `t-29`.
pub(crate) fn bundle(version: u64, limit: u64) -> Bundle {
    let algorithm = Algorithm::FixedWindow {
        limit: Limit::Limited { tokens: Tokens(limit) },
        window_ms: WindowLength::from_ms(86_400_000).unwrap(),
    };
    let rule = RuleId::new("P-TENANT").unwrap();
    let mut tenants: Vec<Tenant> = (0..30)
        .map(|n| Tenant { id: TenantId::new(format!("t-{n}")).unwrap(), plan: PlanId::new("p").unwrap() })
        .collect();
    tenants.sort_by(|a, b| a.id.cmp(&b.id));
    Bundle {
        format: BUNDLE_FORMAT,
        version: BundleVersion(version),
        issued_at_ms: 0,
        max_age_s: 3_600,
        rules: vec![Rule {
            id: rule.clone(),
            key: vec![KeyPart::Tenant],
            algorithm,
            enforcement: Enforcement::Leased,
            fallback: Fallback::Refuse,
            sharing: Sharing::default(),
        }],
        plans: vec![Plan { id: PlanId::new("p").unwrap(), limits: Vec::new() }],
        tenants,
        overrides: Vec::new(),
        routes: vec![Route {
            id: RouteId::new("r").unwrap(),
            pattern: "GET /r".to_owned(),
            weight: Tokens(1),
            rules: vec![rule],
            fail_mode: FailMode::Closed,
        }],
    }
}
