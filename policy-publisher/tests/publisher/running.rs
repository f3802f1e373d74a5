//! A publisher under test.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_protocol::Problem;
use leasehold_protocol::admin::PublisherStatus;
use leasehold_protocol::envelope::{TrustedKeys, parse_public_key};
use leasehold_protocol::publish::{Published, SigningKeys};
use leasehold_publisher::{Publisher, RunError, Settings};
use leasehold_transport::shutdown::{Shutdown, ShutdownTrigger};
use reqwest::{Client, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::register::Register;

pub(crate) struct Running {
    pub(crate) url: String,
    pub(crate) http: Client,
    trigger: ShutdownTrigger,
    task: JoinHandle<Result<(), RunError>>,
    /// Its own, so that it can be ended with all that it holds.
    runtime: Runtime,
}

pub(crate) fn settings(dir: &Path, register: &Register) -> Settings {
    Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        data_dir: dir.join("publisher"),
        allocators: vec![register.url.clone()],
        allocator_deadline_ms: 500,
        ..Settings::default()
    }
}

pub(crate) async fn start(settings: Settings) -> Running {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let publisher = runtime.spawn(Publisher::bind(settings)).await.unwrap().unwrap();
    let url = format!("http://{}", publisher.local_addr().unwrap());
    let (trigger, shutdown) = Shutdown::new();
    let task = runtime.spawn(publisher.serve(shutdown));
    Running { url, http: Client::builder().no_proxy().build().unwrap(), trigger, task, runtime }
}

impl Running {
    pub(crate) async fn stop(self) {
        self.trigger.trigger();
        self.task.await.unwrap().unwrap();
        end(self.runtime).await;
    }

    /// As kill -9 would: nothing is said to anybody.
    pub(crate) async fn kill(self) {
        end(self.runtime).await;
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Response {
        let kind = "application/yaml";
        let request = self.http.post(format!("{}{path}", self.url)).header("content-type", kind);
        request.body(body).send().await.unwrap()
    }

    pub(crate) async fn publish(&self, source: &str) -> Published {
        let answer = self.post("/v1/bundles", source.to_owned()).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        answer.json().await.unwrap()
    }

    pub(crate) async fn refused(&self, source: &str, status: StatusCode) -> Problem {
        problem(self.post("/v1/bundles", source.to_owned()).await, status).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &str) -> T {
        let answer = self.get(path).await;
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.unwrap()
    }

    pub(crate) async fn status(&self) -> PublisherStatus {
        self.read("/v1/status").await
    }

    pub(crate) async fn eventually(
        &self,
        what: &str,
        holds: impl Fn(&PublisherStatus) -> bool,
    ) -> PublisherStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.status().await;
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{what}: {status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn trusted(&self) -> TrustedKeys {
        let keys: SigningKeys = self.read("/v1/keys").await;
        let keys = keys.keys.iter().map(|k| parse_public_key(&k.public_key).unwrap()).collect();
        TrustedKeys::new(keys, 1).unwrap()
    }
}

pub(crate) async fn end(runtime: Runtime) {
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(5))).await.unwrap();
}

pub(crate) async fn problem(answer: Response, status: StatusCode) -> Problem {
    let (got, kind) = (answer.status(), answer.headers()["content-type"].clone());
    let text = answer.text().await.unwrap();
    assert_eq!(got, status, "{text}");
    assert_eq!(kind, "application/problem+json");
    serde_json::from_str(&text).unwrap()
}
