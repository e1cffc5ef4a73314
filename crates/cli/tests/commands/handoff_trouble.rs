//! `muser serve` when its producer freezes, dies, comes back, or takes the whole cluster with it: what clients are told.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use muser_ledger::{HEADER_BYTES, RECORD_BYTES};
use serde_json::{Value, json};

use crate::common::{Folder, muser};
use crate::produce::{Producing, cluster, complete};
use crate::serving::Serving;

/// Long enough for the producer; another for each number.
fn prompt(number: usize) -> String {
    format!("{number}. {}", "There was an old house by the sea. ".repeat(20))
}

fn produce(folder: &str, listen: &str) -> Producing {
    Producing::start(&["--cluster", folder, "--listen", listen])
}

/// A server that asks the producer at `address` for such prompts.
fn serve(folder: &str, address: &str, more: &[&str]) -> Serving {
    let flags = ["--cluster", folder, "--producer", address, "--producer-min-tokens", "40", "--prefill", "producer"];
    Serving::start(&[&flags, more].concat())
}

fn signal(producing: &Producing, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &producing.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn ends_well(serving: Serving) {
    serving.signal("TERM");
    assert_eq!(serving.ended().0, Some(0));
}

/// Status line and body of an answer.
fn ask(serving: &Serving, body: &Value) -> (String, Value) {
    let answer = serving.ask("POST", "/completion", "", &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), serde_json::from_str(body).unwrap())
}

fn is_healthy(serving: &Serving) -> bool {
    serving.ask("GET", "/health", "", "").starts_with("HTTP/1.1 200 ")
}

#[test]
fn a_frozen_producer_costs_the_time_that_was_allowed_and_never_an_answer_that_looks_finished() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = produce(&producer, "127.0.0.1:0");
    let alone = Serving::start(&[]);
    for (limit, reason) in [("--handoff-seconds", "expired"), ("--producer-stall-seconds", "nothing moved")] {
        // One after the other: they share the decoder's folder, and its ledger has one owner.
        for fallback in ["local", "fail"] {
            let helped = serve(&decoder, &producing.address, &[limit, "1", "--fallback", fallback]);
            assert_eq!(complete(&helped, &prompt(1)).1["kv_source"], "producer");
            signal(&producing, "STOP");
            let began = Instant::now();
            if fallback == "local" {
                let (found, times) = complete(&helped, &prompt(2));
                assert!(found == complete(&alone, &prompt(2)).0, "other bits: {times}");
                let told = times["kv_fallback"].as_str().unwrap();
                assert!(times["kv_source"] == "local" && told.contains(reason), "{times}");
            } else {
                let (status, body) = ask(&helped, &json!({"prompt": prompt(2), "n_predict": 4}));
                assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
                let told = body["error"]["message"].as_str().unwrap();
                assert!(told.contains("no producer helps") && told.contains(reason), "{body}");
                assert_eq!((&body["content"], &body["choices"]), (&Value::Null, &Value::Null));
            }
            let waited = began.elapsed();
            assert!(waited > Duration::from_secs(1) && waited < Duration::from_secs(20), "{waited:?}");
            signal(&producing, "CONT");
            assert!(is_healthy(&helped));
            ends_well(helped);
        }
    }
    ends_well(alone);
}

#[test]
fn a_producer_that_dies_under_a_handoff_is_an_error_or_a_whole_answer_as_the_fallback_says() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let alone = Serving::start(&[]);
    for fallback in ["local", "fail"] {
        let mut producing = produce(&producer, "127.0.0.1:0");
        let helped = serve(&decoder, &producing.address, &["--fallback", fallback]);
        assert_eq!(complete(&helped, &prompt(1)).1["kv_source"], "producer");
        // Frozen, it cannot finish before it is killed.
        signal(&producing, "STOP");
        let request = json!({"prompt": prompt(2), "n_predict": 12, "seed": 5, "return_tokens": true});
        let (status, body) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&helped, &request));
            std::thread::sleep(Duration::from_millis(100));
            producing.kill();
            asking.join().unwrap()
        });
        if fallback == "local" {
            let (of_alone, expected) = ask(&alone, &request);
            assert_eq!(status, of_alone);
            for field in ["content", "tokens", "stop_type", "tokens_predicted", "tokens_evaluated"] {
                assert_eq!(body[field], expected[field], "{field}");
            }
            assert!(body["timings"]["kv_fallback"].is_string(), "{body}");
        } else {
            assert!(status == "HTTP/1.1 503 Service Unavailable" && body["content"].is_null(), "{status} {body}");
        }
        assert!(is_healthy(&helped));
        ends_well(helped);
    }
    ends_well(alone);
}

