//! Requests and disconnects of clients at a server with a producer.

use std::io::Read;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::Folder;
use crate::produce::{Producing, cluster, complete};
use crate::serving::Serving;

const SENTENCE: &str = "There was an old house by the sea. ";

fn helped(folder: &Folder) -> (Producing, Serving) {
    let (producer, decoder) = cluster(folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let flags = ["--cluster", &decoder, "--producer", &producing.address, "--producer-min-tokens", "40"];
    let serving = Serving::start(&[&flags[..], &["--prefill", "producer"]].concat());
    (producing, serving)
}

/// Status code and body of an answer.
fn ask(serving: &Serving, path: &str, body: &Value) -> (u16, Value) {
    let answer = serving.ask("POST", path, "", &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

fn ends_well(serving: Serving) {
    serving.signal("TERM");
    assert_eq!(serving.ended().0, Some(0));
}

#[test]
fn requests_of_several_answers_or_prompts_or_none_are_answered_or_refused_as_without_a_producer() {
    let folder = Folder::new();
    let (_producing, helped) = helped(&folder);
    let alone = Serving::start(&[]);
    let long = |name: &str| format!("{name}: {}", SENTENCE.repeat(20));
    let requests = [
        ("/v1/completions", json!({"prompt": long("a"), "n": 2, "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": [long("b"), long("c")], "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": [long("d"), "short"], "n": 2, "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": [[5, 6, 7], vec![8; 120]], "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": "", "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": [], "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": [long("e"), ""], "max_tokens": 4, "seed": 1})),
        ("/v1/completions", json!({"prompt": long("f"), "n": 0})),
        ("/v1/completions", json!({"prompt": long("g"), "n": 1_000_000})),
        ("/completion", json!({"prompt": "", "n_predict": 4, "seed": 1})),
        ("/completion", json!({"prompt": [], "n_predict": 4, "seed": 1})),
        ("/completion", json!({"prompt": long("h"), "n_predict": 0, "seed": 1})),
        ("/completion", json!({"prompt": SENTENCE.repeat(200), "n_predict": 4})),
        ("/completion", json!({"prompt": vec![9; 512], "n_predict": 4})),
    ];
    let mut with_producer = 0;
    for (path, request) in requests {
        let (expected_status, mut expected) = ask(&alone, path, &request);
        let (status, mut found) = ask(&helped, path, &request);
        with_producer += usize::from(found["timings"]["kv_source"] == "producer");
        for body in [&mut expected, &mut found] {
            let Some(fields) = body.as_object_mut() else { continue };
            // What differs from one answer to the next.
            ["id", "created", "timings", "generation_settings"].iter().for_each(|name| drop(fields.remove(*name)));
        }
        assert_eq!((status, found), (expected_status, expected), "{path} {request}");
        assert!([200, 400].contains(&status), "{status}");
    }
    assert!(with_producer >= 1, "no request came to the producer");
    assert!(helped.ask("GET", "/health", "", "").starts_with("HTTP/1.1 200 "));
    let (_, times) = complete(&helped, &long("last"));
    assert_eq!(times["kv_source"], "producer");
    ends_well(alone);
    ends_well(helped);
}

#[test]
fn clients_cannot_speak_to_producers_through_fields_of_their_own() {
    let folder = Folder::new();
    let (_producing, helped) = helped(&folder);
    let handoff =
        json!({"do_remote_prefill": true, "remote_host": "127.0.0.1", "remote_port": 1, "remote_block_ids": [1]});
    for (name, value) in [
        ("kv_transfer_params", handoff.clone()),
        ("kv_source", json!("producer")),
        ("kv_producer", json!("another")),
        ("kv_brought_n", json!(100)),
        ("handoff", handoff.clone()),
        ("handoff_id", json!("00000000000000000000000000000000")),
        ("held_pages", json!(3)),
        ("producer", json!("127.0.0.1:1")),
        ("bootstrap_host", json!("127.0.0.1")),
        ("bootstrap_room", json!(7)),
        ("fallback", json!("fail")),
        ("timings", json!({"kv_source": "producer"})),
    ] {
        for (path, count) in [("/completion", "n_predict"), ("/v1/completions", "max_tokens")] {
            let (status, body) = ask(&helped, path, &json!({"prompt": SENTENCE.repeat(20), count: 2, name: value}));
            let told = body["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 400 && told.contains(&format!("{name:?}")), "{path} {name}: {status} {body}");
        }
    }
    ends_well(helped);
}

fn descriptors(child: &Child) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count()
}

/// Waits until a process has no more descriptors than it should.
fn settles(child: &Child, most: usize) {
    let began = Instant::now();
    while descriptors(child) > most {
        assert!(began.elapsed() < Duration::from_secs(30), "{} descriptors, {most} are enough", descriptors(child));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_hundred_clients_that_leave_at_random_moments_leave_nothing_behind_at_either_end() {
    let folder = Folder::new();
    let (producing, helped) = helped(&folder);
    let alone = Serving::start(&[]);
    let prompt = |number: usize| format!("{number}, {}", SENTENCE.repeat(20));
    complete(&helped, &prompt(1000));
    let before = [descriptors(&producing.child), descriptors(&helped.child)];
    let mut random = fastrand::Rng::with_seed(200);
    for number in 0..200 {
        let body = json!({"prompt": prompt(number), "n_predict": 30, "stream": random.bool()});
        let mut stream = helped.send("POST", "/completion", "", &body.to_string());
        if random.u8(..) < 128 {
            std::thread::sleep(Duration::from_micros(random.u64(0..40_000)));
        } else {
            stream.set_read_timeout(Some(Duration::from_millis(random.u64(1..40)))).unwrap();
            // It hears the beginning of the answer, or nothing in time.
            let _ = stream.read(&mut [0; 64]);
        }
        drop(stream);
        if number % 50 == 49 {
            assert!(helped.ask("GET", "/health", "", "").starts_with("HTTP/1.1 200 "));
        }
    }
    let began = Instant::now();
    // Those who left can have kept the producer so busy that it refused, and is left alone for a moment.
    for number in 2000.. {
        let (found, times) = complete(&helped, &prompt(number));
        assert!(found == complete(&alone, &prompt(number)).0, "other bits: {times}");
        if times["kv_source"] == "producer" {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "the producer is not used again: {times}");
    }
    // Lanes that are kept for the next handoff are few: four at each end.
    settles(&producing.child, before[0] + 4);
    settles(&helped.child, before[1] + 4);
    for field in ["requests_processing", "requests_deferred"] {
        let metrics = helped.ask("GET", "/metrics", "", "");
        let line = metrics.lines().find(|line| line.contains(field) && !line.starts_with('#'));
        assert!(line.is_none_or(|line| line.ends_with(" 0")), "{line:?}");
    }
    ends_well(alone);
    ends_well(helped);
}
