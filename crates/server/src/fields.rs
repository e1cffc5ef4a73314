//! The fields of a request's body, taken one by one, so that none is ignored in silence.
//!
//! A field that is null counts as absent. A field of the wrong type is refused with the type it should have. A field
//! that is left when all are taken is refused as well: it is either known and not supported, or a misspelling.
//!
//! A body is only looked through; a field becomes a value when it is taken, and no larger one than it may be.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::limits::{Bounds, FIELDS_MAX};
use crate::tree;

/// The fields that are left.
#[derive(Debug)]
pub struct Fields<'a> {
    left: Vec<(String, &'a RawValue)>,
    /// Names that were asked for.
    known: Vec<&'static str>,
    /// The field that these are within, with a point at its end; empty for those of the body.
    place: String,
}

/// A type that a field can have.
pub trait FromField: Sized {
    /// Name of the type in messages, after "needs".
    const NEEDS: &'static str;
    /// Size limits of a value, checked while it is read.
    const BOUNDS: Bounds = Bounds::SHORT;

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
    const BOUNDS: Bounds = Bounds::TEXT;

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

/// The fields of an object as they were written.
struct Written<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Written<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries).map(Written)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields: Self::Value = Vec::new();
        while let Some((name, value)) = entries.next_entry::<String, &RawValue>()? {
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(tree::twice(&name));
            }
            if fields.len() == FIELDS_MAX {
                return Err(A::Error::custom(format!("the object has more than {FIELDS_MAX} fields")));
            }
            fields.push((name, value));
        }
        Ok(fields)
    }
}

