//! `leasehold pools`: what each pool has left.

use leasehold_protocol::admin::PoolView;

use crate::args::{Layers, Output, PoolsArgs};
use crate::ops::read_pages;
use crate::output;
use crate::target::Target;

pub(crate) async fn run(args: &PoolsArgs, layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let allocator = Target::new(layers)?.allocator()?;
    let filters = [("rule", args.rule.as_deref()), ("tenant", args.tenant.as_deref())];
    let mut page = read_pages::<PoolView>(&allocator, "/v1/pools", &filters).await?;
    if !args.all {
        page.items.retain(|pool| pool.state != "closed");
    }
    match output {
        Output::Json => output::json(&page)?,
        Output::Table => {
            let mut table =
                output::table(["RULE", "TENANT", "WINDOW", "STATE", "LIMIT", "REMAINING", "LEASED", "SPENT"]);
            for pool in &page.items {
                table.add_row([
                    pool.rule.to_string(),
                    output::or_dash(pool.tenant.as_ref()),
                    output::time_of_day(&pool.window_start).to_owned(),
                    pool.state.clone(),
                    pool.limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string()),
                    pool.remaining.to_string(),
                    pool.leased.to_string(),
                    pool.spent.to_string(),
                ]);
            }
            output::print_table(&table);
        }
    }
    Ok(true)
}
