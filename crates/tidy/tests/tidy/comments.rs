//! Rule on doc comments: they open with what a thing is, not with a question about it.

use std::collections::BTreeMap;

use super::repository::Text;

/// Words that open a question, direct or indirect.
const QUESTIONS: [&str; 9] = ["How", "What", "Whether", "Who", "Whose", "Why", "When", "Where", "Which"];

/// Share of doc comments that may open with one of [`QUESTIONS`], in percent.
const PERCENT_MAX: usize = 2;

/// Violations that a report names.
const NAMED_MAX: usize = 10;

/// Doc comments of a crate, or of all.
#[derive(Default)]
struct Comments {
    count: usize,
    /// `path:line` of those that open with a question.
    questions: Vec<String>,
}

/// In each crate, and over all sources, at most [`PERCENT_MAX`] percent of the doc comments open with a question.
pub fn opening_with_a_question(sources: &[Text<'_>]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Comments> = BTreeMap::new();
    for (path, text) in sources {
        // `crates/NAME`, or a folder beside `crates`.
        let depth = if path.starts_with("crates/") { 1 } else { 0 };
        let folder = path.match_indices('/').nth(depth).map_or(*path, |(end, _)| &path[..end]);
        let comments = crates.entry(folder).or_default();
        for (line, opening) in openings(text) {
            comments.count += 1;
            if is_question(opening) {
                comments.questions.push(format!("{path}:{line}"));
            }
        }
    }
    let count = crates.values().map(|comments| comments.count).sum();
    let questions = crates.values().flat_map(|comments| comments.questions.iter().cloned()).collect();
    let workspace = ("the workspace", Comments { count, questions });
    crates.into_iter().chain([workspace]).filter_map(|(name, comments)| comments.report(name)).collect()
}

impl Comments {
    fn report(&self, name: &str) -> Option<String> {
        let Self { count, ref questions } = *self;
        if 100 * questions.len() <= PERCENT_MAX * count {
            return None;
        }
        let first = questions.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        Some(format!(
            "{name}: {} of {count} doc comments open with {}, at most {PERCENT_MAX} % may: say what the thing is: {first}",
            questions.len(),
            QUESTIONS.join(", ")
        ))
    }
}

/// Number of the first line, from 1, and its text, of each block of consecutive `///` lines or `//!` lines.
fn openings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut before = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let comment = doc_comment(line.trim_start());
        let marker = comment.map(|(marker, _)| marker);
        let is_first = marker != std::mem::replace(&mut before, marker);
        comment.filter(|_| is_first).map(|(_, text)| (index + 1, text.trim_start()))
    })
}

/// The marker of a doc comment, and what follows it. Four slashes are no doc comment.
fn doc_comment(line: &str) -> Option<(&str, &str)> {
    let (marker, text) = line.split_at_checked(3)?;
    let is_doc = marker == "//!" || marker == "///" && !text.starts_with('/');
    is_doc.then_some((marker, text))
}

fn is_question(opening: &str) -> bool {
    let end = opening.find(|c: char| !c.is_alphanumeric()).unwrap_or(opening.len());
    QUESTIONS.contains(&&opening[..end])
}

/// `questions` doc comments that open with a question, one every other line, and then `others`.
#[cfg(test)]
fn planted(questions: usize, others: usize) -> String {
    let question = |index: usize| format!("    /// {} it is.\nfn f();\n", QUESTIONS[index % QUESTIONS.len()]);
    (0..questions).map(question).chain((0..others).map(|_| "/// Thing.\nfn f();\n".to_owned())).collect()
}

#[test]
fn a_crate_above_2_percent_is_reported_with_its_first_ten_lines() {
    assert!(opening_with_a_question(&[("crates/a/src/lib.rs", &planted(2, 98))]).is_empty());
    let one = planted(9, 0);
    let other = planted(3, 300);
    let broken = opening_with_a_question(&[("crates/a/src/b.rs", &one), ("crates/a/src/c/d.rs", &other)]);
    let b = [1, 3, 5, 7, 9, 11, 13, 15, 17].map(|line| format!("crates/a/src/b.rs:{line}, ")).concat();
    let rest = format!(
        "12 of 312 doc comments open with How, What, Whether, Who, Whose, Why, When, Where, Which, at most 2 % may: \
         say what the thing is: {b}crates/a/src/c/d.rs:1"
    );
    assert_eq!(broken, [format!("crates/a: {rest}"), format!("the workspace: {rest}")]);
}

#[test]
fn crates_are_counted_apart_and_all_together() {
    let (few, many, none) = (planted(3, 97), planted(3, 140), planted(0, 200));
    let a_alone = opening_with_a_question(&[("crates/a/src/lib.rs", &few), ("crates/b/src/lib.rs", &none)]);
    assert!(a_alone.len() == 1 && a_alone[0].starts_with("crates/a: 3 of 100 "), "{a_alone:?}");
    let both = opening_with_a_question(&[("crates/a/src/lib.rs", &few), ("fuzz/a/src/lib.rs", &many)]);
    let starts = ["crates/a: 3 of 100 ", "fuzz: 3 of 143 ", "the workspace: 6 of 243 "];
    assert!(both.iter().zip(starts).all(|(line, start)| line.starts_with(start)) && both.len() == 3, "{both:?}");
}

#[test]
fn only_the_first_line_of_a_doc_comment_opens_it() {
    let lines = |text: &str| openings(text).map(|(line, opening)| (line, opening.to_owned())).collect::<Vec<_>>();
    let text = "//! A file.\n//! What it has.\n\n/// A thing.\n/// Which.\n//// no\n/// Last.\n// What.\n";
    let expected = [(1, "A file."), (4, "A thing."), (7, "Last.")];
    assert_eq!(lines(text), expected.map(|(line, opening)| (line, opening.to_owned())));
    assert_eq!(lines("//! A.\n/// B.\n  /// C.\n//\n///D.\n").len(), 3);
    for opening in ["What's new.", "Who, and why.", "When", "Where: here."] {
        assert!(is_question(opening), "{opening}");
    }
    for opening in ["Whatever comes.", "what", "A What.", "`What` a field is.", "", "True if."] {
        assert!(!is_question(opening), "{opening}");
    }
}
