//! Words that belong in one place, and words that belong nowhere.

use super::repository::Text;

/// `(words, homes, reason)`: code may use the words only in files whose path contains one of the homes.
const CONFINED: &[(&[&str], &[&str], &str)] = &[
    (&["env::var", "env::vars", "env::var_os"], &["crates/cli/"], "settings are read once and passed down by value"),
    (
        &["Instant::now"],
        &[
            "crates/cli/",
            "crates/cluster/",
            "crates/files/",
            "crates/host/",
            "crates/server/",
            "/examples/",
            "/benches/",
        ],
        "everything below takes the time as an argument, or needs none",
    ),
    (
        &["SystemTime::now"],
        &["crates/cli/", "crates/server/src/app.rs", "/tests/", "/examples/"],
        "the time of day is an argument, so that tests can choose it",
    ),
    (&["signal_hook", "tokio::signal"], &["crates/cli/"], "one place decides what ends a process"),
    (
        &["println!", "print!", "eprintln!", "eprint!", "stdout()", "stderr()", "stdin()"],
        &["crates/cli/", "/tests/", "/examples/"],
        "the command line alone speaks to people and pipes",
    ),
    (
        &["std::fs", "tokio::fs"],
        &[
            "crates/cli/",
            "crates/cluster/",
            "crates/files/",
            "crates/hub/",
            "crates/lane/src/socket_options.rs",
            "crates/ledger/src/storage.rs",
            "crates/trust/",
            "crates/weights/",
            "crates/cuda/src/kernels.rs",
            "/tests/",
            "/examples/",
        ],
        "computing, scheduling, protocols and routes are tested without a disk",
    ),
    (
        &["std::thread"],
        &[
            "crates/cli/",
            "crates/cluster/",
            "crates/conformance/",
            "crates/cuda/",
            "crates/files/",
            "crates/host/",
            "crates/hub/",
            "crates/kernels/",
            "crates/kv/src/page.rs",
            "crates/lane/src/socket_options.rs",
            "crates/server/",
            "crates/sim/src/runner.rs",
            "/tests/",
            "/examples/",
        ],
        "everything else is driven by its caller",
    ),
    (&["ureq"], &["crates/hub/"], "one client asks other machines for files"),
    (
        &["unsafe"],
        &[
            "crates/kernels/",
            "crates/cuda/",
            "crates/weights/src/mapped_file.rs",
            "crates/lane/src/socket_options.rs",
            "crates/server/src/heap_glibc.rs",
        ],
        "proofs by hand are kept where reviewers look for them",
    ),
    (
        &["std::net", "tokio::net", "TcpStream", "TcpListener", "UdpSocket", "UnixStream", "UnixListener"],
        &[
            "crates/server/",
            "crates/cluster/",
            "crates/lane/",
            "crates/trust/src/lib.rs",
            "crates/hub/tests/support/",
            "crates/cli/tests/",
        ],
        "rules are tested without a network",
    ),
    (
        &["target_arch", "target_feature", "std::arch", "core::arch"],
        &["crates/kernels/"],
        "everything else runs on every processor",
    ),
    (&["process::exit"], &["crates/cli/"], "a library returns errors"),
];

/// Never in code. Put together here, so that a search for them finds no place.
const FORBIDDEN_CODE: &[&str] =
    &[concat!("#[ign", "ore"), concat!("to", "do!"), concat!("unimpl", "emented!"), concat!("db", "g!")];

/// Never at all, comments included. Put together here, or this file would break the rule.
const FORBIDDEN_TEXT: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

/// Code uses no word of [`CONFINED`] outside its homes.
pub fn outside_their_home(sources: &[Text<'_>]) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in sources {
        let code = code_of(text);
        for (words, homes, reason) in CONFINED {
            if homes.iter().any(|home| path.contains(home)) {
                continue;
            }
            for word in *words {
                let lines = lines_with(&code, word);
                broken.extend(
                    lines.map(|line| format!("{path}:{line}: `{word}` belongs in {}: {reason}", homes.join(", "))),
                );
            }
        }
    }
    broken
}