impl<'a> Fields<'a> {
    /// The fields of a body, which must be a JSON object.
    ///
    /// # Errors
    /// If it is no JSON, or none of this shape, or a name stands twice.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let no_json = |error: &dyn fmt::Display| ApiError::invalid(format!("the body is no JSON: {error}"));
        let text = std::str::from_utf8(body).map_err(|error| no_json(&error))?;
        let Written(left) = serde_json::from_str(text).map_err(|error| match error.is_data() {
            // Of a number there is nothing to look through, so it may be none at all.
            true if text.trim_start().starts_with('{') => ApiError::invalid(tree::words_of(&error)),
            true => ApiError::invalid("the body needs to be a JSON object"),
            false => no_json(&error),
        })?;
        Ok(Self { left, known: Vec::new(), place: String::new() })
    }

    /// Takes a field as it was written; `None` if it is absent or null.
    pub fn raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        self.known.push(name);
        let index = self.left.iter().position(|(known, _)| known == name)?;
        let (_, raw) = self.left.swap_remove(index);
        (raw.get() != "null").then_some(raw)
    }

    /// Takes a field; `None` if it is absent or null.
    ///
    /// # Errors
    /// If it has another type, or holds more than a field of the type may.
    pub fn take<T: FromField>(&mut self, name: &'static str) -> Result<Option<T>, ApiError> {
        self.take_bounded(name, T::BOUNDS)
    }

    /// As [`Self::take`], within bounds of the field's own.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_bounded<T: FromField>(&mut self, name: &'static str, bounds: Bounds) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = tree::build(raw, bounds).map_err(|wrong| self.wrong(name, &wrong))?;
        let shown = shortened(&value);
        match T::from_field(value) {
            Some(found) => Ok(Some(found)),
            None => Err(self.wrong(name, &format!("needs {}, and is {shown}", T::NEEDS))),
        }
    }

    /// Takes a field that must be there.
    ///
    /// # Errors
    /// If it is absent, null or of another type.
    pub fn require<T: FromField>(&mut self, name: &'static str) -> Result<T, ApiError> {
        self.require_bounded(name, T::BOUNDS)
    }

    /// As [`Self::require`], within bounds of the field's own.
    ///
    /// # Errors
    /// As [`Self::require`].
    pub fn require_bounded<T: FromField>(&mut self, name: &'static str, bounds: Bounds) -> Result<T, ApiError> {
        let found = self.take_bounded(name, bounds)?;
        found.ok_or_else(|| self.missing(name, T::NEEDS))
    }

    /// The refusal of a field for what is wrong with it.
    pub fn wrong(&self, name: &str, wrong: &str) -> ApiError {
        let divider = if wrong.starts_with("needs") || wrong.starts_with("has") { "" } else { "cannot be read, " };
        ApiError::invalid(format!("{}{name}: {divider}{wrong}", self.place))
    }

    /// The refusal of a request without a field that must be there.
    pub fn missing(&self, name: &str, needs: &str) -> ApiError {
        ApiError::invalid(format!("{}{name}: is missing, and needs {needs}", self.place))
    }

    /// Takes the fields of an object that is a field of this one.
    ///
    /// # Errors
    /// If it is something else, or a name stands twice.
    pub fn take_fields(&mut self, name: &'static str) -> Result<Option<Self>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        if !raw.get().starts_with('{') {
            let shown = tree::build(raw, Bounds::SHORT).map_or_else(|wrong| wrong, |value| shortened(&value));
            return Err(self.wrong(name, &format!("needs an object, and is {shown}")));
        }
        let Written(left) =
            serde_json::from_str(raw.get()).map_err(|error| self.wrong(name, &tree::words_of(&error)))?;
        Ok(Some(Self { left, known: Vec::new(), place: format!("{}{name}.", self.place) }))
    }

    /// Takes a whole number within limits.
    ///
    /// # Errors
    /// If it is something else.
    pub fn take_within(&mut self, name: &'static str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        match self.take(name)? {
            Some(n) if n < min || n > max => {
                Err(self.wrong(name, &format!("needs a whole number from {min} to {max}, and is {n}")))
            }
            found => Ok(found),
        }
    }

    /// Accepts fields with any value, and ignores it.
    ///
    /// # Errors
    /// If one is no JSON, or an object in it has a name twice.
    pub fn accept(&mut self, names: &[&'static str]) -> Result<(), ApiError> {
        for name in names {
            if let Some(raw) = self.raw(name) {
                tree::check(raw).map_err(|wrong| self.wrong(name, &wrong))?;
            }
        }
        Ok(())
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
        let Some(raw) = self.raw(name) else { return Ok(()) };
        let shown = match tree::build(raw, Bounds::SHORT) {
            Ok(value) if asks_nothing(&value) => return Ok(()),
            Ok(value) => format!("it is {}", shortened(&value)),
            Err(wrong) => format!("it {wrong}"),
        };
        Err(ApiError::invalid(format!("{}{name}: this server does not support it ({shown})", self.place)))
    }

    /// Checks that every field was taken.
    ///
    /// # Errors
    /// If a field is left that the route does not know; the envelope then lists those that it knows.
    pub fn finish(mut self) -> Result<(), ApiError> {
        let Some((name, _)) = self.left.into_iter().find(|(_, raw)| raw.get() != "null") else { return Ok(()) };
        self.known.sort_unstable();
        self.known.dedup();
        let similar = self.known.iter().filter(|known| !are_opposites(&name, known));
        let similar = similar.map(|known| (distance(&name, known), *known)).min();
        let hint = match similar {
            Some((distance, known)) if distance <= 2 => format!(" (did you mean {known}?)"),
            _ => String::new(),
        };
        let shown = shortened(&Value::String(name.clone()));
        let place = self.place.strip_suffix('.').map_or_else(String::new, |place| format!("{place}: "));
        let about = format!("{}{}", self.place, name.chars().take(64).collect::<String>());
        let error = ApiError::invalid(format!("{place}there is no field {shown}{hint}"));
        Err(error.about(about).with("known_fields", self.known))
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

/// True if one name asks for the least of what the other asks for the most.
fn are_opposites(a: &str, b: &str) -> bool {
    let least = |name: &str| name.replacen("min", "max", 1);
    a != b && (least(a) == b || least(b) == a)
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

    /// Fields that live as long as the test.
    fn fields(value: &Value) -> Fields<'static> {
        Fields::parse(value.to_string().leak().as_bytes()).unwrap()
    }

    fn message(error: ApiError) -> String {
        error.body()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn null_is_absent_and_a_wrong_type_is_named_with_the_right_one() {
        let mut body = fields(&json!({"a": null, "b": "x", "c": 1.5, "d": 5.0, "e": [1, 2]}));
        assert_eq!(body.take::<String>("a").unwrap(), None);
        assert_eq!(message(body.take::<bool>("b").unwrap_err()), "b: needs true or false, and is \"x\"");
        assert_eq!(message(body.take::<i64>("c").unwrap_err()), "c: needs a whole number, and is 1.5");
        assert_eq!(body.take::<i64>("d").unwrap(), Some(5));
        assert_eq!(message(body.take::<String>("e").unwrap_err()), "e: needs a string, and is an array of 2");
        assert_eq!(message(body.require::<String>("f").unwrap_err()), "f: is missing, and needs a string");
    }

    #[test]
    fn the_fields_within_a_field_are_named_with_it() {
        let within = |value: Value| fields(&json!({"options": value})).take_fields("options").unwrap().unwrap();
        let wrong = within(json!({"a": 1})).take::<bool>("a").unwrap_err();
        assert_eq!(message(wrong), "options.a: needs true or false, and is 1");
        let unknown = within(json!({"b": 1})).finish().unwrap_err();
        assert_eq!(message(unknown), "options: there is no field \"b\"");
    }

    #[test]
    fn a_field_that_nobody_takes_is_refused_with_the_likeliest_name() {
        let mut body = fields(&json!({"temprature": 1, "stream": null}));
        body.take::<f32>("temperature").unwrap();
        assert_eq!(message(body.finish().unwrap_err()), "there is no field \"temprature\" (did you mean temperature?)");
        assert!(fields(&json!({"anything": null})).finish().is_ok());
        let mut least = fields(&json!({"min_tokens": 1}));
        least.take::<i64>("max_tokens").unwrap();
        assert_eq!(message(least.finish().unwrap_err()), "there is no field \"min_tokens\"");
    }

    #[test]
    fn a_refusal_tells_the_field_that_it_is_about() {
        let param = |error: ApiError| error.body()["error"]["param"].clone();
        assert_eq!(param(fields(&json!({"b": "x"})).take::<bool>("b").unwrap_err()), "b");
        assert_eq!(param(fields(&json!({"zzz": 1})).finish().unwrap_err()), "zzz");
        assert_eq!(
            param(ApiError::invalid("messages[1].content[0].text: needs a string")),
            "messages[1].content[0].text"
        );
        for message in ["the body is no JSON: expected value", "no colon", ": x", "1: x"] {
            assert_eq!(param(ApiError::invalid(message)), Value::Null, "{message}");
        }
        let busy = ApiError::new(crate::error::ErrorKind::RateLimit, "queue: full");
        assert!(busy.body()["error"].get("param").is_none());
    }

    #[test]
    fn the_refusal_of_an_unknown_field_lists_the_known_ones_in_order_and_once() {
        let mut body = fields(&json!({"other": 1}));
        body.accept(&["user", "model"]).unwrap();
        body.take::<bool>("stream").unwrap();
        body.take::<bool>("stream").unwrap();
        body.unsupported("grammar", |_| false).unwrap();
        let known = body.finish().unwrap_err().body()["error"]["known_fields"].clone();
        assert_eq!(known, json!(["grammar", "model", "stream", "user"]));
    }

    #[test]
    fn a_body_is_an_object_whose_fields_stand_once() {
        let wrong = |body: &str| message(Fields::parse(body.as_bytes()).unwrap_err());
        for body in ["[]", "7", "null", "\"x\""] {
            assert_eq!(wrong(body), "the body needs to be a JSON object", "{body}");
        }
        for body in ["", "{", "{\"a\":1}x", "{\"a\"", "\u{feff}{}", "{\"a\":[}"] {
            assert!(wrong(body).starts_with("the body is no JSON: "), "{body}: {}", wrong(body));
        }
        assert_eq!(wrong(r#"{"a":1,"\u0061":2}"#), "the name \"a\" stands twice in one object");
        let many: Vec<String> = (0..300).map(|index| format!("\"{index}\":0")).collect();
        assert_eq!(wrong(&format!("{{{}}}", many.join(","))), "the object has more than 256 fields");
    }

    #[test]
    fn a_field_is_read_no_further_than_it_may_be_long_and_named() {
        let long = json!({"a": vec![0; 1000], "b": "x".repeat(10_000), "c": [1, 2], "d": vec![0; 1000]});
        let mut body = fields(&long);
        assert_eq!(message(body.take::<bool>("a").unwrap_err()), "a: has more than 65 values");
        assert_eq!(message(body.take::<bool>("b").unwrap_err()), "b: has more than 8192 bytes of text");
        let bounds = Bounds { values: 2, text_bytes: 0 };
        let refused = body.take_bounded::<Vec<Value>>("c", bounds).unwrap_err();
        assert_eq!(message(refused), "c: has more than 2 values");
        let refused = message(body.unsupported("d", |_| true).unwrap_err());
        assert_eq!(refused, "d: this server does not support it (it has more than 65 values)");
    }

    #[test]
    fn a_name_that_stands_twice_is_refused_in_fields_that_change_nothing_too() {
        let mut body = Fields::parse(br#"{"user":{"a":[{"b":1,"b":2}]}}"#).unwrap();
        let refused = message(body.accept(&["user"]).unwrap_err());
        assert_eq!(refused, "user: cannot be read, the name \"b\" stands twice in one object");
    }

    #[test]
    fn distances_are_numbers_of_edits() {
        for (a, b, edits) in [("", "", 0), ("stop", "stop", 0), ("stop", "stpo", 2), ("top", "stop", 1), ("", "abc", 3)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }
}
