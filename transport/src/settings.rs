//! Settings that cannot be right, said the same way by every role.

/// A setting that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting `{field}` = {value}: {rule}")]
pub struct SettingError {
    /// Which.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The rule it broke.
    pub rule: String,
}

impl SettingError {
    /// Names the setting, its value and the broken rule.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass plain values and fresh texts")]
    pub fn new(field: &'static str, value: impl ToString, rule: impl ToString) -> Self {
        Self { field, value: value.to_string(), rule: rule.to_string() }
    }
}

/// Refuses a number below `least` or above `most`.
pub fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), SettingError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(SettingError::new(field, value, format!("must be {least} to {most}")))
    }
}

/// Refuses an empty list or text.
pub fn some(field: &'static str, len: usize) -> Result<(), SettingError> {
    if len > 0 { Ok(()) } else { Err(SettingError::new(field, "none", "at least one is needed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named_with_its_range() {
        assert_eq!(within("x_ms", 3, 1, 3), Ok(()));
        assert_eq!(within("x_ms", 4, 1, 3).unwrap_err().to_string(), "setting `x_ms` = 4: must be 1 to 3");
        assert_eq!(some("urls", 0).unwrap_err().to_string(), "setting `urls` = none: at least one is needed");
    }
}
