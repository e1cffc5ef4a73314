//! Readers that leave, and disks that are full.

use std::fs::OpenOptions;
use std::io::Read;

use crate::common::{command, muser, processor_ticks};

const LONG_RUN: [&str; 5] = ["run", "Once upon a time there was a", "--temp", "0", "-n"];

/// Reads some output of a command and leaves; its exit code and standard error.
fn read_and_leave(args: &[&str]) -> (Option<i32>, String) {
    let mut child = command(args).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    let before = processor_ticks(&child);
    let mut stderr = String::new();
    // Its end is that of the command.
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    // Not the time of day, which others may have used.
    let ticks = processor_ticks(&child) - before;
    assert!(ticks < 500, "computed for {ticks} hundredths of a second more");
    (child.wait().unwrap().code(), stderr)
}

#[test]
fn a_reader_that_leaves_ends_the_command_silently() {
    // 2040 tokens take much longer than a reader needs to leave; the other outputs are larger than a pipe holds.
    for args in [&[&LONG_RUN[..], &["2040"]].concat()[..], &["inspect", "--json"]] {
        assert_eq!(read_and_leave(args), (Some(141), String::new()), "{args:?}");
    }
}

#[test]
fn text_is_shown_as_it_is_made() {
    // Held back until a line or a buffer is full, no reader would ever find the prompt alone.
    for _ in 0..10 {
        let mut child = command(&[&LONG_RUN[..], &["2040"]].concat()).spawn().unwrap();
        let mut first = [0; 4096];
        let count = child.stdout.take().unwrap().read(&mut first).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        if count < 500 && !first[..count].contains(&b'\n') {
            return;
        }
    }
    panic!("ten readers found a whole line at once");
}

#[test]
fn a_standard_error_that_nobody_reads_disturbs_nothing() {
    let expected = muser(&[&LONG_RUN[..], &["20"]].concat()).done().stdout;
    let mut child = command(&[&LONG_RUN[..], &["20"]].concat()).spawn().unwrap();
    drop(child.stderr.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8(ended.stdout).unwrap()), (Some(0), expected));
    let mut refused = command(&["inspect", "absent.gguf"]).spawn().unwrap();
    drop(refused.stderr.take());
    assert_eq!(refused.wait().unwrap().code(), Some(3));
}

#[test]
fn a_full_disk_behind_standard_output_is_a_failure_with_its_reason() {
    for args in [&[&LONG_RUN[..], &["3"]].concat()[..], &["inspect"], &["inspect", "--json"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = command(args).stdout(full).output().unwrap();
        let line = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{line}");
        assert!(line.starts_with("muser: standard output: No space left") && line.lines().count() == 1, "{line}");
    }
}
