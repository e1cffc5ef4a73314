//! Filters: what each name means. Those of lists are in `sequences`.

mod sequences;

pub(super) use sequences::pairs;

use super::arguments::{Call, Context, Given};
use super::fault::Trouble;
use super::format::percent;
use super::json::tojson;
use super::text::Writer;
use super::value::Value;
use std::sync::Arc;

/// Longest text that may be a number, in bytes; Python has the same limit.
const DIGITS_MAX: usize = 4300;

/// The value of the filter `name` applied to `subject`.
pub(super) fn apply(name: &str, subject: Value, given: Given, context: &Context) -> Result<Value, Trouble> {
    let mut call = Call::new(name, subject, given, context);
    let value = match name {
        "tojson" => return tojson(&mut call, context.marks),
        "format" => {
            let (positional, _) = call.rest();
            percent(&call.subject_text()?, &Vec::from(positional), call.meter())
        }
        "default" | "d" => default(&mut call),
        "string" | "safe" => Ok(Value::Text(call.subject_text()?)),
        "lower" | "upper" | "title" | "capitalize" | "escape" | "e" | "trim" | "replace" | "center" | "indent" => {
            texts(&mut call)
        }
        "pprint" => {
            let mut out = Writer::new(call.meter());
            out.repr(&call.subject())?;
            Ok(out.into_value())
        }
        "wordcount" => Ok(Value::size(call.subject_text()?.split_whitespace().count())),
        "split" | "lines" => super::methods::split_filter(&mut call),
        "abs" | "int" | "float" | "round" | "bool" => numbers(&mut call),
        "attr" => {
            let attribute = call.require("name")?;
            Ok(sequences::attribute(&call.subject(), &attribute, call.meter())?)
        }
        _ => sequences::apply(&mut call),
    }?;
    call.finish()?;
    Ok(value)
}

/// True if there is a filter `name`.
pub(super) fn exists(name: &str) -> bool {
    const OTHERS: [&str; 26] = [
        "tojson",
        "format",
        "default",
        "d",
        "string",
        "safe",
        "lower",
        "upper",
        "title",
        "capitalize",
        "escape",
        "e",
        "trim",
        "replace",
        "center",
        "indent",
        "pprint",
        "wordcount",
        "split",
        "lines",
        "abs",
        "int",
        "float",
        "round",
        "bool",
        "attr",
    ];
    OTHERS.contains(&name) || sequences::NAMES.contains(&name)
}

fn default(call: &mut Call) -> Result<Value, Trouble> {
    let value = call.take("default_value").unwrap_or_else(|| Value::text(""));
    let also_false = call.take_flag("boolean");
    let subject = call.subject();
    let missing = if also_false { !subject.is_true() } else { subject.is_undefined() };
    Ok(if missing { value } else { subject })
}

fn texts(call: &mut Call) -> Result<Value, Trouble> {
    let text = call.subject_text()?;
    // A letter in another case has up to three times as many bytes.
    call.meter().make(text.len().saturating_mul(3))?;
    let changed = match call.name() {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "capitalize" => capitalized(&text),
        "title" => title(&text, |c| c.is_whitespace() || "-({[<".contains(c)),
        "trim" => match call.take_text("chars")? {
            None => text.trim().to_owned(),
            Some(chars) => super::methods::stripped(&text, &chars, call.meter())?.to_owned(),
        },
        "escape" | "e" => {
            let escaped = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ("\"", "&#34;")];
            call.meter().make(text.len().saturating_mul(10))?;
            escaped.iter().fold(text.to_string(), |text, (plain, escaped)| text.replace(plain, escaped))
        }
        "replace" => return super::methods::replace(&text, call),
        "center" => {
            let width = call.take_count("width")?.unwrap_or(80);
            return centered(&text, width, call);
        }
        _ => return indent(&text, call),
    };
    Ok(Value::Text(changed.into()))
}

/// The first letter in upper case, and all others in lower.
pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

/// Each letter in lower case, but those after a character that `separates`.
pub(super) fn title(text: &str, separates: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        if starts {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        starts = separates(c);
    }
    out
}

pub(super) fn centered(text: &str, width: usize, call: &Call) -> Result<Value, Trouble> {
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    let mut out = Writer::new(call.meter());
    out.push_many(' ', left)?;
    out.push(text)?;
    out.push_many(' ', missing - left)?;
    Ok(out.into_value())
}

