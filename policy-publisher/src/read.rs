//! Source text, YAML or JSON, into the core's source.

use leasehold_protocol::{InvalidField, Problem, ProblemKind};
use leasehold_rollout::Source;

/// A text that is no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ReadError {
    /// What is wrong and where, as the parser says it.
    message: String,
    /// The path of the field, if the parser knows it.
    field: String,
    /// What is wrong, without the path.
    rule: String,
}

/// The deepest nesting of brackets. The parser looks at each open one for each token, so that a text of nothing but
/// opening brackets would keep it busy for hours.
const BRACKETS_MAX: usize = 64;

/// The source in `text`. JSON is read as the YAML that it is, so that both are equally strict: an object written as a
/// list, or a key given twice, is refused.
pub(crate) fn source(text: &[u8]) -> Result<Source, ReadError> {
    if let Some(at) = too_deep(text) {
        let rule = format!("brackets are nested more than {BRACKETS_MAX} deep at byte {at}");
        return Err(ReadError { message: rule.clone(), field: ".".to_owned(), rule });
    }
    serde_norway::from_slice(text).map_err(|e| {
        let message = e.to_string();
        // The parser writes `path: what is wrong`, the path without spaces.
        let (field, rule) = match message.split_once(": ") {
            Some((path, rule)) if !path.is_empty() && !path.contains(char::is_whitespace) => (path, rule),
            _ => (".", message.as_str()),
        };
        ReadError { field: field.to_owned(), rule: rule.to_owned(), message: message.clone() }
    })
}

/// Where more than [`BRACKETS_MAX`] brackets are open. Brackets in texts and comments count too: this guards against
/// accidents; against a caller who has the token and means harm there is the bound on readers.
fn too_deep(text: &[u8]) -> Option<usize> {
    let mut open = 0_usize;
    text.iter().position(|byte| {
        match byte {
            b'[' | b'{' => open = open.saturating_add(1),
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > BRACKETS_MAX
    })
}

impl From<ReadError> for Box<Problem> {
    fn from(error: ReadError) -> Self {
        let errors = vec![InvalidField::new(error.field, "", error.rule)];
        Self::new(Problem { errors, ..Problem::new(ProblemKind::MalformedBody, error.message) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORTHSTAR: &str = include_str!("../../docs/examples/northstar.yaml");

    fn fault(text: &str) -> InvalidField {
        let mut problem = Box::<Problem>::from(source(text.as_bytes()).unwrap_err());
        assert_eq!(problem.kind(), Some(ProblemKind::MalformedBody));
        problem.errors.remove(0)
    }

    #[test]
    fn what_is_wrong_is_named_by_path_line_and_column() {
        let wrong = fault(&NORTHSTAR.replacen("limit: 20", "limit: many", 1));
        assert_eq!(wrong.field, "rules[0].fixed_window.limit");
        assert!(
            wrong.rule.contains("\"many\"") && wrong.rule.contains("line 31 column 28"),
            "{}",
            wrong.rule
        );
        let unknown = fault(&NORTHSTAR.replacen("max_age_s", "max_age", 1));
        assert!(unknown.rule.contains("unknown field `max_age`"), "{}", unknown.rule);
        let syntax = fault("rules: [");
        assert!(syntax.rule.contains("line"), "{}", syntax.rule);
    }

    #[test]
    fn json_is_read_and_as_strictly() {
        let source_read = source(NORTHSTAR.as_bytes()).unwrap();
        let json = serde_json::to_string_pretty(&source_read).unwrap();
        assert_eq!(source(json.as_bytes()).as_ref(), Ok(&source_read));
        let twice = json.replacen("\"max_age_s\": 3600", "\"max_age_s\": 3600, \"max_age_s\": 60", 1);
        assert!(fault(&twice).rule.contains("duplicate field"));
        let positional = json.replacen(
            "\"limit\": 20,\n        \"window_s\": 10",
            "\"limit\": 20, \"window_s\": 10, \"more\": 1",
            1,
        );
        assert!(fault(&positional).rule.contains("unknown field `more`"));
        assert!(
            fault(&json.replacen("\"tenants\": [", "\"tenants\": [[\"x\", \"free\"],", 1))
                .rule
                .contains("invalid type")
        );
        assert!(source(format!("{json}{json}").as_bytes()).is_err());
    }

    #[test]
    fn a_text_that_would_grow_without_end_is_refused() {
        let level = |i: u32| match i {
            0 => "a0: &a0 [x, x, x, x, x]\n".to_owned(),
            _ => format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 5].join(", ")),
        };
        let bomb = (0..20).map(level).collect::<String>();
        assert!(source(bomb.as_bytes()).is_err());
        for deep in ["[", "{a: "] {
            let error = source(deep.repeat(100_000).as_bytes()).unwrap_err();
            assert!(error.message.contains("nested more than 64 deep"), "{deep}: {error}");
        }
        assert!(source("- ".repeat(100_000).as_bytes()).is_err());
        assert!(source(b"\xff\xfe").is_err());
        assert!(source(b"").is_err());
    }
}
