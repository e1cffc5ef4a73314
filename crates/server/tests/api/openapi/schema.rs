//! The description of the server, and as much of JSON Schema as it uses: a keyword that is not known here fails the test.

use serde_json::{Map, Value};

/// The description of the server.
pub struct Document(pub Value);

/// Treatment of properties that a schema does not name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unnamed {
    /// They are allowed.
    Fine,
    /// They are a fault of the schema.
    Fault,
}

/// A route under one of its paths.
#[derive(Clone, Copy)]
pub struct Operation<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub says: &'a Value,
}

const ANNOTATIONS: [&str; 5] = ["description", "default", "x-muser-default", "x-muser-ignored", "x-muser-unsupported"];

impl Document {
    /// All routes, under all of their paths.
    pub fn operations(&self) -> Vec<Operation<'_>> {
        let mut operations = Vec::new();
        for (path, item) in self.0["paths"].as_object().unwrap() {
            for (method, says) in item.as_object().unwrap() {
                operations.push(Operation { method, path, says });
            }
        }
        operations
    }

    /// An object by its name.
    pub fn named(&self, name: &str) -> &Value {
        self.0["components"]["schemas"].get(name).unwrap_or_else(|| panic!("there is no object {name}"))
    }

    /// The schema behind a `$ref`; any other schema itself.
    pub fn follow<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema.get("$ref") {
            Some(reference) => {
                let place = reference.as_str().unwrap().strip_prefix('#').unwrap();
                self.0.pointer(place).unwrap_or_else(|| panic!("{place} leads nowhere"))
            }
            None => schema,
        }
    }

    /// The schema of a route's JSON body; `None` for a route without one.
    pub fn request<'a>(&'a self, operation: Operation<'a>) -> Option<&'a Value> {
        let schema = operation.says.pointer("/requestBody/content/application~1json/schema")?;
        Some(self.follow(schema))
    }

    /// The first fault of `value` by `schema`; `None` if it is valid.
    pub fn fault(&self, schema: &Value, value: &Value, unnamed: Unnamed) -> Option<String> {
        let keywords = schema.as_object().unwrap_or_else(|| panic!("no schema: {schema}"));
        let check = |(keyword, says): (&String, &Value)| self.fault_of(keywords, (keyword, says), value, unnamed);
        keywords.iter().find_map(check)
    }

    fn fault_of(
        &self,
        schema: &Map<String, Value>,
        (keyword, says): (&str, &Value),
        value: &Value,
        unnamed: Unnamed,
    ) -> Option<String> {
        let fault = |holds: bool| (!holds).then(|| format!("{value}: {keyword} {says}"));
        let number = |holds: fn(f64, f64) -> bool| {
            fault(value.as_f64().is_none_or(|number| holds(number, says.as_f64().unwrap())))
        };
        let length = |holds: fn(u64, u64) -> bool| {
            let count = |text: &str| text.chars().count() as u64;
            fault(value.as_str().is_none_or(|text| holds(count(text), says.as_u64().unwrap())))
        };
        match keyword {
            "$ref" => self.fault(self.follow(&Value::Object(schema.clone())), value, unnamed),
            "type" => match says {
                Value::Array(types) => fault(types.iter().any(|one| is_a(value, one.as_str().unwrap()))),
                one => fault(is_a(value, one.as_str().unwrap())),
            },
            "enum" => fault(says.as_array().unwrap().contains(value)),
            "const" => fault(says == value),
            "minimum" => number(|number, limit| number >= limit),
            "maximum" => number(|number, limit| number <= limit),
            "exclusiveMinimum" => number(|number, limit| number > limit),
            "minLength" => length(|count, limit| count >= limit),
            "maxLength" => length(|count, limit| count <= limit),
            "minItems" => fault(value.as_array().is_none_or(|items| items.len() as u64 >= says.as_u64().unwrap())),
            "maxItems" => fault(value.as_array().is_none_or(|items| items.len() as u64 <= says.as_u64().unwrap())),
            "anyOf" => {
                let faults: Option<Vec<String>> =
                    says.as_array().unwrap().iter().map(|one| self.fault(one, value, unnamed)).collect();
                faults.map(|faults| faults.join("; "))
            }
            "items" | "prefixItems" => self.fault_of_items(schema, value, unnamed),
            "properties" | "additionalProperties" => self.fault_of_properties(schema, value, unnamed),
            "required" => {
                let missing = says.as_array().unwrap().iter().find(|name| value.get(name.as_str().unwrap()).is_none());
                missing.filter(|_| value.is_object()).map(|name| format!("{value}: {name} is missing"))
            }
            other => {
                assert!(ANNOTATIONS.contains(&other), "unknown keyword {other}");
                None
            }
        }
    }

    fn fault_of_items(&self, schema: &Map<String, Value>, value: &Value, unnamed: Unnamed) -> Option<String> {
        let first = schema.get("prefixItems").map_or(&[][..], |first| first.as_array().unwrap());
        value.as_array()?.iter().enumerate().find_map(|(index, item)| match first.get(index).or(schema.get("items")) {
            Some(Value::Bool(false)) => Some(format!("{value}: too many items")),
            Some(schema) => self.fault(schema, item, unnamed),
            None => None,
        })
    }

    fn fault_of_properties(&self, schema: &Map<String, Value>, value: &Value, unnamed: Unnamed) -> Option<String> {
        value.as_object()?.iter().find_map(|(name, item)| {
            let named = schema.get("properties").and_then(|properties| properties.get(name));
            match (named.or(schema.get("additionalProperties")), unnamed) {
                (Some(Value::Bool(false)), _) | (None, Unnamed::Fault) => Some(format!("there is no {name}")),
                (Some(schema), _) => self.fault(schema, item, unnamed).map(|fault| format!("{name}: {fault}")),
                (None, Unnamed::Fine) => None,
            }
        })
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}
