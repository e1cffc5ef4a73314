//! Dependencies allowed between crates: the arrows of the architecture point one way.

use super::repository::Text;

/// `(crate, may depend on)`, both without `muser-`. Build, test and target dependencies count.
const ARROWS: &[(&str, &[&str])] = &[
    ("files", &[]),
    ("hub", &[]),
    ("kernels", &[]),
    ("text", &[]),
    ("tidy", &[]),
    ("wire", &[]),
    ("ledger", &["files"]),
    ("trust", &["files", "wire"]),
    ("placement", &["files", "trust"]),
    ("lane", &["trust", "wire"]),
    ("enrol", &["lane", "trust"]),
    ("handoff", &["ledger", "wire"]),
    ("weights", &["kernels"]),
    ("synthetic", &["kernels", "weights"]),
    ("kv", &["kernels"]),
    ("model", &["kernels", "kv", "synthetic", "weights"]),
    ("cuda", &["kernels", "kv", "model", "synthetic", "weights"]),
    ("conformance", &["cuda", "kernels", "kv", "model", "synthetic", "weights"]),
    ("engine", &["kernels", "kv", "model", "synthetic", "text", "weights"]),
    ("host", &["engine", "kernels", "kv", "model", "weights"]),
    (
        "cluster",
        &[
            "engine",
            "enrol",
            "files",
            "handoff",
            "host",
            "kernels",
            "kv",
            "lane",
            "ledger",
            "model",
            "synthetic",
            "text",
            "trust",
            "weights",
            "wire",
        ],
    ),
    ("sim", &["handoff", "kv", "ledger", "trust", "wire"]),
    (
        "server",
        &[
            "cluster",
            "engine",
            "host",
            "kernels",
            "kv",
            "lane",
            "ledger",
            "model",
            "placement",
            "synthetic",
            "text",
            "trust",
            "weights",
            "wire",
        ],
    ),
    (
        "cli",
        &[
            "cluster",
            "conformance",
            "cuda",
            "engine",
            "enrol",
            "files",
            "host",
            "hub",
            "kernels",
            "kv",
            "lane",
            "ledger",
            "model",
            "placement",
            "server",
            "synthetic",
            "text",
            "trust",
            "weights",
            "wire",
        ],
    ),
];

/// Every crate has a line in [`ARROWS`], depends on nothing else of ours, and takes the workspace's lints.
pub fn against_the_order(manifests: &[Text<'_>]) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, manifest) in manifests {
        let Some(name) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            broken.push(format!("{path}: crate `{name}` has no line in ARROWS"));
            continue;
        };
        let own = dependencies(manifest);
        let wrong = own.iter().filter(|other| !allowed.contains(&other.as_str()));
        broken.extend(wrong.map(|other| format!("{path}: `{name}` must not depend on `{other}`")));
        if !manifest.contains("[lints]\nworkspace = true\n") {
            broken.push(format!("{path}: does not take the workspace's lints"));
        }
    }
    broken
}

/// Our crates among a manifest's dependencies of any kind, without `muser-`.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_dependencies = false;
    for line in manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        }
        if in_dependencies {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
            found.extend(words.filter_map(|word| word.strip_prefix("muser-")).map(str::to_owned));
        }
    }
    found.dedup();
    found
}

#[test]
fn a_dependency_against_the_arrows_is_reported_however_it_is_written() {
    let forms = [
        "[dependencies]\nmuser-engine.workspace = true\n",
        "[dev-dependencies]\nmuser-engine = { path = \"../engine\" }\n",
        "[dependencies.muser-engine]\nworkspace = true\n",
        "[target.'cfg(unix)'.dependencies]\nother = { package = \"muser-engine\", path = \"../engine\" }\n",
    ];
    for form in forms {
        let manifest = format!("[package]\nname = \"muser-kernels\"\n\n[lints]\nworkspace = true\n\n{form}");
        let broken = against_the_order(&[("crates/kernels/Cargo.toml", &manifest)]);
        assert_eq!(broken, ["crates/kernels/Cargo.toml: `kernels` must not depend on `engine`"], "{form}");
        assert!(against_the_order(&[("crates/cli/Cargo.toml", &manifest)]).is_empty(), "{form}");
    }
}

#[test]
fn a_crate_without_arrows_or_without_our_lints_is_reported() {
    let unknown = against_the_order(&[("crates/other/Cargo.toml", "[lints]\nworkspace = true\n")]);
    assert_eq!(unknown, ["crates/other/Cargo.toml: crate `other` has no line in ARROWS"]);
    let lax = against_the_order(&[("crates/kv/Cargo.toml", "[lints.rust]\nmissing_docs = \"warn\"\n")]);
    assert_eq!(lax, ["crates/kv/Cargo.toml: does not take the workspace's lints"]);
}

#[test]
fn the_map_of_the_architecture_has_a_paragraph_and_the_arrows_of_each_crate() {
    const MAP: &str = include_str!("../../../../ARCHITECTURE.md");
    for (name, targets) in ARROWS {
        assert!(MAP.contains(&format!("\n**{name}** (`muser-{name}`): ")), "no paragraph of {name}");
        let targets = if targets.is_empty() { "none".to_owned() } else { targets.join(", ") };
        assert!(MAP.contains(&format!("\n| {name} | {targets} |\n")), "not in the table: {name} | {targets}");
    }
    let head = MAP.split("\n| crate | may depend on |\n|---|---|\n").nth(1).unwrap();
    assert_eq!(head.lines().take_while(|line| line.starts_with('|')).count(), ARROWS.len());
}

#[test]
fn the_style_lists_the_crates_in_the_order_of_the_arrows() {
    const STYLE: &str = include_str!("../../../../STYLE.md");
    let rule = STYLE.split("\n**13. ").nth(1).and_then(|rest| rest.split("\n**14. ").next()).unwrap();
    let listed = rule.split('`').skip(1).step_by(2);
    assert_eq!(listed.collect::<Vec<_>>(), ARROWS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}

#[test]
fn the_arrows_have_no_cycle() {
    for (at, (name, targets)) in ARROWS.iter().enumerate() {
        for target in *targets {
            assert!(ARROWS[..at].iter().any(|(earlier, _)| earlier == target), "{name} -> {target}");
        }
    }
}
