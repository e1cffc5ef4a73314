//! Filling of a template: its statements, one after the other.

use super::Template;
use super::arguments::{Context, Given};
use super::fault::{Fault, Trouble};
use super::filters;
use super::meter::{Expired, Limits, Meter};
use super::scope::{Closure, Scope};
use super::syntax::{Block, Expr, FilterCall, For, Macro, Recursion, Statement, Target};
use super::text::text_of;
use super::value::{List, ListKind, LoopState, Map, Value};
use crate::chat::local_time::LocalTime;
use crate::chat::marks::Marks;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// All that a template is filled with.
pub(in crate::chat) struct Filling<'a> {
    /// Variables.
    pub(in crate::chat) values: &'a serde_json::Map<String, Json>,
    /// Variables that give way to those of the same name among `values`.
    pub(in crate::chat) others: &'a [(&'static str, Json)],
    /// Characters whose marks `tojson` keeps.
    pub(in crate::chat) marks: &'a Marks,
    /// Time of `strftime_now`; `None` leaves the function undefined.
    pub(in crate::chat) now: Option<LocalTime>,
    /// Budget.
    pub(in crate::chat) limits: Limits,
    /// Caller's deadline.
    pub(in crate::chat) expired: Expired<'a>,
}

/// Filled template.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::chat) struct Filled {
    /// The text.
    pub(in crate::chat) text: String,
    /// Ranges of it that stand in the template outside of tags.
    pub(in crate::chat) raw: Vec<Range<usize>>,
}

/// Next statement to be run.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl Template {
    /// Fills the template.
    ///
    /// # Errors
    ///
    /// The trouble and the line at which it came up.
    pub(in crate::chat) fn fill(&self, filling: &Filling) -> Result<Filled, Fault> {
        let meter = Meter::new(&filling.limits, filling.expired);
        let context = Context { meter, marks: filling.marks, now: filling.now };
        let root = Rc::new(Scope::default());
        let unplaced = |trouble| Fault { line: 0, trouble };
        let others = filling.others.iter().map(|(name, value)| (*name, value));
        for (name, value) in others.chain(filling.values.iter().map(|(name, value)| (name.as_str(), value))) {
            let value = from_json(value, &context.meter).map_err(unplaced)?;
            root.set(&Arc::from(name), value, &context.meter).map_err(unplaced)?;
        }
        let output = Filled { text: String::new(), raw: Vec::new() };
        let mut filler = Filler {
            context: &context,
            root: Rc::clone(&root),
            output,
            bytes_max: filling.limits.text_bytes,
            captures: Vec::new(),
        };
        filler.block(&self.statements, &root)?;
        Ok(filler.output)
    }
}

/// A value of the caller's, charged.
fn from_json(value: &Json, meter: &Meter) -> Result<Value, Trouble> {
    meter.enter()?;
    let value = match value {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            integer.map(Value::Int).or_else(|| number.as_f64().map(Value::Float)).unwrap_or(Value::Undefined)
        }
        Json::String(text) => {
            meter.make(text.len())?;
            Value::text(text)
        }
        Json::Array(items) => {
            let items = items.iter().map(|item| from_json(item, meter)).collect::<Result<_, _>>()?;
            Value::list(items, meter)?
        }
        Json::Object(fields) => {
            let field = |(key, value): (&String, &Json)| {
                meter.make(key.len())?;
                Ok((Value::text(key), from_json(value, meter)?))
            };
            let pairs = fields.iter().map(field).collect::<Result<_, Trouble>>()?;
            Value::Map(Map::new(pairs, meter)?)
        }
    };
    meter.leave();
    Ok(value)
}

/// State of a filling.
pub(super) struct Filler<'a> {
    pub(super) context: &'a Context<'a>,
    root: Rc<Scope>,
    output: Filled,
    bytes_max: usize,
    /// Texts of blocks that are being filled to become values.
    captures: Vec<String>,
}

impl<'a> Filler<'a> {
    pub(super) fn meter(&self) -> &'a Meter<'a> {
        &self.context.meter
    }

    fn block(&mut self, block: &Block, scope: &Rc<Scope>) -> Result<Flow, Fault> {
        self.meter().enter().map_err(|trouble| Fault { line: block.first().map_or(0, |(line, _)| *line), trouble })?;
        for (line, statement) in block {
            self.meter().step().map_err(at(*line))?;
            let flow = self.statement(*line, statement, scope)?;
            if flow != Flow::Next {
                self.meter().leave();
                return Ok(flow);
            }
        }
        self.meter().leave();
        Ok(Flow::Next)
    }

