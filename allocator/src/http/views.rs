//! What operators read. Every replica answers and says how stale it is.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use leasehold_protocol::admin::{ClusterView, MemberView, Page};
use leasehold_protocol::{InvalidField, NodeId, Problem, RuleId, TenantId};
use leasehold_transport::problem::{ProblemResponse, QueryParams};
use openraft::ServerState;
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::proposer::Reigning;

/// Items of a page if no limit is given, and the most that can be asked for.
const PAGE_LEN_DEFAULT: usize = 100;
const PAGE_LEN_MAX: usize = 1_000;

/// Which items of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    rule: Option<RuleId>,
    tenant: Option<TenantId>,
    /// Where the page before ended.
    cursor: Option<String>,
    limit: Option<usize>,
}

/// As [`ListQuery`], for pools.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolsQuery {
    rule: Option<RuleId>,
    tenant: Option<TenantId>,
    state: Option<PoolState>,
    cursor: Option<String>,
    limit: Option<usize>,
}

/// A window's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PoolState {
    Open,
    Next,
    Closed,
}

impl PoolState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Next => "next",
            Self::Closed => "closed",
        }
    }
}

pub(super) async fn pools(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<PoolsQuery>,
) -> Response {
    let mut items = node.machine.state().ledger.pool_views();
    items.retain(|pool| {
        query.rule.as_ref().is_none_or(|rule| *rule == pool.rule)
            && query.tenant.as_ref().is_none_or(|tenant| Some(tenant) == pool.tenant.as_ref())
            && query.state.is_none_or(|state| state.as_str() == pool.state)
    });
    page(&node, items, query.cursor.as_deref(), query.limit, |pool| {
        let tenant = pool.tenant.as_ref().map_or("", |tenant| tenant.as_str());
        format!("{}/{tenant}/{}", pool.rule, pool.window_start)
    })
}

pub(super) async fn leases(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<ListQuery>,
) -> Response {
    let mut items = node.machine.state().ledger.lease_views();
    items.retain(|lease| {
        query.rule.as_ref().is_none_or(|rule| *rule == lease.rule)
            && query.tenant.as_ref().is_none_or(|tenant| Some(tenant) == lease.tenant.as_ref())
    });
    page(&node, items, query.cursor.as_deref(), query.limit, |lease| {
        let tenant = lease.tenant.as_ref().map_or("", |tenant| tenant.as_str());
        format!("{}/{tenant}/{}/{}/{}", lease.rule, lease.window_start, lease.holder, lease.incarnation)
    })
}

/// Cuts a page out of `items`, which the ledger gives in the order of their names.
fn page<T: Serialize>(
    node: &Node,
    items: Vec<T>,
    cursor: Option<&str>,
    limit: Option<usize>,
    name: impl Fn(&T) -> String,
) -> Response {
    let limit = limit.unwrap_or(PAGE_LEN_DEFAULT);
    if !(1..=PAGE_LEN_MAX).contains(&limit) {
        let fault = InvalidField::new("limit", limit, format!("must be 1 to {PAGE_LEN_MAX}"));
        return ProblemResponse(Problem::invalid(vec![fault])).into_response();
    }
    // The item that the last page ended with may be gone: go on with the first that comes after it.
    let mut rest =
        items.into_iter().skip_while(|item| cursor.is_some_and(|cursor| name(item).as_str() <= cursor));
    let items: Vec<T> = rest.by_ref().take(limit).collect();
    let next_cursor = rest.next().and_then(|_| items.last().map(&name));
    Json(Page { items, next_cursor, stale_ms: node.stale_ms() }).into_response()
}

pub(super) async fn cluster(State(node): State<Arc<Node>>) -> Json<ClusterView> {
    let raft = node.raft_metrics();
    let leads = raft.state == ServerState::Leader;
    let (ledger_time, bundle_version) = {
        let state = node.machine.state();
        (state.ledger.now().to_rfc3339(), state.ledger.bundle_version())
    };
    let leader_url = raft
        .current_leader
        .and_then(|leader| raft.membership_config.get_node(&leader).map(|n| n.addr.clone()));
    Json(ClusterView {
        node: node.settings.node_id,
        state: format!("{:?}", raft.state).to_lowercase(),
        pid: std::process::id(),
        term: raft.current_term,
        leader: raft.current_leader.map(NodeId),
        leader_url,
        quorum_age_ms: leads.then(|| node.stale_ms()),
        last_log_index: node.store.last_log_id().map(|id| id.index),
        applied_index: raft.last_applied.map(|id| id.index),
        snapshot_index: raft.snapshot.map(|id| id.index),
        purged_index: raft.purged.map(|id| id.index),
        ledger_time,
        clock_certain: !matches!(node.proposer.reigning(), Reigning::Waiting { .. }),
        bundle_version,
        members: raft
            .membership_config
            .nodes()
            .map(|(id, member)| MemberView { node: NodeId(*id), url: member.addr.clone() })
            .collect(),
    })
}
