//! Connections that are too many, too slow, too large, or end too early.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use muser_server::ConnectionLimits;
use serde_json::{Value, json};

use crate::client::{Answer, Pending, connect};
use crate::world::{Setup, World, shipped, wait_until};

/// A timeout that is over soon, and one longer than any test.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(600);
/// Far longer than it takes until something whose time is `SHORT` has ended.
const SOON: Duration = Duration::from_secs(30);

fn with_limits(limits: ConnectionLimits) -> World {
    let mut setup = Setup::of(shipped());
    (setup.context, setup.slots) = (2048, 1);
    setup.server.limits = limits;
    World::start(setup)
}

fn patient() -> ConnectionLimits {
    let [head_timeout, silence_timeout, idle_timeout, body_timeout, write_stall] = [LONG; 5];
    ConnectionLimits {
        head_timeout,
        silence_timeout,
        idle_timeout,
        body_timeout,
        write_stall,
        ..ConnectionLimits::default()
    }
}

/// True once the server has closed the connection, with no byte left to read.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn write(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn answer(stream: TcpStream) -> Answer {
    Pending::read_head(stream).finish()
}

/// A connection on which a request has been answered.
fn kept(world: &World) -> TcpStream {
    let stream = connect(world.address);
    health_on(&stream);
    stream
}

