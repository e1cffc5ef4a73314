//! `muser serve` as a process: what it says, what it answers, and how it ends.

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Folder, muser};
use crate::serving::Serving;

const ENDLESS: &str = r#"{"prompt": "Once", "n_predict": 500, "ignore_eos": true, "stream": true}"#;

#[test]
fn a_server_says_where_it_is_answers_and_ends_when_it_is_asked_to() {
    let serving = Serving::start(&["-np", "2", "-a", "my-model", "--kv-memory", "64", "-cram", "16"]);
    let lines: Vec<&str> = serving.said.lines().collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    let expected = [
        ("muser: listening on http://127.0.0.1:", ""),
        ("model    my-model, ", " MiB"),
        ("context  512 tokens", ""),
        ("slots    2; 64 more", ""),
        ("memory   64.0 MiB", "16.0 MiB for reuse"),
        ("keys     none", ""),
    ];
    for (line, (start, end)) in lines.iter().zip(expected) {
        assert!(line.starts_with(start) && line.ends_with(end), "{line}");
    }
    let body = r#"{"prompt": "a secret wish", "n_predict": 3, "ignore_eos": true}"#;
    let answer = serving.ask("POST", "/completion", "", body);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(r#""model":"my-model""#), "{answer}");
    assert!(serving.ask("GET", "/a-secret-path", "", "").starts_with("HTTP/1.1 404 "));
    serving.signal("TERM");
    let (code, said) = serving.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\nPOST /completion 200 ") && said.contains(" tokens read, 3 generated\n"), "{said}");
    assert!(said.contains("\nGET (no such path) 404 "), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

// With one slot and no limit on memory, a server had room for a request at its end, and not for its prompt while that is
// computed: it refused every request that might fill the context.
#[test]
fn one_slot_has_room_for_a_request_that_fills_the_context() {
    let serving = Serving::start(&["-np", "1"]);
    let prompt = vec!["300"; 500].join(",");
    let body = format!(r#"{{"prompt": [{prompt}], "ignore_eos": true}}"#);
    let answer = serving.ask("POST", "/completion", "", &body);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(r#""tokens_predicted":12"#), "{answer}");
    serving.signal("TERM");
    assert_eq!(serving.ended().0, Some(0));
}

#[test]
fn keys_come_from_flags_and_files_and_are_never_said() {
    let folder = Folder::new();
    let file = folder.write("keys", "# ours\nfile-secret use,metrics\n");
    set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let keys = ["--api-key", "flag-secret", "--admin-key", "admin-secret", "--api-key-file", &file];
    let serving = Serving::start(&keys);
    assert!(
        serving.said.contains("can read the keys") && serving.said.contains("\nkeys     3 keys\n"),
        "{}",
        serving.said
    );
    let status = |path: &str, key: &str| serving.ask("GET", path, key, "")[9..12].to_owned();
    assert_eq!(
        ["", "wrong-secret", "flag-secret", "file-secret"].map(|key| status("/props", key)),
        ["401", "401", "200", "200"]
    );
    assert_eq!(
        ["flag-secret", "file-secret", "admin-secret"].map(|key| status("/metrics", key)),
        ["403", "200", "200"]
    );
    assert!(serving.ask("POST", "/admin/drain", "admin-secret", "").starts_with("HTTP/1.1 200 "));
    let (code, said) = serving.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn a_second_signal_ends_what_the_first_lets_go_on() {
    let mut serving = Serving::start(&["--drain-seconds", "600"]);
    let mut stream =
        serving.send("POST", "/completion", "", &ENDLESS.replace("500", "-1").replace("\"Once\"", "\"a\", \"n\": 4"));
    stream.read_exact(&mut [0; 200]).unwrap();
    serving.signal("INT");
    let mut line = String::new();
    while !line.contains("stopping") {
        line.clear();
        assert!(serving.stderr.read_line(&mut line).unwrap() > 0);
    }
    serving.signal("INT");
    assert_eq!(serving.ended().0, Some(130));
}

#[test]
fn an_answer_that_the_stop_cuts_short_ends_with_an_error() {
    let serving = Serving::start(&["--drain-seconds", "0"]);
    let mut stream = serving.send("POST", "/completion", "", ENDLESS);
    stream.read_exact(&mut [0; 200]).unwrap();
    serving.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("unavailable_error") || rest.contains(r#""stop":true"#), "{rest}");
    assert_eq!(serving.ended().0, Some(0));
}

#[test]
fn an_address_that_cannot_be_had_is_named_with_its_own_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let line = muser(&["serve", "--port", &port]).refused(5);
    assert!(line.contains(&format!("cannot listen on 127.0.0.1:{port}: address in use")), "{line}");
    let line = muser(&["serve", "--port", "0", "--host", "0.0.0.0"]).refused(5);
    assert!(line.contains("0.0.0.0:0") && line.contains("--insecure-public"), "{line}");
    muser(&["serve", "--port", "0", "--host", "no.such.name.invalid"]).refused(5);
}

#[test]
fn what_keeps_a_server_from_starting_ends_it_with_its_exit_code() {
    let folder = Folder::new();
    let serve = |args: &[&str], code: i32| muser(&[&["serve", "--port", "0"], args].concat()).refused(code);
    assert!(serve(&["-m", &folder.at("absent.gguf")], 3).contains("absent.gguf"));
    assert!(serve(&["-m", &folder.write("bad.gguf", "GGUF")], 3).contains("bad.gguf"));
    assert!(serve(&["--top-p", "7"], 2).contains("top-p"));
    assert!(muser(&["serve", "--port", "0", "--temp", "nan"]).wrong_usage().contains("--temp"));
    assert!(serve(&["-c", "1000000"], 2).contains("1000000"));
    assert!(serve(&["-ctk", "f16"], 2).contains("-ctv"));
    assert!(serve(&["--api-key", ""], 2).contains("--api-key: a key is empty"));
    let keys = folder.write("keys", "good\nbad-secret root\n");
    let line = serve(&["--api-key-file", &keys], 2);
    assert!(line.contains("line 2") && !line.contains("secret"), "{line}");
    assert!(serve(&["--api-key-file", &folder.write("none", "# nobody\n")], 2).contains("has no keys"));
    let (empty, other) = (folder.write("empty.pem", ""), folder.write("other.pem", "x"));
    let line = serve(&["--ssl-cert-file", &empty, "--ssl-key-file", &other], 2);
    assert!(line.contains("empty.pem") && line.contains("no certificate"), "{line}");
    for (args, part) in [
        (&["--cors-origins", "example.org"][..], "is no origin"),
        (&["--ssl-cert-file", &empty], "--ssl-key-file"),
        (&["-np", "0"], "--parallel"),
        (&["--timeout", "0"], "--timeout"),
    ] {
        let message = muser(&[&["serve"], args].concat()).wrong_usage();
        assert!(message.contains(part), "{message}");
    }
}
