//! Arithmetic as Python has it, on whole numbers of 128 bits, and the same signs on texts and lists.

use super::arguments::Context;
use super::fault::Trouble;
use super::format::percent;
use super::syntax::Operator;
use super::text::{Writer, text_of};
use super::value::{List, ListKind, Value};

/// The value of an operator on two values.
pub(super) fn apply(operator: Operator, left: &Value, right: &Value, context: &Context) -> Result<Value, Trouble> {
    let meter = &context.meter;
    match (operator, left, right) {
        (Operator::Join, ..) => {
            let mut joined = Writer::new(meter);
            joined.display(left)?;
            joined.display(right)?;
            Ok(joined.into_value())
        }
        (Operator::Add, Value::Text(left), Value::Text(right)) => {
            let mut joined = Writer::new(meter);
            joined.push(left)?;
            joined.push(right)?;
            Ok(joined.into_value())
        }
        (Operator::Add, Value::List(left), Value::List(right)) if left.kind == right.kind => {
            meter.make_items(left.items().len() + right.items().len())?;
            let items = left.items().iter().chain(right.items()).cloned().collect();
            List::new(items, left.kind, meter).map(Value::List)
        }
        (Operator::Multiply, Value::Text(_) | Value::List(_), _) if right.as_int().is_some() => {
            repeated(left, right, context)
        }
        (Operator::Multiply, _, Value::Text(_) | Value::List(_)) if left.as_int().is_some() => {
            repeated(right, left, context)
        }
        (Operator::Remainder, Value::Text(format), _) => {
            let arguments = match right {
                Value::List(list) if list.kind != ListKind::List => {
                    meter.make_items(list.items().len())?;
                    list.items().to_vec()
                }
                _ => vec![right.clone()],
            };
            percent(format, &arguments, meter)
        }
        _ => numeric(operator, left, right),
    }
}

/// The negative of a number.
pub(super) fn negative(value: &Value) -> Result<Value, Trouble> {
    match value {
        Value::Float(value) => Ok(Value::Float(-value)),
        _ => match value.as_int() {
            Some(number) => number.checked_neg().map(Value::Int).ok_or_else(overflow),
            None => Err(Trouble::Failed(format!("{} has no negative", value.kind()))),
        },
    }
}

fn repeated(value: &Value, count: &Value, context: &Context) -> Result<Value, Trouble> {
    let count = count.as_int().unwrap_or(0).max(0);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let meter = &context.meter;
    match value {
        Value::List(list) => {
            meter.make_items(list.items().len().saturating_mul(count))?;
            let mut items = Vec::with_capacity(list.items().len() * count);
            if !list.items().is_empty() {
                (0..count).for_each(|_| items.extend_from_slice(list.items()));
            }
            List::new(items, list.kind, meter).map(Value::List)
        }
        _ => {
            let text = text_of(value, meter)?;
            meter.make(text.len().saturating_mul(count))?;
            Ok(Value::Text(if text.is_empty() { text } else { text.repeat(count).into() }))
        }
    }
}

fn numeric(operator: Operator, left: &Value, right: &Value) -> Result<Value, Trouble> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return whole(operator, left, right);
    }
    match (left.as_float(), right.as_float()) {
        (Some(left), Some(right)) => fraction(operator, left, right),
        _ => {
            Err(Trouble::Failed(format!("`{}` does not go with {} and {}", sign(operator), left.kind(), right.kind())))
        }
    }
}

fn whole(operator: Operator, left: i128, right: i128) -> Result<Value, Trouble> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::FloorDivide | Operator::Remainder | Operator::Divide if right == 0 => return Err(by_zero()),
        Operator::FloorDivide => {
            let quotient = left.checked_div(right);
            let rounds_up = left % right != 0 && (left < 0) != (right < 0);
            quotient.map(|quotient| quotient - i128::from(rounds_up))
        }
        Operator::Remainder => {
            let rest = left.checked_rem(right).unwrap_or(0);
            Some(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
        }
        Operator::Power if right >= 0 => {
            let power = u32::try_from(right).ok().and_then(|exponent| left.checked_pow(exponent));
            if (-1..=1).contains(&left) { Some(if right % 2 == 0 { left * left } else { left }) } else { power }
        }
        _ => return fraction(operator, as_float(left), as_float(right)),
    };
    let result = if operator == Operator::Power && right == 0 { Some(1) } else { result };
    result.map(Value::Int).ok_or_else(overflow)
}

fn fraction(operator: Operator, left: f64, right: f64) -> Result<Value, Trouble> {
    let result = match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide | Operator::FloorDivide | Operator::Remainder if right == 0.0 => return Err(by_zero()),
        Operator::Divide => left / right,
        Operator::FloorDivide => (left / right).floor(),
        Operator::Remainder => left - right * (left / right).floor(),
        Operator::Power => left.powf(right),
        Operator::Join => return Err(Trouble::Failed("`~` does not go with numbers".to_owned())),
    };
    Ok(Value::Float(result))
}

#[expect(clippy::cast_precision_loss, reason = "Python rounds large whole numbers too")]
fn as_float(value: i128) -> f64 {
    value as f64
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
        Operator::Join => "~",
    }
}

fn overflow() -> Trouble {
    Trouble::Failed("a whole number has more than 128 bits".to_owned())
}

fn by_zero() -> Trouble {
    Trouble::Failed("a division by zero".to_owned())
}

/// The part `start:stop:step` of a list or a text.
pub(super) fn slice(value: &Value, parts: [Option<i128>; 3], context: &Context) -> Result<Value, Trouble> {
    let meter = &context.meter;
    match value {
        Value::List(list) => {
            meter.make_items(list.items().len())?;
            let places = sliced(list.items().len(), parts)?;
            let items = places.iter().map(|&place| list.items()[place].clone()).collect();
            List::new(items, list.kind, meter).map(Value::List)
        }
        Value::Text(text) => {
            meter.make(text.len().saturating_mul(16))?;
            let chars: Vec<char> = text.chars().collect();
            let places = sliced(chars.len(), parts)?;
            Ok(Value::Text(places.iter().map(|&place| chars[place]).collect::<String>().into()))
        }
        Value::Undefined | Value::None => Ok(value.clone()),
        _ => Err(Trouble::Failed(format!("{} has no slices", value.kind()))),
    }
}

/// The places of a slice in a sequence of `length`.
fn sliced(length: usize, [start, stop, step]: [Option<i128>; 3]) -> Result<Vec<usize>, Trouble> {
    let length = i128::try_from(length).unwrap_or(i128::MAX);
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Trouble::Failed("the step of a slice is zero".to_owned()));
    }
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |place: i128| (if place < 0 { place.saturating_add(length) } else { place }).clamp(low, high);
    let first = start.map_or(if step > 0 { low } else { high }, clamp);
    let last = stop.map_or(if step > 0 { high } else { low }, clamp);
    let mut places = Vec::new();
    let mut place = first;
    while (step > 0 && place < last) || (step < 0 && place > last) {
        places.push(usize::try_from(place).unwrap_or(0));
        place = place.saturating_add(step);
    }
    Ok(places)
}
