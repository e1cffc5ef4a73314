//! Python's two ways to format: `'%s' % value` and `'{}'.format(value)`. Widths are charged before they are filled.

use super::arguments::Given;
use super::fault::Trouble;
use super::meter::Meter;
use super::text::{Writer, float_text, text_of};
use super::value::Value;
use std::sync::Arc;

/// Most digits after the point.
const PRECISION_MAX: usize = 1000;

/// Widest field. The budget bounds it more tightly as a rule.
const WIDTH_MAX: usize = 1 << 30;

/// Layout of one value.
#[derive(Clone, Debug)]
struct Spec {
    fill: char,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    /// `+` or a space for numbers that are not negative.
    sign: Option<char>,
    alternate: bool,
    width: usize,
    /// `,` or `_` between groups of digits.
    grouping: Option<char>,
    precision: Option<usize>,
    conversion: Option<char>,
}

const PLAIN: Spec = Spec {
    fill: ' ',
    align: None,
    sign: None,
    alternate: false,
    width: 0,
    grouping: None,
    precision: None,
    conversion: None,
};

fn failed(detail: &str) -> Trouble {
    Trouble::Failed(format!("format: {detail}"))
}

/// `format % arguments`.
pub(super) fn percent(format: &str, arguments: &[Value], meter: &Meter) -> Result<Value, Trouble> {
    let mut out = Writer::new(meter);
    let mut values = arguments.iter();
    let mut next = || values.next().cloned().ok_or_else(|| failed("there are too few arguments"));
    let mut rest = format;
    let mut takes_names = false;
    while let Some(at) = rest.find('%') {
        meter.step()?;
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        let mut named = None;
        if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            let Some(Value::Map(map)) = arguments.first() else { return Err(failed("a name wants a dictionary")) };
            takes_names = true;
            named = Some(map.get_text(&Arc::from(name)).cloned().unwrap_or(Value::Undefined));
            rest = after;
        }
        let mut spec = percent_spec(&mut rest, &mut next)?;
        let conversion = rest.chars().next().ok_or_else(|| failed("a `%` has no conversion"))?;
        rest = &rest[conversion.len_utf8()..];
        if conversion == '%' {
            out.push("%")?;
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => next()?,
        };
        spec.conversion = Some(match conversion {
            's' | 'r' | 'c' | 'd' | 'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => conversion,
            'i' | 'u' => 'd',
            _ => return Err(failed(&format!("there is no conversion {conversion:?}"))),
        });
        percent_value(&value, &spec, &mut out)?;
    }
    out.push(rest)?;
    if !takes_names && values.next().is_some() && !matches!(arguments, [Value::Map(_)]) {
        return Err(failed("there are too many arguments"));
    }
    Ok(out.into_value())
}

/// Flags, width and precision of a `%` conversion.
fn percent_spec(rest: &mut &str, next: &mut dyn FnMut() -> Result<Value, Trouble>) -> Result<Spec, Trouble> {
    let mut spec = Spec { align: Some('>'), ..PLAIN };
    while let Some(flag) = rest.chars().next().filter(|flag| "-+ 0#".contains(*flag)) {
        match flag {
            '-' => spec.align = Some('<'),
            '+' => spec.sign = Some('+'),
            ' ' => spec.sign = spec.sign.or(Some(' ')),
            '0' => spec.fill = '0',
            _ => spec.alternate = true,
        }
        *rest = &rest[1..];
    }
    let mut count = |rest: &mut &str| -> Result<usize, Trouble> {
        if let Some(after) = rest.strip_prefix('*') {
            *rest = after;
            let count = next()?.as_int().and_then(|count| usize::try_from(count).ok());
            return count.ok_or_else(|| failed("a `*` wants a whole number"));
        }
        digits(rest)
    };
    spec.width = width(count(rest)?)?;
    if let Some(after) = rest.strip_prefix('.') {
        *rest = after;
        spec.precision = Some(count(rest)?);
    }
    if spec.fill == '0' {
        (spec.fill, spec.align) = if spec.align == Some('<') { (' ', Some('<')) } else { ('0', Some('=')) };
    }
    Ok(spec)
}

