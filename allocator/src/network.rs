//! Raft's messages between replicas: MessagePack over HTTP/2, each with the leader's reading of the line.

mod server;

use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::LedgerTime;
use leasehold_transport::client::HttpClient;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::reign::Line;
use crate::types::{Snapshot, SnapshotMeta, TypeConfig, Vote};

pub(crate) use server::routes;

/// The content type of the bodies.
const CONTENT_TYPE: &str = "application/vnd.msgpack";
/// The largest message, in bytes: a snapshot of some million pools.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Who is meant, what the line shows, and the message itself.
#[derive(Debug, Serialize, Deserialize)]
struct Message<T> {
    /// The cluster's name; another cluster's messages are refused.
    cluster: String,
    /// The replica that is meant; whoever has taken its address refuses.
    to: u64,
    /// The sender's stamp, where it draws the line of the reign in which it sends.
    stamp: Option<LedgerTime>,
    body: T,
}

/// A whole snapshot.
#[derive(Debug, Serialize, Deserialize)]
struct SnapshotMessage {
    vote: Vote,
    meta: SnapshotMeta,
    bytes: Vec<u8>,
}

/// Makes connections to the other replicas.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    http: HttpClient,
    cluster: Arc<str>,
    line: Arc<Line>,
}

impl Network {
    /// Connections that carry the token of `http`.
    pub(crate) fn new(http: HttpClient, cluster: &str, line: Arc<Line>) -> Self {
        Self { http, cluster: cluster.into(), line }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer { network: self.clone(), target, base: node.addr.trim_end_matches('/').to_owned() }
    }
}

/// One other replica.
#[derive(Debug)]
pub(crate) struct Peer {
    network: Network,
    target: u64,
    base: String,
}

/// Why there is no answer.
enum CallError {
    /// No connection, or no answer in time.
    Unreachable(String),
    /// Refused, or not an answer.
    Refused(String),
}

impl From<CallError> for RPCError<TypeConfig> {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable(reason) => Self::Unreachable(Unreachable::from_string(reason)),
            CallError::Refused(reason) => Self::Network(NetworkError::from_string(reason)),
        }
    }
}

impl Peer {
    async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        stamp: Option<LedgerTime>,
        body: B,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let message = Message { cluster: self.network.cluster.to_string(), to: self.target, stamp, body };
        let bytes = rmp_serde::to_vec_named(&message).map_err(|e| CallError::Refused(e.to_string()))?;
        let http = &self.network.http;
        let request = http
            .raw()
            .post(format!("{}{path}", self.base))
            .timeout(deadline)
            .header(reqwest::header::CONTENT_TYPE, CONTENT_TYPE)
            .body(bytes);
        let answer =
            http.authorized(request).send().await.map_err(|e| CallError::Unreachable(e.to_string()))?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|e| CallError::Unreachable(e.to_string()))?;
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&bytes).chars().take(300).collect();
            return Err(CallError::Refused(format!("{}{path} answered {status}: {text}", self.base)));
        }
        rmp_serde::from_slice(&bytes).map_err(|e| CallError::Refused(e.to_string()))
    }
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let stamp = self.network.line.stamp(rpc.vote.leader_id().term);
        Ok(self.call("/raft/append", stamp, rpc, option.hard_ttl()).await?)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.call("/raft/vote", None, rpc, option.hard_ttl()).await?)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.call("/raft/pre-vote", None, rpc, option.hard_ttl()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let body = SnapshotMessage { vote, meta: snapshot.meta, bytes: snapshot.snapshot };
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = self.call("/raft/snapshot", None, body, option.hard_ttl()) => answer.map_err(|e| match e {
                CallError::Unreachable(reason) => StreamingError::Unreachable(Unreachable::from_string(reason)),
                CallError::Refused(reason) => StreamingError::Network(NetworkError::from_string(reason)),
            }),
        }
    }
}
