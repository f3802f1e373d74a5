//! `leasehold leases`: who holds what.

use leasehold_protocol::admin::LeaseView;

use crate::args::{Layers, LeasesArgs, Output};
use crate::ops::read_pages;
use crate::output;
use crate::target::Target;

pub(crate) async fn run(args: &LeasesArgs, layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let allocator = Target::new(layers)?.allocator()?;
    let filters = [("rule", args.rule.as_deref()), ("tenant", args.tenant.as_deref())];
    let page = read_pages::<LeaseView>(&allocator, "/v1/leases", &filters).await?;
    match output {
        Output::Json => output::json(&page)?,
        Output::Table => {
            let mut table = output::table([
                "RULE", "TENANT", "WINDOW", "HOLDER", "GRANTED", "RETURNED", "SPENT", "ENDS IN",
            ]);
            for lease in &page.items {
                table.add_row([
                    lease.rule.to_string(),
                    output::or_dash(lease.tenant.as_ref()),
                    output::time_of_day(&lease.window_start).to_owned(),
                    lease.holder.to_string(),
                    lease.granted.to_string(),
                    lease.returned.to_string(),
                    lease.spent.to_string(),
                    format!("{} s", lease.expires_in_ms.div_ceil(1_000)),
                ]);
            }
            output::print_table(&table);
        }
    }
    Ok(true)
}