    fn statement(&mut self, line: usize, statement: &Statement, scope: &Rc<Scope>) -> Result<Flow, Fault> {
        match statement {
            Statement::Data(text) => {
                let start = self.output.text.len();
                self.write(text).map_err(at(line))?;
                if self.captures.is_empty() {
                    self.output.raw.push(start..self.output.text.len());
                }
            }
            Statement::Print(value) => {
                let value = self.value(value, scope)?;
                self.print(&value).map_err(at(line))?;
            }
            Statement::If(branches, otherwise) => {
                for (condition, block) in branches {
                    if self.value(condition, scope)?.is_true() {
                        return self.block(block, scope);
                    }
                }
                return self.block(otherwise, scope);
            }
            Statement::For(definition) => {
                let items = self.value(&definition.items, scope)?;
                self.run_loop(line, definition, &items, scope, 0)?;
            }
            Statement::Set(target, value) => {
                let value = self.value(value, scope)?;
                self.assign(target, value, scope).map_err(at(line))?;
            }
            Statement::Macro(definition) => {
                let closure = self.closure(definition, scope);
                scope.set(&definition.name, closure, self.meter()).map_err(at(line))?;
            }
            Statement::Do(value) => {
                self.value(value, scope)?;
            }
            Statement::Transparent(block) => return self.block(block, scope),
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::SetBlock(..) | Statement::Filter(..) | Statement::Call(..) | Statement::With(..) => {
                return self.scoped_statement(line, statement, scope);
            }
        }
        Ok(Flow::Next)
    }

