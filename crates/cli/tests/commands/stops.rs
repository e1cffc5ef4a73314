//! Stop strings and escapes.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Ended, command, muser};

const PROMPT: &str = "Once upon a time there was a";

fn run(more: &[&str]) -> Ended {
    muser(&[&["run", PROMPT, "--temp", "0", "-n", "12"][..], more].concat()).done()
}

#[test]
fn text_ends_before_a_stop_string_however_tokens_divide_it() {
    let full = run(&[]).stdout;
    let text = full.strip_prefix(PROMPT).unwrap().trim_end();
    // Pieces of the text, some of which begin or end within tokens.
    for length in [1, 4, 9] {
        for start in (0..text.len() - length).step_by(8) {
            let stop = &text[start..start + length];
            // As a value of its own it could not begin with a dash; `=` takes anything.
            let ended = run(&[&format!("--reverse-prompt={stop}")]);
            let kept = &text[..text.find(stop).unwrap()];
            assert_eq!(ended.stdout, format!("{PROMPT}{kept}\n"), "{stop:?}");
            assert!(ended.stderr.contains("; a stop string was reached"), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_stop_string_that_only_begins_costs_nothing_of_the_text() {
    let full = run(&[]).stdout;
    for stop in [" talk abouX", "Navy.", " of the Navy and", PROMPT] {
        let ended = run(&["-r", stop]);
        assert_eq!(ended.stdout, full, "{stop:?}");
        assert!(ended.stderr.contains("the limit of tokens was reached"), "{}", ended.stderr);
    }
    let first = run(&["-r", " business", "-r", " about", "-r", "talk"]).stdout;
    assert_eq!(first, format!("{PROMPT} great deal of \n"));
    muser(&["run", "x", "-r", ""]).wrong_usage();
}

#[test]
fn an_answer_of_a_chat_ends_at_a_stop_string_and_the_chat_goes_on() {
    let chat = |flags: &[&str]| {
        let args = [&["chat", "--temp", "0", "-n", "30"], flags].concat();
        let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"Tell me of whales.\nAnd of ships?\n").unwrap();
        Ended::of(child.wait_with_output().unwrap()).done()
    };
    let full = chat(&[]).stdout;
    let stop = full.split_whitespace().nth(5).unwrap();
    let cut = chat(&["-r", stop]);
    let kept = format!("{}\n", &full[..full.find(stop).unwrap()]);
    assert!(cut.stdout.starts_with(&kept) && !cut.stdout.contains(stop), "{:?} and {full:?}", cut.stdout);
    assert_eq!(cut.stderr.lines().count(), 2, "{}", cut.stderr);
}

#[test]
fn escapes_are_read_where_that_is_asked_for() {
    let prompt = |flags: &[&str]| muser(&[&["run", "-n", "0"], flags].concat()).done().stdout;
    assert_eq!(prompt(&[r"a\tb\n"]), "a\\tb\\n\n");
    assert_eq!(prompt(&["-e", r"a\tb\n"]), "a\tb\n\n");
    assert_eq!(prompt(&["--escape", "-p", r"\xc3\xa9"]), "é\n");
    assert_eq!(run(&["-e", "-r", r"\x20talk"]).stdout, format!("{PROMPT} great deal of\n"));
    for flags in [["-e", "-r", r"\"], ["-e", "-r", r"\xff"]] {
        let line = muser(&[&["run", "x"], &flags[..]].concat()).refused(2);
        assert!(line.contains("--escape"), "{line}");
    }
    let line = muser(&["run", "-e", r"a\q"]).refused(2);
    assert!(line.contains("--escape") && line.contains(r"\q"), "{line}");
}
