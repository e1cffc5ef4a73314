//! Arguments of a filter, a test, a method or a function, taken by name in the order of the parameters.

use super::fault::Trouble;
use super::meter::Meter;
use super::text::text_of;
use super::value::{List, Value};
use crate::chat::local_time::LocalTime;
use crate::chat::marks::Marks;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Facts of one filling that filters and functions need.
pub(super) struct Context<'a> {
    pub(super) meter: Meter<'a>,
    pub(super) marks: &'a Marks,
    pub(super) now: Option<LocalTime>,
}

/// Call with its evaluated arguments.
pub(super) struct Call<'c> {
    name: &'c str,
    subject: Value,
    positional: VecDeque<Value>,
    named: Vec<(Arc<str>, Value)>,
    context: &'c Context<'c>,
}

/// Evaluated arguments: those without and those with a name.
pub(super) type Given = (VecDeque<Value>, Vec<(Arc<str>, Value)>);

impl<'c> Call<'c> {
    /// A call of `name` on `subject`, which is what is filtered or what has the method.
    pub(super) fn new(name: &'c str, subject: Value, (positional, named): Given, context: &'c Context<'c>) -> Self {
        Self { name, subject, positional, named, context }
    }

    pub(super) fn name(&self) -> &'c str {
        self.name
    }

    pub(super) fn context(&self) -> &'c Context<'c> {
        self.context
    }

    pub(super) fn meter(&self) -> &'c Meter<'c> {
        &self.context.meter
    }

    pub(super) fn subject(&self) -> Value {
        self.subject.clone()
    }

    /// The subject as a text, of whatever kind it is.
    pub(super) fn subject_text(&self) -> Result<Arc<str>, Trouble> {
        let text = text_of(&self.subject, self.meter())?;
        self.meter().read(text.len())?;
        Ok(text)
    }

    /// The items of the subject, each visited.
    pub(super) fn subject_items(&self) -> Result<Rc<List>, Trouble> {
        let items = self.subject.items(self.meter())?;
        self.meter().visit(items.items().len())?;
        Ok(items)
    }

    /// The next argument, or the one called `name`.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.positional.pop_front().or_else(|| self.take_named(name))
    }

    /// The argument called `name`.
    pub(super) fn take_named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(key, _)| **key == *name)?;
        Some(self.named.swap_remove(at).1)
    }

    /// The same, without which the call is wrong.
    pub(super) fn require(&mut self, name: &str) -> Result<Value, Trouble> {
        self.take(name).ok_or_else(|| self.failed(&format!("there is no `{name}`")))
    }

    /// A required text.
    pub(super) fn require_text(&mut self, name: &str) -> Result<Arc<str>, Trouble> {
        match self.require(name)? {
            Value::Text(text) => {
                self.meter().read(text.len())?;
                Ok(text)
            }
            other => Err(self.failed(&format!("`{name}` is {}, not a text", other.kind()))),
        }
    }

    /// An optional text; `none` is no text.
    pub(super) fn take_text(&mut self, name: &str) -> Result<Option<Arc<str>>, Trouble> {
        match self.take(name) {
            None | Some(Value::None | Value::Undefined) => Ok(None),
            Some(Value::Text(text)) => {
                self.meter().read(text.len())?;
                Ok(Some(text))
            }
            Some(other) => Err(self.failed(&format!("`{name}` is {}, not a text", other.kind()))),
        }
    }

    /// An optional whole number; `none` is no number.
    pub(super) fn take_int(&mut self, name: &str) -> Result<Option<i128>, Trouble> {
        match self.take(name) {
            None | Some(Value::None | Value::Undefined) => Ok(None),
            Some(value) => match value.as_int() {
                Some(number) => Ok(Some(number)),
                None => Err(self.failed(&format!("`{name}` is {}, not a whole number", value.kind()))),
            },
        }
    }

    /// An optional count. Negative ones are none.
    pub(super) fn take_count(&mut self, name: &str) -> Result<Option<usize>, Trouble> {
        Ok(self.take_int(name)?.and_then(|count| usize::try_from(count).ok()))
    }

    /// True if the argument `name` is given and true.
    pub(super) fn take_flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value.is_true())
    }

    /// All arguments that are left.
    pub(super) fn rest(&mut self) -> Given {
        (std::mem::take(&mut self.positional), std::mem::take(&mut self.named))
    }

    /// Checks that no argument is left.
    ///
    /// # Errors
    ///
    /// If one is.
    pub(super) fn finish(&self) -> Result<(), Trouble> {
        match self.named.first() {
            Some((name, _)) => Err(self.failed(&format!("there is no parameter `{name}`"))),
            None if self.positional.is_empty() => Ok(()),
            None => Err(self.failed("there are too many arguments")),
        }
    }

    pub(super) fn failed(&self, detail: &str) -> Trouble {
        Trouble::Failed(format!("{}: {detail}", self.name))
    }
}
