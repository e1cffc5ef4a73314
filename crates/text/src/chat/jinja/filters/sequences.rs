//! Filters of lists and dictionaries.

use super::folded;
use crate::chat::jinja::arguments::{Call, Given};
use crate::chat::jinja::compare::{equal, order, sorted};
use crate::chat::jinja::fault::Trouble;
use crate::chat::jinja::meter::Meter;
use crate::chat::jinja::operators;
use crate::chat::jinja::predicates;
use crate::chat::jinja::syntax::Operator;
use crate::chat::jinja::text::Writer;
use crate::chat::jinja::value::{List, ListKind, Value};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// The names of these filters.
pub(super) const NAMES: [&str; 24] = [
    "length",
    "count",
    "first",
    "last",
    "list",
    "join",
    "reverse",
    "sort",
    "unique",
    "min",
    "max",
    "sum",
    "batch",
    "slice",
    "items",
    "dictsort",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "groupby",
    "chain",
    "zip",
];

/// The value of a filter of lists.
pub(super) fn apply(call: &mut Call) -> Result<Value, Trouble> {
    match call.name() {
        "length" | "count" => length(call),
        "first" | "last" => {
            let items = call.subject_items()?;
            let item = if call.name() == "first" { items.items().first() } else { items.items().last() };
            Ok(item.cloned().unwrap_or(Value::Undefined))
        }
        "list" => {
            let items = call.subject_items()?;
            Value::list(items.items().to_vec(), call.meter())
        }
        "join" => join(call),
        "reverse" => reverse(call),
        "sort" => sort(call),
        "unique" => unique(call),
        "min" | "max" => extreme(call),
        "sum" => sum(call),
        "batch" => batch(call),
        "slice" => slice(call),
        "items" => items(call),
        "dictsort" => dictsort(call),
        "map" => map(call),
        "select" | "reject" | "selectattr" | "rejectattr" => select(call),
        "groupby" => groupby(call),
        "chain" => chain(call),
        "zip" => zip(call),
        name => Err(Trouble::Failed(format!("there is no filter `{name}`"))),
    }
}

fn length(call: &Call) -> Result<Value, Trouble> {
    match call.subject() {
        Value::Text(text) => {
            call.meter().read(text.len())?;
            Ok(Value::size(text.chars().count()))
        }
        Value::List(list) => Ok(Value::size(list.items().len())),
        Value::Map(map) => Ok(Value::size(map.entries().len())),
        Value::Undefined => Ok(Value::Int(0)),
        other => Err(call.failed(&format!("{} has no length", other.kind()))),
    }
}

/// The attribute or item at a path such as `a.b` or `0`.
pub(super) fn attribute(value: &Value, path: &Value, meter: &Meter) -> Result<Value, Trouble> {
    let Value::Text(path) = path else {
        return Ok(item(value, path));
    };
    meter.make(path.len())?;
    let mut value = value.clone();
    for name in path.split('.') {
        meter.visit(1)?;
        let key = name.parse::<i128>().map_or_else(|_| Value::text(name), Value::Int);
        value = match &value {
            Value::Namespace(namespace) => namespace.get(name, meter)?.unwrap_or(Value::Undefined),
            Value::Undefined => return Err(Trouble::Failed(format!("undefined has no `{name}`"))),
            _ => item(&value, &key),
        };
    }
    Ok(value)
}

fn item(value: &Value, key: &Value) -> Value {
    let found = match (value, key) {
        (Value::Map(map), _) => map.get(key).cloned(),
        (Value::List(list), _) => match (key.as_int().and_then(|index| usize::try_from(index).ok()), key.as_text()) {
            (Some(index), _) => list.items().get(index).cloned(),
            (None, Some(name)) => list.group_part(name).cloned(),
            _ => None,
        },
        _ => None,
    };
    found.unwrap_or(Value::Undefined)
}

/// `values` with their key of an `attribute`, or as they are.
fn keys(call: &Call, values: &[Value], attribute_path: Option<&Value>) -> Result<Vec<Value>, Trouble> {
    call.meter().make_items(values.len())?;
    let key = |value: &Value| match attribute_path {
        Some(path) => attribute(value, path, call.meter()),
        None => Ok(value.clone()),
    };
    values.iter().map(key).collect()
}

