//! Marking which characters of a filled template came from the caller's messages.
//!
//! Each character that occurs in a control token has a double: a private character that occurs nowhere in the template
//! or the messages. Filling the template with messages written in doubles shows, character by character, what of the
//! result came from them, whatever the template cut, moved or joined. White space stays as it is, so that trimming does
//! the same, and every double stands for one character, so that lengths and positions are the same too.
//!
//! A template may also compare texts, and a double is not what it looks for. So the texts that it may look for, its
//! string constants, are left unmarked where the messages have them. The result must read, doubles undone, exactly as
//! with the messages as they are; if it does not, the next of [`Marking::ALL`] is tried, which marks less.

use super::patterns::{Patterns, Seen};
use serde_json::{Map, Value};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// Characters used as doubles: the private use area of plane 16.
const DOUBLES: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// Most bytes of control tokens that are searched for. Vocabularies have far fewer.
const CONTROL_BYTES_MAX: usize = 256 << 10;

/// Roles and kinds that are part of the format rather than of a message's content. Templates compare them, look them up
/// and build control tokens from them.
const FORMAT_WORDS: [&str; 22] = [
    "array",
    "assistant",
    "boolean",
    "developer",
    "document",
    "environment",
    "function",
    "image",
    "image_url",
    "integer",
    "ipython",
    "model",
    "null",
    "number",
    "object",
    "observation",
    "string",
    "system",
    "text",
    "tool",
    "tool_response",
    "user",
]; // In alphabetical order.

/// Extent of the marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marking {
    /// True if string constants that are part of a control token, or contain one, are left unmarked too. Control tokens
    /// so related to a constant that is found in the messages are then never parsed.
    all_constants: bool,
    /// True if letters and digits are left unmarked, because a template may turn them into others.
    only_symbols: bool,
}

impl Marking {
    /// From the most to the least that is marked.
    pub(super) const ALL: [Self; 3] = [
        Self { all_constants: false, only_symbols: false },
        Self { all_constants: true, only_symbols: false },
        Self { all_constants: true, only_symbols: true },
    ];

    /// True if no control token is given up.
    pub(super) fn is_complete(self) -> bool {
        !self.all_constants
    }
}

/// Characters and their doubles.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    doubles: HashMap<char, char>,
    originals: HashMap<char, char>,
}

impl Marks {
    /// The double of `c`, or `c` if it has none.
    pub(super) fn mark(&self, c: char) -> char {
        self.doubles.get(&c).copied().unwrap_or(c)
    }

    /// Original character of the double `c`.
    pub(super) fn unmark(&self, c: char) -> Option<char> {
        self.originals.get(&c).copied()
    }
}

/// Marks values for one template and vocabulary.
pub(super) struct Marker<'a> {
    /// Words of the template's source; a key among them may be a field name.
    words: HashSet<&'a str>,
    constants: &'a [String],
    /// Per constant, true if it is part of a control token or contains one.
    concerned: Vec<bool>,
    controls: &'a [String],
    control_patterns: Patterns,
    marks: Marks,
}

/// Marks values in one way.
pub(super) struct Marked<'a> {
    marker: &'a Marker<'a>,
    marking: Marking,
    /// Constants that are left unmarked.
    unmarked: Vec<&'a str>,
    unmarked_patterns: Patterns,
    /// Unmarked constants that were found.
    found: Seen,
}

