//! The fields of a request's body, taken one by one, so that none is ignored in silence.
//!
//! A field that is null counts as absent. A field of the wrong type is named with what it should be. What nobody has taken
//! at the end is refused: either it is known and not supported, or it is a misspelling.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields that are left.
#[derive(Debug)]
pub struct Fields {
    left: Map<String, Value>,
    /// Names that were asked for.
    known: Vec<&'static str>,
    /// The field that these are within, with a point at its end; empty for those of the body.
    place: String,
}

/// A type that a field can have.
pub trait FromField: Sized {
    /// What to call it in a message: "needs …".
    const NEEDS: &'static str;

    /// The value, if it has the type.
    fn from_field(value: Value) -> Option<Self>;
}

impl FromField for bool {
    const NEEDS: &'static str = "true or false";

    fn from_field(value: Value) -> Option<Self> {
        value.as_bool()
    }
}

impl FromField for String {
    const NEEDS: &'static str = "a string";

    fn from_field(value: Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl FromField for i64 {
    const NEEDS: &'static str = "a whole number";

    fn from_field(value: Value) -> Option<Self> {
        // Clients of languages with one type of number write 5.0.
        let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x);
        #[expect(clippy::cast_possible_truncation, reason = "whole and far below 2^63")]
        value.as_i64().or_else(|| value.as_f64().and_then(whole).map(|x| x as i64))
    }
}

impl FromField for f32 {
    const NEEDS: &'static str = "a number";

    fn from_field(value: Value) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
        let rounded = value.as_f64().map(|x| x as f32);
        rounded.filter(|x| x.is_finite())
    }
}

impl FromField for Map<String, Value> {
    const NEEDS: &'static str = "an object";

    fn from_field(value: Value) -> Option<Self> {
        match value {
            Value::Object(fields) => Some(fields),
            _ => None,
        }
    }
}

impl FromField for Vec<Value> {
    const NEEDS: &'static str = "an array";

    fn from_field(value: Value) -> Option<Self> {
        match value {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }
}

impl FromField for Vec<String> {
    const NEEDS: &'static str = "an array of strings";

    fn from_field(value: Value) -> Option<Self> {
        Vec::<Value>::from_field(value)?.into_iter().map(String::from_field).collect()
    }
}

impl FromField for Value {
    const NEEDS: &'static str = "any value";

    fn from_field(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl Fields {
    /// The fields of a body, which must be a JSON object.
    ///
    /// # Errors
    /// If it is no JSON, or none of this shape.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value =
            serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("the body is no JSON: {error}")))?;
        let left = Map::from_field(value).ok_or_else(|| ApiError::invalid("the body needs to be a JSON object"))?;
        Ok(Self { left, known: Vec::new(), place: String::new() })
    }

    /// The fields of an object that is the field `name` of another.
    pub fn within(name: &'static str, left: Map<String, Value>) -> Self {
        Self { left, known: Vec::new(), place: format!("{name}.") }
    }

    /// Takes a field; `None` if it is absent or null.
    ///
    /// # Errors
    /// If it has another type.
    pub fn take<T: FromField>(&mut self, name: &'static str) -> Result<Option<T>, ApiError> {
        self.known.push(name);
        match self.left.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let shown = shortened(&value);
                let place = &self.place;
                let wrong = || ApiError::invalid(format!("{place}{name}: needs {}, and is {shown}", T::NEEDS));
                T::from_field(value).map(Some).ok_or_else(wrong)
            }
        }
    }

    /// Takes a field that must be there.
    ///
    /// # Errors
    /// If it is absent, null or of another type.
    pub fn require<T: FromField>(&mut self, name: &'static str) -> Result<T, ApiError> {
        let found = self.take(name)?;
        found.ok_or_else(|| ApiError::invalid(format!("{}{name}: is missing, and needs {}", self.place, T::NEEDS)))
    }

    /// Takes a whole number within limits.
    ///
    /// # Errors
    /// If it is something else.
    pub fn take_within(&mut self, name: &'static str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        match self.take(name)? {
            Some(n) if n < min || n > max => {
                let place = &self.place;
                Err(ApiError::invalid(format!("{place}{name}: needs a whole number from {min} to {max}, and is {n}")))
            }
            found => Ok(found),
        }
    }

    /// Takes fields that change nothing here, whatever they say.
    pub fn accept(&mut self, names: &[&'static str]) {
        for name in names {
            self.known.push(name);
            self.left.remove(*name);
        }
    }

    /// Takes a field that is known and not supported, unless it asks for nothing.
    ///
    /// # Errors
    /// If it asks for something.
    pub fn unsupported(
        &mut self,
        name: &'static str,
        asks_nothing: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        self.known.push(name);
        match self.left.remove(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if asks_nothing(&value) => Ok(()),
            Some(value) => {
                let (place, shown) = (&self.place, shortened(&value));
                Err(ApiError::invalid(format!("{place}{name}: this server does not support it (it is {shown})")))
            }
        }
    }

    /// Ends the taking.
    ///
    /// # Errors
    /// If a field is left that nobody knows; the envelope then lists those that were asked for.
    pub fn finish(mut self) -> Result<(), ApiError> {
        let Some((name, _)) = self.left.into_iter().find(|(_, value)| !value.is_null()) else { return Ok(()) };
        self.known.sort_unstable();
        self.known.dedup();
        let shown = shortened(&Value::String(name.clone()));
        let similar = self.known.iter().map(|known| (distance(&name, known), *known)).min();
        let hint = match similar {
            Some((distance, known)) if distance <= 2 => format!(" (did you mean {known}?)"),
            _ => String::new(),
        };
        let place = self.place.strip_suffix('.').map_or_else(String::new, |place| format!("{place}: "));
        Err(ApiError::invalid(format!("{place}there is no field {shown}{hint}")).with("known_fields", self.known))
    }
}