/// No word of [`FORBIDDEN_CODE`] in code, none of [`FORBIDDEN_TEXT`] anywhere.
pub fn forbidden(sources: &[Text<'_>]) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in sources {
        let code = code_of(text);
        for word in FORBIDDEN_CODE {
            broken.extend(lines_with(&code, word).map(|line| format!("{path}:{line}: `{word}` is unfinished work")));
        }
        for word in FORBIDDEN_TEXT {
            broken.extend(lines_with(text, word).map(|line| format!("{path}:{line}: `{word}` is unfinished work")));
        }
    }
    broken
}

/// A crate whose sources hold no `unsafe` forbids it, so that the first comes with a decision.
pub fn unsafe_not_forbidden(sources: &[Text<'_>]) -> Vec<String> {
    let roots = sources.iter().filter(|(path, text)| {
        let is_root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
        path.starts_with("crates/") && is_root && !text.lines().any(|line| line == "#![forbid(unsafe_code)]")
    });
    let without_need = roots.filter(|(root, _)| {
        let folder = &root[..root.rfind('/').map_or(0, |end| end + 1)];
        let own = sources.iter().filter(|(path, _)| path.starts_with(folder));
        !own.into_iter().any(|(_, text)| lines_with(&code_of(text), "unsafe").next().is_some())
    });
    without_need.map(|(root, _)| format!("{root}: nothing in the crate is `unsafe`: #![forbid(unsafe_code)]")).collect()
}

/// Numbers, from 1, of the lines that contain `word` and not merely a longer word around it.
fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let holds = move |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
            let joined_before = word.starts_with(is_part) && before.is_some_and(is_part);
            let joined_after = word.ends_with(is_part) && after.is_some_and(is_part);
            !joined_before && !joined_after
        })
    };
    text.lines().enumerate().filter(move |(_, line)| holds(line)).map(|(index, _)| index + 1)
}

/// `text` without comments and without the content of literals; line breaks stay.
pub fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = comment_len(rest).or_else(|| literal_len(rest, &code));
        if let Some(len) = skipped {
            // A space, so that the words on both sides stay apart.
            code.push(' ');
            code.extend(rest[..len].chars().filter(|&c| c == '\n'));
            rest = &rest[len..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// Length of the comment that `text` starts with, if it does. Block comments nest.
fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        let (step, next) = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, depth + 1),
            [b'*', b'/', ..] => (2, depth - 1),
            _ => (1, depth),
        };
        (at, depth) = (at + step, next);
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// Length of the string, raw string or character literal that `text` starts with, if it does; `before` is the code so far.
fn literal_len(text: &str, before: &str) -> Option<usize> {
    if text.starts_with('"') {
        return Some(quoted_len(text, '"'));
    }
    if let Some(inside) = text.strip_prefix('\'') {
        // A lifetime has no second quote after one character.
        let is_literal = inside.starts_with('\\') || inside.chars().nth(1) == Some('\'');
        return is_literal.then(|| quoted_len(text, '\''));
    }
    let in_word = before.ends_with(|c: char| c.is_alphanumeric() && c != 'b' && c != 'c' || c == '_');
    let hashes = text.strip_prefix('r')?.bytes().take_while(|&b| b == b'#').count();
    if in_word || !text[1 + hashes..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    Some(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()))
}