impl<'a> Marker<'a> {
    /// A marker for what is filled into a template with `source` and `constants`, so that none of `controls` is made of
    /// it. `values`: all that is filled in. `None` if there are not enough characters for doubles, or too many control
    /// tokens to be searched for.
    pub(super) fn new(
        source: &'a str,
        constants: &'a [String],
        controls: &'a [String],
        values: &Map<String, Value>,
    ) -> Option<Self> {
        if controls.iter().map(String::len).sum::<usize>() > CONTROL_BYTES_MAX {
            return None;
        }
        let mut taken: HashSet<char> = HashSet::new();
        let mut take = |text: &str| taken.extend(text.chars().filter(|c| DOUBLES.contains(c)));
        take(source);
        constants.iter().for_each(|constant| take(constant));
        controls.iter().for_each(|control| take(control));
        values.iter().for_each(|(key, value)| each_string(key, value, &mut take));
        let mut free = DOUBLES.filter(|c| !taken.contains(c));
        let mut marks = Marks::default();
        for c in controls.iter().flat_map(|control| control.chars()).filter(|c| !c.is_whitespace()) {
            if let Entry::Vacant(entry) = marks.doubles.entry(c) {
                let double = free.next()?;
                entry.insert(double);
                marks.originals.insert(double, c);
            }
        }
        let control_patterns = Patterns::new(controls.iter().map(String::as_str));
        let constant_patterns = Patterns::new(constants.iter().map(String::as_str));
        let mut in_controls = constant_patterns.unseen();
        controls.iter().for_each(|control| constant_patterns.see(control, &mut in_controls));
        let in_controls = constant_patterns.seen(&in_controls);
        let concerns = |(constant, is_part): (&String, bool)| is_part || control_patterns.is_in(constant);
        let concerned = constants.iter().zip(in_controls).map(concerns).collect();
        let words = source.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        Some(Self { words, constants, concerned, controls, control_patterns, marks })
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// `values`, marked, and the control tokens that must not be parsed.
    pub(super) fn mark(&'a self, values: &Map<String, Value>, marking: Marking) -> (Map<String, Value>, Vec<&'a str>) {
        let constants = self.constants.iter().map(String::as_str).zip(&self.concerned);
        let unmarked = constants.filter(|(_, concerned)| marking.all_constants || !**concerned);
        let unmarked: Vec<&str> = unmarked.map(|(constant, _)| constant).collect();
        let unmarked_patterns = Patterns::new(unmarked.iter().copied());
        let found = unmarked_patterns.unseen();
        let mut marked = Marked { marker: self, marking, unmarked, unmarked_patterns, found };
        let values = values.iter().map(|(key, value)| (key.clone(), marked.value(key, value))).collect();
        (values, marked.given_up())
    }

    /// True if the template may look up a field by `key`, so that `key` must stay unmarked.
    fn is_name(&self, key: &str) -> bool {
        self.words.contains(key) && !self.control_patterns.is_in(key)
    }
}

impl<'a> Marked<'a> {
    fn value(&mut self, key: &str, value: &Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
            Value::String(text) if key == "role" || key == "type" => {
                if FORMAT_WORDS.contains(&text.as_str()) {
                    value.clone()
                } else {
                    Value::String(text.chars().map(|c| self.marker.marks.mark(c)).collect())
                }
            }
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.value(key, item)).collect()),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| {
                    let name = if self.marker.is_name(key) { key.clone() } else { self.text(key) };
                    (name, self.value(key, value))
                });
                Value::Object(fields.collect())
            }
        }
    }

    fn text(&mut self, text: &str) -> String {
        if self.marking.all_constants {
            self.unmarked_patterns.see(text, &mut self.found);
        }
        // Bytes before each place that belong to an unmarked constant which ends there.
        let mut unmarked_before = vec![0_u32; text.len() + 1];
        self.unmarked_patterns.ends(text, |end, bytes| unmarked_before[end] = u32::try_from(bytes).unwrap_or(u32::MAX));
        let mut reach = 0;
        for bytes in unmarked_before.iter_mut().rev() {
            reach = u32::max(reach, *bytes);
            *bytes = reach;
            reach = reach.saturating_sub(1);
        }
        let is_unmarked = |at: usize| unmarked_before[at + 1] > 0;
        let double = |(at, c): (usize, char)| if is_unmarked(at) { c } else { self.marked_in_text(c) };
        text.char_indices().map(double).collect()
    }

    fn marked_in_text(&self, c: char) -> char {
        if self.marking.only_symbols && c.is_alphanumeric() { c } else { self.marker.marks.mark(c) }
    }

    /// Control tokens that are never marked, or have to do with an unmarked constant that was found.
    fn given_up(&self) -> Vec<&'a str> {
        let found = self.unmarked.iter().zip(self.unmarked_patterns.seen(&self.found));
        let found: Vec<&str> = found.filter(|(_, found)| *found).map(|(constant, _)| *constant).collect();
        let found_patterns = Patterns::new(found.iter().copied());
        let mut in_found = self.marker.control_patterns.unseen();
        found.iter().for_each(|constant| self.marker.control_patterns.see(constant, &mut in_found));
        let in_found = self.marker.control_patterns.seen(&in_found);
        let controls = self.marker.controls.iter().map(String::as_str).zip(in_found);
        let is_given_up = |(control, is_part): &(&str, bool)| {
            *is_part || control.chars().all(|c| self.marked_in_text(c) == c) || found_patterns.is_in(control)
        };
        controls.filter(is_given_up).map(|(control, _)| control).collect()
    }
}

/// Calls `visit` with every string and every key in `value`, and with `key`.
fn each_string(key: &str, value: &Value, visit: &mut impl FnMut(&str)) {
    visit(key);
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| each_string("", item, visit)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| each_string(key, value, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
