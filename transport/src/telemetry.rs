//! Logs: for people on a terminal, JSON otherwise.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// The variable that sets the filter, such as `debug` or `leasehold_agent=trace,info`.
pub const FILTER_VARIABLE: &str = "LEASEHOLD_LOG";

/// The filter of a role.
pub const ROLE: &str = "info,openraft=warn,sled=warn";
/// The filter of an operator's command, whose output says all that matters.
pub const COMMAND: &str = "warn";

/// Starts logging to standard error by the variable's filter, else by `plain`. A second call changes nothing. A filter
/// that cannot be read is said so and replaced by `plain`.
pub fn init(plain: &str) {
    let asked = std::env::var(FILTER_VARIABLE).unwrap_or_else(|_| plain.to_owned());
    let (filter, fault) = match EnvFilter::try_new(&asked) {
        Ok(filter) => (filter, None),
        Err(e) => (EnvFilter::new(plain), Some(e)),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that logging has been started before.
    let _ = if std::io::stderr().is_terminal() {
        builder.try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    if let Some(e) = fault {
        tracing::warn!(variable = FILTER_VARIABLE, value = %asked, error = %e, "the log filter cannot be read");
    }
}