#[test]
fn a_producer_that_was_away_is_used_again_within_two_seconds_of_its_return() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let mut producing = produce(&producer, "127.0.0.1:0");
    let address = producing.address.clone();
    let helped = serve(&decoder, &address, &[]);
    assert_eq!(complete(&helped, &prompt(0)).1["kv_source"], "producer");
    producing.kill();
    let away = complete(&helped, &prompt(1)).1;
    assert!(away["kv_source"] == "local" && away["kv_fallback"].is_string(), "{away}");
    let _producing = produce(&producer, &address);
    let back = Instant::now();
    // It failed once, so it is left alone for one second.
    let used = (2..).find(|number| complete(&helped, &prompt(*number)).1["kv_source"] == "producer").unwrap();
    assert!(back.elapsed() < Duration::from_secs(2), "used after {:?}, at prompt {used}", back.elapsed());
    ends_well(helped);
}

#[test]
fn a_server_goes_on_alone_under_load_when_producer_and_cluster_folder_vanish() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let mut producing = produce(&producer, "127.0.0.1:0");
    let alone = Serving::start(&[]);
    let helped = serve(&decoder, &producing.address, &["--parallel", "3"]);
    let expected: Vec<Value> = (0..6).map(|number| complete(&alone, &prompt(number)).0).collect();
    let (gone, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let [with, without] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for client in 0..3 {
            let (helped, expected, gone, stop, with, without) = (&helped, &expected, &gone, &stop, &with, &without);
            scope.spawn(move || {
                for number in (client..6).cycle() {
                    let was_gone = gone.load(Ordering::SeqCst);
                    let (found, times) = complete(helped, &prompt(number));
                    assert!(found == expected[number], "prompt {number}, other bits: {times}");
                    let counted = if times["kv_source"] == "producer" { with } else { without };
                    counted.fetch_add(1, Ordering::SeqCst);
                    assert!(!was_gone || times["kv_source"] == "local", "{times}");
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        let began = Instant::now();
        while with.load(Ordering::SeqCst) == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "the producer is never used");
            std::thread::sleep(Duration::from_millis(5));
        }
        producing.kill();
        std::fs::remove_dir_all(&decoder).unwrap();
        gone.store(true, Ordering::SeqCst);
        // Long enough for the producer to be asked once more, in vain.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(is_healthy(&helped));
        stop.store(true, Ordering::SeqCst);
    });
    assert!(without.load(Ordering::SeqCst) >= 6, "{without:?} answers without the producer");
    for serving in [alone, helped] {
        ends_well(serving);
    }
}

#[test]
fn a_ledger_with_a_torn_tail_serves_on_and_a_damaged_one_keeps_the_server_from_starting() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = produce(&producer, "127.0.0.1:0");
    let ledger = Path::new(&decoder).join("ledger/replay.ledger");
    let length = || usize::try_from(std::fs::metadata(&ledger).unwrap().len()).unwrap();
    let helped = serve(&decoder, &producing.address, &[]);
    for number in 0..3 {
        assert_eq!(complete(&helped, &prompt(number)).1["kv_source"], "producer");
    }
    ends_well(helped);
    assert_eq!(length(), HEADER_BYTES + 3 * RECORD_BYTES);
    // As a crash leaves it: the last record is there in part.
    std::fs::OpenOptions::new().write(true).open(&ledger).unwrap().set_len(length() as u64 - 70).unwrap();
    let helped = serve(&decoder, &producing.address, &[]);
    assert_eq!(complete(&helped, &prompt(3)).1["kv_source"], "producer");
    ends_well(helped);
    assert_eq!(length(), HEADER_BYTES + 3 * RECORD_BYTES);
    let mut bytes = std::fs::read(&ledger).unwrap();
    bytes[HEADER_BYTES + 20] ^= 1;
    std::fs::write(&ledger, &bytes).unwrap();
    let flags = ["serve", "--port", "0", "--cluster", &decoder, "--producer", &producing.address];
    let refused = muser(&flags).refused(1);
    assert!(refused.contains(&format!("the record at byte {HEADER_BYTES} of the ledger is damaged")), "{refused}");
    assert_eq!(std::fs::read(&ledger).unwrap(), bytes, "it was left as it is");
}
