//! Typed access to the fields of a body, with errors that name the field.

use super::error::ApiError;
use serde_json::{Map, Value};

/// Fields of one body. `null` counts as absent, as in the OpenAI API.
pub(crate) struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    /// An integer that fits 64 bits: 1.0 and 1e30 are not integers in JSON's eyes, nor in ours.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i128>, ApiError> {
        let exact = |v: &Value| v.as_i64().map(i128::from).or_else(|| v.as_u64().map(i128::from));
        self.typed(name, "a 64-bit integer", exact)
    }

    /// An integer in `low..=high`.
    pub(crate) fn integer_in(&self, name: &str, low: u32, high: u32) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.integer(name)? else { return Ok(None) };
        let fits = u32::try_from(value).ok().filter(|v| (low..=high).contains(v));
        let message =
            || ApiError::invalid(name, format!("`{name}` is {value}, it must lie in {low} to {high}"));
        fits.map(Some).ok_or_else(message)
    }

    /// A number in `low..=high`.
    pub(crate) fn number_in(&self, name: &str, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.typed(name, "a number", Value::as_f64)? else { return Ok(None) };
        if !(low..=high).contains(&value) {
            return Err(ApiError::invalid(
                name,
                format!("`{name}` is {value}, it must lie in {low} to {high}"),
            ));
        }
        Ok(Some(value as f32))
    }

    fn typed<T>(
        &self,
        name: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::invalid(name, format!("`{name}` must be {what}, not {}", brief(value)));
        read(value).map(Some).ok_or_else(wrong)
    }
}

/// A value in a message: short, whatever it is.
pub(crate) fn brief(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        Value::String(s) if s.len() > 40 => "a long string".into(),
        other => other.to_string(),
    }
}
