//! Values of expressions.

use super::arguments::Given;
use super::compare::{contains, equal, order};
use super::fault::{Fault, Trouble};
use super::filling::{Filler, at};
use super::scope::Scope;
use super::syntax::{Arguments, Comparison, Constant, Expr, Node};
use super::value::{List, ListKind, LoopState, Map, Value};
use super::{filters, functions, methods, operators, predicates};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

impl Filler<'_> {
    /// The value of `expr`.
    pub(super) fn value(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Fault> {
        let line = expr.line;
        self.meter().step().map_err(at(line))?;
        self.meter().enter().map_err(at(line))?;
        let value = match &*expr.node {
            Node::Constant(constant) => constant_value(constant),
            Node::Name(name) => self.variable(name, scope),
            Node::And(left, right) => {
                let left = self.value(left, scope)?;
                if left.is_true() { self.value(right, scope)? } else { left }
            }
            Node::Or(left, right) => {
                let left = self.value(left, scope)?;
                if left.is_true() { left } else { self.value(right, scope)? }
            }
            Node::Not(value) => Value::Bool(!self.value(value, scope)?.is_true()),
            Node::Choice { condition, then, otherwise } => match (self.value(condition, scope)?.is_true(), otherwise) {
                (true, _) => self.value(then, scope)?,
                (false, Some(otherwise)) => self.value(otherwise, scope)?,
                (false, None) => Value::Undefined,
            },
            Node::Attribute(value, name) => {
                let value = self.value(value, scope)?;
                self.attribute(&value, name).map_err(at(line))?
            }
            Node::Item(value, key) => {
                let value = self.value(value, scope)?;
                let key = self.value(key, scope)?;
                self.item(&value, &key).map_err(at(line))?
            }
            Node::Call(callee, arguments) => self.call(line, callee, arguments, None, scope)?,
            Node::Compare(first, rest) => self.compare(line, first, rest, scope)?,
            _ => self.operation(expr, scope)?,
        };
        self.meter().leave();
        Ok(value)
    }

    /// Expressions that make a value out of others.
    fn operation(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Fault> {
        let line = expr.line;
        match &*expr.node {
            Node::List(items) => {
                let items = self.values(items, scope)?;
                Value::list(items, self.meter()).map_err(at(line))
            }
            Node::Tuple(items) => {
                let items = self.values(items, scope)?;
                Value::tuple(items, self.meter()).map_err(at(line))
            }
            Node::Map(entries) => {
                let mut pairs = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    pairs.push((self.value(key, scope)?, self.value(value, scope)?));
                }
                Map::new(pairs, self.meter()).map(Value::Map).map_err(at(line))
            }
            Node::Slice(value, parts) => self.slice(line, value, parts, scope),
            Node::Filter(value, filter) => {
                let value = self.value(value, scope)?;
                let given = self.arguments(&filter.arguments, scope)?;
                filters::apply(&filter.name, value, given, self.context).map_err(at(line))
            }
            Node::Test(value, test) => {
                let value = self.value(value, scope)?;
                let given = self.arguments(&test.arguments, scope)?;
                predicates::holds(&test.name, value, given, self.context).map(Value::Bool).map_err(at(line))
            }
            Node::Negative(value) => operators::negative(&self.value(value, scope)?).map_err(at(line)),
            Node::Positive(value) => {
                let value = self.value(value, scope)?;
                let is_number = value.as_float().is_some();
                let detail = || Trouble::Failed(format!("{} is not a number", value.kind()));
                if is_number { Ok(value) } else { Err(at(line)(detail())) }
            }
            Node::Arithmetic(operator, left, right) => {
                let left = self.value(left, scope)?;
                let right = self.value(right, scope)?;
                operators::apply(*operator, &left, &right, self.context).map_err(at(line))
            }
            _ => Ok(Value::Undefined),
        }
    }

    fn values(&mut self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>, Fault> {
        exprs.iter().map(|expr| self.value(expr, scope)).collect()
    }

    fn variable(&self, name: &str, scope: &Rc<Scope>) -> Value {
        let function = || functions::named(name, self.context).map(Value::Function);
        scope.get(name).or_else(function).unwrap_or(Value::Undefined)
    }

    fn attribute(&self, value: &Value, name: &Arc<str>) -> Result<Value, Trouble> {
        let found = match value {
            Value::Map(map) => map.get_text(name).cloned(),
            Value::Namespace(namespace) => namespace.get(name, self.meter())?,
            Value::Loop(state) => loop_attribute(state, name),
            Value::List(list) => list.group_part(name).cloned(),
            Value::Undefined => return Err(Trouble::Failed(format!("undefined has no `{name}`"))),
            _ => None,
        };
        Ok(found.unwrap_or(Value::Undefined))
    }

    fn item(&self, value: &Value, key: &Value) -> Result<Value, Trouble> {
        self.meter().read(key.as_text().map_or(0, |text| text.len()))?;
        let place = |length: usize| {
            let index = key.as_int()?;
            let index = if index < 0 { index.checked_add(i128::try_from(length).ok()?)? } else { index };
            usize::try_from(index).ok()
        };
        let found = match (value, key) {
            (Value::Map(map), _) => map.get(key).cloned(),
            (Value::Text(text), _) if key.as_int().is_some() => {
                self.meter().read(text.len())?;
                let length = if key.as_int() < Some(0) { text.chars().count() } else { 0 };
                let found = place(length).and_then(|place| text.chars().nth(place));
                found.map(|c| Value::text(c.encode_utf8(&mut [0; 4])))
            }
            (Value::List(list), _) if key.as_int().is_some() => {
                place(list.items().len()).and_then(|place| list.items().get(place)).cloned()
            }
            (Value::Undefined, _) => return Err(Trouble::Failed("undefined has no items".to_owned())),
            (Value::Namespace(_) | Value::Loop(_) | Value::List(_), Value::Text(name)) => {
                return self.attribute(value, name);
            }
            _ => None,
        };
        Ok(found.unwrap_or(Value::Undefined))
    }

    fn slice(
        &mut self,
        line: usize,
        value: &Expr,
        parts: &[Option<Expr>; 3],
        scope: &Rc<Scope>,
    ) -> Result<Value, Fault> {
        let value = self.value(value, scope)?;
        let mut places = [None; 3];
        for (place, part) in places.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            let part = self.value(part, scope)?;
            if matches!(part, Value::None) {
                continue;
            }
            let not_whole = || Trouble::Failed(format!("{} is not a place in a slice", part.kind()));
            *place = Some(part.as_int().ok_or_else(not_whole).map_err(at(line))?);
        }
        operators::slice(&value, places, self.context).map_err(at(line))
    }

    fn compare(
        &mut self,
        line: usize,
        first: &Expr,
        rest: &[(Comparison, Expr)],
        scope: &Rc<Scope>,
    ) -> Result<Value, Fault> {
        let mut left = self.value(first, scope)?;
        for (comparison, right) in rest {
            let right = self.value(right, scope)?;
            if !self.holds(*comparison, &left, &right).map_err(at(line))? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn holds(&self, comparison: Comparison, left: &Value, right: &Value) -> Result<bool, Trouble> {
        let meter = self.meter();
        let ordered = |wanted: &[Ordering]| {
            order(left, right, meter).map(|order| order.is_some_and(|order| wanted.contains(&order)))
        };
        match comparison {
            Comparison::Equal => equal(left, right, meter),
            Comparison::NotEqual => equal(left, right, meter).map(|equal| !equal),
            Comparison::Less => ordered(&[Ordering::Less]),
            Comparison::LessOrEqual => ordered(&[Ordering::Less, Ordering::Equal]),
            Comparison::Greater => ordered(&[Ordering::Greater]),
            Comparison::GreaterOrEqual => ordered(&[Ordering::Greater, Ordering::Equal]),
            Comparison::In => contains(right, left, meter),
            Comparison::NotIn => contains(right, left, meter).map(|contained| !contained),
        }
    }

    /// The values of arguments.
    pub(super) fn arguments(&mut self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Given, Fault> {
        let mut positional: VecDeque<Value> = self.values(&arguments.positional, scope)?.into();
        if let Some(spread) = &arguments.spread {
            let items = self.value(spread, scope)?.items(self.meter()).map_err(at(spread.line))?;
            self.meter().make_items(items.items().len()).map_err(at(spread.line))?;
            positional.extend(items.items().iter().cloned());
        }
        let mut named = Vec::with_capacity(arguments.named.len());
        for (name, value) in &arguments.named {
            named.push((Arc::clone(name), self.value(value, scope)?));
        }
        if let Some(spread) = &arguments.spread_named {
            let value = self.value(spread, scope)?;
            let not_names = || at(spread.line)(Trouble::Failed(format!("{} has no names", value.kind())));
            let Value::Map(map) = &value else { return Err(not_names()) };
            self.meter().make_items(map.entries().len().saturating_mul(2)).map_err(at(spread.line))?;
            for (name, value) in map.entries() {
                named.push((Arc::clone(name.as_text().ok_or_else(not_names)?), value.clone()));
            }
        }
        Ok((positional, named))
    }

    /// The call of a `{% call %}` block.
    pub(super) fn call_with_caller(&mut self, call: &Expr, caller: Value, scope: &Rc<Scope>) -> Result<Value, Fault> {
        match &*call.node {
            Node::Call(callee, arguments) => self.call(call.line, callee, arguments, Some(caller), scope),
            _ => self.value(call, scope),
        }
    }

    fn call(
        &mut self,
        line: usize,
        callee: &Expr,
        arguments: &Arguments,
        caller: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Result<Value, Fault> {
        let Node::Attribute(owner, name) = &*callee.node else {
            let function = self.value(callee, scope)?;
            let mut given = self.arguments(arguments, scope)?;
            given.1.extend(caller.map(|caller| ("caller".into(), caller)));
            if let (Value::Undefined, Node::Name(name)) = (&function, &*callee.node) {
                return Err(at(line)(Trouble::Failed(format!("there is no function `{name}`"))));
            }
            return self.call_value(line, &function, given);
        };
        let owner = self.value(owner, scope)?;
        let mut given = self.arguments(arguments, scope)?;
        given.1.extend(caller.map(|caller| ("caller".into(), caller)));
        let is_method = matches!((&owner, &**name), (Value::Map(_), "get" | "keys" | "values" | "items"));
        if let (Value::Map(_) | Value::Namespace(_), false) = (&owner, is_method) {
            let function = self.attribute(&owner, name).map_err(at(line))?;
            if !function.is_undefined() {
                return self.call_value(line, &function, given);
            }
        }
        if let Value::Loop(state) = &owner {
            return self.loop_method(state, name, given).map_err(at(line));
        }
        let kind = owner.kind();
        let called = methods::call(name, owner, given, self.context).map_err(at(line))?;
        called.ok_or_else(|| at(line)(Trouble::Failed(format!("{kind} has no method `{name}`"))))
    }

    fn call_value(&mut self, line: usize, function: &Value, given: Given) -> Result<Value, Fault> {
        match function {
            Value::Macro(closure) => self.call_macro(line, closure, given),
            Value::Function(function) => functions::call(*function, given, self.context).map_err(at(line)),
            Value::Loop(state) => match given.0.front() {
                Some(items) => self.call_loop(line, state, items),
                None => Err(at(line)(Trouble::Failed("a loop wants items".to_owned()))),
            },
            other => Err(at(line)(Trouble::Failed(format!("{} cannot be called", other.kind())))),
        }
    }

    fn loop_method(&self, state: &LoopState, name: &str, (positional, _): Given) -> Result<Value, Trouble> {
        match name {
            "cycle" if !positional.is_empty() => Ok(positional[state.index % positional.len()].clone()),
            "changed" => {
                let now = List::new(positional.into(), ListKind::Tuple, self.meter())?;
                if Value::List(Rc::clone(&now)).has_state() {
                    return Err(Trouble::Failed("loop.changed: a namespace or a loop cannot be compared".to_owned()));
                }
                let before = state.changed.borrow_mut().replace(Rc::clone(&now));
                let is_same = match before {
                    Some(before) => equal(&Value::List(before), &Value::List(now), self.meter())?,
                    None => false,
                };
                Ok(Value::Bool(!is_same))
            }
            _ => Err(Trouble::Failed(format!("a loop has no method `{name}`"))),
        }
    }
}

fn constant_value(constant: &Constant) -> Value {
    match constant {
        Constant::None => Value::None,
        Constant::Bool(value) => Value::Bool(*value),
        Constant::Int(value) => Value::Int(*value),
        Constant::Float(value) => Value::Float(*value),
        Constant::Text(text) => Value::Text(Arc::clone(text)),
    }
}

fn loop_attribute(state: &LoopState, name: &str) -> Option<Value> {
    let items = state.items.items();
    let (index, length) = (state.index, items.len());
    Some(match name {
        "index" => Value::size(index + 1),
        "index0" => Value::size(index),
        "revindex" => Value::size(length - index),
        "revindex0" => Value::size(length - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => Value::size(length),
        "depth" => Value::size(state.depth + 1),
        "depth0" => Value::size(state.depth),
        "previtem" => index.checked_sub(1).and_then(|index| items.get(index)).cloned()?,
        "nextitem" => items.get(index + 1).cloned()?,
        _ => return None,
    })
}
