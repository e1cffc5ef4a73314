//! SIGINT and SIGTERM: what is under way ends cleanly, and a second signal ends everything.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Ended, Folder, SHIPPED, command, muser, processor_ticks};

const PROMPT: &str = "Once upon a time there was a";
/// Generates as long as the context lasts, which is much longer than a signal needs.
const LONG_RUN: [&str; 5] = ["run", PROMPT, "--temp", "0", "--ignore-eos"];

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until `condition` holds, and fails if it does not for far longer than it can take.
#[track_caller]
fn wait_for(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "never came");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the process catches SIGINT.
fn wait_until_it_listens(child: &mut Child) {
    let status = format!("/proc/{}/status", child.id());
    wait_for(|| {
        // One that has ended catches nothing any more.
        assert_eq!(child.try_wait().unwrap(), None, "ended before it listened");
        let text = fs::read_to_string(&status).unwrap();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 1) != 0
    });
}

#[test]
fn a_run_ends_with_a_line_break_its_figures_and_the_signal_s_exit_code() {
    let full = muser(&[&LONG_RUN[..], &["-n", "600"]].concat()).done().stdout;
    for (signal, code, word) in [("-INT", 130, "interrupted"), ("-TERM", 143, "terminated")] {
        let mut child = command(&LONG_RUN).spawn().unwrap();
        let mut got = vec![0; 60];
        child.stdout.as_mut().unwrap().read_exact(&mut got).unwrap();
        send(signal, &child);
        let ended = Ended::of(child.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        let text = String::from_utf8(got).unwrap() + ended.stdout.strip_suffix('\n').expect("a whole line");
        // The tail of a character that was cut by the signal would be shown as such.
        let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        assert!(full.starts_with(text) || text.starts_with(full.trim_end()), "{text:?}");
        let figures: Vec<&str> = ended.stderr.lines().rev().take(2).collect();
        assert_eq!(figures[0], format!("muser: {word}"));
        assert!(figures[1].contains(" generated, ") && figures[1].ends_with("; stopped"), "{}", ended.stderr);
    }
}

#[test]
fn a_second_signal_ends_what_the_first_one_cannot() {
    // Nobody reads on, so the command waits in a write and never comes to look at the first signal.
    let folder = Folder::new();
    let (ids, pipe) = (folder.write("ids", "1 ".repeat(200)), folder.at("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = command(&["logits", "--ids", &ids, "--out", &pipe]).spawn().unwrap();
    let mut reader = fs::File::open(&pipe).unwrap();
    reader.read_exact(&mut [0; 100]).unwrap();
    // Two signals that come at once may count as one.
    wait_for(|| {
        let ended = child.try_wait().unwrap();
        if ended.is_none() {
            send("-INT", &child);
        }
        ended.is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_interrupt_ends_an_answer_which_stays_in_the_conversation_and_at_the_prompt_the_chat() {
    let mut child =
        command(&["chat", "--temp", "0", "--ignore-eos", "-c", "1000"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut figures = BufReader::new(child.stderr.take().unwrap()).lines();
    let generated = |line: &str| -> usize {
        let before = line.split(" generated").next().unwrap();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (turn, start) =
        (|role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n"), "<|im_start|>assistant\n");
    let continued = |prompt: &str, tokens: usize| {
        let text = muser(&["run", "--temp", "0", "--ignore-eos", "-n", &tokens.to_string(), prompt]).done().stdout;
        text.strip_prefix(prompt).and_then(|text| text.strip_suffix('\n')).unwrap().to_owned()
    };
    // Each answer is that of a model which read those before as far as they came.
    let mut conversation = String::new();
    for question in ["Tell me of whales.", "And of ships?"] {
        conversation += &turn("user", question);
        stdin.write_all(format!("{question}\n").as_bytes()).unwrap();
        let mut got = vec![0; 20];
        out.read_exact(&mut got).unwrap();
        send("-INT", &child);
        let tokens = generated(&figures.next().unwrap().unwrap());
        assert!((1..900).contains(&tokens), "{tokens}");
        let answer = continued(&format!("{conversation}{start}"), tokens);
        // All of it is read before the next question, so that what is read then belongs to its answer.
        got.resize(answer.len() + 1, 0);
        out.read_exact(&mut got[20..]).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), format!("{answer}\n"));
        conversation += &turn("assistant", &answer);
    }
    send("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn termination_ends_a_chat_during_an_answer() {
    let mut child = command(&["chat", "--ignore-eos"]).stdin(Stdio::piped()).spawn().unwrap();
    // Open until the end: it is not the end of the input that ends the chat.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hi\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
    send("-TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn files_under_way_are_removed() {
    let folder = Folder::new();
    let ids = folder.write("ids", "1 ".repeat(2000));
    let (logits, model) = (folder.at("logits"), folder.at("model.gguf"));
    let commands = [
        vec!["logits", "--ids", &ids, "--out", &logits, "--chunk", "1"],
        vec!["quantize", SHIPPED, &model, "Q4_K", "--allow-requantize", "-t", "1"],
    ];
    for args in commands {
        // On a busy machine the command may be done before it hears of the signal.
        let caught = (0..5).find_map(|_| {
            let mut child = command(&args).spawn().unwrap();
            let under_way = || folder.names().iter().any(|name| name.ends_with(".partial"));
            wait_for(|| under_way() || child.try_wait().unwrap().is_some());
            send("-INT", &child);
            let ended = Ended::of(child.wait_with_output().unwrap());
            let written = [&logits, &model].into_iter().filter(|path| fs::remove_file(path).is_ok()).count();
            assert_eq!(written == 1, ended.code == Some(0), "{}", ended.stderr);
            (written == 0).then(|| ended.refused(130))
        });
        assert_eq!(caught.as_deref(), Some("muser: interrupted"));
        assert_eq!(folder.names(), ["ids"]);
    }
}

#[test]
fn a_benchmark_ends_between_two_measurements() {
    // More of them than anybody waits for, and each so small that its end is near.
    let mut child = command(&["bench", "-r", "1000000000", "-p", "1", "-n", "0", "-t", "1"]).spawn().unwrap();
    wait_until_it_listens(&mut child);
    // Much more than it takes to come to the measurements.
    wait_for(|| processor_ticks(&child) >= 50);
    send("-INT", &child);
    wait_for(|| child.try_wait().unwrap().is_some());
    let ended = Ended::of(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""), "{}", ended.stderr);
}

#[test]
fn a_command_with_nothing_to_end_in_order_is_ended_by_the_system() {
    // Nobody writes, so the command waits for its text until the signal comes.
    let folder = Folder::new();
    let pipe = folder.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let child = command(&["tokenize", "-f", &pipe]).spawn().unwrap();
    send("-TERM", &child);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.signal(), output.stdout.len()), (Some(15), 0), "{output:?}");
}
