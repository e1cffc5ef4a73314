//! Methods of texts, dictionaries and lists, as Python has them.

use super::arguments::{Call, Context, Given};
use super::compare::equal;
use super::fault::Trouble;
use super::filters::{capitalized, centered, pairs, title};
use super::format::braces;
use super::meter::Meter;
use super::text::Writer;
use super::value::{Map, Value};
use std::sync::Arc;

/// The value of the method `name` of `subject`; `None` if it has no such method.
pub(super) fn call(name: &str, subject: Value, given: Given, context: &Context) -> Result<Option<Value>, Trouble> {
    let mut call = Call::new(name, subject, given, context);
    let value = match call.subject() {
        Value::Text(text) => of_text(&text, &mut call)?,
        Value::Map(map) => of_map(&map, &mut call)?,
        Value::List(list) => match name {
            "count" => {
                let wanted = call.require("value")?;
                let mut count = 0;
                for item in list.items() {
                    count += usize::from(equal(item, &wanted, call.meter())?);
                }
                Some(Value::size(count))
            }
            "index" => {
                let wanted = call.require("value")?;
                let mut found = None;
                for (at, item) in list.items().iter().enumerate() {
                    if equal(item, &wanted, call.meter())? {
                        found = Some(Value::size(at));
                        break;
                    }
                }
                Some(found.ok_or_else(|| call.failed("the value is not in the list"))?)
            }
            _ => None,
        },
        _ => None,
    };
    if value.is_some() {
        call.finish()?;
    }
    Ok(value)
}

fn of_map(map: &Map, call: &mut Call) -> Result<Option<Value>, Trouble> {
    let meter = call.meter();
    let column = |column: fn(&(Value, Value)) -> &Value| {
        meter.make_items(map.entries().len())?;
        Value::list(map.entries().iter().map(|entry| column(entry).clone()).collect(), meter)
    };
    match call.name() {
        "get" => {
            let key = call.require("key")?;
            let default = call.take("default").unwrap_or(Value::None);
            meter.read(key.as_text().map_or(0, |text| text.len()))?;
            Ok(Some(map.get(&key).cloned().unwrap_or(default)))
        }
        "keys" => column(|(key, _)| key).map(Some),
        "values" => column(|(_, value)| value).map(Some),
        "items" => pairs(&call.subject(), meter),
        _ => Ok(None),
    }
}