/// The keys without upper case, unless case counts.
fn folded_keys(call: &Call, keys: Vec<Value>, case_counts: CaseCounts) -> Result<Vec<Value>, Trouble> {
    match case_counts {
        CaseCounts::Yes => Ok(keys),
        CaseCounts::No => keys.iter().map(|key| folded(key, call)).collect(),
    }
}

#[derive(Clone, Copy)]
enum CaseCounts {
    Yes,
    No,
}

fn take_case(call: &mut Call) -> CaseCounts {
    if call.take_flag("case_sensitive") { CaseCounts::Yes } else { CaseCounts::No }
}

fn join(call: &mut Call) -> Result<Value, Trouble> {
    let separator = call.take("d").unwrap_or(Value::Undefined);
    let path = call.take("attribute");
    let items = call.subject_items()?;
    let values = keys(call, items.items(), path.as_ref())?;
    let mut out = Writer::new(call.meter());
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.display(&separator)?;
        }
        out.display(value)?;
    }
    Ok(out.into_value())
}

fn reverse(call: &Call) -> Result<Value, Trouble> {
    if let Value::Text(text) = call.subject() {
        call.meter().make(text.len())?;
        return Ok(Value::Text(text.chars().rev().collect::<String>().into()));
    }
    let items = call.subject_items()?;
    Value::list(items.items().iter().rev().cloned().collect(), call.meter())
}

fn sort(call: &mut Call) -> Result<Value, Trouble> {
    let reversed = call.take_flag("reverse");
    let case = take_case(call);
    let path = call.take("attribute");
    let items = call.subject_items()?;
    let keys = keys(call, items.items(), path.as_ref())?;
    let keys = folded_keys(call, keys, case)?;
    let pairs: Vec<(Value, &Value)> = keys.into_iter().zip(items.items()).collect();
    let values = sorted_pairs(pairs, reversed.then_some(Reversed), call.meter())?;
    Value::list(values.into_iter().map(|(_, value)| value.clone()).collect(), call.meter())
}

struct Reversed;

/// Stable in both directions, as Python's.
fn sorted_pairs<T>(
    mut pairs: Vec<(Value, T)>,
    reversed: Option<Reversed>,
    meter: &Meter,
) -> Result<Vec<(Value, T)>, Trouble> {
    if reversed.is_none() {
        return sorted(pairs, |(key, _)| key, meter);
    }
    pairs.reverse();
    let mut pairs = sorted(pairs, |(key, _)| key, meter)?;
    pairs.reverse();
    Ok(pairs)
}

/// Values that were seen, by a hash where they have one.
fn unique(call: &mut Call) -> Result<Value, Trouble> {
    let case = take_case(call);
    let path = call.take("attribute");
    let items = call.subject_items()?;
    let keys = keys(call, items.items(), path.as_ref())?;
    let keys = folded_keys(call, keys, case)?;
    let mut seen = std::collections::HashSet::new();
    let mut others: Vec<&Value> = Vec::new();
    let mut kept = Vec::new();
    for (key, value) in keys.iter().zip(items.items()) {
        let is_new = match key.key() {
            Some(hashed) => {
                call.meter().make_items(2)?;
                call.meter().read(key.as_text().map_or(0, |text| text.len()))?;
                seen.insert(hashed)
            }
            None => {
                let mut is_new = true;
                for other in &others {
                    if equal(other, key, call.meter())? {
                        is_new = false;
                        break;
                    }
                }
                if is_new {
                    others.push(key);
                }
                is_new
            }
        };
        if is_new {
            kept.push(value.clone());
        }
    }
    Value::list(kept, call.meter())
}

fn extreme(call: &mut Call) -> Result<Value, Trouble> {
    let wanted = if call.name() == "min" { Ordering::Less } else { Ordering::Greater };
    let case = take_case(call);
    let path = call.take("attribute");
    let items = call.subject_items()?;
    let keys = keys(call, items.items(), path.as_ref())?;
    let keys = folded_keys(call, keys, case)?;
    let mut best: Option<usize> = None;
    for (at, key) in keys.iter().enumerate() {
        match best {
            Some(best_at) if order(key, &keys[best_at], call.meter())? != Some(wanted) => {}
            _ => best = Some(at),
        }
    }
    Ok(best.map_or(Value::Undefined, |at| items.items()[at].clone()))
}