fn percent_value(value: &Value, spec: &Spec, out: &mut Writer) -> Result<(), Trouble> {
    match spec.conversion {
        Some('s' | 'r') => {
            let text =
                if spec.conversion == Some('r') { repr_of(value, out.meter())? } else { text_of(value, out.meter())? };
            let spec = if spec.align == Some('=') {
                Spec { fill: ' ', align: Some('>'), ..spec.clone() }
            } else {
                spec.clone()
            };
            text_field(&text, &spec, out)
        }
        Some('d') => {
            let whole = match value {
                #[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
                Value::Float(value) => Value::Int(value.trunc() as i128),
                _ => value.clone(),
            };
            number_field(&whole, spec, out)
        }
        _ => number_field(value, spec, out),
    }
}

/// Reads the digits at the start of `rest`.
fn digits(rest: &mut &str) -> Result<usize, Trouble> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = rest.split_at(length);
    *rest = after;
    if digits.is_empty() { Ok(0) } else { digits.parse().map_err(|_| failed("a width is too large")) }
}

fn width(width: usize) -> Result<usize, Trouble> {
    if width > WIDTH_MAX { Err(failed(&format!("a field is wider than {WIDTH_MAX}"))) } else { Ok(width) }
}

/// `format.format(arguments)`.
pub(super) fn braces(format: &str, arguments: &Given, meter: &Meter) -> Result<Value, Trouble> {
    let mut out = Writer::new(meter);
    let mut automatic = 0;
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        meter.step()?;
        out.push(&rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(failed("a `}` closes nothing"));
        }
        let field = field_of(&mut rest)?;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = field_value(name, &mut automatic, arguments, meter)?;
        let spec = nested_spec(spec, &mut automatic, arguments, meter)?;
        let value = match conversion {
            "" => value,
            "r" => Value::Text(repr_of(&value, meter)?),
            "s" => Value::Text(text_of(&value, meter)?),
            _ => return Err(failed(&format!("there is no conversion {conversion:?}"))),
        };
        let spec = brace_spec(&spec)?;
        let is_text = !matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_));
        if is_text || (matches!(value, Value::Bool(_)) && spec.conversion.is_none()) || spec.conversion == Some('s') {
            text_field(&text_of(&value, meter)?, &spec, &mut out)?;
        } else {
            number_field(&value, &spec, &mut out)?;
        }
    }
    out.push(rest)?;
    Ok(out.into_value())
}

/// The field whose brace was just opened, and moves `rest` behind it.
fn field_of<'f>(rest: &mut &'f str) -> Result<&'f str, Trouble> {
    let mut open = 1;
    for (at, c) in rest.char_indices() {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            let field = &rest[..at];
            *rest = &rest[at + 1..];
            return Ok(field);
        }
    }
    Err(failed("a `{` is not closed"))
}

/// A field's value: `0`, `name`, or the next one; with `.name` and `[key]`.
fn field_value(name: &str, automatic: &mut usize, arguments: &Given, meter: &Meter) -> Result<Value, Trouble> {
    let (positional, named) = arguments;
    meter.visit(named.len())?;
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let missing = || failed(&format!("there is no argument {first:?}"));
    let mut value = if first.is_empty() {
        *automatic += 1;
        positional.get(*automatic - 1).cloned().ok_or_else(missing)?
    } else if let Ok(index) = first.parse::<usize>() {
        positional.get(index).cloned().ok_or_else(missing)?
    } else {
        named.iter().find(|(key, _)| **key == *first).map(|(_, value)| value.clone()).ok_or_else(missing)?
    };
    while !path.is_empty() {
        let (key, after) = match path.strip_prefix('[') {
            Some(inner) => inner.split_once(']').ok_or_else(|| failed("a `[` is not closed"))?,
            None => {
                let inner = path.strip_prefix('.').ok_or_else(|| failed("a field has no good name"))?;
                inner.split_at(inner.find(['.', '[']).unwrap_or(inner.len()))
            }
        };
        path = after;
        value = match (&value, key.parse::<usize>()) {
            (Value::List(list), Ok(index)) => list.items().get(index).cloned(),
            (Value::Map(map), _) => map.get_text(&Arc::from(key)).cloned(),
            _ => None,
        }
        .ok_or_else(|| failed(&format!("there is no {key:?}")))?;
    }
    Ok(value)
}

