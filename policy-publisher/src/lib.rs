//! The policy publisher: compiles, signs and distributes bundles.
//!
//! The shell around [`leasehold_rollout`]: it owns the signing key, the files, the listener and the calls to the
//! allocator, and decides nothing. One task steps the rollout; requests read what it has released.

mod acks;
mod clock;
mod http;
mod key;
mod metrics;
mod publish;
mod read;
mod settings;
mod state;
mod store;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use leasehold_protocol::publish::PublicKey;
use leasehold_rollout::Rollout;
use leasehold_transport::client::{ClientError, HttpClient, LeaderClient};
use leasehold_transport::health::Metrics;
use leasehold_transport::listen::{self, Listen, ListenError};
use leasehold_transport::settings::SettingError;
use leasehold_transport::shutdown::{RoleFuture, Shutdown};
use leasehold_transport::takeover::take_over;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::acks::Acks;
use crate::clock::LocalClock;
use crate::key::Key;
pub use crate::key::KeyFileError;
use crate::metrics::PublisherMetrics;
use crate::publish::{Publishing, Request};
pub use crate::settings::Settings;
use crate::state::Shared;
use crate::store::Store;
pub use crate::store::StoreError;

/// The most sources that wait for their turn.
const REQUESTS_MAX: usize = 8;
/// The most sources that are read at once: each may have 32 MiB.
const READERS_MAX: usize = 2;

/// Why a publisher does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting cannot be right.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// There is no key to sign with.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The data directory cannot be used.
    #[error("data directory: {0}")]
    Store(#[from] StoreError),
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It cannot make requests.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The disk fails while it runs.
    #[error("{0}")]
    Disk(String),
    /// Serving ended by itself.
    #[error("serving: {0}")]
    Serve(#[from] std::io::Error),
}

/// Makes the signing key in `path` if there is none, readable by its owner alone, and returns its public half.
pub fn make_key(path: &Path) -> Result<PublicKey, KeyFileError> {
    Ok(Key::open_or_create(path)?.public())
}

/// Runs a publisher until `shutdown`.
pub fn run(settings: Settings, shutdown: Shutdown) -> RoleFuture<RunError> {
    Box::pin(async move { Publisher::bind(settings).await?.serve(shutdown).await })
}

/// A publisher that has its key, its store and its listener, and serves nobody yet.
#[derive(Debug)]
pub struct Publisher {
    settings: Settings,
    listener: TcpListener,
    key: Key,
    store: Store,
    rollout: Rollout,
    http: HttpClient,
}

impl Publisher {
    /// Opens all that a publisher with these settings needs.
    pub async fn bind(settings: Settings) -> Result<Self, RunError> {
        settings.check()?;
        let is_in_use = |e: &StoreError| matches!(e, StoreError::InUse { .. });
        let (store, record) = take_over(|| Store::open(&settings.data_dir), is_in_use).await?;
        let key = Key::open_or_create(&settings.signing_key_path())?;
        let token = settings.admin_token.clone();
        let http = HttpClient::new(token.clone(), Duration::from_millis(settings.allocator_deadline_ms))?;
        let listener = listen::bind(&Listen { addr: settings.listen, admin_token: token }).await?;
        Ok(Self { settings, listener, key, store, rollout: Rollout::new(record), http })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Result<SocketAddr, RunError> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), RunError> {
        let Self { settings, listener, key, store, rollout, http } = self;
        let metrics = Arc::new(Metrics::new("publisher"));
        let own = PublisherMetrics::default();
        own.register(&metrics);
        let (requests, received) = mpsc::channel::<Request>(REQUESTS_MAX);
        let released = rollout.record().released().cloned();
        let shared = Arc::new(Shared {
            key: key.public(),
            current: watch::Sender::new(None),
            store: Arc::new(Mutex::new(store)),
            kept: Mutex::default(),
            notes: Mutex::default(),
            acks: Mutex::new(Acks::default()),
            requests,
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            waiters: Semaphore::new(settings.waiters_max),
            metrics: own,
        });
        tracing::info!(listen = %settings.listen, key_id = %shared.key.key_id,
            released = released.as_ref().map_or(0, |r| r.version.0), "the publisher starts");
        let mut publishing = Publishing {
            rollout,
            shared: Arc::clone(&shared),
            leader: LeaderClient::new(http.clone(), settings.allocators.clone()),
            http,
            allocators: settings.allocators.clone(),
            key,
            clock: LocalClock::new(),
            bootstrap: settings.bootstrap_policy.clone(),
            bootstrap_fault: None,
            draft: None,
            refusal: None,
            damage: None,
        };
        // Before anybody is served: what was released is there again at once, allocator or not.
        if let Some(release) = released {
            publishing.hand_out(release).await.map_err(|e| RunError::Disk(e.to_string()))?;
        }
        publishing.show();
        let router: Router = http::router(&settings, &shared, metrics, shutdown.clone());
        let served = tokio::select! {
            served = listen::serve(listener, router, shutdown) => served.map_err(RunError::Serve),
            ended = publishing.run(received) => Err(match ended {
                Err(e) => RunError::Disk(e.to_string()),
                Ok(()) => RunError::Disk("the rollout's task ended by itself".to_owned()),
            }),
        };
        tracing::info!("the publisher has stopped");
        served
    }
}
