//! One layered configuration for every role: defaults, a TOML file, `LEASEHOLD_*` variables, flags.

pub(crate) mod show;

use std::path::{Path, PathBuf};

use figment::providers::{Env, Format as _, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use leasehold_transport::secret::Secret;
use serde::{Deserialize, Serialize};

use crate::args::Layers;

/// The prefix of the variables; a double underscore goes one level down: `LEASEHOLD_AGENT__HOLD_MS`.
const PREFIX: &str = "LEASEHOLD_";
/// Read elsewhere: not settings.
const NOT_SETTINGS: [&str; 2] = ["log", "config"];
/// The file that is read if it exists and no other is named.
const FILE_DEFAULT: &str = "leasehold.toml";
/// The largest token file, in bytes.
const TOKEN_FILE_LEN_MAX: u64 = 4_096;

/// Everything that can be set.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The bearer token that all roles share; a role's own setting goes before it.
    pub admin_token: Option<Secret>,
    /// A file that holds it.
    pub admin_token_file: Option<PathBuf>,
    /// An allocator replica.
    pub allocator: leasehold_allocator::Settings,
    /// The publisher.
    pub publisher: leasehold_publisher::Settings,
    /// An agent.
    pub agent: leasehold_agent::Settings,
    /// Whom the operator's commands talk to.
    pub client: ClientConfig,
}

/// Whom the operator's commands talk to; what is not given is taken from a running `leasehold dev`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClientConfig {
    /// Base URLs of the allocator's replicas.
    pub allocators: Option<Vec<String>>,
    /// The publisher's base URL.
    pub publisher: Option<String>,
    /// Base URLs of the agents.
    pub agents: Option<Vec<String>>,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A layer does not fit.
    #[error("{0}")]
    Layers(String),
    /// The named file cannot be read.
    #[error("settings file {path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A `--set` that sets nothing.
    #[error("--set {0:?}: expected KEY=VALUE, such as agent.hold_ms=100")]
    Set(String),
}

/// A flag's value under its name.
struct Flag {
    name: String,
    key: String,
    value: Value,
}

impl Provider for Flag {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::default(&self.key, self.value.clone()).data()
    }
}

/// The layers, stacked.
pub(crate) struct Settings {
    figment: Figment,
}

impl Settings {
    /// Stacks the layers; nothing is checked yet but that the file can be read.
    pub(crate) fn new(layers: &Layers) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        let file = match &layers.config {
            Some(path) => Some(path.clone()),
            None => Some(PathBuf::from(FILE_DEFAULT)).filter(|path| path.exists()),
        };
        if let Some(path) = file {
            let text = std::fs::read_to_string(&path)
                .map_err(|e| ConfigError::File { path: path.clone(), reason: e.to_string() })?;
            // Parsed once here, so that a fault names the file and its line.
            if let Err(e) = Figment::from(Toml::string(&text)).extract::<Dict>() {
                return Err(ConfigError::File { path, reason: one_line(&e.to_string()) });
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        figment = figment.merge(Env::prefixed(PREFIX).ignore(&NOT_SETTINGS).split("__"));
        for text in &layers.set {
            let (key, value) = text.split_once('=').ok_or_else(|| ConfigError::Set(text.clone()))?;
            if key.is_empty() || key.split('.').any(str::is_empty) {
                return Err(ConfigError::Set(text.clone()));
            }
            let value = parse_value(value);
            figment = figment.merge(Flag { name: format!("flag --set {key}"), key: key.to_owned(), value });
        }
        Ok(Self { figment })
    }

    /// Puts a flag's value on top, if it was given.
    #[must_use]
    pub(crate) fn with_flag(mut self, flag: &str, key: &str, value: Option<impl Serialize>) -> Self {
        if let Some(value) = value
            && let Ok(value) = Value::serialize(value)
        {
            self.figment =
                self.figment.merge(Flag { name: format!("flag {flag}"), key: key.to_owned(), value });
        }
        self
    }

    /// The effective settings, each role's token filled in from the shared one.
    pub(crate) fn extract(&self) -> Result<Config, ConfigError> {
        let mut config: Config = self.figment.extract().map_err(|e| ConfigError::Layers(in_words(e)))?;
        if config.admin_token.is_none()
            && let Some(path) = &config.admin_token_file
        {
            config.admin_token = Some(read_token(path)?);
        }
        for token in [
            &mut config.allocator.admin_token,
            &mut config.publisher.admin_token,
            &mut config.agent.admin_token,
        ] {
            if token.is_none() {
                token.clone_from(&config.admin_token);
            }
        }
        Ok(config)
    }
}

/// The settings of these layers.
pub(crate) fn load(layers: &Layers) -> Result<Config, ConfigError> {
    Settings::new(layers)?.extract()
}

/// The token in `path`, without white space around it.
pub(crate) fn read_token(path: &Path) -> Result<Secret, ConfigError> {
    use std::io::Read as _;
    let fault = |reason: String| ConfigError::File { path: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|e| fault(e.to_string()))?;
    let mut text = String::new();
    file.take(TOKEN_FILE_LEN_MAX).read_to_string(&mut text).map_err(|e| fault(e.to_string()))?;
    match text.trim() {
        "" => Err(fault("holds no token".to_owned())),
        token => Ok(Secret::new(token)),
    }
}

/// A flag's value: as a variable's would be read, so `7`, `true`, `[1, 2]` and plain text.
fn parse_value(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text.to_owned()))
}

/// All faults in one line, each with its setting and its layer.
fn in_words(error: figment::Error) -> String {
    let faults: Vec<String> = error
        .into_iter()
        .map(|fault| {
            let key =
                fault.path.iter().filter(|part| *part != "default").cloned().collect::<Vec<_>>().join(".");
            let layer =
                fault.metadata.as_ref().map_or_else(|| "the settings".to_owned(), |m| layer_name(m, &key));
            let what = fault.kind.to_string();
            if key.is_empty() {
                format!("{what} (in {layer})")
            } else {
                format!("setting `{key}`: {what} (in {layer})")
            }
        })
        .collect();
    one_line(&faults.join("; "))
}

/// A layer in words: the variable's or the flag's name, the file's path, or `default`.
fn layer_name(metadata: &Metadata, key: &str) -> String {
    if metadata.name.contains("environment") {
        return format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"));
    }
    if metadata.name.starts_with("flag ") {
        return metadata.name.clone().into_owned();
    }
    match &metadata.source {
        Some(figment::Source::File(path)) => path.display().to_string(),
        _ => "default".to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
