//! The `tojson` filter, which writes what Python's `json.dumps` does as model makers use it: keys in their order, a space
//! after commas and colons, characters beyond ASCII as they are, nothing escaped for HTML.

use super::arguments::Call;
use super::compare::sorted;
use super::fault::Trouble;
use super::text::{Writer, float_text, text_of};
use super::value::Value;
use crate::chat::marks::Marks;
use std::fmt::Write as _;
use std::sync::Arc;

/// Most spaces of one level.
const INDENT_MAX: usize = 64;

/// Layout of the text.
struct Style<'a> {
    /// The spaces of one level; without, everything is on one line.
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    item_separator: Arc<str>,
    key_separator: Arc<str>,
    marks: &'a Marks,
}

/// The filter. Marked characters keep their marks.
pub(super) fn tojson(call: &mut Call, marks: &Marks) -> Result<Value, Trouble> {
    let value = call.subject();
    let style = Style::from_arguments(call, marks)?;
    call.finish()?;
    let mut out = Writer::new(call.meter());
    style.write(&value, 0, &mut out)?;
    Ok(out.into_value())
}

impl<'a> Style<'a> {
    fn from_arguments(call: &mut Call, marks: &'a Marks) -> Result<Self, Trouble> {
        let flag = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let ensure_ascii = flag(call.take_named("ensure_ascii"));
        let sort_keys = flag(call.take_named("sort_keys"));
        let indent = call.take("indent").filter(|indent| !matches!(indent, Value::None | Value::Undefined));
        let indent = match indent {
            None => None,
            Some(indent) => {
                let spaces = indent.as_int().and_then(|spaces| usize::try_from(spaces).ok());
                let spaces = spaces.filter(|&spaces| spaces <= INDENT_MAX);
                Some(spaces.ok_or_else(|| call.failed(&format!("the indent is not 0 to {INDENT_MAX}")))?)
            }
        };
        let (item_separator, key_separator) = match call.take_named("separators") {
            None | Some(Value::None | Value::Undefined) => {
                (if indent.is_some() { "," } else { ", " }.into(), ": ".into())
            }
            Some(Value::List(pair)) if pair.items().len() == 2 => {
                (text_of(&pair.items()[0], call.meter())?, text_of(&pair.items()[1], call.meter())?)
            }
            Some(_) => return Err(call.failed("the separators are not two")),
        };
        Ok(Self { indent, ensure_ascii, sort_keys, item_separator, key_separator, marks })
    }

    fn write(&self, value: &Value, depth: usize, out: &mut Writer) -> Result<(), Trouble> {
        out.meter().visit(1)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
            Value::Int(_) | Value::Float(_) => out.push(&number(value)),
            Value::Text(text) => self.write_string(text, out),
            Value::List(list) => {
                self.write_items(["[", "]"], depth, out, list.items(), |item, out| self.write(item, depth + 1, out))
            }
            Value::Map(map) => {
                let write_entry = |(key, value): &(Value, Value), out: &mut Writer| {
                    self.write_string(&key_text(key)?, out)?;
                    out.push(&self.key_separator)?;
                    self.write(value, depth + 1, out)
                };
                if !self.sort_keys {
                    return self.write_items(["{", "}"], depth, out, map.entries(), write_entry);
                }
                out.meter().make_items(map.entries().len().saturating_mul(2))?;
                let entries = sorted(map.entries().to_vec(), |(key, _)| key, out.meter())?;
                self.write_items(["{", "}"], depth, out, &entries, write_entry)
            }
            _ => Err(Trouble::Failed(format!("tojson: {} cannot be written as JSON", value.kind()))),
        }
    }

    fn write_items<T>(
        &self,
        [open, close]: [&str; 2],
        depth: usize,
        out: &mut Writer,
        items: &[T],
        write: impl Fn(&T, &mut Writer) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let line = |levels: usize, out: &mut Writer| match self.indent.filter(|_| !items.is_empty()) {
            Some(spaces) => {
                out.push("\n")?;
                out.push_many(' ', spaces * levels)
            }
            None => Ok(()),
        };
        out.push(open)?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(&self.item_separator)?;
            }
            line(depth + 1, out)?;
            write(item, out)?;
        }
        line(depth, out)?;
        out.push(close)
    }

    fn write_string(&self, text: &str, out: &mut Writer) -> Result<(), Trouble> {
        out.push("\"")?;
        out.push_each(text, |c, written| match self.marks.unmark(c) {
            None => self.escape(c, written),
            Some(plain) => {
                let mut escaped = String::new();
                self.escape(plain, &mut escaped);
                written.extend(escaped.chars().map(|c| self.marks.mark(c)));
            }
        })?;
        out.push("\"")
    }

    fn escape(&self, c: char, out: &mut String) {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            _ if c < ' ' || (self.ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _written = write!(out, "\\u{unit:04x}");
                }
                return;
            }
            _ => return out.push(c),
        };
        out.push_str(short);
    }
}

fn number(value: &Value) -> String {
    match value {
        Value::Float(value) if value.is_finite() => float_text(*value),
        Value::Float(value) if value.is_nan() => "NaN".to_owned(),
        Value::Float(value) => if *value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        _ => value.as_int().unwrap_or_default().to_string(),
    }
}

/// A key as Python makes a string of it.
fn key_text(key: &Value) -> Result<Arc<str>, Trouble> {
    match key {
        Value::Text(text) => Ok(Arc::clone(text)),
        Value::Int(_) | Value::Float(_) => Ok(number(key).into()),
        Value::Bool(value) => Ok(if *value { "true" } else { "false" }.into()),
        Value::None => Ok("null".into()),
        _ => Err(Trouble::Failed(format!("tojson: {} as a key cannot be written as JSON", key.kind()))),
    }
}
