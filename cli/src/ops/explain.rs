//! `leasehold explain`: which rules apply to a request, and why.

use anyhow::Context as _;
use leasehold_protocol::admin::{Explanation, RuleExplanation};
use leasehold_protocol::admit::AdmitRequest;
use leasehold_protocol::policy::Origin;

use crate::args::{ExplainArgs, Layers, Output};
use crate::output;
use crate::target::Target;

pub(crate) async fn run(args: &ExplainArgs, layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let agents = Target::new(layers)?.agent_clients()?;
    let mut chosen = None;
    for agent in agents {
        match &args.region {
            None => {
                chosen = Some(agent);
                break;
            }
            Some(region) => {
                if agent.status().await.is_ok_and(|status| &status.region == region) {
                    chosen = Some(agent);
                    break;
                }
            }
        }
    }
    let agent = chosen.context("no agent of that region answers")?;
    let like = AdmitRequest {
        tenant: args.tenant.clone(),
        principal: args.principal.clone(),
        source: args.source,
        route: args.route.clone(),
        ..AdmitRequest::default()
    };
    let explanation = agent.explain(&like).await?;
    match output {
        Output::Json => output::json(&explanation)?,
        Output::Table => print(&explanation),
    }
    Ok(true)
}

fn print(explanation: &Explanation) {
    let mut head = format!(
        "{} ({}), cost {}, {} when it cannot be decided, bundle {}\n",
        explanation.route,
        explanation.pattern,
        explanation.weight,
        explanation.fail_mode,
        explanation.bundle_version
    );
    if let Some(tenant) = &explanation.tenant {
        head.extend([
            "tenant ",
            tenant.as_str(),
            ", plan ",
            &output::or_dash(explanation.plan.as_ref()),
            "
",
        ]);
    }
    head.push('\n');
    output::print(&head);
    let mut table = output::table(["RULE", "LIMIT", "FROM", "LEFT HERE", "OTHERWISE"]);
    for rule in &explanation.rules {
        table.add_row([
            rule.rule.to_string(),
            rule.limit.clone(),
            origin(rule),
            output::or_dash(rule.remaining),
            rule.fallback.clone(),
        ]);
    }
    output::print_table(&table);
}

fn origin(rule: &RuleExplanation) -> String {
    match &rule.origin {
        Origin::Rule => "the rule".to_owned(),
        Origin::Plan { plan } => format!("plan {plan}"),
        Origin::Override { id, owner, reason, expires_at } => {
            format!("override {id} by {owner} until {expires_at}: {reason}")
        }
    }
}
