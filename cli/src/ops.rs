//! The operator's commands: each asks the roles over their own HTTP interfaces and prints the answer.

pub(crate) mod bundle;
pub(crate) mod explain;
pub(crate) mod leases;
pub(crate) mod pools;
pub(crate) mod status;

use leasehold_protocol::admin::Page;
use leasehold_transport::client::LeaderClient;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

/// The most pages that one command reads; beyond it the list is cut, and says so.
const PAGES_MAX: usize = 1_000;

/// Reads a list from any replica that answers, page by page.
async fn read_pages<T: DeserializeOwned>(
    allocator: &LeaderClient,
    path: &str,
    filters: &[(&str, Option<&str>)],
) -> anyhow::Result<Page<T>> {
    let mut all = Page { items: Vec::new(), next_cursor: None, stale_ms: 0 };
    for _ in 0..PAGES_MAX {
        let cursor = all.next_cursor.take();
        let mut query = "limit=1000".to_owned();
        let given = filters.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
        for (name, value) in given.chain(cursor.as_deref().map(|value| ("cursor", value))) {
            query.extend(["&", name, "="]);
            query.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        let page: Page<T> = allocator.get(&format!("{path}?{query}")).await?;
        all.items.extend(page.items);
        all.stale_ms = all.stale_ms.max(page.stale_ms);
        all.next_cursor = page.next_cursor;
        if all.next_cursor.is_none() {
            return Ok(all);
        }
    }
    eprintln!("leasehold: the list is longer than {PAGES_MAX} pages and cut here");
    Ok(all)
}