fn sum(call: &mut Call) -> Result<Value, Trouble> {
    let path = call.take("attribute").filter(|path| !matches!(path, Value::None));
    let start = call.take("start").unwrap_or(Value::Int(0));
    let items = call.subject_items()?;
    let values = keys(call, items.items(), path.as_ref())?;
    values.iter().try_fold(start, |sum, value| operators::apply(Operator::Add, &sum, value, call.context()))
}

fn batch(call: &mut Call) -> Result<Value, Trouble> {
    let size =
        call.take_count("linecount")?.filter(|&size| size > 0).ok_or_else(|| call.failed("the size is not above 0"))?;
    let fill = call.take("fill_with").filter(|fill| !matches!(fill, Value::None));
    let items = call.subject_items()?;
    let mut rows = Vec::new();
    for row in items.items().chunks(size) {
        let mut row = row.to_vec();
        if let Some(fill) = &fill {
            call.meter().make_items(size)?;
            row.resize(size, fill.clone());
        }
        rows.push(Value::list(row, call.meter())?);
    }
    Value::list(rows, call.meter())
}

fn slice(call: &mut Call) -> Result<Value, Trouble> {
    let count =
        call.take_count("slices")?.filter(|&count| count > 0).ok_or_else(|| call.failed("the count is not above 0"))?;
    let fill = call.take("fill_with").filter(|fill| !matches!(fill, Value::None));
    let items = call.subject_items()?;
    call.meter().make_items(count)?;
    let (size, longer) = (items.items().len() / count, items.items().len() % count);
    let mut rest = items.items();
    let mut columns = Vec::new();
    for column in 0..count {
        let (part, after) = rest.split_at(size + usize::from(column < longer));
        rest = after;
        let mut part = part.to_vec();
        if let Some(fill) = fill.as_ref().filter(|_| longer > 0 && column >= longer) {
            part.push(fill.clone());
        }
        columns.push(Value::list(part, call.meter())?);
    }
    Value::list(columns, call.meter())
}

/// The pairs of a dictionary.
pub(in crate::chat::jinja) fn pairs(value: &Value, meter: &Meter) -> Result<Option<Value>, Trouble> {
    let Value::Map(map) = value else { return Ok(None) };
    let pair = |(key, value): &(Value, Value)| Value::tuple(vec![key.clone(), value.clone()], meter);
    let pairs = map.entries().iter().map(pair).collect::<Result<_, _>>()?;
    Value::list(pairs, meter).map(Some)
}

fn items(call: &Call) -> Result<Value, Trouble> {
    match call.subject() {
        Value::Undefined => Value::list(Vec::new(), call.meter()),
        other => {
            pairs(&other, call.meter())?.ok_or_else(|| call.failed(&format!("{} is not a dictionary", other.kind())))
        }
    }
}

fn dictsort(call: &mut Call) -> Result<Value, Trouble> {
    let case = take_case(call);
    let by_value = match call.take_text("by")?.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(other) => return Err(call.failed(&format!("it sorts by key or value, not by {other:?}"))),
    };
    let reversed = call.take_flag("reverse");
    let subject = call.subject();
    let Value::Map(map) = &subject else {
        return Err(call.failed(&format!("{} is not a dictionary", subject.kind())));
    };
    call.meter().make_items(map.entries().len().saturating_mul(3))?;
    let chosen = map.entries().iter().map(|(key, value)| if by_value { value } else { key }.clone()).collect();
    let chosen = folded_keys(call, chosen, case)?;
    let entries: Vec<(Value, &(Value, Value))> = chosen.into_iter().zip(map.entries()).collect();
    let entries = sorted_pairs(entries, reversed.then_some(Reversed), call.meter())?;
    let tuple =
        |(_, (key, value)): (Value, &(Value, Value))| Value::tuple(vec![key.clone(), value.clone()], call.meter());
    let tuples = entries.into_iter().map(tuple).collect::<Result<_, _>>()?;
    Value::list(tuples, call.meter())
}