    /// The statements with blocks that have a scope of their own.
    fn scoped_statement(&mut self, line: usize, statement: &Statement, scope: &Rc<Scope>) -> Result<Flow, Fault> {
        match statement {
            Statement::SetBlock(target, filters, block) => {
                let value = self.filtered_block(line, filters, block, scope)?;
                self.assign(target, value, scope).map_err(at(line))?;
            }
            Statement::Filter(filters, block) => {
                let value = self.filtered_block(line, filters, block, scope)?;
                self.print(&value).map_err(at(line))?;
            }
            Statement::Call(call, caller) => {
                let caller = self.closure(caller, scope);
                let value = self.call_with_caller(call, caller, scope)?;
                self.print(&value).map_err(at(line))?;
            }
            Statement::With(values, block) => {
                let inner = Scope::within(scope);
                for (target, value) in values {
                    let value = self.value(value, scope)?;
                    self.assign(target, value, &inner).map_err(at(line))?;
                }
                return self.block(block, &inner);
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn filtered_block(
        &mut self,
        line: usize,
        calls: &[FilterCall],
        block: &Block,
        scope: &Rc<Scope>,
    ) -> Result<Value, Fault> {
        let mut value = self.captured(|filler| filler.block(block, &Scope::within(scope)))?;
        for call in calls {
            let given = self.arguments(&call.arguments, scope)?;
            value = filters::apply(&call.name, value, given, self.context).map_err(at(line))?;
        }
        Ok(value)
    }

    /// The text that `fill` gives, as a value.
    fn captured<T>(&mut self, fill: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<Value, Fault> {
        self.captures.push(String::new());
        fill(self)?;
        Ok(Value::Text(self.captures.pop().unwrap_or_default().into()))
    }

    fn closure(&self, definition: &Arc<Macro>, scope: &Rc<Scope>) -> Value {
        Value::Macro(Rc::new(Closure { definition: Arc::clone(definition), scope: Rc::downgrade(scope) }))
    }

    fn print(&mut self, value: &Value) -> Result<(), Trouble> {
        let text = text_of(value, self.meter())?;
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<(), Trouble> {
        self.meter().make(text.len())?;
        if let Some(capture) = self.captures.last_mut() {
            capture.push_str(text);
            return Ok(());
        }
        let bytes = self.output.text.len() + text.len();
        if bytes > self.bytes_max {
            return Err(Trouble::TooLong { bytes });
        }
        self.output.text.push_str(text);
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<(), Trouble> {
        match target {
            Target::Name(name) => scope.set(name, value, self.meter()),
            Target::Attribute(owner, name) => match scope.get(owner) {
                Some(Value::Namespace(namespace)) => namespace.set(name, value, self.meter()),
                _ => Err(Trouble::Failed(format!("`{owner}` is not a namespace"))),
            },
            Target::Tuple(targets) => {
                let items = value.items(self.meter())?;
                if items.items().len() != targets.len() {
                    let detail = format!("{} values for {} names", items.items().len(), targets.len());
                    return Err(Trouble::Failed(detail));
                }
                for (target, item) in targets.iter().zip(items.items()) {
                    self.assign(target, item.clone(), scope)?;
                }
                Ok(())
            }
        }
    }

    /// A loop at `line` over `items`, `depth` calls of itself deep.
    fn run_loop(
        &mut self,
        line: usize,
        definition: &Arc<For>,
        items: &Value,
        scope: &Rc<Scope>,
        depth: usize,
    ) -> Result<(), Fault> {
        let all = items.items(self.meter()).map_err(at(line))?;
        let items = match &definition.condition {
            Some(condition) => self.chosen(line, &definition.target, condition, &all, scope)?,
            None => all,
        };
        let recursion =
            (definition.recursion == Recursion::Allowed).then(|| (Arc::clone(definition), Rc::downgrade(scope)));
        let changed = Rc::new(RefCell::new(None));
        let name: Arc<str> = "loop".into();
        for (index, item) in items.items().iter().enumerate() {
            self.meter().step().map_err(at(line))?;
            let turn = Scope::within(scope);
            let state = LoopState {
                items: Rc::clone(&items),
                index,
                depth,
                changed: Rc::clone(&changed),
                recursion: recursion.clone(),
            };
            turn.set(&name, Value::Loop(Rc::new(state)), self.meter()).map_err(at(line))?;
            self.assign(&definition.target, item.clone(), &turn).map_err(at(line))?;
            if self.block(&definition.body, &turn)? == Flow::Break {
                break;
            }
        }
        if items.items().is_empty() {
            self.block(&definition.otherwise, scope)?;
        }
        Ok(())
    }

    /// The items for which the loop's condition holds.
    fn chosen(
        &mut self,
        line: usize,
        target: &Target,
        condition: &Expr,
        all: &List,
        scope: &Rc<Scope>,
    ) -> Result<Rc<List>, Fault> {
        let mut chosen = Vec::new();
        for item in all.items() {
            self.meter().step().map_err(at(line))?;
            let turn = Scope::within(scope);
            self.assign(target, item.clone(), &turn).map_err(at(line))?;
            if self.value(condition, &turn)?.is_true() {
                chosen.push(item.clone());
            }
        }
        List::new(chosen, ListKind::List, self.meter()).map_err(at(line))
    }

    /// The text of a loop that calls itself.
    pub(super) fn call_loop(&mut self, line: usize, state: &LoopState, items: &Value) -> Result<Value, Fault> {
        let Some((definition, scope)) = &state.recursion else {
            return Err(at(line)(Trouble::Failed("the loop is not `recursive`".to_owned())));
        };
        let scope = scope.upgrade().unwrap_or_else(|| Rc::clone(&self.root));
        let depth = state.depth + 1;
        self.captured(|filler| filler.run_loop(line, definition, items, &scope, depth))
    }

    /// The text of a macro.
    pub(super) fn call_macro(&mut self, line: usize, closure: &Closure, given: Given) -> Result<Value, Fault> {
        let (mut positional, mut named) = given;
        let definition = &closure.definition;
        let failed = |detail: String| at(line)(Trouble::Failed(format!("{}: {detail}", definition.name)));
        let scope = Scope::within(&closure.scope.upgrade().unwrap_or_else(|| Rc::clone(&self.root)));
        for (name, default) in &definition.parameters {
            let by_name = named.iter().position(|(key, _)| key == name);
            let value = match (positional.pop_front(), by_name, default) {
                (Some(value), ..) => value,
                (None, Some(place), _) => named.swap_remove(place).1,
                (None, None, Some(default)) => self.value(default, &scope)?,
                (None, None, None) => Value::Undefined,
            };
            scope.set(name, value, self.meter()).map_err(at(line))?;
        }
        if let Some(place) = named.iter().position(|(name, _)| **name == *"caller") {
            let (name, caller) = named.swap_remove(place);
            scope.set(&name, caller, self.meter()).map_err(at(line))?;
        }
        match named.first() {
            Some((name, _)) => return Err(failed(format!("there is no parameter `{name}`"))),
            None if !positional.is_empty() => return Err(failed("there are too many arguments".to_owned())),
            None => {}
        }
        self.captured(|filler| filler.block(&definition.body, &scope))
    }
}

/// Puts a trouble at `line`.
pub(super) fn at(line: usize) -> impl Fn(Trouble) -> Fault {
    move |trouble| Fault { line, trouble }
}
