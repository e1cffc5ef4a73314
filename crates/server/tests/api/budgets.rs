//! Limits of requests and of their memory: counts and lengths are refused by name before any work, and all requests
//! together have one budget of memory.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use muser_server::ConnectionLimits;
use serde_json::{Value, json};

use crate::client::{Answer, Pending, begin, connect};
use crate::routes::{Route, WAYS};
use crate::world::{Setup, World, shipped, wait_until};

/// Asks with a body that no JSON library would write.
fn post_text(world: &World, path: &str, body: &str) -> Answer {
    begin(world.address, "POST", path, &[], body.as_bytes()).finish()
}

#[test]
fn counts_and_lengths_have_a_limit_that_is_taken_and_one_more_is_refused_by_name() {
    let world = World::shipped();
    let vocab = shipped().config().vocab;
    let strings = |count: usize| json!((0..count).map(|index| format!("~{index}~")).collect::<Vec<_>>());
    let biases = |count: usize| json!((0..count).map(|index| json!([300 + index % 9, 0.5])).collect::<Vec<_>>());
    let stop = |bytes: usize| json!(["x", "y".repeat(bytes)]);
    let cases = [
        ("stop", strings(64), strings(65)),
        ("stop", stop(1024), stop(1025)),
        ("logit_bias", biases(vocab), biases(vocab + 1)),
        ("logit_bias", json!([["a".repeat(1024), 0.5]]), json!([["a".repeat(1025), 0.5]])),
        ("n_probs", json!(100), json!(101)),
    ];
    for (name, most, too_much) in cases {
        for way in WAYS.into_iter().filter(|way| !way.stream) {
            let ask =
                |value: &Value| world.post(way.route.path(), &way.body("Hi", &json!({"max_tokens": 1, name: value})));
            assert_eq!(ask(&most).status, 200, "{way:?} {name}");
            let message = ask(&too_much).refused(400, "invalid_request_error");
            assert!(message.starts_with(name), "{way:?} {message}");
        }
    }
    let message = json!({"role": "user", "content": ""});
    let ask = |count: usize| world.post("/apply-template", &json!({"messages": vec![&message; count]}));
    assert_eq!(ask(5000).status, 200);
    let message = ask(16_385).refused(400, "invalid_request_error");
    assert!(message.starts_with("messages: has 16385"), "{message}");
    let long = "x".repeat((4 << 20) + 1);
    for (path, name, body) in [
        ("/tokenize", "content", json!({"content": long})),
        ("/apply-template", "messages", json!({"messages": [{"role": "user", "content": long}]})),
        ("/detokenize", "tokens", json!({"tokens": vec![300; (1 << 20) + 1]})),
    ] {
        let message = world.post(path, &body).refused(400, "invalid_request_error");
        assert!(message.starts_with(name), "{path} {message}");
    }
}

#[test]
fn a_text_that_cannot_fit_the_context_is_refused_by_its_length() {
    let world = World::shipped();
    for way in WAYS.into_iter().filter(|way| way.route != Route::Chat) {
        let text = "a b ".repeat(100_000);
        for prompt in [json!(text), json!(["a", text]), json!([300, text]), json!([[300], [text]])] {
            let mut body = way.body("", &json!({"max_tokens": 1}));
            body["prompt"] = prompt;
            let answer = world.post(way.route.path(), &body);
            let message = answer.refused(400, "exceed_context_size_error");
            assert!(message.contains("400000 bytes"), "{message}");
            assert_eq!(answer.json()["error"]["n_ctx"], 512);
        }
    }
    let long = json!({"messages": [{"role": "user", "content": "a b ".repeat(100_000)}]});
    let answer = world.post("/v1/chat/completions", &long);
    assert!(answer.refused(400, "exceed_context_size_error").contains("bytes of text"));
}

