//! Values of templates. They are immutable but for namespaces, and no deeper than [`DEPTH_MAX`]: whatever walks through
//! one, drops it or prints it, stays within a known stack. A namespace holds no other, so there are no cycles.

use super::fault::Trouble;
use super::meter::Meter;
use super::scope::{Closure, Scope};
use super::syntax::For;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Most lists and dictionaries in each other.
pub(super) const DEPTH_MAX: usize = 160;

/// Entries from which on a dictionary has an index.
const INDEXED_FROM: usize = 9;

/// Value of an expression.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
    List(Rc<List>),
    Map(Rc<Map>),
    Namespace(Rc<Namespace>),
    Loop(Rc<LoopState>),
    Macro(Rc<Closure>),
    Function(Function),
}

/// Function that every template has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// List or tuple.
#[derive(Debug)]
pub(super) struct List {
    items: Vec<Value>,
    shape: Shape,
    pub(super) kind: ListKind,
}

/// Brackets of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ListKind {
    List,
    Tuple,
    /// Tuple of `grouper` and `list`, which are also its attributes.
    Group,
}

/// Dictionary in the order of its insertions.
#[derive(Debug)]
pub(super) struct Map {
    entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    shape: Shape,
}

/// Facts of all values inside of one.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    depth: usize,
    /// True if a namespace or a loop is among them.
    has_state: bool,
}

/// Hashable value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    None,
    Number(i128),
    /// Bits of a number with a fraction.
    Fraction(u64),
    Text(Arc<str>),
}

/// Variables that outlive loops and blocks: the only values that change.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    pub(super) values: RefCell<Vec<(Arc<str>, Value)>>,
}

/// State of a loop, as its variable `loop`.
#[derive(Debug)]
pub(super) struct LoopState {
    pub(super) items: Rc<List>,
    /// Turn, from 0.
    pub(super) index: usize,
    /// Loops around it.
    pub(super) depth: usize,
    /// Arguments of the last call of `changed`.
    pub(super) changed: Rc<RefCell<Option<Rc<List>>>>,
    /// The loop itself and its scope, if it may be called.
    pub(super) recursion: Option<(Arc<For>, Weak<Scope>)>,
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn size(count: usize) -> Self {
        Self::Int(i128::try_from(count).unwrap_or(i128::MAX))
    }

    /// A list of `items`, which are charged.
    pub(super) fn list(items: Vec<Self>, meter: &Meter) -> Result<Self, Trouble> {
        List::new(items, ListKind::List, meter).map(Self::List)
    }

    pub(super) fn tuple(items: Vec<Self>, meter: &Meter) -> Result<Self, Trouble> {
        List::new(items, ListKind::Tuple, meter).map(Self::List)
    }

    /// The truth of a value, as Python has it.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Namespace(_) | Self::Loop(_) | Self::Macro(_) | Self::Function(_) => true,
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined)
    }

    /// The name of its kind, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "none",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a dictionary",
            Self::Namespace(_) => "a namespace",
            Self::Loop(_) => "a loop",
            Self::Macro(_) => "a macro",
            Self::Function(_) => "a function",
        }
    }

    /// The whole number that it is; booleans are numbers too.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Bool(value) => Some(i128::from(*value)),
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The number that it is.
    #[expect(clippy::cast_precision_loss, reason = "Python rounds large whole numbers too")]
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    pub(super) fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::List(list) => list.shape,
            Self::Map(map) => map.shape,
            Self::Namespace(_) => Shape { depth: 0, has_state: true },
            Self::Loop(state) => Shape { depth: state.items.shape.depth + 1, has_state: true },
            _ => Shape::default(),
        }
    }

    /// True if a namespace or a loop is in it, or it is one.
    pub(super) fn has_state(&self) -> bool {
        self.shape().has_state
    }

    /// Its items, which are charged: those of a list, the keys of a dictionary, the characters of a text.
    pub(super) fn items(&self, meter: &Meter) -> Result<Rc<List>, Trouble> {
        match self {
            Self::List(list) => Ok(Rc::clone(list)),
            // As minijinja has it, where jinja2 refuses `none`.
            Self::Undefined | Self::None => List::new(Vec::new(), ListKind::List, meter),
            Self::Map(map) => {
                meter.make_items(map.entries.len())?;
                List::new(map.entries.iter().map(|(key, _)| key.clone()).collect(), ListKind::List, meter)
            }
            Self::Text(text) => {
                let count = text.chars().count();
                meter.make(count.saturating_mul(32))?;
                let chars = text.chars().map(|c| Self::text(c.encode_utf8(&mut [0; 4])));
                List::new(chars.collect(), ListKind::List, meter)
            }
            _ => Err(Trouble::Failed(format!("{} has no items", self.kind()))),
        }
    }

    /// Its hashable form, if it has one.
    pub(super) fn key(&self) -> Option<Key> {
        match self {
            Self::None => Some(Key::None),
            Self::Text(text) => Some(Key::Text(Arc::clone(text))),
            #[expect(clippy::cast_possible_truncation, reason = "only whole numbers come here, and the cast saturates")]
            Self::Float(value) if value.fract() == 0.0 => Some(Key::Number(*value as i128)),
            Self::Float(value) => Some(Key::Fraction(value.to_bits())),
            _ => self.as_int().map(Key::Number),
        }
    }
}