/// A value as it is shown in messages: never long.
fn shortened(value: &Value) -> String {
    const MOST: usize = 60;
    // Arrays and objects may be huge: only what can be shown is written.
    match value {
        Value::Array(values) => format!("an array of {}", values.len()),
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
        Value::String(text) if text.chars().nth(MOST).is_some() => {
            format!("{:?}…", text.chars().take(MOST).collect::<String>())
        }
        other => other.to_string(),
    }
}

/// Edits between two names (Levenshtein); names longer than any field count as far apart.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    fn message(error: ApiError) -> String {
        error.body()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn null_is_absent_and_a_wrong_type_is_named_with_the_right_one() {
        let mut body = fields(json!({"a": null, "b": "x", "c": 1.5, "d": 5.0, "e": [1, 2]}));
        assert_eq!(body.take::<String>("a").unwrap(), None);
        assert_eq!(message(body.take::<bool>("b").unwrap_err()), "b: needs true or false, and is \"x\"");
        assert_eq!(message(body.take::<i64>("c").unwrap_err()), "c: needs a whole number, and is 1.5");
        assert_eq!(body.take::<i64>("d").unwrap(), Some(5));
        assert_eq!(message(body.take::<String>("e").unwrap_err()), "e: needs a string, and is an array of 2");
        assert_eq!(message(body.require::<String>("f").unwrap_err()), "f: is missing, and needs a string");
    }

    #[test]
    fn the_fields_within_a_field_are_named_with_it() {
        let within = |value: Value| Fields::within("options", Map::from_field(value).unwrap());
        let wrong = within(json!({"a": 1})).take::<bool>("a").unwrap_err();
        assert_eq!(message(wrong), "options.a: needs true or false, and is 1");
        let unknown = within(json!({"b": 1})).finish().unwrap_err();
        assert_eq!(message(unknown), "options: there is no field \"b\"");
    }

    #[test]
    fn a_field_that_nobody_takes_is_refused_with_the_likeliest_name() {
        let mut body = fields(json!({"temprature": 1, "stream": null}));
        body.take::<f32>("temperature").unwrap();
        assert_eq!(message(body.finish().unwrap_err()), "there is no field \"temprature\" (did you mean temperature?)");
        assert!(fields(json!({"anything": null})).finish().is_ok());
    }

    #[test]
    fn the_refusal_of_an_unknown_field_lists_the_known_ones_in_order_and_once() {
        let mut body = fields(json!({"other": 1}));
        body.accept(&["user", "model"]);
        body.take::<bool>("stream").unwrap();
        body.take::<bool>("stream").unwrap();
        body.unsupported("grammar", |_| false).unwrap();
        let known = body.finish().unwrap_err().body()["error"]["known_fields"].clone();
        assert_eq!(known, json!(["grammar", "model", "stream", "user"]));
    }

    #[test]
    fn distances_are_numbers_of_edits() {
        for (a, b, edits) in [("", "", 0), ("stop", "stop", 0), ("stop", "stpo", 2), ("top", "stop", 1), ("", "abc", 3)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }
}
