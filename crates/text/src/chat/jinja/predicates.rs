//! Tests: what `value is name` means.

use super::arguments::{Call, Context, Given};
use super::compare::{contains, equal, order};
use super::fault::Trouble;
use super::value::Value;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

/// Evaluates `subject is name`.
pub(super) fn holds(name: &str, subject: Value, given: Given, context: &Context) -> Result<bool, Trouble> {
    let mut call = Call::new(name, subject, given, context);
    let subject = call.subject();
    let holds = match name {
        "defined" => !subject.is_undefined(),
        "undefined" => subject.is_undefined(),
        "none" => matches!(subject, Value::None),
        "true" => matches!(subject, Value::Bool(true)),
        "false" => matches!(subject, Value::Bool(false)),
        "boolean" => matches!(subject, Value::Bool(_)),
        "number" => matches!(subject, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "integer" | "int" => matches!(subject, Value::Int(_)),
        "float" => matches!(subject, Value::Float(_)),
        "string" => matches!(subject, Value::Text(_)),
        "mapping" => matches!(subject, Value::Map(_)),
        // In Python, texts and dictionaries have a length and items too.
        "sequence" | "iterable" => {
            matches!(subject, Value::Undefined | Value::Text(_) | Value::List(_) | Value::Map(_))
        }
        "callable" => matches!(subject, Value::Macro(_) | Value::Function(_)),
        "safe" | "escaped" => false,
        "filter" => subject.as_text().is_some_and(|name| super::filters::exists(name)),
        "test" => subject.as_text().is_some_and(|name| NAMES.contains(&&**name)),
        "sameas" => same(&subject, &call.require("other")?),
        "in" => contains(&call.require("seq")?, &subject, call.meter())?,
        "odd" | "even" | "divisibleby" => divisible(&mut call)?,
        "lower" | "upper" | "startingwith" | "endingwith" => of_text(&mut call)?,
        _ => comparison(&mut call)?,
    };
    call.finish()?;
    Ok(holds)
}

/// The names of all tests.
const NAMES: [&str; 43] = [
    "defined",
    "undefined",
    "none",
    "true",
    "false",
    "boolean",
    "number",
    "integer",
    "int",
    "float",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "callable",
    "safe",
    "escaped",
    "filter",
    "test",
    "sameas",
    "in",
    "odd",
    "even",
    "divisibleby",
    "lower",
    "upper",
    "startingwith",
    "endingwith",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
];

fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Float(left), Value::Float(right)) => left.to_bits() == right.to_bits(),
        (Value::Text(left), Value::Text(right)) => Arc::ptr_eq(left, right),
        (Value::List(left), Value::List(right)) => Rc::ptr_eq(left, right),
        (Value::Map(left), Value::Map(right)) => Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        _ => false,
    }
}

fn divisible(call: &mut Call) -> Result<bool, Trouble> {
    let (divisor, rest) = match call.name() {
        "odd" => (2, 1),
        "even" => (2, 0),
        _ => (call.take_int("num")?.unwrap_or(0), 0),
    };
    let number = call.subject().as_int().ok_or_else(|| call.failed("not a whole number"))?;
    let remainder = number.checked_rem(divisor).ok_or_else(|| call.failed("a division by zero"))?;
    Ok(remainder.abs() == rest)
}

fn of_text(call: &mut Call) -> Result<bool, Trouble> {
    let text = call.subject_text()?;
    Ok(match call.name() {
        "lower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "upper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        "startingwith" => text.starts_with(&*call.require_text("start")?),
        _ => text.ends_with(&*call.require_text("end")?),
    })
}

fn comparison(call: &mut Call) -> Result<bool, Trouble> {
    let wanted: &[Ordering] = match call.name() {
        "eq" | "equalto" | "==" => &[],
        "ne" | "!=" => &[],
        "lt" | "lessthan" | "<" => &[Ordering::Less],
        "le" | "<=" => &[Ordering::Less, Ordering::Equal],
        "gt" | "greaterthan" | ">" => &[Ordering::Greater],
        "ge" | ">=" => &[Ordering::Greater, Ordering::Equal],
        name => return Err(Trouble::Failed(format!("there is no test `{name}`"))),
    };
    let other = call.require("other")?;
    if wanted.is_empty() {
        let equal = equal(&call.subject(), &other, call.meter())?;
        return Ok(equal == matches!(call.name(), "eq" | "equalto" | "=="));
    }
    let order = order(&call.subject(), &other, call.meter())?;
    Ok(order.is_some_and(|order| wanted.contains(&order)))
}
