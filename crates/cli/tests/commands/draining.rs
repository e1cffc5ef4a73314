//! Handoffs under way when `muser produce` receives a signal to end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::Folder;
use crate::produce::{Producing, cluster, complete};
use crate::serving::Serving;

/// Bytes that the gate lets through before it closes: more than a handshake, less than the pages of a prompt.
const PASSES: usize = 50_000;

/// A way to a producer that holds what it sends, once that is more than a handshake.
struct Gate {
    address: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    passed: usize,
    is_open: bool,
}

impl Gate {
    fn before(producer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, producer) = (listener.local_addr().unwrap().to_string(), producer.to_owned());
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for decoder in listener.incoming().map_while(Result::ok) {
                let Ok(producer) = TcpStream::connect(&producer) else { continue };
                let (mut from, mut to) = (decoder.try_clone().unwrap(), producer.try_clone().unwrap());
                // An end of one side is an end of the other.
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let state = Arc::clone(&shared);
                std::thread::spawn(move || pass(producer, decoder, &state));
            }
        });
        Self { address, state }
    }

    /// Waits until pages are held.
    fn holds(&self) {
        let state = self.state.0.lock().unwrap();
        let limit = Duration::from_secs(60);
        let (state, _) = self.state.1.wait_timeout_while(state, limit, |state| state.passed < PASSES).unwrap();
        assert!(state.passed >= PASSES, "only {} bytes came", state.passed);
    }

    fn open(&self) {
        self.state.0.lock().unwrap().is_open = true;
        self.state.1.notify_all();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, state: &(Mutex<State>, Condvar)) {
    let mut buffer = [0; 8192];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let mut held = state.0.lock().unwrap();
        held.passed += bytes;
        state.1.notify_all();
        while held.passed >= PASSES && !held.is_open {
            held = state.1.wait(held).unwrap();
        }
        drop(held);
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn signal(producing: &Producing, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &producing.child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A prompt's answer from a decoder whose producer is signalled by `end` while its pages are held.
fn end_during_a_handoff(flags: &[&str], end: impl FnOnce(&mut Producing, &Gate)) -> serde_json::Value {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let listen = ["--cluster", &producer, "--listen", "127.0.0.1:0"];
    let mut producing = Producing::start(&[&listen, flags].concat());
    let gate = Gate::before(&producing.address);
    let serving = Serving::start(&["--cluster", &decoder, "--producer", &gate.address, "--prefill", "producer"]);
    let alone = Serving::start(&[]);
    let prompt = "There was an old house by the sea. ".repeat(30);
    let expected = complete(&alone, &prompt).0;
    let times = std::thread::scope(|scope| {
        let asked = scope.spawn(|| complete(&serving, &prompt));
        gate.holds();
        end(&mut producing, &gate);
        // The decoder hears of the end only now.
        gate.open();
        let (answer, times) = asked.join().unwrap();
        assert_eq!(answer, expected);
        times
    });
    for serving in [alone, serving] {
        serving.signal("TERM");
        assert_eq!(serving.ended().0, Some(0));
    }
    times
}

#[test]
fn the_first_signal_lets_a_handoff_end_and_takes_no_lane() {
    let times = end_during_a_handoff(&[], |producing, gate| {
        signal(producing, "TERM");
        producing.says("muser: stopping once the handoffs under way have ended");
        let began = Instant::now();
        while TcpStream::connect(&producing.address).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "it still takes lanes");
        }
        assert_eq!(producing.child.try_wait().unwrap(), None);
        gate.open();
        producing.says("muser: handoff to decoder: ");
        assert_eq!(producing.child.wait().unwrap().code(), Some(0));
    });
    assert_eq!(times["kv_source"], "producer", "{times}");
}

#[test]
fn a_second_signal_ends_a_producer_at_once_and_so_does_the_end_of_its_time() {
    let times = end_during_a_handoff(&[], |producing, _| {
        signal(producing, "TERM");
        producing.says("muser: stopping");
        signal(producing, "INT");
        assert_eq!(producing.child.wait().unwrap().code(), Some(130));
    });
    assert!(times["kv_source"] == "local" && times["kv_fallback"].is_string(), "{times}");
    let times = end_during_a_handoff(&["--drain-seconds", "1"], |producing, _| {
        signal(producing, "INT");
        producing.says("muser: handoffs that are given up: 1");
        assert_eq!(producing.child.wait().unwrap().code(), Some(0));
    });
    assert!(times["kv_source"] == "local" && times["kv_fallback"].is_string(), "{times}");
}