impl List {
    pub(super) fn new(items: Vec<Value>, kind: ListKind, meter: &Meter) -> Result<Rc<Self>, Trouble> {
        meter.make_items(items.len() + 1)?;
        let shape = Shape::around(items.iter())?;
        Ok(Rc::new(Self { items, shape, kind }))
    }

    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    /// The part of a group that is called `name`.
    pub(super) fn group_part(&self, name: &str) -> Option<&Value> {
        let part = match name {
            "grouper" => 0,
            "list" => 1,
            _ => return None,
        };
        self.items.get(part).filter(|_| self.kind == ListKind::Group)
    }
}

impl Map {
    /// A dictionary of `pairs`, which are charged; of equal keys the first place and the last value count.
    pub(super) fn new(pairs: Vec<(Value, Value)>, meter: &Meter) -> Result<Rc<Self>, Trouble> {
        meter.make_items(pairs.len().saturating_mul(5) + 1)?;
        let mut index: HashMap<Key, usize> = HashMap::with_capacity(pairs.len());
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            meter.read(key.as_text().map_or(0, |text| text.len()))?;
            let hashed =
                key.key().ok_or_else(|| Trouble::Failed(format!("{} cannot be a key of a dictionary", key.kind())))?;
            match index.get(&hashed) {
                Some(&at) => entries[at].1 = value,
                None => {
                    index.insert(hashed, entries.len());
                    entries.push((key, value));
                }
            }
        }
        if entries.len() < INDEXED_FROM {
            index = HashMap::new();
        }
        let shape = Shape::around(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Rc::new(Self { entries, index, shape }))
    }

    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// The value of `key`.
    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        if let (Value::Text(text), true) = (key, self.entries.len() < INDEXED_FROM) {
            return self.get_text(text);
        }
        let key = key.key()?;
        let at = if self.entries.len() < INDEXED_FROM {
            self.entries.iter().position(|(other, _)| other.key().as_ref() == Some(&key))
        } else {
            self.index.get(&key).copied()
        };
        at.map(|at| &self.entries[at].1)
    }

    /// The value of the key `name`.
    pub(super) fn get_text(&self, name: &Arc<str>) -> Option<&Value> {
        if self.entries.len() >= INDEXED_FROM {
            let at = self.index.get(&Key::Text(Arc::clone(name)))?;
            return Some(&self.entries[*at].1);
        }
        let same = |(key, _): &&(Value, Value)| key.as_text() == Some(name);
        self.entries.iter().find(same).map(|(_, value)| value)
    }
}

impl Shape {
    fn around<'v>(values: impl Iterator<Item = &'v Value>) -> Result<Self, Trouble> {
        let mut around = Self { depth: 0, has_state: false };
        for shape in values.map(Value::shape) {
            around.depth = around.depth.max(shape.depth);
            around.has_state |= shape.has_state;
        }
        around.depth += 1;
        if around.depth > DEPTH_MAX {
            return Err(Trouble::Failed(format!("more than {DEPTH_MAX} values are nested in each other")));
        }
        Ok(around)
    }
}

impl Namespace {
    pub(super) fn get(&self, name: &str, meter: &Meter) -> Result<Option<Value>, Trouble> {
        let values = self.values.borrow();
        meter.visit(values.len())?;
        Ok(values.iter().find(|(key, _)| **key == *name).map(|(_, value)| value.clone()))
    }

    /// Sets a variable.
    ///
    /// # Errors
    ///
    /// If `value` has a namespace or a loop in it, which could lead back here.
    pub(super) fn set(&self, name: &Arc<str>, value: Value, meter: &Meter) -> Result<(), Trouble> {
        if value.has_state() {
            let detail = format!("`{name}` of a namespace cannot hold {} with a namespace or a loop", value.kind());
            return Err(Trouble::Failed(detail));
        }
        let mut values = self.values.borrow_mut();
        meter.visit(values.len())?;
        let previous = match values.iter_mut().find(|(key, _)| key == name) {
            Some((_, held)) => Some(std::mem::replace(held, value)),
            None => {
                meter.make_items(2)?;
                values.push((Arc::clone(name), value));
                None
            }
        };
        drop(values);
        drop(previous);
        Ok(())
    }
}
