//! Rule on `docs/glossary.md`: the types that it names exist.

use super::repository::{Repository, Text};

const GLOSSARY: &str = "docs/glossary.md";

/// Keywords that declare what a term may be embodied by.
const DECLARATIONS: [&str; 5] = ["struct", "enum", "trait", "type", "const"];

/// Every type between backticks has the form `muser_CRATE::Name`, and `crates/CRATE/src` declares it.
pub fn unknown_types(repository: &Repository) -> Vec<String> {
    let Some(glossary) = repository.text(GLOSSARY) else { return Vec::new() };
    let sources = repository.texts_ending_in(".rs");
    let mut broken = Vec::new();
    for (index, line) in glossary.lines().enumerate() {
        // Every second part is between backticks.
        for name in line.split('`').skip(1).step_by(2) {
            let place = format!("{GLOSSARY}:{}", index + 1);
            if let Some((folder, item)) = name.strip_prefix("muser_").and_then(|path| path.split_once("::")) {
                let folder = format!("crates/{folder}/src/");
                if !sources.iter().any(|source| source.0.starts_with(&folder) && declares(source, item)) {
                    broken.push(format!("{place}: `{name}` is not declared in {folder}"));
                }
            } else if is_type_name(name) {
                broken.push(format!("{place}: `{name}` names no crate: muser_CRATE::{name}"));
            }
        }
    }
    broken
}

fn is_type_name(name: &str) -> bool {
    let is_camel_case = name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_lowercase());
    is_camel_case && name.chars().all(char::is_alphanumeric)
}

/// True if a line of code has a keyword of [`DECLARATIONS`] and then `item`, not a longer name.
fn declares((_, text): &Text<'_>, item: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.windows(2).any(|pair| {
            let end = pair[1].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(pair[1].len());
            DECLARATIONS.contains(&pair[0]) && &pair[1][..end] == item
        })
    })
}

#[test]
fn a_type_that_the_glossary_names_and_no_crate_declares_is_reported() {
    let sources = [
        ("crates/kv/src/page.rs", "pub struct Page<'a>(&'a u8);\npub(crate) trait Form {}\n// struct Spoken;\n"),
        ("crates/kv/src/rows.rs", "pub const PAGE_ROWS: usize = 64;\nstruct PageRows;\nlet page = Used::new();\n"),
        ("crates/kv/tests/kv.rs", "struct OnlyInTests;\n"),
    ];
    let broken = |text: &str| unknown_types(&Repository::of(&[&sources[..], &[(GLOSSARY, text)]].concat()));
    assert!(unknown_types(&Repository::of(&sources)).is_empty());
    assert!(broken("`muser_kv::Page`, `muser_kv::Form` and `muser_kv::PAGE_ROWS`; `u32`, `--flag`, `a B`").is_empty());
    for gone in ["Pages", "Pag", "Rows", "Spoken", "Used", "OnlyInTests", "Page::new"] {
        let expected = format!("docs/glossary.md:2: `muser_kv::{gone}` is not declared in crates/kv/src/");
        assert_eq!(broken(&format!("# Glossary\n| `muser_kv::Page` | `muser_kv::{gone}` |")), [expected]);
    }
    let other_crate = broken("`muser_model::Page`");
    assert_eq!(other_crate, ["docs/glossary.md:1: `muser_model::Page` is not declared in crates/model/src/"]);
    assert_eq!(broken("`Page`"), ["docs/glossary.md:1: `Page` names no crate: muser_CRATE::Page"]);
}