fn map(call: &mut Call) -> Result<Value, Trouble> {
    let items = call.subject_items()?;
    let mut values = Vec::new();
    if let Some(path) = call.take_named("attribute") {
        let default = call.take_named("default");
        for item in items.items() {
            let value = attribute(item, &path, call.meter())?;
            values.push(if value.is_undefined() { default.clone().unwrap_or(value) } else { value });
        }
    } else {
        let name = call.require_text("filter")?;
        let (positional, named) = call.rest();
        for item in items.items() {
            let given = copied(&positional, &named, call.meter())?;
            call.meter().enter()?;
            values.push(super::apply(&name, item.clone(), given, call.context())?);
            call.meter().leave();
        }
    }
    Value::list(values, call.meter())
}

fn copied(positional: &VecDeque<Value>, named: &[(Arc<str>, Value)], meter: &Meter) -> Result<Given, Trouble> {
    meter.step()?;
    meter.make_items(positional.len() + 2 * named.len())?;
    Ok((positional.clone(), named.to_vec()))
}

fn select(call: &mut Call) -> Result<Value, Trouble> {
    let wanted = call.name().starts_with("select");
    let path = if call.name().ends_with("attr") { Some(call.require("attribute")?) } else { None };
    let test = call.take_text("test")?;
    let (positional, named) = call.rest();
    let items = call.subject_items()?;
    let mut kept = Vec::new();
    for item in items.items() {
        let tested = match &path {
            Some(path) => attribute(item, path, call.meter())?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => predicates::holds(test, tested, copied(&positional, &named, call.meter())?, call.context())?,
            None => tested.is_true(),
        };
        if holds == wanted {
            kept.push(item.clone());
        }
    }
    Value::list(kept, call.meter())
}

fn groupby(call: &mut Call) -> Result<Value, Trouble> {
    let path = call.require("attribute")?;
    let default = call.take("default");
    let case = take_case(call);
    let items = call.subject_items()?;
    let mut keys = keys(call, items.items(), Some(&path))?;
    if let Some(default) = default {
        keys.iter_mut().filter(|key| key.is_undefined()).for_each(|key| *key = default.clone());
    }
    let folded = folded_keys(call, keys.clone(), case)?;
    let entries = folded.into_iter().zip(keys.into_iter().zip(items.items())).collect();
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for (sorting, (key, item)) in sorted_pairs::<(Value, &Value)>(entries, None, call.meter())? {
        match groups.last_mut() {
            Some((last, _, group)) if equal(last, &sorting, call.meter())? => group.push(item.clone()),
            _ => groups.push((sorting, key, vec![item.clone()])),
        }
    }
    let group = |(_, key, items): (Value, Value, Vec<Value>)| {
        let items = Value::list(items, call.meter())?;
        List::new(vec![key, items], ListKind::Group, call.meter()).map(Value::List)
    };
    let groups = groups.into_iter().map(group).collect::<Result<_, _>>()?;
    Value::list(groups, call.meter())
}

fn chain(call: &mut Call) -> Result<Value, Trouble> {
    let mut all = call.subject_items()?.items().to_vec();
    let (others, _) = call.rest();
    for other in others {
        let items = other.items(call.meter())?;
        call.meter().make_items(items.items().len())?;
        all.extend_from_slice(items.items());
    }
    Value::list(all, call.meter())
}

fn zip(call: &mut Call) -> Result<Value, Trouble> {
    let (others, _) = call.rest();
    let mut lists: Vec<Rc<List>> = vec![call.subject_items()?];
    for other in others {
        lists.push(other.items(call.meter())?);
    }
    let length = lists.iter().map(|list| list.items().len()).min().unwrap_or(0);
    let row = |at: usize| {
        call.meter().make_items(lists.len())?;
        Value::tuple(lists.iter().map(|list| list.items()[at].clone()).collect(), call.meter())
    };
    let rows = (0..length).map(row).collect::<Result<_, _>>()?;
    Value::list(rows, call.meter())
}
