//! `leasehold bundle`: publish, check and fetch policy.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use leasehold_protocol::BundleVersion;
use leasehold_protocol::admin::PublisherStatus;
use leasehold_protocol::bundle::{BUNDLE_BYTES_MAX, Bundle};
use leasehold_protocol::envelope::Envelope;
use serde_json::Value;

use crate::args::{BundleCommand, Layers, Output};
use crate::output;
use crate::target::Target;

pub(crate) async fn run(command: BundleCommand, layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let target = Target::new(layers)?;
    match command {
        BundleCommand::Publish { file } => send(&target, "/v1/bundles", &file, output).await,
        BundleCommand::Validate { file } => send(&target, "/v1/bundles:validate", &file, output).await,
        BundleCommand::Key { file } => key(&file, output),
        BundleCommand::Show { version } => show(&target, version).await,
    }
}

/// Makes a signing key where there is none, and prints its public half.
fn key(file: &Path, output: Output) -> anyhow::Result<bool> {
    let public = leasehold_publisher::make_key(file)?;
    match output {
        Output::Json => output::json(&public)?,
        Output::Table => output::print(&format!("{}\n", public.public_key)),
    }
    Ok(true)
}

/// Sends a source and prints what came of it.
async fn send(target: &Target, path: &str, file: &Path, output: Output) -> anyhow::Result<bool> {
    let source = read(file).with_context(|| format!("policy source {}", file.display()))?;
    let url = format!("{}{path}", target.publisher);
    let answer: Value = target.patient_http()?.post_bytes(&url, "application/yaml", source).await?;
    match output {
        Output::Json => output::json(&answer)?,
        Output::Table => {
            let mut table = output::table(["FIELD", "VALUE"]);
            for (name, value) in answer.as_object().into_iter().flatten() {
                for line in lines(value) {
                    table.add_row([name.clone(), line]);
                }
            }
            output::print_table(&table);
        }
    }
    Ok(true)
}

/// A value as lines of text.
fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(lines).collect(),
        other => vec![other.to_string()],
    }
}

/// Prints a bundle's content; the newest if no version is given.
async fn show(target: &Target, version: Option<BundleVersion>) -> anyhow::Result<bool> {
    let http = target.http()?;
    let version = if let Some(version) = version {
        version
    } else {
        let status: PublisherStatus = http.get(&format!("{}/v1/status", target.publisher)).await?;
        anyhow::ensure!(status.released_version.0 > 0, "no bundle is released yet");
        status.released_version
    };
    let envelope: Envelope = http.get(&format!("{}/v1/bundles/{version}", target.publisher)).await?;
    let payload = envelope.payload_bytes().context("the envelope's payload")?;
    let bundle: Bundle = serde_json::from_slice(&payload).context("the envelope's payload")?;
    output::json(&bundle)?;
    Ok(true)
}

/// A file's text, or standard input's.
fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let limit = BUNDLE_BYTES_MAX as u64 + 1;
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_string(&mut text)?
    } else {
        std::fs::File::open(file)?.take(limit).read_to_string(&mut text)?
    };
    anyhow::ensure!(read <= BUNDLE_BYTES_MAX, "larger than {BUNDLE_BYTES_MAX} bytes");
    Ok(text)
}