fn of_text(text: &Arc<str>, call: &mut Call) -> Result<Option<Value>, Trouble> {
    call.meter().read(text.len())?;
    if let Some(holds) = property(text, call.name()) {
        return Ok(Some(Value::Bool(holds)));
    }
    if let Some(changed) = changed(text, call)? {
        return Ok(Some(changed));
    }
    let value = match call.name() {
        "replace" => replace(text, call)?,
        "split" | "rsplit" => split(text, call)?,
        "splitlines" => lines(text, call)?,
        "count" => Value::size(match &*call.require_text("sub")? {
            "" => text.chars().count() + 1,
            part => text.matches(part).count(),
        }),
        "find" | "rfind" | "index" => find(text, call)?,
        "startswith" | "endswith" => Value::Bool(has_end(text, call)?),
        "format" => {
            let given = call.rest();
            braces(text, &given, call.meter())?
        }
        "join" => {
            let items = call.require("iterable")?.items(call.meter())?;
            let mut out = Writer::new(call.meter());
            for (index, item) in items.items().iter().enumerate() {
                call.meter().visit(1)?;
                if index > 0 {
                    out.push(text)?;
                }
                out.display(item)?;
            }
            out.into_value()
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// The predicates.
fn property(text: &str, name: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Some(match name {
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        "isspace" => all(char::is_whitespace),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        _ => return None,
    })
}

/// The methods that give a text of about the same length.
fn changed(text: &Arc<str>, call: &mut Call) -> Result<Option<Value>, Trouble> {
    let meter = call.meter();
    let changes = matches!(
        call.name(),
        "upper" | "lower" | "title" | "capitalize" | "strip" | "lstrip" | "rstrip" | "removeprefix" | "removesuffix"
    );
    if changes {
        // A letter in another case has up to three times as many bytes.
        meter.make(text.len().saturating_mul(3))?;
    }
    let changed = match call.name() {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "title" => title(text, |c| !c.is_alphabetic()),
        "capitalize" => capitalized(text),
        "strip" | "lstrip" | "rstrip" => {
            let chars = call.take_text("chars")?;
            let sides = call.name();
            let start = match &chars {
                _ if sides == "rstrip" => text,
                None => text.trim_start(),
                Some(chars) => stripped_start(text, chars, meter)?,
            };
            match &chars {
                _ if sides == "lstrip" => start,
                None => start.trim_end(),
                Some(chars) => stripped_end(start, chars, meter)?,
            }
            .to_owned()
        }
        "removeprefix" => {
            let part = call.require_text("prefix")?;
            text.strip_prefix(&*part).unwrap_or(text).to_owned()
        }
        "removesuffix" => {
            let part = call.require_text("suffix")?;
            text.strip_suffix(&*part).unwrap_or(text).to_owned()
        }
        "ljust" | "rjust" | "center" | "zfill" => return padded(text, call).map(Some),
        _ => return Ok(None),
    };
    Ok(Some(Value::Text(changed.into())))
}

fn padded(text: &str, call: &mut Call) -> Result<Value, Trouble> {
    let width = call.take_count("width")?.unwrap_or(0);
    if call.name() == "center" {
        return centered(text, width, call);
    }
    let missing = width.saturating_sub(text.chars().count());
    let mut out = Writer::new(call.meter());
    match call.name() {
        "ljust" => {
            out.push(text)?;
            out.push_many(' ', missing)?;
        }
        "rjust" => {
            out.push_many(' ', missing)?;
            out.push(text)?;
        }
        _ => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            out.push(&text[..text.len() - digits.len()])?;
            out.push_many('0', missing)?;
            out.push(digits)?;
        }
    }
    Ok(out.into_value())
}

/// `text` without any of `chars` at its ends.
pub(super) fn stripped<'t>(text: &'t str, chars: &str, meter: &Meter) -> Result<&'t str, Trouble> {
    stripped_end(stripped_start(text, chars, meter)?, chars, meter)
}

fn stripped_start<'t>(text: &'t str, chars: &str, meter: &Meter) -> Result<&'t str, Trouble> {
    for (at, c) in text.char_indices() {
        meter.read(chars.len())?;
        if !chars.contains(c) {
            return Ok(&text[at..]);
        }
    }
    Ok("")
}

fn stripped_end<'t>(text: &'t str, chars: &str, meter: &Meter) -> Result<&'t str, Trouble> {
    for (at, c) in text.char_indices().rev() {
        meter.read(chars.len())?;
        if !chars.contains(c) {
            return Ok(&text[..at + c.len_utf8()]);
        }
    }
    Ok("")
}

/// The method and the filter `replace`.
pub(super) fn replace(text: &str, call: &mut Call) -> Result<Value, Trouble> {
    let old = call.require_text("old")?;
    let new = call.require_text("new")?;
    let count = call.take_count("count")?.unwrap_or(usize::MAX);
    let mut out = Writer::new(call.meter());
    let mut end = 0;
    for (at, part) in text.match_indices(&*old).take(count) {
        call.meter().visit(1)?;
        out.push(&text[end..at])?;
        out.push(&new)?;
        end = at + part.len();
    }
    out.push(&text[end..])?;
    Ok(out.into_value())
}

fn parts<'t>(parts: impl Iterator<Item = &'t str>, meter: &Meter) -> Result<Value, Trouble> {
    let mut list = Vec::new();
    for part in parts {
        meter.make_items(2)?;
        meter.make(part.len())?;
        list.push(Value::text(part));
    }
    Value::list(list, meter)
}

