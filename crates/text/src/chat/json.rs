//! The `tojson` filter, which writes what Python's `json.dumps` does as model makers use it: keys in their order, a space
//! after commas and colons, characters beyond ASCII as they are, nothing escaped for HTML.

use super::marks::Marks;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// How deep values may be nested. A bound keeps a hostile template from using up the stack.
const DEPTH_MAX: usize = 128;

/// How to write.
struct Style {
    /// The spaces of one level; without, everything is on one line.
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    item_separator: String,
    key_separator: String,
}

/// The filter. Marked characters keep their marks.
pub(super) fn tojson(value: &Value, options: &Kwargs, marks: &Marks) -> Result<Value, Error> {
    let style = Style::from_options(options)?;
    let mut text = String::new();
    style.write(value, 0, marks, &mut text)?;
    Ok(Value::from_safe_string(text))
}

/// A number as Python writes a float: the shortest digits that read back as it.
pub(super) fn python_float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent @ (..-4 | 16..)) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ if value.fract() == 0.0 => format!("{value:.1}"),
        _ => value.to_string(),
    }
}

impl Style {
    fn from_options(options: &Kwargs) -> Result<Self, Error> {
        let indent = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
        let indent = match indent {
            None => None,
            Some(indent) => Some(indent.as_usize().filter(|&spaces| spaces <= 64).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("tojson: indent is {indent}, not 0 to 64"))
            })?),
        };
        let separators = options.get::<Option<Value>>("separators")?.filter(|separators| !separators.is_none());
        let (item_separator, key_separator) = match separators {
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        };
        let style = Self {
            indent,
            ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            item_separator,
            key_separator,
        };
        options.assert_all_used()?;
        Ok(style)
    }

    fn write(&self, value: &Value, depth: usize, marks: &Marks, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            let detail = format!("tojson: more than {DEPTH_MAX} values are nested in each other");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), marks, out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(['[', ']'], depth, out, &items, |item, out| self.write(item, depth + 1, marks, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(['{', '}'], depth, out, &keys, |key, out| {
                    self.write_string(&key_text(key)?, marks, out);
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, marks, out)
                })?;
            }
            kind => {
                let detail = format!("tojson: a value of kind {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        brackets: [char; 2],
        depth: usize,
        out: &mut String,
        items: &[Value],
        write: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |levels: usize, out: &mut String| {
            if let Some(spaces) = self.indent.filter(|_| !items.is_empty()) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', spaces * levels));
            }
        };
        out.push(brackets[0]);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        line(depth, out);
        out.push(brackets[1]);
        Ok(())
    }

    fn write_string(&self, text: &str, marks: &Marks, out: &mut String) {
        out.push('"');
        let mut escaped = String::new();
        for c in text.chars() {
            escaped.clear();
            match marks.unmark(c) {
                None => self.escape(c, out),
                Some(plain) => {
                    self.escape(plain, &mut escaped);
                    out.extend(escaped.chars().map(|c| marks.mark(c)));
                }
            }
        }
        out.push('"');
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
    if value.is_integer() {
        value.to_string()
    } else {
        f64::try_from(value.clone()).map_or_else(|_| value.to_string(), python_float)
    }
}

/// A key as Python makes a string of it.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => {
            let detail = format!("tojson: a key of kind {kind} cannot be written as JSON");
            Err(Error::new(ErrorKind::BadSerialization, detail))
        }
    }
}
