//! Values as texts: as `{{ }}` prints them, and as Python's `repr` writes them inside of lists.

use super::fault::Trouble;
use super::meter::Meter;
use super::value::{ListKind, Value};
use std::fmt::Write as _;
use std::sync::Arc;

/// Bytes between two charges of a text that is made character by character.
const PIECE_BYTES: usize = 4096;

/// Text that is charged while it is written.
pub(super) struct Writer<'m> {
    text: String,
    meter: &'m Meter<'m>,
}

impl<'m> Writer<'m> {
    pub(super) fn new(meter: &'m Meter<'m>) -> Self {
        Self { text: String::new(), meter }
    }

    pub(super) fn push(&mut self, text: &str) -> Result<(), Trouble> {
        self.meter.make(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Pushes `c` `count` times.
    pub(super) fn push_many(&mut self, c: char, count: usize) -> Result<(), Trouble> {
        self.meter.make(count.saturating_mul(c.len_utf8()))?;
        self.text.extend(std::iter::repeat_n(c, count));
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    pub(super) fn into_value(self) -> Value {
        Value::Text(self.text.into())
    }

    pub(super) fn meter(&self) -> &'m Meter<'m> {
        self.meter
    }

    /// `value` as `{{ }}` prints it.
    pub(super) fn display(&mut self, value: &Value) -> Result<(), Trouble> {
        match value {
            Value::Undefined => Ok(()),
            Value::Text(text) => self.push(text),
            _ => self.repr(value),
        }
    }

    /// `value` as Python's `repr` writes it.
    pub(super) fn repr(&mut self, value: &Value) -> Result<(), Trouble> {
        self.meter.visit(1)?;
        match value {
            Value::Undefined => self.push("Undefined"),
            Value::None => self.push("None"),
            Value::Bool(value) => self.push(if *value { "True" } else { "False" }),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) => self.push(&float_text(*value)),
            Value::Text(text) => self.quoted(text),
            Value::List(list) => {
                let [open, close] = if list.kind == ListKind::List { ["[", "]"] } else { ["(", ")"] };
                self.push(open)?;
                self.separated(list.items(), |writer, item| writer.repr(item))?;
                let lone = list.kind == ListKind::Tuple && list.items().len() == 1;
                self.push(if lone { ",)" } else { close })
            }
            Value::Map(map) => {
                self.push("{")?;
                self.separated(map.entries(), |writer, (key, value)| {
                    writer.repr(key)?;
                    writer.push(": ")?;
                    writer.repr(value)
                })?;
                self.push("}")
            }
            Value::Namespace(namespace) => {
                self.push("<Namespace {")?;
                self.separated(&namespace.values.borrow(), |writer, (name, value)| {
                    writer.quoted(name)?;
                    writer.push(": ")?;
                    writer.repr(value)
                })?;
                self.push("}>")
            }
            Value::Loop(_) => self.push("<loop>"),
            Value::Macro(closure) => self.push(&format!("<macro '{}'>", closure.definition.name)),
            Value::Function(_) => self.push("<function>"),
        }
    }

    fn separated<T>(
        &mut self,
        items: &[T],
        write: impl Fn(&mut Self, &T) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.push(", ")?;
            }
            write(self, item)?;
        }
        Ok(())
    }

    /// A text in quotes, the double ones if it has single ones alone.
    fn quoted(&mut self, text: &str) -> Result<(), Trouble> {
        self.meter.read(text.len())?;
        let quote = if text.contains('\'') && !text.contains('"') { "\"" } else { "'" };
        self.push(quote)?;
        self.push_each(text, |c, written| match c {
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\t' => written.push_str("\\t"),
            '\\' => written.push_str("\\\\"),
            _ if quote.starts_with(c) => written.extend(['\\', c]),
            _ if c < ' ' || ('\u{7f}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                // Writing to a string cannot fail.
                let _written = write!(written, "\\x{:02x}", u32::from(c));
            }
            _ => written.push(c),
        })?;
        self.push(quote)
    }

    /// Pushes what `write` makes of each character, charged piece by piece.
    pub(super) fn push_each(&mut self, text: &str, write: impl Fn(char, &mut String)) -> Result<(), Trouble> {
        self.meter.read(text.len())?;
        let mut piece = String::new();
        for c in text.chars() {
            write(c, &mut piece);
            if piece.len() >= PIECE_BYTES {
                self.push(&piece)?;
                piece.clear();
            }
        }
        self.push(&piece)
    }
}

/// `value` as `{{ }}` prints it.
pub(super) fn text_of(value: &Value, meter: &Meter<'_>) -> Result<Arc<str>, Trouble> {
    if let Value::Text(text) = value {
        return Ok(Arc::clone(text));
    }
    let mut writer = Writer::new(meter);
    writer.display(value)?;
    Ok(writer.finish().into())
}

/// A number as Python writes a float: the shortest digits that read back as it.
pub(super) fn float_text(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
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