fn split(text: &str, call: &mut Call) -> Result<Value, Trouble> {
    let separator = call.take_text("sep")?;
    let most = call.take_count("maxsplit")?;
    let meter = call.meter();
    let from_end = call.name() == "rsplit";
    match (separator.as_deref(), most) {
        (Some(""), _) => Err(call.failed("the separator is empty")),
        (Some(separator), None) => parts(text.split(separator), meter),
        (Some(separator), Some(most)) if from_end => {
            let mut found = Vec::new();
            for part in text.rsplitn(most.saturating_add(1), separator) {
                meter.make_items(1)?;
                found.push(part);
            }
            parts(found.into_iter().rev(), meter)
        }
        (Some(separator), Some(most)) => parts(text.splitn(most.saturating_add(1), separator), meter),
        (None, None) => parts(text.split_whitespace(), meter),
        (None, Some(most)) if from_end => {
            let mut found = Vec::new();
            let mut rest = text.trim_end();
            while found.len() < most {
                let Some((at, space)) = rest.char_indices().rev().find(|(_, c)| c.is_whitespace()) else { break };
                meter.make_items(1)?;
                found.push(&rest[at + space.len_utf8()..]);
                rest = rest[..at].trim_end();
            }
            found.extend(Some(rest).filter(|rest| !rest.is_empty()));
            parts(found.into_iter().rev(), meter)
        }
        (None, Some(most)) => {
            let mut found = Vec::new();
            let mut rest = text.trim_start();
            while found.len() < most {
                let Some((word, after)) = rest.split_once(char::is_whitespace) else { break };
                meter.make_items(1)?;
                found.push(word);
                rest = after.trim_start();
            }
            found.extend(Some(rest).filter(|rest| !rest.is_empty()));
            parts(found.into_iter(), meter)
        }
    }
}

/// The filters `split` and `lines`.
pub(super) fn split_filter(call: &mut Call) -> Result<Value, Trouble> {
    let text = call.subject_text()?;
    if call.name() == "lines" { parts(text.lines(), call.meter()) } else { split(&text, call) }
}

fn lines(text: &str, call: &mut Call) -> Result<Value, Trouble> {
    let keeps_ends = call.take_flag("keepends");
    let lines = text.split_inclusive('\n');
    if keeps_ends {
        return parts(lines, call.meter());
    }
    let without_end = |line: &'_ str| -> usize {
        let line = line.strip_suffix('\n').unwrap_or(line);
        line.strip_suffix('\r').unwrap_or(line).len()
    };
    parts(lines.map(|line| &line[..without_end(line)]), call.meter())
}

/// The place of a part in characters, or -1.
fn find(text: &str, call: &mut Call) -> Result<Value, Trouble> {
    let part = call.require_text("sub")?;
    let start = call.take_count("start")?.unwrap_or(0);
    let end = call.take_count("end")?;
    let byte_at = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    let (from, to) = (byte_at(start), end.map_or(text.len(), byte_at));
    let searched = text.get(from..to).unwrap_or("");
    let found = if call.name() == "rfind" { searched.rfind(&*part) } else { searched.find(&*part) };
    match found {
        Some(at) => Ok(Value::size(text[..from + at].chars().count())),
        None if call.name() == "index" => Err(call.failed("the part is not in the text")),
        None => Ok(Value::Int(-1)),
    }
}

fn has_end(text: &str, call: &mut Call) -> Result<bool, Trouble> {
    let parts = match call.require("prefix")? {
        Value::List(list) => list,
        text => super::value::List::new(vec![text], super::value::ListKind::Tuple, call.meter())?,
    };
    for part in parts.items() {
        let part = part.as_text().ok_or_else(|| call.failed(&format!("{} is not a text", part.kind())))?;
        call.meter().visit(1)?;
        call.meter().read(part.len())?;
        if if call.name() == "startswith" { text.starts_with(&**part) } else { text.ends_with(&**part) } {
            return Ok(true);
        }
    }
    Ok(false)
}