fn health_on(stream: &TcpStream) {
    write(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = Pending::read_head(stream.try_clone().unwrap());
    assert_eq!((answer.status, answer.exactly(15).as_str()), (200, r#"{"status":"ok"}"#));
}

#[test]
fn one_connection_too_many_is_told_so_and_another_may_come_when_one_has_left() {
    let world = with_limits(ConnectionLimits { connections_max: 2, ..patient() });
    let endless = json!({"prompt": "a", "n_predict": 2000, "ignore_eos": true, "stream": true});
    let mut busy: Vec<_> = (0..2).map(|_| world.begin("POST", "/completion", &endless)).collect();
    let refused = world.get("/props");
    assert!(refused.refused(503, "unavailable_error").contains("connections"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    // A monitor is answered, and its connection is closed then.
    let watching = connect(world.address);
    health_on(&watching);
    assert!(is_closed(&watching));
    assert_ne!(busy[0].chunk(), "");
    drop(busy);
    wait_until("there is room again", || world.get("/props").status == 200);
}

#[test]
fn connections_that_say_nothing_make_way_for_those_that_ask() {
    // An address has a share of 4 of them.
    let world = with_limits(ConnectionLimits { connections_max: 5, ..patient() });
    let silent: Vec<TcpStream> = (0..4).map(|_| connect(world.address)).collect();
    wait_until("all places are taken", || world.connections() == 4);
    for path in ["/health", "/props", "/health"] {
        world.get(path).ok();
    }
    assert!(is_closed(&silent[0]));
    health_on(&silent[3]);
    // Those that wait for their next request are the next to go.
    let kept: Vec<TcpStream> = (0..4).map(|_| kept(&world)).collect();
    world.get("/props").ok();
    assert!(is_closed(&kept[0]));
    health_on(&kept[3]);
}

#[test]
fn a_new_connection_that_says_nothing_is_closed_sooner_than_one_that_has_asked() {
    let world = with_limits(ConnectionLimits { silence_timeout: SHORT, ..patient() });
    let asked = kept(&world);
    assert!(is_closed(&connect(world.address)));
    health_on(&asked);
}

// The HTTP layer answered by a status alone.
#[test]
fn heads_that_cannot_be_read_are_refused_in_the_envelope() {
    let world = with_limits(patient());
    let long = "x".repeat(40_000);
    let heads = [
        (
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
            400,
        ),
        ("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n".to_owned(), 400),
        ("GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n".to_owned(), 400),
        ("GET\r\n\r\n".to_owned(), 400),
        (format!("GET /health HTTP/1.1\r\nHost: localhost\r\nA: {long}\r\n\r\n"), 431),
        (format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(120)), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(70_000)), 431),
    ];
    for (head, status) in &heads {
        let stream = connect(world.address);
        write(&stream, head);
        answer(stream).refused(*status, "invalid_request_error");
    }
    // Behind an answer, too.
    let stream = connect(world.address);
    write(&stream, &format!("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n{}", heads[0].0));
    let mut first = Pending::read_head(stream.try_clone().unwrap());
    assert_eq!(first.exactly(15), r#"{"status":"ok"}"#);
    let mut second = String::new();
    first.read_to_string(&mut second);
    let (head, body) = second.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert_eq!(serde_json::from_str::<Value>(body).unwrap()["error"]["code"], 400);
}

#[test]
fn a_head_that_trickles_in_is_not_waited_for_and_a_silent_connection_is() {
    let world = with_limits(ConnectionLimits { head_timeout: SHORT, ..patient() });
    let silent = kept(&world);
    let trickling = kept(&world);
    for text in ["", "GET /health HTTP/1.1\r\nHost: loc"] {
        write(&trickling, text);
    }
    let at_first = connect(world.address);
    write(&at_first, "G");
    assert!(is_closed(&trickling) && is_closed(&at_first));
    // Longer than a head may take, between requests.
    health_on(&silent);
    health_on(&silent);
}

#[test]
fn a_connection_without_requests_is_closed_after_a_while() {
    let world = with_limits(ConnectionLimits { idle_timeout: SHORT, ..patient() });
    assert!(is_closed(&connect(world.address)));
    wait_until("a request comes in time, and the connection is closed behind it", || {
        let (mut stream, mut answer) = (connect(world.address), String::new());
        // On a busy machine the time may be over before the request has come.
        let asked = stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.ends_with(r#"{"status":"ok"}"#)
    });
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let world = with_limits(ConnectionLimits { head_bytes_max: 8192, ..patient() });
    let filler = "x".repeat(7000);
    assert_eq!(world.ask("GET", "/health", &[("X-Filler", &filler)]).status, 200);
    let stream = connect(world.address);
    write(&stream, &format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Filler: {filler}{filler}\r\n\r\n"));
    assert_eq!(Pending::read_head(stream).status, 431);
}

#[test]
fn a_body_that_is_too_long_is_refused_by_its_announcement_or_once_it_is() {
    let world = with_limits(ConnectionLimits { body_bytes_max: 1000, ..patient() });
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n";
    let text = |length: usize| json!({"content": "x".repeat(length - 14)}).to_string();
    assert_eq!(text(1000).len(), 1000);
    world.post("/tokenize", &serde_json::from_str(&text(1000)).unwrap()).ok();
    // Nothing of the body is sent.
    let announced = connect(world.address);
    write(&announced, &format!("{head}Content-Length: 1001\r\n\r\n"));
    let message = answer(announced).refused(413, "invalid_request_error");
    assert!(message.contains("1000 bytes"), "{message}");
    // Its end is never sent.
    let chunked = connect(world.address);
    write(&chunked, &format!("{head}Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n", text(1001)));
    answer(chunked).refused(413, "invalid_request_error");
    // A client that sends all of it before it reads finds the answer, too.
    world.post("/tokenize", &json!({"content": "x".repeat(300_000)})).refused(413, "invalid_request_error");
}

#[test]
fn a_client_that_is_refused_while_it_sends_can_send_on_and_is_not_reset() {
    let world = with_limits(ConnectionLimits { body_bytes_max: 1000, ..patient() });
    let mut stream = connect(world.address);
    write(&stream, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\n\r\n");
    assert_eq!(answer(stream.try_clone().unwrap()).status, 413);
    for _ in 0..4 {
        stream.write_all(&[b'x'; 500]).unwrap();
        // The server has one thread here: whatever it does to the connection is done when it answers another.
        health_on(&connect(world.address));
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let world = with_limits(ConnectionLimits { body_timeout: SHORT, ..patient() });
    let began = Instant::now();
    let head =
        |length: usize| format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    let silent = connect(world.address);
    write(&silent, &(head(20) + "{\"conte"));
    // Byte by byte: the time counts for all of it.
    let trickling = connect(world.address);
    write(&trickling, &head(1_000_000));
    trickling.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    while trickling.peek(&mut [0; 1]).is_err() && began.elapsed() < SOON {
        write(&trickling, " ");
    }
    for stream in [silent, trickling] {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let message = answer(stream).refused(408, "invalid_request_error");
        assert!(message.contains("100 ms"), "{message}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn what_is_no_http_harms_nobody() {
    let world = with_limits(patient());
    for bytes in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n\r\n"]
    {
        let mut stream = connect(world.address);
        stream.write_all(bytes).unwrap();
        drop(stream);
    }
    // Whose end is doubtful.
    let stream = connect(world.address);
    write(&stream, "GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(Pending::read_head(stream).status, 400);
    health_on(&connect(world.address));
}

/// The state of the one slot: tokens of the prompt computed, tokens generated.
fn slot(world: &World) -> Option<(u64, u64)> {
    let slots: Value = world.get("/slots").ok();
    let slot = &slots[0];
    let count = |name: &str| slot[name].as_u64().unwrap();
    (slot["is_processing"] == true).then(|| (count("n_prompt_tokens_processed"), count("n_decoded")))
}

#[test]
fn a_client_that_leaves_ends_what_runs_or_waits_for_it() {
    let world = with_limits(patient());
    let prompt: Vec<u32> = (0..1900).map(|token| 300 + token % 700).collect();
    let slow = |stream: bool| json!({"prompt": prompt, "n_predict": 100, "cache_prompt": false, "stream": stream});
    let endless = |stream: bool| json!({"prompt": "a", "n_predict": 2000, "ignore_eos": true, "cache_prompt": false, "stream": stream});
    let mut left = 0.0;
    let mut leaves = |clients: Vec<TcpStream>| {
        left += clients.len() as f64;
        drop(clients);
        wait_until("what was asked for has been given up", || {
            world.metric("muser:sequences_cancelled_total") == left && slot(&world).is_none()
        });
        assert_eq!(world.metric("llamacpp:requests_deferred"), 0.0);
    };
    for stream in [false, true] {
        let client = world.send("POST", "/completion", &slow(stream));
        wait_until("part of the prompt is computed", || slot(&world).is_some_and(|(computed, _)| computed < 1900));
        leaves(vec![client]);
        let client = world.send("POST", "/completion", &endless(stream));
        wait_until("some is generated", || slot(&world).is_some_and(|(_, generated)| generated > 2));
        let waiting: Vec<_> = (0..3).map(|_| world.send("POST", "/completion", &endless(stream))).collect();
        wait_until("three wait", || world.metric("llamacpp:requests_deferred") == 3.0);
        leaves(waiting.into_iter().chain([client]).collect());
    }
    // Of those that waited, none has run: none has computed anything.
    assert!(world.metric("llamacpp:prompt_tokens_total") < 2.0 * 1900.0 + 8.0);
    let label = r#"{route="/completion",method="POST",status="499"}"#;
    assert!(world.get("/metrics").body.contains(&format!("muser:requests_total{label} ")));
    world.post("/completion", &json!({"prompt": "a", "n_predict": 1})).ok();
}

#[test]
fn a_client_that_does_not_take_its_answer_loses_it() {
    let world = with_limits(ConnectionLimits { write_stall: SHORT, ..patient() });
    // Far more than buffers on the way hold.
    let body = json!({"prompt": "a", "n_predict": 2000, "n_probs": 100, "ignore_eos": true, "stream": true});
    let client = world.send("POST", "/completion", &body);
    wait_until("it has been given up", || world.metric("muser:sequences_cancelled_total") == 1.0);
    wait_until("nothing runs", || slot(&world).is_none());
    drop(client);
}