fn indent(text: &str, call: &mut Call) -> Result<Value, Trouble> {
    let indent: Arc<str> = match call.take("width") {
        Some(Value::Text(indent)) => indent,
        Some(width) => {
            let width = width.as_int().ok_or_else(|| call.failed("the width is not a number"))?;
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            call.meter().make(width)?;
            " ".repeat(width).into()
        }
        None => "    ".into(),
    };
    let first = call.take_flag("first");
    let blank = call.take_flag("blank");
    let mut out = Writer::new(call.meter());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push("\n")?;
        }
        if (index > 0 && (blank || !line.is_empty())) || (index == 0 && first) {
            out.push(&indent)?;
        }
        out.push(line)?;
    }
    Ok(out.into_value())
}

fn numbers(call: &mut Call) -> Result<Value, Trouble> {
    let value = call.subject();
    call.meter().read(value.as_text().map_or(0, |text| text.len().min(DIGITS_MAX)))?;
    match call.name() {
        "bool" => Ok(Value::Bool(value.is_true())),
        "abs" => match &value {
            Value::Float(number) => Ok(Value::Float(number.abs())),
            _ => match value.as_int().and_then(i128::checked_abs) {
                Some(number) => Ok(Value::Int(number)),
                None => Err(call.failed(&format!("{} is not a number", value.kind()))),
            },
        },
        "float" => {
            let default = call.take("default").unwrap_or(Value::Float(0.0));
            let number = match &value {
                Value::Text(text) => number_in(text),
                _ => value.as_float(),
            };
            Ok(number.map_or(default, Value::Float))
        }
        "int" => {
            let default = call.take("default").unwrap_or(Value::Int(0));
            let base = call.take_int("base")?.unwrap_or(10);
            Ok(whole_number(&value, base).map_or(default, Value::Int))
        }
        _ => round(&value, call),
    }
}

fn number_in(text: &str) -> Option<f64> {
    if text.len() > DIGITS_MAX {
        return None;
    }
    text.trim().replace('_', "").parse().ok()
}

#[expect(clippy::cast_possible_truncation, reason = "only finite numbers come here, and the cast saturates")]
fn whole_number(value: &Value, base: i128) -> Option<i128> {
    let of_float = |number: f64| number.is_finite().then_some(number.trunc() as i128);
    match value {
        Value::Text(text) if text.len() <= DIGITS_MAX => {
            let digits = text.trim().replace('_', "");
            let radix = u32::try_from(base).ok().filter(|radix| (2..=36).contains(radix))?;
            let prefix = [(16, "0x"), (8, "0o"), (2, "0b")].iter().find(|(base, _)| *base == radix);
            let bare = prefix.and_then(|(_, prefix)| digits.strip_prefix(prefix)).unwrap_or(&digits);
            i128::from_str_radix(bare, radix).ok().or_else(|| number_in(text).and_then(of_float))
        }
        Value::Float(number) => of_float(*number),
        _ => value.as_int(),
    }
}

fn round(value: &Value, call: &mut Call) -> Result<Value, Trouble> {
    let places = call.take_int("precision")?.unwrap_or(0);
    let method = call.take_text("method")?;
    let number = value.as_float().ok_or_else(|| call.failed(&format!("{} is not a number", value.kind())))?;
    let Some(places) = i32::try_from(places).ok().filter(|places| places.abs() <= 30) else {
        return Ok(Value::Float(if places > 0 { number } else { 0.0 }));
    };
    if places >= 0 && matches!(method.as_deref(), None | Some("common")) && value.as_int().is_some() {
        return Ok(value.clone());
    }
    let factor = 10f64.powi(places);
    let rounded = match method.as_deref() {
        None | Some("common") if places >= 0 => {
            let digits = usize::try_from(places).unwrap_or(0);
            // The decimal digits of the number itself, as Python rounds: halves that are exact go to the even side.
            format!("{number:.digits$}").parse().unwrap_or(number)
        }
        None | Some("common") => (number * factor).round_ties_even() / factor,
        Some("ceil") => (number * factor).ceil() / factor,
        Some("floor") => (number * factor).floor() / factor,
        Some(other) => return Err(call.failed(&format!("there is no method {other:?}"))),
    };
    Ok(Value::Float(rounded))
}

/// The text that sorting and comparing without case go by.
pub(super) fn folded(value: &Value, call: &Call) -> Result<Value, Trouble> {
    match value {
        Value::Text(text) => {
            call.meter().make(text.len())?;
            Ok(Value::Text(text.to_lowercase().into()))
        }
        _ => Ok(value.clone()),
    }
}
