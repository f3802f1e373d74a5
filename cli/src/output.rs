//! Tables for people, JSON for programs, both on standard output.

use std::io::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// A table without lines, its head in capitals, as wide as the terminal at most.
pub(crate) fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(head);
    if let Some((_, width)) = console::Term::stdout().size_checked() {
        table.set_width(width);
    }
    table
}

/// Prints a table without white space at the ends of lines.
pub(crate) fn print_table(table: &Table) {
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    print(&text);
}

/// Prints `value` as JSON with line breaks.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text);
    Ok(())
}

/// Prints `text`. A reader that went away (`| head`) ends nothing.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The time of day of an RFC 3339 text, for columns: `12:01:00`.
pub(crate) fn time_of_day(rfc3339: &str) -> &str {
    rfc3339.split_once('T').and_then(|(_, time)| time.get(..8)).unwrap_or(rfc3339)
}

/// A text for a missing value.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}
