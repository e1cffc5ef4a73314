//! JSON values that are built within bounds, or only looked through: a body of 32 MiB must not become a tree of gigabytes.
//!
//! A name that stands twice in one object is refused at any depth: parsers disagree on which one counts, so a filter in
//! front of the server may have read the other.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::limits::{Bounds, NAMES_MAX};

/// Builds a value within `bounds`.
///
/// # Errors
/// In words for people: what is too much, stands twice, or is no JSON.
pub fn build(raw: &RawValue, bounds: Bounds) -> Result<Value, String> {
    read(raw, Build { left: &mut { bounds }, bounds })
}

/// Looks through a value whose content is of no interest, and builds nothing.
///
/// # Errors
/// As [`build`].
pub fn check(raw: &RawValue) -> Result<(), String> {
    read(raw, Check)
}

/// Reads a value in one go.
///
/// # Errors
/// In words for people.
pub fn read<'a, S: DeserializeSeed<'a>>(raw: &'a RawValue, seed: S) -> Result<S::Value, String> {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    seed.deserialize(&mut deserializer).map_err(|error| words_of(&error))
}

/// Message of an error. Its line and column are left out for errors in the data: they would count within the field.
pub fn words_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).filter(|_| error.is_data()).map_or(text.clone(), str::to_owned)
}

/// The refusal of a name that an object has twice.
pub fn twice<E: Error>(name: &str) -> E {
    let shown: String = name.chars().take(40).collect();
    E::custom(format!("the name {shown:?} stands twice in one object"))
}

/// Builds a value, and charges it.
struct Build<'l> {
    left: &'l mut Bounds,
    bounds: Bounds,
}

impl Build<'_> {
    fn again(&mut self) -> Build<'_> {
        Build { left: self.left, bounds: self.bounds }
    }

    fn charge_value<E: Error>(&mut self) -> Result<(), E> {
        let left = self.left.values.checked_sub(1);
        self.left.values = left.ok_or_else(|| E::custom(format!("has more than {} values", self.bounds.values)))?;
        Ok(())
    }

    fn charge_text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        let left = self.left.text_bytes.checked_sub(text.len());
        let most = self.bounds.text_bytes;
        self.left.text_bytes = left.ok_or_else(|| E::custom(format!("has more than {most} bytes of text")))?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Build<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<Value, D::Error> {
        self.charge_value()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<Value, E> {
        self.charge_text(value)?;
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self.again())? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            self.charge_text(&name)?;
            if fields.contains_key(&name) {
                return Err(twice(&name));
            }
            let value = entries.next_value_seed(self.again())?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

/// Looks through a value.
struct Check;

impl<'de> DeserializeSeed<'de> for Check {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Check)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = entries.next_key::<String>()? {
            if names.len() == NAMES_MAX {
                return Err(A::Error::custom(format!("has an object of more than {NAMES_MAX} names")));
            }
            entries.next_value_seed(Check)?;
            if let Some(name) = names.replace(name) {
                return Err(twice(&name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_value_within_its_bounds_is_the_one_that_was_written() {
        let texts = [
            r#"{"a":[1,-2,2.5,"x\n\u00e9",true,null,{}],"b":{"a":[]}}"#,
            "7",
            "-1",
            "1e3",
            "null",
            r#""\ud83e\udd99""#,
        ];
        for text in texts {
            let bounds = Bounds { values: 12, text_bytes: 8 };
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(build(&raw(text), bounds), Ok(expected), "{text}");
            assert_eq!(check(&raw(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_exceeds_its_bounds_is_refused_with_the_bound() {
        let values = Bounds { values: 3, text_bytes: 100 };
        assert!(build(&raw("[1,2]"), values).is_ok());
        for text in ["[1,2,3]", "[[[[]]]]", r#"{"a":1,"b":2,"c":3}"#] {
            assert_eq!(build(&raw(text), values), Err("has more than 3 values".into()), "{text}");
        }
        let text = Bounds { values: 3, text_bytes: 2 };
        assert!(build(&raw(r#""\u0061b""#), text).is_ok());
        for wrong in [r#""abc""#, r#"["ab","c"]"#, r#"{"abc":1}"#] {
            assert_eq!(build(&raw(wrong), text), Err("has more than 2 bytes of text".into()), "{wrong}");
        }
    }

    #[test]
    fn a_name_that_stands_twice_is_refused_at_every_level_and_however_it_is_written() {
        let bounds = Bounds { values: 100, text_bytes: 100 };
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"c":2,"\u0061":3}}]"#] {
            let refused = "the name \"a\" stands twice in one object".to_owned();
            assert_eq!(build(&raw(text), bounds), Err(refused.clone()), "{text}");
            assert_eq!(check(&raw(text)), Err(refused), "{text}");
        }
        assert!(build(&raw(r#"{"a":{"a":1},"b":{"a":2}}"#), bounds).is_ok());
    }

    #[test]
    fn what_only_looks_like_json_is_refused_by_both_ways_of_reading() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [r#""\ud800""#, "1e999", "[1e999]", &deep] {
            assert!(build(&raw(text), Bounds { values: 1000, text_bytes: 100 }).is_err(), "{text}");
            assert!(check(&raw(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_object_with_names_without_end_is_not_looked_through() {
        let names: Vec<Value> = (0..=NAMES_MAX).map(|index| json!(format!("{index}"))).collect();
        let object: Vec<String> = names.iter().map(|name| format!("{name}:0")).collect();
        let refused = check(&raw(&format!("{{{}}}", object.join(",")))).unwrap_err();
        assert!(refused.contains("16384 names"), "{refused}");
    }
}
