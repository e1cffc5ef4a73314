//! Rule on the invariants of `ARCHITECTURE.md`: each names the tests, or the rules of this crate, that fail when it is
//! broken.

use super::repository::{Repository, Text};

const MAP: &str = "ARCHITECTURE.md";

/// Sections of the map whose list items are invariants: one of each crate at least, and those of all crates.
const SECTIONS: [&str; 2] = ["## 3. Code map", "## 4. Cross-cutting"];

/// Opens the names behind an invariant; `]` ends them.
const KEPT_BY: &str = " [kept by: ";

/// The list of rules that run over the repository. A rule that is not called there keeps nothing.
const RULES: &str = "crates/tidy/tests/tidy.rs";

/// Every item of a list in the [`SECTIONS`] is one sentence and then `` [kept by: `muser-CRATE::module::name`, ...] ``,
/// and each name is a test of that crate or a rule of this one. Every crate has an item.
pub fn without_a_keeper(repository: &Repository) -> Vec<String> {
    let Some(map) = repository.text(MAP) else { return Vec::new() };
    let mut broken = Vec::new();
    let items = items(map);
    for item in &items {
        let place = format!("{MAP}:{}", item.line);
        let Some((sentence, names)) = item.text.strip_suffix(']').and_then(|text| text.split_once(KEPT_BY)) else {
            broken.push(format!("{place}: ends without ` [kept by: ...]`: {}", item.text));
            continue;
        };
        if !sentence.ends_with('.') || sentence.contains(". ") {
            broken.push(format!("{place}: is not one sentence: {sentence}"));
        }
        let names = names.split(", ").map(|name| name.strip_prefix('`').and_then(|name| name.strip_suffix('`')));
        broken.extend(names.filter_map(|name| match name {
            None => Some(format!("{place}: names stand in backticks, with a comma and a space between them")),
            Some(name) if !keeps(repository, name) => {
                Some(format!("{place}: `{name}` is neither a test nor a rule that runs"))
            }
            Some(_) => None,
        }));
    }
    let manifests = repository.texts_ending_in("/Cargo.toml");
    let crates = manifests.iter().filter_map(|(path, _)| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"));
    let bare = crates.filter(|name| !items.iter().any(|item| item.of == Some(*name)));
    broken.extend(bare.map(|name| format!("{MAP}: `muser-{name}` has no invariant in the map")));
    broken
}

/// List item of the map, its lines joined by spaces.
struct Item<'a> {
    /// Number of the first line, from 1.
    line: usize,
    /// Crate without `muser-`, of whose paragraph it is a part.
    of: Option<&'a str>,
    text: String,
}

fn items(map: &str) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = Vec::new();
    let (mut in_section, mut of, mut is_open) = (false, None, false);
    for (index, line) in map.lines().enumerate() {
        if line.starts_with("## ") {
            (in_section, of) = (SECTIONS.contains(&line), None);
        }
        if let Some(name) = line.strip_prefix("**").and_then(|rest| rest.split_once("** (`muser-")) {
            of = Some(name.0);
        }
        if let Some(text) = line.strip_prefix("- ").filter(|_| in_section) {
            items.push(Item { line: index + 1, of, text: text.trim_end().to_owned() });
            is_open = true;
        } else if line.starts_with("  ") && is_open {
            let item = items.last_mut().expect("an open item");
            item.text.push(' ');
            item.text.push_str(line.trim());
        } else {
            is_open = false;
        }
    }
    items
}

/// True if `name` is `muser-CRATE::module::function` of a test, or of a rule that [`RULES`] calls.
fn keeps(repository: &Repository, name: &str) -> bool {
    let Some((path, function)) = name.strip_prefix("muser-").and_then(|path| path.rsplit_once("::")) else {
        return false;
    };
    let (name_of_crate, module) = path.split_once("::").unwrap_or((path, ""));
    let module = module.strip_suffix("::tests").unwrap_or(module);
    let folder = format!("crates/{name_of_crate}/");
    let sources = repository.texts_ending_in(".rs");
    let module_in = |path: &str| path.strip_prefix(&folder).and_then(module_of);
    let mut files = sources.iter().filter(|(path, _)| module_in(path).as_deref() == Some(module));
    let is_rule = || {
        let call = format!(" {}::{function}(", module.rsplit("::").next().unwrap_or_default());
        name_of_crate == "tidy" && repository.text(RULES).is_some_and(|rules| rules.contains(&call))
    };
    files.any(|source| is_test(source, function) || is_rule())
}

