//! Servers and producers with few descriptors, and strangers who open more connections than there are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use muser_trust::identity::Roles;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::common::{Folder, processor_ticks};
use crate::produce::{Producing, cluster, complete, nodes};
use crate::serving::Serving;

/// Descriptors of a process that has few.
const FEW: u64 = 64;
/// Connections of strangers: three for each descriptor.
const STRANGERS: usize = 200;
/// Said when the system has no descriptor for a connection.
const SHORT: &str = "no connection can be taken";

/// Opens connections and says the same on all; those that are closed at once count, too.
fn strangers(address: &str, count: usize, words: &[u8]) -> Vec<TcpStream> {
    let open = |_| {
        let stream = TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(10)).ok()?;
        // It may have made way already.
        let _ = (&stream).write_all(words);
        Some(stream)
    };
    (0..count).filter_map(open).collect()
}

/// Checks that the process does next to nothing for two seconds.
#[track_caller]
fn is_idle(child: &Child) {
    let before = processor_ticks(child);
    sleep(Duration::from_secs(2));
    let ticks = processor_ticks(child) - before;
    assert!(ticks < 20, "{ticks} hundredths of a second of processor time in 2 s");
}

/// Checks that `/health` is answered soon.
#[track_caller]
fn is_healthy(serving: &Serving, when: &str) {
    let began = Instant::now();
    let mut stream = serving.send("GET", "/health", "", "");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    assert!(read.is_ok() && answer.starts_with("HTTP/1.1 200 "), "{when}: {read:?} {answer:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{when}: {:?}", began.elapsed());
}

/// Lowers the limit of a running process to so many descriptors more than it has open.
fn leave_descriptors(child: &Child, more: u64) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count() as u64;
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let limit = Some(open + more);
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
}

#[test]
fn a_server_with_few_descriptors_answers_those_who_watch_it_whatever_strangers_hold_open() {
    let serving = Serving::start_with_descriptors(FEW, &[]);
    let told = serving.said.contains("at most 24 connections: the limit of descriptors");
    assert!(told, "{}", serving.said);
    for (name, words) in [
        ("silent", ""),
        ("in a head", "GET /hea"),
        ("kept", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("in a body", "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"),
    ] {
        let held = strangers(&serving.address, STRANGERS, words.as_bytes());
        assert!(held.len() > STRANGERS / 2, "{name}: {} connections", held.len());
        for _ in 0..5 {
            is_healthy(&serving, name);
        }
        is_idle(&serving.child);
        is_healthy(&serving, name);
        drop(held);
        let began = Instant::now();
        complete(&serving, "Once");
        assert!(began.elapsed() < Duration::from_secs(4), "{name}: {:?} after they left", began.elapsed());
    }
    let said = serving.stopped();
    assert!(said.matches(SHORT).count() <= 1, "{said}");
}

#[test]
fn a_producer_with_few_descriptors_lets_its_decoder_in_whatever_strangers_hold_open() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start_with_descriptors(FEW, &["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let flags = ["--cluster", &decoder, "--producer", &producing.address, "--producer-min-tokens", "40"];
    let helped = Serving::start(&[&flags[..], &["--prefill", "producer"]].concat());
    for (number, words) in [&b""[..], &[22, 3, 1, 2, 0, 1]].into_iter().enumerate() {
        let held = strangers(&producing.address, STRANGERS, words);
        let prompt = format!("{number}. {}", "There was an old house by the sea. ".repeat(20));
        let times = complete(&helped, &prompt).1;
        assert_eq!(times["kv_source"], "producer", "{times}");
        is_idle(&producing.child);
        drop(held);
    }
    // Those who come faster than others are ended can take the last one for a moment.
    assert!(producing.heard(SHORT) <= 1, "it is said again and again");
    helped.stopped();
}

#[test]
fn where_the_system_has_no_descriptor_at_all_it_is_said_once_and_waited_for_without_work() {
    let folder = Folder::new();
    let roles = [("producer", Roles::Producer), ("decoder", Roles::Decoder), ("other", Roles::Decoder)];
    let [producer, decoder, other] = nodes(&folder, roles);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let flags = ["--cluster", &decoder, "--producer", &producing.address, "--producer-min-tokens", "40"];
    let helped = Serving::start(&[&flags[..], &["--prefill", "producer"]].concat());
    let flags = ["--cluster", &other, "--producer", &producing.address, "--producer-min-tokens", "40"];
    let newcomer = Serving::start(&[&flags[..], &["--prefill", "producer"]].concat());
    let alone = Serving::start(&[]);
    let prompt = |number: usize| format!("{number}. {}", "There was an old house by the sea. ".repeat(20));
    assert_eq!(complete(&helped, &prompt(0)).1["kv_source"], "producer");
    leave_descriptors(&producing.child, 6);
    leave_descriptors(&alone.child, 6);
    let at_producer = strangers(&producing.address, 40, b"");
    let at_server = strangers(&alone.address, 40, b"");
    producing.says(SHORT);
    is_healthy(&alone, "strangers wait for descriptors");
    is_idle(&producing.child);
    is_idle(&alone.child);
    // It has no lane yet, and comes behind all the strangers: of these the oldest make way.
    assert_eq!(complete(&newcomer, &prompt(0)).1["kv_source"], "producer");
    drop((at_producer, at_server));
    is_healthy(&alone, "they left");
    let began = Instant::now();
    // After a failure the producer is left alone for a while.
    let used = (1..).find(|number| complete(&helped, &prompt(*number)).1["kv_source"] == "producer");
    assert!(began.elapsed() < Duration::from_secs(10), "used after {:?}, at prompt {used:?}", began.elapsed());
    assert_eq!(producing.heard(SHORT), 0, "it is said again and again");
    helped.stopped();
    newcomer.stopped();
    let said = alone.stopped();
    assert_eq!(said.matches(SHORT).count(), 1, "{said}");
}
