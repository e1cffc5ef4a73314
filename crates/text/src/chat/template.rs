//! A compiled template, and what it is filled with.

use super::jinja::{Fault, Filled, Filling, Limits, Template, Trouble};
use super::local_time::LocalTime;
use super::marks::{Marker, Marking, Marks};
use super::patterns::Patterns;
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Work that any conversation may cause, in steps of a template: a fraction of a second.
const STEPS: u64 = 1 << 20;

/// Further work for each byte of the conversation, so that long ones can be filled in.
const STEPS_PER_BYTE: u64 = 4;

/// Bytes of all values that any conversation may cause to be made.
const VALUE_BYTES: u64 = 64 << 20;

/// Further bytes of values for each byte of the conversation.
const VALUE_BYTES_PER_BYTE: u64 = 32;

/// The longest text that a template may give for an empty conversation, in bytes.
const TEXT_BYTES: usize = 1 << 20;

/// Allowance of text per byte of the conversation, on top of [`TEXT_BYTES`].
const TEXT_BYTES_PER_BYTE: usize = 8;

/// Reasons for which a conversation could not be filled into a template. The template came with the model and the
/// conversation from the caller; either may be at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template has a syntax error.
    #[error("line {line} of the chat template: {detail}")]
    Syntax {
        /// Line in the template, counted from 1.
        line: usize,
        /// Syntax error.
        detail: String,
    },
    /// The template refuses the conversation.
    #[error("line {line} of the chat template refuses the conversation: {message}")]
    Refused {
        /// Line in the template, counted from 1.
        line: usize,
        /// Message of the template's `raise_exception`.
        message: String,
    },
    /// The template does something impossible with the conversation.
    #[error("line {line} of the chat template: {detail}")]
    Failed {
        /// Line in the template, counted from 1; 0 if that is not known.
        line: usize,
        /// Cause.
        detail: String,
    },
    /// The template works too long.
    #[error("line {line} of the chat template: more work than {steps} steps")]
    TooMuchWork {
        /// Line where it was stopped, counted from 1; 0 if that is not known.
        line: usize,
        /// Steps that are allowed.
        steps: u64,
    },
    /// The template makes too much data.
    #[error("line {line} of the chat template: values of more than {max} bytes are made")]
    TooMuchMemory {
        /// Line where it was stopped, counted from 1; 0 if that is not known.
        line: usize,
        /// Bytes that are allowed.
        max: u64,
    },
    /// The caller's deadline passed.
    #[error("line {line} of the chat template: it is not filled in time")]
    Deadline {
        /// Line where it was stopped, counted from 1; 0 if that is not known.
        line: usize,
    },
    /// The template gives too long a text.
    #[error("line {line} of the chat template: a text of {bytes} bytes or more, above {max}")]
    TooLong {
        /// Line where it was stopped, counted from 1.
        line: usize,
        /// Bytes of the text up to there.
        bytes: usize,
        /// Bytes that are allowed.
        max: usize,
    },
    /// There is no template of this name.
    #[error("there is no chat template `{name}` (there are: {})", .known.join(", "))]
    UnknownTemplate {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The model file has no template.
    #[error("the model has no chat template")]
    NoTemplate,
}

/// Names that the renderer gives a template itself: variables of these names would replace the conversation, what the
/// vocabulary says, or functions.
pub const RENDERER_NAMES: [&str; 13] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "range",
    "dict",
    "namespace",
    "raise_exception",
    "strftime_now",
    "loop",
    "caller",
];

/// One message of a conversation: a JSON object with at least a `role`, in the order in which its fields were given.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatMessage {
    fields: Map<String, Value>,
}

impl ChatMessage {
    /// A message of plain text.
    pub fn new(role: &str, content: &str) -> Self {
        let fields = [("role", role), ("content", content)].map(|(key, text)| (key.to_owned(), text.into()));
        Self { fields: fields.into_iter().collect() }
    }

    /// A message with any fields that templates may look for, such as `tool_calls`.
    pub fn from_fields(fields: Map<String, Value>) -> Self {
        Self { fields }
    }
}

/// Variables of a template besides the messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// True to end the text with the start of the model's answer.
    pub add_generation_prompt: bool,
    /// Tools that the model may call: a list of JSON schemas, or null.
    pub tools: Value,
    /// Documents that the model may cite: a list of objects, or null.
    pub documents: Value,
    /// Further variables of the template, such as `enable_thinking`. They take precedence over the other options.
    pub variables: Map<String, Value>,
    /// Local time for `strftime_now`; without it the template has no such function.
    pub now: Option<LocalTime>,
    /// Deadline of the rendering.
    pub deadline: Option<Deadline>,
}

/// End of the time that may be spent on a conversation, by a clock of the caller's.
#[derive(Clone)]
pub struct Deadline(Arc<dyn Fn() -> bool + Send + Sync>);

impl Deadline {
    /// A deadline that `has_passed` decides; it is called every few milliseconds.
    pub fn new(has_passed: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(has_passed))
    }

    fn has_passed(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for Deadline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deadline")
    }
}

