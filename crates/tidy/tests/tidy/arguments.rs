//! Rule on arguments: a function takes values one by one or in a struct, and not packed in a tuple to keep their count low.

use super::repository::Text;
use super::words::code_of;

/// Functions that take a packed tuple still: file and name, without the folder, so that a file may move. An entry leaves the
/// list with its last tuple; none is added.
pub const PACKED: &[&str] = &[
    "answer.rs new",
    "arrivals.rs check",
    "audit.rs audit",
    "departures.rs send",
    "disjoint.rs for_each_chunk_pair",
    "integer_scales.rs add_sub_block",
    "issuer.rs admit",
    "issuer.rs test",
    "mod.rs whole",
    "node.rs new",
    "options.rs start_telling",
    "probe.rs send",
    "produce.rs serve",
    "remote.rs new",
    "scalar.rs float_unit",
    "scalar.rs integer_unit",
    "show.rs from",
    "tile.rs fill",
    "trial.rs admit",
    "attempt.rs take_page",
    "decoder.rs finish",
];

/// No function under `crates/*/src` has a parameter `(a, b): (A, B)` whose elements differ in type, but for those of
/// `known`. Elements of one type are one value, as `(rows, cols): (usize, usize)` is a shape.
pub fn packed_in_tuples(sources: &[Text<'_>], known: &[&str]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut met: Vec<String> = Vec::new();
    for (path, text) in sources.iter().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/")) {
        let code = code_of(text);
        for (at, _) in code.match_indices("fn ") {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let Some((name, parameters)) = signature(&code[at + 3..]) else { continue };
            let Some(packed) = parameters.into_iter().find(|parameter| is_packed(parameter)) else { continue };
            let entry = format!("{} {name}", path.rsplit('/').next().unwrap_or(path));
            if known.contains(&entry.as_str()) {
                met.push(entry);
            } else {
                let line = 1 + code[..at].matches('\n').count();
                let packed = packed.split_whitespace().collect::<Vec<_>>().join(" ");
                broken
                    .push(format!("{path}:{line}: `{name}` takes a tuple `{packed}`: separate arguments, or a struct"));
            }
        }
    }
    let gone = known.iter().filter(|entry| !met.iter().any(|met| met == *entry));
    broken.extend(gone.map(|entry| format!("`{entry}` is in PACKED, but takes no packed tuple: take it out")));
    broken
}

/// The name and the parameters of a function, from what follows `fn `; `None` for a type such as `fn (u8)`.
fn signature(text: &str) -> Option<(&str, Vec<&str>)> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    let (name, rest) = text.split_at(end);
    let rest = match rest.strip_prefix('<') {
        Some(generics) => &generics[parts(generics)?.1 + 1..],
        None => rest,
    };
    let inside = rest.strip_prefix('(').filter(|_| !name.is_empty())?;
    Some((name, parts(inside)?.0))
}

/// The parts between commas up to the bracket that closes what began before `text`, and where that bracket stands.
fn parts(text: &str) -> Option<(Vec<&str>, usize)> {
    let (mut found, mut depth, mut start, mut before) = (Vec::new(), 0usize, 0, ' ');
    for (at, c) in text.char_indices() {
        match c {
            // An arrow closes nothing.
            '>' if before == '-' => {}
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' if depth == 0 => {
                found.push(&text[start..at]);
                return Some((found, at));
            }
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    None
}

/// True for a parameter that takes a tuple apart whose elements differ in type.
fn is_packed(parameter: &str) -> bool {
    let Some(pattern) = parameter.trim().strip_prefix('(') else { return false };
    let Some((_, end)) = parts(pattern) else { return false };
    let Some(types) = pattern[end + 1..].trim().strip_prefix(':') else { return false };
    let Some(types) = types.trim().strip_prefix('(').and_then(parts) else { return false };
    let mut elements = types.0.iter().map(|element| element.trim()).filter(|element| !element.is_empty());
    let first = elements.next();
    elements.any(|element| Some(element) != first)
}

#[test]
fn a_tuple_of_arguments_is_reported_wherever_it_stands_in_the_signature() {
    let functions = [
        ("fn f(&self, (a, b): (u8, &str)) {}", "(a, b): (u8, &str)"),
        ("pub async fn f<'a, F: Fn(u8) -> u8>(\n    (a,\n b): (F, Vec<(u8, u8)>),\n) {}", "(a, b): (F, Vec<(u8, u8)>)"),
        ("fn f(x: fn(u8) -> u8, (a, (b, c)): (u8, (u8, u16))) -> (u8, u16) {}", "(a, (b, c)): (u8, (u8, u16))"),
        ("fn f((mut a, _): (u8, u16), b: u8);", "(mut a, _): (u8, u16)"),
    ];
    for (function, tuple) in functions {
        let text = format!("//! A.\n\n{function}\n");
        let report = format!("crates/a/src/b.rs:3: `f` takes a tuple `{tuple}`: separate arguments, or a struct");
        assert_eq!(packed_in_tuples(&[("crates/a/src/b.rs", &text)], &[]), [report]);
        assert!(packed_in_tuples(&[("crates/a/src/b.rs", &text)], &["b.rs f"]).is_empty());
        assert!(packed_in_tuples(&[("crates/a/tests/b.rs", &text)], &[]).is_empty());
    }
}

#[test]
fn a_function_of_the_list_without_a_tuple_leaves_it() {
    let report = "`b.rs f` is in PACKED, but takes no packed tuple: take it out";
    assert_eq!(packed_in_tuples(&[("crates/a/src/b.rs", "fn f(a: u8, b: &str) {}")], &["b.rs f"]), [report]);
}

#[test]
fn pairs_of_one_type_and_tuples_that_are_not_taken_apart_are_arguments() {
    let harmless = [
        "fn f((rows, cols): (usize, usize)) {}",
        "fn f(pair: (u8, &str)) -> (u8, u16) {}",
        "fn f(call: impl Fn((u8, u16)), [a, b]: [u8; 2]) { let (a, b): (u8, u16) = g(); }",
        "// fn f((a, b): (u8, u16)) {}",
        "let f = |(a, b): (u8, u16)| a;",
        "type F = fn((u8, u16));",
        "struct Defn ((u8, u16));",
    ];
    for text in harmless {
        assert_eq!(packed_in_tuples(&[("crates/a/src/b.rs", text)], &[]), [""; 0], "{text}");
    }
}
