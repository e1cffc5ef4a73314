//! Comparisons as Python has them, each visit charged.

use super::fault::Trouble;
use super::meter::Meter;
use super::value::Value;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

/// True if two values are equal, by Jinja's `==`.
pub(super) fn equal(left: &Value, right: &Value, meter: &Meter) -> Result<bool, Trouble> {
    meter.visit(1)?;
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(left), Value::Text(right)) => {
            meter.read(left.len().min(right.len()))?;
            left == right
        }
        (Value::List(left), Value::List(right)) => {
            if left.kind != right.kind || left.items().len() != right.items().len() {
                return Ok(false);
            }
            for (left, right) in left.items().iter().zip(right.items()) {
                if !equal(left, right, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(left), Value::Map(right)) => {
            if left.entries().len() != right.entries().len() {
                return Ok(false);
            }
            for (key, value) in left.entries() {
                meter.read(key.as_text().map_or(0, |text| text.len()))?;
                match right.get(key) {
                    Some(other) if equal(value, other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        (Value::Loop(left), Value::Loop(right)) => Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => Arc::ptr_eq(&left.definition, &right.definition),
        (Value::Function(left), Value::Function(right)) => left == right,
        _ => number_order(left, right) == Some(Ordering::Equal),
    })
}

/// The order of two values; `None` if one is not a number.
///
/// # Errors
///
/// If they have no order.
pub(super) fn order(left: &Value, right: &Value, meter: &Meter) -> Result<Option<Ordering>, Trouble> {
    meter.visit(1)?;
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            meter.read(left.len().min(right.len()))?;
            Ok(Some(left.cmp(right)))
        }
        (Value::List(left), Value::List(right)) => {
            for (left, right) in left.items().iter().zip(right.items()) {
                if !equal(left, right, meter)? {
                    return order(left, right, meter);
                }
            }
            Ok(Some(left.items().len().cmp(&right.items().len())))
        }
        _ if left.as_float().is_some() && right.as_float().is_some() => Ok(number_order(left, right)),
        _ => Err(Trouble::Failed(format!("{} and {} have no order", left.kind(), right.kind()))),
    }
}

fn number_order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left.as_int(), right.as_int()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_float()?.partial_cmp(&right.as_float()?),
    }
}

/// True if `item` is in `container`: an item, a key, or a part of a text.
pub(super) fn contains(container: &Value, item: &Value, meter: &Meter) -> Result<bool, Trouble> {
    match container {
        Value::Undefined => Ok(false),
        Value::Text(text) => match item {
            Value::Text(part) => {
                meter.read(text.len() + part.len())?;
                Ok(text.contains(&**part))
            }
            Value::Undefined => Ok(false),
            _ => Err(Trouble::Failed(format!("{} cannot be part of a text", item.kind()))),
        },
        Value::Map(map) => {
            meter.read(item.as_text().map_or(0, |text| text.len()))?;
            Ok(map.get(item).is_some())
        }
        Value::List(list) => {
            for other in list.items() {
                if equal(other, item, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(Trouble::Failed(format!("{} has no items", container.kind()))),
    }
}

/// `items` in the order of their keys, equal ones in the order that they had. A merge sort of our own, since the library's
/// may panic where values have no total order, and cannot stop at an error.
pub(super) fn sorted<T>(items: Vec<T>, key: impl Fn(&T) -> &Value, meter: &Meter) -> Result<Vec<T>, Trouble> {
    meter.make_items(items.len())?;
    let mut places: Vec<usize> = (0..items.len()).collect();
    let mut merged = Vec::with_capacity(items.len());
    let mut run = 1;
    while run < items.len() {
        merged.clear();
        for pair in places.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
                if order(key(&items[*second]), key(&items[*first]), meter)? == Some(Ordering::Less) {
                    merged.push(*second);
                    right = right_rest;
                } else {
                    merged.push(*first);
                    left = left_rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut places, &mut merged);
        run *= 2;
    }
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    Ok(places.into_iter().filter_map(|place| items[place].take()).collect())
}