/// Module of a file of a crate, as the test runner names it: `tests/engine/memory.rs` is `engine::memory`. Files
/// `main.rs`, `mod.rs` and `tests.rs` are the module that they belong to.
fn module_of(path: &str) -> Option<String> {
    let path = path.strip_prefix("src/").or_else(|| path.strip_prefix("tests/"))?.strip_suffix(".rs")?;
    let path = ["/main", "/mod", "/tests"].iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path);
    let is_root = ["lib", "main"].contains(&path);
    Some(if is_root { String::new() } else { path.replace('/', "::") })
}

/// True if the file has a function of that name with an attribute that makes it a test.
fn is_test((_, text): &Text<'_>, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_declared = |line: &&str| {
        let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        rest.and_then(|rest| rest.strip_prefix(function)).is_some_and(|rest| rest.starts_with('('))
    };
    let has_attribute = |at: usize| {
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with('#') || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    };
    lines.iter().enumerate().any(|(at, line)| is_declared(line) && has_attribute(at))
}

/// Findings about a map with `items` in the paragraph of the crate `kv`, whose files are made up.
#[cfg(test)]
fn findings(items: &str) -> Vec<String> {
    let head = "# Map\n- no invariant\n## 3. Code map\n**kv** (`muser-kv`): pages.\n";
    let map = format!("{head}\n{items}\n## 5. Start\n- here\n");
    without_a_keeper(&Repository::of(&[
        (MAP, &map),
        ("crates/kv/Cargo.toml", ""),
        ("crates/kv/src/page.rs", "fn helper() {}\n\n#[test]\nfn pages_are_whole() {}\n"),
        (
            "crates/kv/tests/kv/main.rs",
            "/// Slow.\n#[tokio::test(start_paused = true)]\n// Why.\nasync fn waits() {}\n",
        ),
        ("crates/kv/src/name/tests.rs", "    #[test]\n    fn names() {}\n"),
        (RULES, "        words::forbidden(&sources),\n"),
        ("crates/tidy/tests/tidy/words.rs", "pub fn forbidden() {}\npub fn not_run() {}\n"),
    ]))
}

#[test]
fn an_invariant_that_names_no_test_or_none_that_exists_is_reported() {
    let good = "\
- Pages are
  whole. [kept by: `muser-kv::page::tests::pages_are_whole`,
  `muser-kv::kv::waits`, `muser-kv::name::names`]
- No word. [kept by: `muser-tidy::tidy::words::forbidden`]
";
    assert_eq!(findings(good), [""; 0]);
    for bare in ["", " [kept by: a]", " [kept by: `muser-kv::page::pages_are_whole`"] {
        let broken = findings(&format!("- Pages are whole.{bare}\n"));
        assert!(broken.len() == 1 && broken[0].starts_with("ARCHITECTURE.md:6: "), "{broken:?}");
    }
    for gone in [
        "muser-kv::page::pages_are_who",
        "muser-kv::page::helper",
        "muser-kv::other::pages_are_whole",
        "muser-model::page::pages_are_whole",
        "muser-tidy::tidy::words::not_run",
        "kv::page::pages_are_whole",
    ] {
        let broken = findings(&format!("- Pages are whole. [kept by: `{gone}`]\n"));
        assert_eq!(broken, [format!("ARCHITECTURE.md:6: `{gone}` is neither a test nor a rule that runs")]);
    }
}

#[test]
fn two_sentences_under_one_name_and_a_crate_without_an_invariant_are_reported() {
    let two = findings("- Pages are whole. So are names. [kept by: `muser-kv::name::names`]\n");
    assert_eq!(two, ["ARCHITECTURE.md:6: is not one sentence: Pages are whole. So are names."]);
    assert_eq!(findings(""), ["ARCHITECTURE.md: `muser-kv` has no invariant in the map"]);
    assert_eq!(findings("## 4. Cross-cutting\n- Bits. [kept by: `muser-kv::name::names`]\n").len(), 1);
}
