//! Grants a second through three replicas of this process, over real HTTP and real disks.
//!
//!     cargo run --release -p leasehold-allocator --example grants -- [clients] [seconds]

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "an example run by hand")]

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use leasehold_allocator::{Member, Settings};
use leasehold_protocol::admin::{ClusterView, PolicyView};
use leasehold_protocol::envelope::{Envelope, format_public_key};
use leasehold_protocol::lease::{Acquire, LeaseFrame, LeaseFrameAnswer, WindowChoice};
use leasehold_protocol::{
    AgentId, Demand, Holder, Incarnation, NodeId, PoolKey, RegionId, RuleId, TenantId, Tokens,
};
use leasehold_transport::client::{HttpClient, LeaderClient};
use leasehold_transport::shutdown::Shutdown;
use tokio::task::JoinSet;

const POLICY: &str = r#"{"format":1,"version":1,"issued_at_ms":0,"max_age_s":3600,"rules":[{"id":"P-TENANT","key":["tenant"],"algorithm":{"kind":"fixed_window","limit":{"kind":"limited","tokens":1000000000000},"window_ms":86400000},"enforcement":"leased","fallback":{"kind":"refuse"}}],"plans":[{"id":"p","limits":[]}],"tenants":[{"id":"t","plan":"p"}],"overrides":[],"routes":[{"id":"r","pattern":"GET /r","weight":1,"rules":["P-TENANT"],"fail_mode":{"kind":"closed"}}]}"#;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap());
    let (clients, seconds) = (args.next().unwrap_or(64), args.next().unwrap_or(10));
    let listeners: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
    drop(listeners);
    let members: Vec<Member> = (1..=3)
        .zip(&addresses)
        .map(|(n, addr)| Member { node_id: NodeId(n), url: format!("http://{addr}") })
        .collect();
    let key = SigningKey::from_bytes(&[7; 32]);
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut triggers = Vec::new();
    for (member, listen) in members.iter().zip(&addresses) {
        let settings = Settings {
            node_id: member.node_id,
            listen: *listen,
            data_dir: folder.path().join(member.node_id.to_string()),
            members: members.clone(),
            trusted_keys: vec![format_public_key(&key.verifying_key())],
            ..Settings::default()
        };
        let (trigger, shutdown) = Shutdown::new();
        triggers.push(trigger);
        tokio::spawn(leasehold_allocator::run(settings, shutdown));
    }
    let http = HttpClient::new(None, Duration::from_secs(10)).unwrap();
    let urls: Vec<String> = members.iter().map(|m| m.url.clone()).collect();
    let client = LeaderClient::new(http.clone(), urls.clone());
    let envelope = Envelope::sign(POLICY.as_bytes(), &[&key]);
    while client.post::<_, PolicyView>("/v1/policy", &envelope).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let applied = async || {
        let view: ClusterView = http.get(&format!("{}/v1/cluster", urls[0])).await.unwrap();
        view.applied_index.unwrap_or(0)
    };

    let entries_before = applied().await;
    let (grants, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let began = Instant::now();
    let mut asking = JoinSet::new();
    for n in 0..clients {
        let (client, grants, stop) = (client.clone(), Arc::clone(&grants), Arc::clone(&stop));
        asking.spawn(async move {
            let mut times = Vec::new();
            for seq in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let asked = Instant::now();
                let answer: LeaseFrameAnswer = client.post("/v1/leases:frame", &frame(n, seq)).await.unwrap();
                times.push(asked.elapsed());
                grants.fetch_add(answer.answers.len() as u64, Ordering::Relaxed);
            }
            times
        });
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let mut times: Vec<Duration> = asking.join_all().await.into_iter().flatten().collect();
    let (elapsed, entries) = (began.elapsed(), applied().await.saturating_sub(entries_before));
    times.sort_unstable();
    let at = |per_mille: usize| times.get(times.len() * per_mille / 1_000).copied().unwrap_or_default();
    let granted = grants.load(Ordering::Relaxed);
    println!(
        "clients {clients}  grants/s {:.0}  entries/s {:.0}  grants/entry {:.1}  p50 {:.2?}  p99 {:.2?}",
        rate(granted, elapsed),
        rate(entries, elapsed),
        rate(granted, elapsed) / rate(entries, elapsed).max(1.0),
        at(500),
        at(990),
    );
}

fn rate(count: u64, elapsed: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / elapsed.as_secs_f64()
}

fn frame(client: u64, seq: u64) -> LeaseFrame {
    let tenant = Some(TenantId::new("t").unwrap());
    let pool = PoolKey { rule: RuleId::new("P-TENANT").unwrap(), tenant };
    LeaseFrame {
        holder: Holder {
            region: RegionId::new("eu").unwrap(),
            agent: AgentId::new(format!("a-{client}")).unwrap(),
        },
        incarnation: Incarnation(1),
        rtt_ms: 0,
        settles: Vec::new(),
        acquires: vec![Acquire {
            pool,
            window: WindowChoice::Current,
            seq,
            need: Tokens(1),
            least: Tokens(1),
            boundary: Tokens(0),
            demand: Demand::default(),
            extend_only: false,
        }],
    }
}