/// Completeness of tracing: the part of the rendered text whose source, template or messages, is known. Messages never
/// yield control tokens, whatever it is; it only decides if the template can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// Completely: the template's control tokens are parsed.
    Complete,
    /// The template looks for texts in messages that have to do with control tokens, and found some: those control
    /// tokens are parsed nowhere, the others are.
    Partial,
    /// The template changes messages in a way that cannot be followed: control tokens are parsed only in text that
    /// stands outside of the template's tags.
    Lost,
}

/// A filled template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    trusted: Vec<Range<usize>>,
    tracing: Tracing,
}

impl Rendered {
    /// The text, the same as if nothing had been traced.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The parts of the text in which control tokens may be parsed, as ranges of bytes, ascending.
    pub fn trusted(&self) -> &[Range<usize>] {
        &self.trusted
    }

    /// Completeness of tracing.
    pub fn tracing(&self) -> Tracing {
        self.tracing
    }

    /// The tokens, as of [`super::encode_chat`].
    pub fn encode(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        tokenizer.begin_with_bos(tokenizer.encode_spans(&self.text, &self.trusted))
    }
}

/// The templates of a model: the main one (`tokenizer.chat_template`) and those for a purpose
/// (`tokenizer.chat_template.NAME`).
#[derive(Debug, Default)]
pub struct ChatTemplates {
    main: Option<ChatTemplate>,
    named: BTreeMap<String, ChatTemplate>,
}

impl ChatTemplates {
    /// Reads the main template, if there is one, and the `named` ones.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`] of the first that does not parse.
    pub fn new<'a>(main: Option<&str>, named: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ChatError> {
        let named = named.into_iter().map(|(name, source)| Ok((name.to_owned(), ChatTemplate::new(source)?)));
        Ok(Self { main: main.map(ChatTemplate::new).transpose()?, named: named.collect::<Result<_, ChatError>>()? })
    }

    /// The template `name`; without a name, the one for tools (`tool_use`) if there are `tools` and such a template,
    /// and else the main one.
    ///
    /// # Errors
    ///
    /// If there is none of that name, or none at all.
    pub fn choose(&self, name: Option<&str>, tools: &Value) -> Result<&ChatTemplate, ChatError> {
        let has_tools = tools.as_array().is_some_and(|tools| !tools.is_empty());
        match name {
            Some("default") if !self.named.contains_key("default") => self.main.as_ref().ok_or(ChatError::NoTemplate),
            Some(name) => self.named.get(name).ok_or_else(|| ChatError::UnknownTemplate {
                name: name.to_owned(),
                known: self.main.iter().map(|_| "default".to_owned()).chain(self.named.keys().cloned()).collect(),
            }),
            None => {
                let for_tools = self.named.get("tool_use").filter(|_| has_tools);
                for_tools.or(self.main.as_ref()).or_else(|| self.named.get("default")).ok_or(ChatError::NoTemplate)
            }
        }
    }
}

/// A template that was read. It is never changed, so threads may share it.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    template: Template,
}

impl ChatTemplate {
    /// Reads `source`.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`], also if it is too long or too deeply nested.
    pub fn new(source: &str) -> Result<Self, ChatError> {
        let template = Template::new(source).map_err(|fault| error(fault, &Limits::default()))?;
        Ok(Self { source: source.to_owned(), template })
    }

    /// True if the template has `name` in its tags: as a variable, a field that it looks up, or a text literal. One that
    /// has not makes nothing of such a variable or field.
    pub fn mentions(&self, name: &str) -> bool {
        self.template.mentions(name)
    }

    /// Fills the template. `bos_token` and `eos_token` are those of `tokenizer`.
    ///
    /// # Errors
    ///
    /// See [`ChatError`].
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<Rendered, ChatError> {
        let values = values(messages, options);
        let filling = Constants::new(self, tokenizer, &values, options);
        let Filled { text, raw } = filling.fill(&values, &Marks::default())?;
        let controls: Vec<String> =
            tokenizer.control_spellings().filter(|text| !text.is_empty()).map(str::to_owned).collect();
        if let Some(marker) = Marker::new(&self.source, self.template.texts(), &controls, &values) {
            for marking in Marking::ALL {
                let (marked, given_up) = marker.mark(&values, marking);
                // A template that fails only on marked messages has looked at them.
                let Ok(filled) = filling.fill(&marked, marker.marks()) else { continue };
                let Some(trusted) = unmarked_ranges(&filled.text, &text, marker.marks()) else { continue };
                let complete = marking.is_complete() || given_up.is_empty();
                let tracing = if complete { Tracing::Complete } else { Tracing::Partial };
                let trusted = without(trusted, &text, &given_up);
                return Ok(Rendered { text, trusted, tracing });
            }
        }
        Ok(Rendered { text, trusted: raw, tracing: Tracing::Lost })
    }
}