/// A layout in which fields stand for values.
fn nested_spec(spec: &str, automatic: &mut usize, arguments: &Given, meter: &Meter) -> Result<String, Trouble> {
    let mut out = Writer::new(meter);
    let mut rest = spec;
    while let Some((before, inner)) = rest.split_once('{') {
        let (name, after) = inner.split_once('}').ok_or_else(|| failed("a `{` is not closed"))?;
        out.push(before)?;
        out.display(&field_value(name, automatic, arguments, meter)?)?;
        rest = after;
    }
    out.push(rest)?;
    Ok(out.finish())
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
fn brace_spec(text: &str) -> Result<Spec, Trouble> {
    let mut spec = PLAIN;
    let mut rest = text;
    let mut chars = rest.chars();
    let is_align = |c: Option<char>| c.filter(|c| "<>^=".contains(*c));
    match (chars.next(), chars.next()) {
        (Some(fill), second) if is_align(second).is_some() => {
            (spec.fill, spec.align) = (fill, second);
            rest = chars.as_str();
        }
        (first, _) if is_align(first).is_some() => {
            spec.align = first;
            rest = &rest[1..];
        }
        _ => {}
    }
    let mut take = |wanted: &[char]| {
        let found = rest.chars().next().filter(|c| wanted.contains(c));
        rest = &rest[found.map_or(0, char::len_utf8)..];
        found
    };
    spec.sign = take(&['+', '-', ' ']).filter(|sign| *sign != '-');
    spec.alternate = take(&['#']).is_some();
    if take(&['0']).is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    spec.width = width(digits(&mut rest)?)?;
    let mut take = |wanted: &[char]| {
        let found = rest.chars().next().filter(|c| wanted.contains(c));
        rest = &rest[found.map_or(0, char::len_utf8)..];
        found
    };
    spec.grouping = take(&[',', '_']);
    if take(&['.']).is_some() {
        spec.precision = Some(digits(&mut rest)?);
    }
    let mut chars = rest.chars();
    spec.conversion = chars.next();
    let known = spec.conversion.is_none_or(|kind| "sdboxXcneEfFgG%".contains(kind));
    if known && chars.next().is_none() { Ok(spec) } else { Err(failed(&format!("the layout {text:?} is not known"))) }
}

fn repr_of(value: &Value, meter: &Meter) -> Result<Arc<str>, Trouble> {
    let mut out = Writer::new(meter);
    out.repr(value)?;
    Ok(out.finish().into())
}

fn text_field(text: &str, spec: &Spec, out: &mut Writer) -> Result<(), Trouble> {
    if spec.align == Some('=') && spec.fill != '0' {
        return Err(failed("`=` does not go with a text"));
    }
    out.meter().read(text.len())?;
    let end = spec.precision.and_then(|count| text.char_indices().nth(count)).map_or(text.len(), |(at, _)| at);
    let text = &text[..end];
    let spec = Spec { align: spec.align.filter(|align| *align != '=').or(Some('<')), ..spec.clone() };
    padded("", text, &spec, out)
}

/// `sign` and `body`, with the fill on one side, on both, or between them.
fn padded(sign: &str, body: &str, spec: &Spec, out: &mut Writer) -> Result<(), Trouble> {
    let missing = spec.width.saturating_sub(sign.chars().count() + body.chars().count());
    let (before, between, after) = match spec.align {
        Some('<') => (0, 0, missing),
        Some('^') => (missing / 2, 0, missing - missing / 2),
        Some('=') => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    out.push_many(spec.fill, before)?;
    out.push(sign)?;
    out.push_many(spec.fill, between)?;
    out.push(body)?;
    out.push_many(spec.fill, after)
}

fn number_field(value: &Value, spec: &Spec, out: &mut Writer) -> Result<(), Trouble> {
    let not_a_number = || failed(&format!("{} is not a number", value.kind()));
    let precision = spec.precision.unwrap_or(6);
    if precision > PRECISION_MAX {
        return Err(failed(&format!("more than {PRECISION_MAX} digits")));
    }
    let (is_negative, prefix, body) = match (spec.conversion, value) {
        (Some('c'), _) => {
            let c = value.as_int().and_then(|c| u32::try_from(c).ok()).and_then(char::from_u32);
            let text = match (c, value) {
                (Some(c), _) => c.to_string(),
                (None, Value::Text(text)) if text.chars().count() == 1 => text.to_string(),
                _ => return Err(failed("no character")),
            };
            return padded("", &text, spec, out);
        }
        (Some('d' | 'n' | 'b' | 'o' | 'x' | 'X'), Value::Float(_)) => {
            return Err(failed("a fraction is no whole number"));
        }
        (None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X'), Value::Int(_) | Value::Bool(_)) => {
            let number = value.as_int().unwrap_or(0);
            let magnitude = number.unsigned_abs();
            let (prefix, body) = match spec.conversion {
                Some('b') => ("0b", format!("{magnitude:b}")),
                Some('o') => ("0o", format!("{magnitude:o}")),
                Some('x') => ("0x", format!("{magnitude:x}")),
                Some('X') => ("0X", format!("{magnitude:X}")),
                _ => ("", magnitude.to_string()),
            };
            (number < 0, if spec.alternate { prefix } else { "" }, body)
        }
        _ => {
            let number = value.as_float().ok_or_else(not_a_number)?;
            (number.is_sign_negative() && !number.is_nan(), "", float_body(number.abs(), precision, spec))
        }
    };
    let sign = if is_negative { "-".to_owned() } else { spec.sign.map(String::from).unwrap_or_default() };
    let body = match spec.grouping {
        Some(separator) => grouped(&body, separator),
        None => body,
    };
    let spec = Spec { align: spec.align.or(Some('>')), ..spec.clone() };
    padded(&(sign + prefix), &body, &spec, out)
}

/// A float without its sign.
fn float_body(number: f64, precision: usize, spec: &Spec) -> String {
    if !number.is_finite() {
        return float_text(number);
    }
    match spec.conversion {
        Some('f' | 'F') => format!("{number:.precision$}"),
        Some('%') => format!("{:.precision$}%", number * 100.0),
        Some('e') => scientific(number, precision),
        Some('E') => scientific(number, precision).to_uppercase(),
        Some('g') => general(number, precision, spec.alternate),
        Some('G') => general(number, precision, spec.alternate).to_uppercase(),
        _ if spec.precision.is_some() => {
            let text = general(number, precision, false);
            if text.contains(['.', 'e']) { text } else { text + ".0" }
        }
        _ => float_text(number),
    }
}

fn scientific(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// `precision` digits, as a fraction or with an exponent, whichever is shorter.
fn general(number: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{number:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let digits = i32::try_from(precision).unwrap_or(i32::MAX);
    let trimmed = |text: &str| {
        if text.contains('.') && !keeps_zeros {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    if exponent < -4 || exponent >= digits {
        let text = scientific(number, precision - 1);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let decimals = usize::try_from(digits - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.decimals$}"))
}

/// Whole digits in groups of three.
fn grouped(body: &str, separator: char) -> String {
    let end = body.find(['.', 'e', '%']).unwrap_or(body.len());
    let (whole, rest) = body.split_at(end);
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped + rest
}
