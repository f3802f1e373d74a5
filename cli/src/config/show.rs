//! `leasehold config show`: the effective values with their origin.

use serde::Serialize;
use serde_json::Value;

use super::{Config, Settings, layer_name};
use crate::args::{ConfigArgs, ConfigCommand, Layers, Output};
use crate::output;

/// One setting.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Shown {
    key: String,
    value: Value,
    origin: String,
}

pub(crate) fn run(args: &ConfigArgs, layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let ConfigCommand::Show { prefix } = &args.command;
    let settings = Settings::new(layers)?;
    let shown = effective(&settings, prefix.as_deref().unwrap_or(""))?;
    match output {
        Output::Json => output::json(&shown)?,
        Output::Table => {
            let mut table = output::table(["SETTING", "VALUE", "ORIGIN"]);
            for one in &shown {
                table.add_row([one.key.clone(), one.value.to_string(), one.origin.clone()]);
            }
            output::print_table(&table);
        }
    }
    Ok(true)
}

fn effective(settings: &Settings, prefix: &str) -> Result<Vec<Shown>, super::ConfigError> {
    // What is shown is what a role would read; secrets serialise as a placeholder.
    let config: Config = settings.extract()?;
    let value = serde_json::to_value(&config).map_err(|e| super::ConfigError::Layers(e.to_string()))?;
    let mut shown = Vec::new();
    flatten(settings, String::new(), value, &mut shown);
    shown.retain(|one| one.key.starts_with(prefix));
    Ok(shown)
}

fn flatten(settings: &Settings, key: String, value: Value, shown: &mut Vec<Shown>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let key = if key.is_empty() { name } else { format!("{key}.{name}") };
                flatten(settings, key, value, shown);
            }
        }
        value => {
            let found = settings.figment.find_metadata(&key);
            let set_here = settings
                .figment
                .find_value(&key)
                .is_ok_and(|v| !matches!(v, figment::value::Value::Empty(..)));
            let origin = match found {
                Some(metadata) if set_here => layer_name(metadata, &key),
                // A role's token that only the shared setting gives.
                _ if key.ends_with(".admin_token") && !value.is_null() => "admin_token".to_owned(),
                _ if key == "admin_token" && !value.is_null() => "admin_token_file".to_owned(),
                _ => "default".to_owned(),
            };
            shown.push(Shown { key, value, origin });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin_of(layers: &Layers, key: &str) -> (Value, String) {
        let settings = Settings::new(layers).unwrap();
        let found = effective(&settings, key).unwrap();
        let one = found.into_iter().find(|s| s.key == key).unwrap();
        (one.value, one.origin)
    }

    #[test]
    fn each_value_names_the_layer_it_comes_from_and_secrets_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("l.toml");
        std::fs::write(&file, "admin_token = \"0123456789abcdef\"\n[agent]\nhold_ms = 70\nheld_max = 9\n")
            .unwrap();
        let layers = Layers { config: Some(file.clone()), set: vec!["agent.hold_ms=80".to_owned()] };
        assert_eq!(origin_of(&layers, "agent.hold_ms"), (80.into(), "flag --set agent.hold_ms".to_owned()));
        assert_eq!(origin_of(&layers, "agent.held_max"), (9.into(), file.display().to_string()));
        assert_eq!(origin_of(&layers, "agent.drift_ppm"), (1_000.into(), "default".to_owned()));
        assert_eq!(origin_of(&layers, "agent.admin_token"), ("[redacted]".into(), "admin_token".to_owned()));
    }

    #[test]
    fn an_unknown_setting_and_a_wrong_type_are_refused_with_name_and_layer() {
        let refused = |set: &str| {
            let layers = Layers { config: None, set: vec![set.to_owned()] };
            super::super::load(&layers).unwrap_err().to_string()
        };
        let unknown = refused("agent.hold=1");
        assert!(
            unknown.contains("agent") && unknown.contains("`hold`") && unknown.contains("--set"),
            "{unknown}"
        );
        let wrong = refused("agent.hold_ms=soon");
        assert!(wrong.contains("`agent.hold_ms`") && wrong.contains("soon"), "{wrong}");
        assert!(refused("agent.hold_ms").contains("KEY=VALUE"));
    }
}