/// All that comes from the caller.
fn values(messages: &[ChatMessage], options: &ChatOptions) -> Map<String, Value> {
    let messages = messages.iter().map(|message| Value::Object(message.fields.clone())).collect();
    let mut values = Map::new();
    values.insert("messages".to_owned(), Value::Array(messages));
    values.insert("tools".to_owned(), options.tools.clone());
    values.insert("documents".to_owned(), options.documents.clone());
    values.extend(options.variables.iter().map(|(key, value)| (key.clone(), value.clone())));
    values
}

/// A template, and all that is the same for every filling of a conversation.
struct Constants<'a> {
    template: &'a ChatTemplate,
    variables: Vec<(&'static str, Value)>,
    options: &'a ChatOptions,
    limits: Limits,
}

impl<'a> Constants<'a> {
    fn new(
        template: &'a ChatTemplate,
        tokenizer: &Tokenizer,
        values: &Map<String, Value>,
        options: &'a ChatOptions,
    ) -> Self {
        let mut variables = vec![("add_generation_prompt", Value::Bool(options.add_generation_prompt))];
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
            if let Some(text) = id.and_then(|id| tokenizer.token_spelling(id).ok()) {
                variables.push((name, Value::from(text)));
            }
        }
        let bytes: usize = values.iter().map(|(key, value)| key.len() + bytes_of(value)).sum();
        let bounded = |per_byte: u64, base: u64| {
            u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(per_byte).saturating_add(base)
        };
        let limits = Limits {
            steps: bounded(STEPS_PER_BYTE, STEPS),
            value_bytes: bounded(VALUE_BYTES_PER_BYTE, VALUE_BYTES),
            text_bytes: bytes.saturating_mul(TEXT_BYTES_PER_BYTE).saturating_add(TEXT_BYTES),
        };
        Self { template, variables, options, limits }
    }

    fn fill(&self, values: &Map<String, Value>, marks: &Marks) -> Result<Filled, ChatError> {
        let filling = Filling {
            values,
            others: &self.variables,
            marks,
            now: self.options.now,
            limits: self.limits,
            expired: &|| self.options.deadline.as_ref().is_some_and(Deadline::has_passed),
        };
        self.template.template.fill(&filling).map_err(|fault| error(fault, &self.limits))
    }
}

/// Longest detail of an error, in characters.
const DETAIL_CHARS_MAX: usize = 2000;

fn error(Fault { line, trouble }: Fault, limits: &Limits) -> ChatError {
    match trouble {
        Trouble::Syntax(detail) => ChatError::Syntax { line, detail: cut(detail) },
        Trouble::Failed(detail) => ChatError::Failed { line, detail: cut(detail) },
        Trouble::Raised(message) => ChatError::Refused { line, message },
        Trouble::Work => ChatError::TooMuchWork { line, steps: limits.steps },
        Trouble::Memory => ChatError::TooMuchMemory { line, max: limits.value_bytes },
        Trouble::TooLong { bytes } => ChatError::TooLong { line, bytes, max: limits.text_bytes },
        Trouble::Deadline => ChatError::Deadline { line },
    }
}

/// The detail of an error, which may repeat a name or a text of the template, up to [`DETAIL_CHARS_MAX`].
fn cut(detail: String) -> String {
    match detail.char_indices().nth(DETAIL_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &detail[..at]),
        None => detail,
    }
}

/// About the size of `value` as JSON, in bytes.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 8,
        Value::Array(items) => 8 + items.iter().map(bytes_of).sum::<usize>(),
        Value::Object(fields) => 8 + fields.iter().map(|(key, value)| key.len() + bytes_of(value)).sum::<usize>(),
    }
}

/// The ranges of `text` whose characters are not marked in `marked`; `None` if that does not read the same.
fn unmarked_ranges(marked: &str, text: &str, marks: &Marks) -> Option<Vec<Range<usize>>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut of_text = text.char_indices();
    for c in marked.chars() {
        let (start, expected) = of_text.next()?;
        let original = marks.unmark(c);
        if original.unwrap_or(c) != expected {
            return None;
        }
        let end = start + expected.len_utf8();
        match ranges.last_mut() {
            _ if original.is_some() => {}
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    of_text.next().is_none().then_some(ranges)
}

/// `ranges` without the last character of each place where `text` spells one of `controls`.
fn without(ranges: Vec<Range<usize>>, text: &str, controls: &[&str]) -> Vec<Range<usize>> {
    let mut holes = Vec::new();
    Patterns::new(controls.iter().copied()).ends(text, |end, _| {
        holes.extend(text[..end].char_indices().next_back().map(|(at, _)| at));
    });
    let mut parts = Vec::with_capacity(ranges.len() + holes.len());
    for range in ranges {
        let mut start = range.start;
        for &hole in &holes[holes.partition_point(|&hole| hole < range.start)..] {
            if hole >= range.end {
                break;
            }
            parts.push(start..hole);
            start = hole + text[hole..].chars().next().map_or(1, char::len_utf8);
        }
        parts.push(start..range.end);
    }
    parts.retain(|part| !part.is_empty());
    parts
}
