//! Rules on the shape of a source file.

use super::repository::Text;

/// No source file is longer.
const LINES_MAX: usize = 600;

/// `(path, lines)`: files above the limit. A number here may only go down, and a file at the limit leaves the list.
pub const LONG_FILES: &[(&str, usize)] = &[];

/// A file is at most [`LINES_MAX`] lines long, or exactly as long as `exceptions` says.
pub fn long_files(sources: &[Text<'_>], exceptions: &[(&str, usize)]) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in sources {
        let lines = text.lines().count();
        match exceptions.iter().find(|(known, _)| known == path) {
            None if lines > LINES_MAX => {
                broken.push(format!("{path}: {lines} lines, at most {LINES_MAX}: split it by noun"))
            }
            Some((_, max)) if lines > *max => broken.push(format!("{path}: grew from {max} to {lines} lines")),
            Some((_, max)) if lines < *max => {
                broken.push(format!("{path}: shrank from {max} to {lines} lines, write that into LONG_FILES"));
            }
            _ => {}
        }
    }
    let gone = exceptions.iter().filter(|(known, _)| !sources.iter().any(|(path, _)| path == known));
    broken.extend(gone.map(|(path, _)| format!("{path}: in LONG_FILES, but there is no such file")));
    broken
}

/// Every file opens with a bird's-eye comment, `//!`.
pub fn files_without_an_introduction(sources: &[Text<'_>]) -> Vec<String> {
    let bare = sources.iter().filter(|(_, text)| !text.starts_with("//! "));
    bare.map(|(path, _)| format!("{path}: does not open with a `//!` comment that says what the file is")).collect()
}

#[test]
fn a_long_file_is_reported_unless_listed_with_its_length() {
    let long = "line\n".repeat(601);
    let files = [("crates/a/src/lib.rs", long.as_str())];
    assert_eq!(long_files(&files, &[]), ["crates/a/src/lib.rs: 601 lines, at most 600: split it by noun"]);
    assert!(long_files(&files, &[("crates/a/src/lib.rs", 601)]).is_empty());
    assert!(long_files(&files, &[("crates/a/src/lib.rs", 600)])[0].contains("grew from 600 to 601"));
    assert!(long_files(&files, &[("crates/a/src/lib.rs", 700)])[0].contains("shrank from 700 to 601"));
    assert!(long_files(&[], &[("crates/a/src/lib.rs", 700)])[0].contains("no such file"));
    assert!(long_files(&[("b.rs", &"line\n".repeat(600))], &[]).is_empty());
}

#[test]
fn a_file_without_an_opening_comment_is_reported() {
    let files = [("a.rs", "//! Says what it is.\n"), ("b.rs", "use std::fs;\n//! Too late.\n"), ("c.rs", "")];
    let broken = files_without_an_introduction(&files);
    assert_eq!(broken.len(), 2);
    assert!(broken[0].starts_with("b.rs: ") && broken[1].starts_with("c.rs: "), "{broken:?}");
}