/// Length of a literal up to and with its closing `quote`; a backslash hides the character after it.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut hidden = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if hidden => hidden = false,
            '\\' => hidden = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn a_crate_without_unsafe_code_that_does_not_forbid_it_is_reported() {
    let files = [
        ("crates/a/src/lib.rs", "//! A.\n\nmod b;\n"),
        ("crates/a/src/b.rs", "// unsafe\nlet a = \"unsafe\";\n"),
        ("crates/a/tests/a.rs", "unsafe {}\n"),
        ("crates/c/src/main.rs", "//! C.\n\n#![forbid(unsafe_code)]\n"),
        ("crates/d/src/lib.rs", "//! D.\n"),
        ("crates/d/src/e/f.rs", "unsafe {}\n"),
    ];
    let broken = unsafe_not_forbidden(&files);
    assert!(broken.len() == 1 && broken[0].starts_with("crates/a/src/lib.rs: "), "{broken:?}");
}

#[test]
fn the_style_names_each_place_of_unsafe_code() {
    const STYLE: &str = include_str!("../../../../STYLE.md");
    let rule = STYLE.split("\n**5. ").nth(1).and_then(|rest| rest.split("\n**6. ").next()).unwrap();
    let (_, homes, _) = CONFINED.iter().find(|(words, _, _)| *words == ["unsafe"]).unwrap();
    for home in *homes {
        let mut parts = home.trim_start_matches("crates/").trim_end_matches('/').rsplit('/');
        let (last, first) = (parts.next().unwrap(), parts.next_back());
        let is_named =
            first.is_none_or(|name| rule.to_lowercase().contains(name)) && rule.to_lowercase().contains(last);
        assert!(is_named, "{home} is not in rule 5 of STYLE.md");
    }
}

#[test]
fn each_confined_word_is_reported_outside_its_home_and_nowhere_else() {
    for (words, homes, reason) in CONFINED {
        for word in *words {
            let planted = format!("fn f() {{\n    {word} (1);\n}}\n");
            let away = outside_their_home(&[("crates/text/src/lib.rs", &planted)]);
            let expected = format!("crates/text/src/lib.rs:2: `{word}` belongs in {}: {reason}", homes.join(", "));
            assert_eq!(away, [expected]);
            for home in *homes {
                let path = if home.ends_with(".rs") { (*home).to_owned() } else { format!("crates/x/{home}/a.rs") };
                assert!(outside_their_home(&[(&path, &planted)]).is_empty(), "{word} in {path}");
            }
        }
    }
}

#[test]
fn each_forbidden_word_is_reported() {
    for word in FORBIDDEN_CODE.iter().chain(FORBIDDEN_TEXT) {
        let planted = format!("//! A file.\n{word}()]\n");
        assert_eq!(forbidden(&[("a.rs", &planted)]), [format!("a.rs:2: `{word}` is unfinished work")]);
    }
    let in_comment = format!("// {}: later\n", FORBIDDEN_TEXT[0]);
    assert_eq!(forbidden(&[("a.rs", &in_comment)]).len(), 1);
}

#[test]
fn longer_words_comments_and_literals_are_not_code() {
    let harmless = [
        "#![forbid(unsafe_code)]",
        "// unsafe",
        "/* unsafe /* unsafe */ unsafe */",
        "let a = \"unsafe \\\" unsafe\";",
        "let a = r#\"unsafe \" unsafe\"#;",
        "let a = br\"unsafe\\\";",
        "fn f<'a>(x: &'a str) { let q = '\"'; /* unsafe */ }",
        "let q = '\\''; // unsafe",
    ];
    for text in harmless {
        assert_eq!(outside_their_home(&[("a.rs", text)]), [""; 0], "{text}");
    }
    let code = [
        "let q = '\"'; unsafe {}",
        "let q = '\\\\'; unsafe {}",
        "let q = \"\\\\\"; unsafe {}",
        "let q = r\"\\\"; unsafe {}",
        "fn f<'a>() { unsafe {} }",
        "/* */ unsafe {}",
        "let bar = \"\"; unsafe {}",
    ];
    for text in code {
        assert_eq!(outside_their_home(&[("a.rs", text)]).len(), 1, "{text}");
    }
    assert_eq!(outside_their_home(&[("a.rs", "/*\n\n*/ \"\n\" unsafe")])[0].split(' ').next(), Some("a.rs:4:"));
}
