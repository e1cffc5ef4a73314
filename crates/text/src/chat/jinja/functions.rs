//! Functions that every template has.

use super::arguments::{Call, Context, Given};
use super::fault::Trouble;
use super::text::text_of;
use super::value::{Function, Map, Namespace, Value};
use std::rc::Rc;
use std::sync::Arc;

/// Longest message of `raise_exception`, in characters.
const MESSAGE_CHARS_MAX: usize = 2000;

/// The function that a template calls `name`.
pub(super) fn named(name: &str, context: &Context) -> Option<Function> {
    Some(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "raise_exception" => Function::RaiseException,
        "strftime_now" if context.now.is_some() => Function::StrftimeNow,
        _ => return None,
    })
}

/// The value of a call.
pub(super) fn call(function: Function, given: Given, context: &Context) -> Result<Value, Trouble> {
    let name = match function {
        Function::Range => "range",
        Function::Dict => "dict",
        Function::Namespace => "namespace",
        Function::RaiseException => "raise_exception",
        Function::StrftimeNow => "strftime_now",
    };
    let mut call = Call::new(name, Value::Undefined, given, context);
    let value = match function {
        Function::Range => range(&mut call),
        Function::Dict => Map::new(pairs(&mut call)?, &context.meter).map(Value::Map),
        Function::Namespace => {
            let namespace = Namespace::default();
            for (name, value) in pairs(&mut call)? {
                let name = name.as_text().cloned().ok_or_else(|| call.failed("a name is not a text"))?;
                namespace.set(&name, value, &context.meter)?;
            }
            Ok(Value::Namespace(Rc::new(namespace)))
        }
        Function::RaiseException => {
            let message = text_of(&call.require("message")?, &context.meter)?;
            let cut = message.char_indices().nth(MESSAGE_CHARS_MAX);
            Err(Trouble::Raised(match cut {
                Some((at, _)) => format!("{}...", &message[..at]),
                None => message.to_string(),
            }))
        }
        Function::StrftimeNow => strftime_now(&mut call),
    }?;
    call.finish()?;
    Ok(value)
}

fn range(call: &mut Call) -> Result<Value, Trouble> {
    let first = call.take_int("start")?.ok_or_else(|| call.failed("there is no end"))?;
    let second = call.take_int("stop")?;
    let step = call.take_int("step")?.unwrap_or(1);
    let (start, stop) = second.map_or((0, first), |stop| (first, stop));
    if step == 0 {
        return Err(call.failed("the step is zero"));
    }
    let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let count = if distance > 0 { (distance - 1) / step.saturating_abs() + 1 } else { 0 };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    call.meter().make_items(count)?;
    let numbers = std::iter::successors(Some(start), |number| number.checked_add(step));
    Value::list(numbers.take(count).map(Value::Int).collect(), call.meter())
}

/// The entries of a dictionary or of a list of pairs, and the named arguments.
fn pairs(call: &mut Call) -> Result<Vec<(Value, Value)>, Trouble> {
    let mut entries = match call.take("mapping") {
        None => Vec::new(),
        Some(Value::Map(map)) => {
            call.meter().make_items(map.entries().len().saturating_mul(2))?;
            map.entries().to_vec()
        }
        Some(list) => {
            let items = list.items(call.meter())?;
            let mut entries = Vec::new();
            for item in items.items() {
                call.meter().make_items(2)?;
                match item.items(call.meter())?.items() {
                    [key, value] => entries.push((key.clone(), value.clone())),
                    _ => return Err(call.failed("an item is not a pair")),
                }
            }
            entries
        }
    };
    let (positional, named) = call.rest();
    if !positional.is_empty() {
        return Err(call.failed("there are too many arguments"));
    }
    entries.extend(named.into_iter().map(|(name, value)| (Value::Text(name), value)));
    Ok(entries)
}

fn strftime_now(call: &mut Call) -> Result<Value, Trouble> {
    let format: Arc<str> = call.require_text("format")?;
    call.meter().make(format.len().saturating_mul(10))?;
    call.meter().visit(format.len())?;
    let text = call.context().now.and_then(|now| now.format(&format));
    match text {
        Some(text) => Ok(Value::Text(text.into())),
        None => Err(call.failed(&format!("the format {format:?} is not known"))),
    }
}
