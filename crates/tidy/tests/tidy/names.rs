//! Rule on names of types: a public type's name stands for one thing in the whole workspace.

use std::collections::BTreeMap;

use super::repository::Text;
use super::words::code_of;

/// Names that two or more public types have still. A name leaves the list with its second type; none is added.
pub const SHARED: &[&str] = &[
    "Answer",
    "Architecture",
    "Component",
    "Cost",
    "Difference",
    "Failure",
    "Form",
    "FrameError",
    "GpuError",
    "Grant",
    "Identity",
    "KeyError",
    "KeyState",
    "Limits",
    "Matrix",
    "Message",
    "ModelSpec",
    "Node",
    "Outcome",
    "Place",
    "Progress",
    "RefuseCode",
    "RequestError",
    "SequenceRows",
    "Trial",
    "Verdict",
];

/// Keywords that begin the definition of a type.
const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// No two definitions of `pub` types under `crates/*/src` have one name, but for those of `shared`.
pub fn defined_twice(sources: &[Text<'_>], shared: &[&str]) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources.iter().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/")) {
        for (index, line) in code_of(text).lines().enumerate() {
            if let Some(name) = public_type(line) {
                places.entry(name.to_owned()).or_default().push(format!("{path}:{}", index + 1));
            }
        }
    }
    let twice = places.iter().filter(|(name, at)| at.len() > 1 && !shared.contains(&name.as_str()));
    let mut broken: Vec<String> = twice
        .map(|(name, at)| format!("{}: public type `{name}` is defined again: one name, one thing", at.join(" and ")))
        .collect();
    let single = shared.iter().filter(|name| places.get(**name).is_none_or(|at| at.len() < 2));
    broken.extend(
        single.map(|name| format!("`{name}` is in SHARED, but no two public types have the name: take it out")),
    );
    broken
}

/// The name of the public type whose definition begins on the line.
fn public_type(line: &str) -> Option<&str> {
    let definition = line.trim_start().strip_prefix("pub ")?.trim_start();
    let definition = definition.strip_prefix("unsafe ").unwrap_or(definition);
    let (kind, rest) = definition.split_once(' ')?;
    let name = rest.trim_start().split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (KINDS.contains(&kind) && !name.is_empty()).then_some(name)
}

#[test]
fn a_second_public_type_of_one_name_is_reported_with_both_places() {
    let files = [
        ("crates/a/src/lib.rs", "//! A.\npub struct Page;\npub(crate) struct Own;\nstruct Hidden;\n"),
        ("crates/b/src/c.rs", "//! B.\n    pub unsafe trait Page<T> {}\npub enum Own {}\npub enum Hidden {}\n"),
    ];
    let report =
        "crates/a/src/lib.rs:2 and crates/b/src/c.rs:2: public type `Page` is defined again: one name, one thing";
    assert_eq!(defined_twice(&files, &[]), [report]);
    assert!(defined_twice(&files, &["Page"]).is_empty());
    assert!(defined_twice(&files[..1], &[]).is_empty());
}

#[test]
fn a_name_of_the_list_that_one_type_has_leaves_it() {
    let files = [("crates/a/src/lib.rs", "pub type Page = u8;\n")];
    for name in ["Page", "Gone"] {
        let report = format!("`{name}` is in SHARED, but no two public types have the name: take it out");
        assert_eq!(defined_twice(&files, &[name]), [report]);
    }
}

#[test]
fn only_definitions_of_public_types_in_sources_count() {
    let definitions = [
        "pub struct A;",
        "pub enum A {",
        "  pub trait A: B {",
        "pub type A<T> = B;",
        "pub union A {",
        "pub struct A<'a>(",
    ];
    for line in definitions {
        assert_eq!(public_type(line), Some("A"), "{line}");
    }
    for line in ["struct A;", "pub(crate) struct A;", "pub fn struct_a() {", "pub const TYPE: u8 = 0;", "pub use a::A;"]
    {
        assert_eq!(public_type(line), None, "{line}");
    }
    let (source, test) = ("pub struct A;\n// pub struct A;\n/* pub struct A; */\n", "pub struct A;\n");
    assert!(defined_twice(&[("crates/a/src/a.rs", source), ("crates/a/tests/a.rs", test)], &[]).is_empty());
}