// 71 bytes of body made a server hold gigabytes.
#[test]
fn probabilities_of_all_answers_together_are_refused_before_any_is_computed() {
    let mut setup = Setup::of(shipped());
    setup.context = 2048;
    let world = World::start(setup);
    for way in WAYS.into_iter().filter(|way| !way.stream) {
        let options = json!({"max_tokens": 2000, "n_probs": 100, "n": 16, "ignore_eos": true});
        let body = way.body("hi", &options);
        let message = world.post(way.route.path(), &body).refused(400, "invalid_request_error");
        assert!(message.contains("n_probs") && message.contains("at most 67108864 are kept"), "{message}");
    }
    assert_eq!(world.metric("llamacpp:n_decode_total"), 0.0);
    // The least that is asked of a context counts, and not a number without end.
    let body = json!({"prompt": "hi", "n_predict": 1, "n_probs": 100, "n": 8});
    assert_eq!(world.post("/completion", &body).ok().as_array().unwrap().len(), 8);
}

// The last one counted in silence; a filter in front of the server may have read the first.
#[test]
fn a_name_that_stands_twice_is_refused_on_every_route_and_at_every_level() {
    let world = World::shipped();
    let bodies = [
        ("/completion", r#"{"prompt":"a","prompt":"b","n_predict":1}"#),
        ("/completion", r#"{"prompt":"a","n_predict":1,"n_predict":1}"#),
        ("/completion", r#"{"prompt":"a","n_predict":1,"n_keep":{"a":1,"a":2}}"#),
        ("/completion", r#"{"prompt":"a","logit_bias":{"300":1,"300":2},"n_predict":1}"#),
        (
            "/v1/completions",
            r#"{"prompt":"a","stream":true,"stream_options":{"include_usage":true,"include_usage":true}}"#,
        ),
        ("/v1/completions", r#"{"prompt":"a","max_tokens":1,"user":[{"\u0061":1,"a":2}]}"#),
        ("/v1/chat/completions", r#"{"messages":[{"role":"user","role":"system","content":"a"}],"max_tokens":1}"#),
        (
            "/apply-template",
            r#"{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":{"b":1,"b":1}}}"#,
        ),
        ("/tokenize", r#"{"content":"a","content":"b"}"#),
        ("/detokenize", r#"{"tokens":[300],"tokens":[301]}"#),
    ];
    for (path, body) in bodies {
        let message = post_text(&world, path, body).refused(400, "invalid_request_error");
        assert!(message.contains("stands twice"), "{body}: {message}");
    }
}

#[test]
fn biases_of_one_token_add_up_and_a_ban_is_not_taken_back() {
    let world = World::shipped();
    let answer = |biases: Value| {
        let body = json!({"prompt": "Once upon", "n_predict": 4, "temperature": 0, "n_probs": 3, "logit_bias": biases,
                          "post_sampling_probs": true});
        let answer = world.post("/completion", &body).ok();
        (answer["content"].clone(), answer["completion_probabilities"].clone())
    };
    let free = answer(json!([]));
    let first = free.1[0]["id"].clone();
    assert_eq!(answer(json!([[first, 5], [first, -2], [first, -3]])), free);
    let banned = answer(json!([[first, false], [first, 100]]));
    assert_ne!(banned.1[0]["id"], first);
    // More than a bias can be, in both directions.
    assert_eq!(answer(json!(vec![json!([first, 3e38]); 100])).1[0]["id"], first);
    assert_ne!(answer(json!(vec![json!([first, -3e38]); 100])).1[0]["id"], first);
}

#[test]
fn the_tokens_of_a_long_text_are_written_in_parts_that_are_one_answer() {
    let world = World::shipped();
    let text = "Nín hǎo, \u{1f600}!\"! ".repeat(20_000);
    let ids = world.post("/tokenize", &json!({"content": text})).ok()["tokens"].clone();
    let answer = world.post("/tokenize", &json!({"content": text, "with_pieces": true}));
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    let pieces = answer.ok()["tokens"].clone();
    let (mut told, mut bytes) = (Vec::new(), Vec::new());
    for piece in pieces.as_array().unwrap() {
        told.push(piece["id"].clone());
        match &piece["piece"] {
            Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
            other => bytes.extend(serde_json::from_value::<Vec<u8>>(other.clone()).unwrap()),
        }
    }
    assert_eq!((json!(told), String::from_utf8(bytes).unwrap()), (ids.clone(), text.clone()));
    assert_eq!(world.post("/detokenize", &json!({"tokens": ids})).ok()["content"], json!(text));
    let short = world.post("/tokenize", &json!({"content": "a", "with_pieces": true}));
    assert_eq!(short.header("content-length"), Some(short.body.len().to_string().as_str()));
    assert_eq!(world.post("/tokenize", &json!({"content": ""})).body, r#"{"tokens":[]}"#);
}

// 60 clients without a key left 2 GiB with a server on /health.
#[test]
fn a_body_that_no_route_reads_is_not_waited_for() {
    let mut setup = Setup::of(shipped());
    // Were it read, it would be missed.
    setup.server.limits.body_timeout = Duration::from_millis(1);
    let world = World::start(setup);
    let cases = [
        ("GET", "/health", 200),
        ("POST", "/health", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/", 405),
        ("OPTIONS", "/completion", 204),
        ("GET", "/completion", 405),
        ("PUT", "/completion", 405),
        ("POST", "/no/such/path", 404),
        ("GET", "/metrics", 200),
        ("POST", "/slots", 405),
    ];
    for (method, path, status) in cases {
        for length in ["Content-Length: 30000000", "Transfer-Encoding: chunked"] {
            let mut stream = connect(world.address);
            write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n").unwrap();
            assert_eq!(Pending::read_head(stream).status, status, "{method} {path} {length}");
        }
    }
}

#[test]
fn bodies_of_all_requests_together_have_a_budget_and_small_ones_need_none() {
    let mut setup = Setup::of(shipped());
    setup.server.limits = ConnectionLimits { memory_bytes_max: 1 << 20, ..ConnectionLimits::default() };
    let world = World::start(setup);
    let body = |bytes: usize| {
        json!({"content": "x", "parse_special": true, "add_special": false, "with_pieces": null,
                                     "user": null, "filler": null, "z": null, "y".repeat(bytes): null})
    };
    // Four bytes are charged for one, beyond the first 64 KiB.
    world.post("/tokenize", &body(200_000)).ok();
    let refused = world.post("/tokenize", &body(300_000));
    assert!(refused.refused(503, "unavailable_error").contains("1048576 bytes"), "{}", refused.body);
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Most of one is held by a client that does not send the rest. It is refused itself, and comes again, where the request
    // that looks was charged first.
    let mut slow = unfinished(world.address);
    wait_until("the budget is taken", || {
        if is_answered(&slow) {
            slow = unfinished(world.address);
        }
        world.post("/tokenize", &body(200_000)).status == 503
    });
    world.post("/tokenize", &json!({"content": "a ".repeat(1000)})).ok();
    world.post("/completion", &json!({"prompt": "Once", "n_predict": 1})).ok();
    drop(slow);
    wait_until("the budget is free again", || world.post("/tokenize", &body(200_000)).status == 200);
}

/// A request of which the last tenth of the body does not come. Its server may have answered and closed before the rest came.
fn unfinished(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 220000\r\n\r\n";
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&[b' '; 200_000]));
    stream
}

/// True if an answer or the end of the connection has come.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let answered = !stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    answered
}

#[test]
fn probabilities_are_among_the_fields_that_an_answer_may_be_reduced_to() {
    let world = World::shipped();
    let answer = |fields: Value| {
        let body =
            json!({"prompt": "Once", "n_predict": 2, "n_probs": 2, "response_fields": fields, "ignore_eos": true});
        world.post("/completion", &body).ok()
    };
    let names = |answer: &Value| answer.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&answer(json!(["content"]))), ["content"]);
    let with = answer(json!(["content", "completion_probabilities"]));
    assert_eq!(names(&with), ["content", "completion_probabilities"]);
    assert_eq!(with["completion_probabilities"].as_array().unwrap().len(), 2);
}
