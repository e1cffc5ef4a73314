//! Rules on documents: what they link to or name exists, and the map shows every crate.

use super::repository::Repository;

/// `ARCHITECTURE.md`, once there is one, names every crate as `` `muser-FOLDER` ``.
pub fn crates_missing_from_the_map(repository: &Repository) -> Vec<String> {
    let Some(map) = repository.text("ARCHITECTURE.md") else { return Vec::new() };
    let manifests = repository.texts_ending_in("/Cargo.toml");
    let folders = manifests.iter().filter_map(|(path, _)| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"));
    let names = folders.map(|folder| format!("`muser-{folder}`"));
    names
        .filter(|name| !map.contains(name.as_str()))
        .map(|name| format!("ARCHITECTURE.md: does not name {name}"))
        .collect()
}

/// The documents at the root do not name source files or folders that are gone. `kv/src/page.rs` may stand for
/// `crates/kv/src/page.rs`; names with wildcards are left alone.
pub fn dead_paths(repository: &Repository) -> Vec<String> {
    let mut broken = Vec::new();
    for (document, text) in repository.texts_ending_in(".md").into_iter().filter(|(path, _)| !path.contains('/')) {
        // Every second part is between backticks.
        for name in text.split('`').skip(1).step_by(2) {
            let is_path = name.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
            let is_ours = name.starts_with("crates/") || name.contains("/src/") || name.contains("/tests/");
            let path = name.trim_end_matches('/');
            if is_path && is_ours && !repository.has(path) && !repository.has(&format!("crates/{path}")) {
                broken.push(format!("{document}: `{name}` does not exist"));
            }
        }
    }
    broken
}

/// Every relative link of a markdown file leads to a file or folder.
pub fn dead_links(repository: &Repository) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in repository.texts_ending_in(".md") {
        for link in relative_links(text) {
            let target = resolve(path, &link);
            if !target.as_ref().is_some_and(|target| target.is_empty() || repository.has(target)) {
                broken.push(format!("{path}: dead link `{link}`"));
            }
        }
    }
    broken
}

/// Targets of `[text](target)` and `[name]: target` outside of code, without titles and fragments.
fn relative_links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        }
        if in_code_block {
            continue;
        }
        // Between backticks is code: every second part.
        let prose = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        links.extend(prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).map(str::to_owned));
        if let Some((_, rest)) = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            links.extend(rest.split_whitespace().next().map(str::to_owned));
        }
    }
    let targets = links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
    let paths = targets.filter_map(|link| link.split('#').next()).filter(|path| !path.is_empty());
    paths.map(str::to_owned).collect()
}

/// `link` as seen from the file `from`, relative to the root; `None` if it leaves the repository.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = if link.starts_with('/') { Vec::new() } else { from.split('/').collect() };
    // The file's own name; nothing for a link from the root.
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[test]
fn a_crate_that_the_map_does_not_name_is_reported() {
    let manifests = [("crates/kv/Cargo.toml", ""), ("crates/text/Cargo.toml", ""), ("Cargo.toml", "")];
    let with_map = |map| Repository::of(&[&manifests[..], &[("ARCHITECTURE.md", map)]].concat());
    assert!(crates_missing_from_the_map(&Repository::of(&manifests)).is_empty());
    assert!(crates_missing_from_the_map(&with_map("`muser-text`, **kv** (`muser-kv`)")).is_empty());
    let broken = crates_missing_from_the_map(&with_map("`muser-kvpack` and `muser-text`"));
    assert_eq!(broken, ["ARCHITECTURE.md: does not name `muser-kv`"]);
}

#[test]
fn a_source_path_that_is_gone_is_reported_in_documents_at_the_root() {
    let text =
        "`kv/src/page.rs` `crates/kv/src/` `kv/src/gone.rs` `crates/gone` `crates/*/tests/x.rs` `a/b` kv/src/prose.rs";
    let sources = [("crates/kv/src/page.rs", ""), ("docs/page.md", text)];
    assert!(dead_paths(&Repository::of(&sources)).is_empty());
    let broken = dead_paths(&Repository::of(&[&sources[..], &[("README.md", text)]].concat()));
    assert_eq!(broken, ["README.md: `kv/src/gone.rs` does not exist", "README.md: `crates/gone` does not exist"]);
}

#[test]
fn dead_relative_links_are_reported_and_others_are_left_alone() {
    let page = "\
[a](../README.md) [b](gone.md#part) ![c](image.png \"title\") [d](https://example.org/x.md) [e](#part) [f](../src)
`[g](in-code.md)` text [h](../../outside.md)
```text
[i](in-block.md)
```
[j]: lost.md
[k]: ../README.md
[l](/README.md) [m](..)
";
    let repository = Repository::of(&[("README.md", ""), ("docs/page.md", page), ("src/lib.rs", "")]);
    let expected = ["gone.md", "image.png", "../../outside.md", "lost.md"];
    assert_eq!(dead_links(&repository), expected.map(|link| format!("docs/page.md: dead link `{link}`")));
}
