//! Shutdown of a server: by a signal, by a request, or by a failed engine.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muser_model::testing::Fault;
use muser_server::{Access, Keys, Scope, Scopes, ServeError};
use serde_json::{Value, json};

use crate::client::{Pending, connect};
use crate::world::{Setup, World, shipped, wait_until};

/// A server with room for long answers.
fn roomy(drain: Duration) -> Setup {
    let mut setup = Setup::of(shipped());
    (setup.context, setup.drain) = (2048, drain);
    setup
}

fn long(stream: bool, tokens: usize) -> Value {
    json!({"prompt": "Once upon a time", "n_predict": tokens, "ignore_eos": true, "stream": stream})
}

/// A connection that the server keeps after a first answer.
fn kept(world: &World) -> TcpStream {
    let stream = connect(world.address);
    let status = ask_on(&stream, "GET", "/health", "");
    assert_eq!(status.0, 200);
    stream
}

/// Asks on a connection that is kept; status and body.
fn ask_on(mut stream: &TcpStream, method: &str, path: &str, body: &str) -> (u16, String) {
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = Pending::read_head(stream.try_clone().unwrap());
    let length = answer.headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
    (answer.status, answer.exactly(length))
}

#[test]
fn a_stop_lets_answers_under_way_end_and_takes_no_new_ones() {
    let mut world = World::start(roomy(Duration::from_secs(60)));
    let (first, second) = (kept(&world), kept(&world));
    let mut stream = world.begin("POST", "/completion", &long(true, 300));
    stream.chunk();
    let whole = world.send("POST", "/completion", &long(false, 300));
    wait_until("both run", || world.metric("llamacpp:requests_processing") == 2.0);
    world.ask_to_stop();
    wait_until("nobody is let in", || TcpStream::connect(world.address).is_err());
    let (status, body) = ask_on(&first, "GET", "/health", "");
    assert_eq!(
        (status, serde_json::from_str::<Value>(&body).unwrap()["error"]["message"].clone()),
        (503, json!("stopping"))
    );
    let (status, body) = ask_on(&second, "POST", "/completion", r#"{"prompt": "a", "n_predict": 1}"#);
    assert!(status == 503 && body.contains("unavailable_error") && body.contains("stopping"), "{status} {body}");
    let chunks = stream.finish().body;
    assert!(chunks.contains(r#""stop_type":"limit""#), "{chunks}");
    assert_eq!(Pending::read_head(whole).finish().ok()["tokens_predicted"], 300);
    world.ended().unwrap();
}

/// The stream of a request that runs, and a request that waits for its place: of a server with one.
fn one_runs_and_one_waits(world: &World) -> (Pending, TcpStream) {
    let mut stream = world.begin("POST", "/completion", &long(true, 2000));
    stream.chunk();
    let waiting = world.send("POST", "/completion", &long(false, 2000));
    wait_until("one waits", || world.metric("llamacpp:requests_deferred") == 1.0);
    (stream, waiting)
}

#[test]
fn what_is_not_done_in_time_is_ended_and_its_clients_are_told() {
    let mut setup = roomy(Duration::ZERO);
    setup.slots = 1;
    let mut world = World::start(setup);
    let (stream, waiting) = one_runs_and_one_waits(&world);
    world.ask_to_stop();
    let rest = stream.finish().body;
    let last = rest.trim_end().rsplit("data: ").next().unwrap();
    let error = &serde_json::from_str::<Value>(last).unwrap()["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!(503), &json!("unavailable_error")), "{last}");
    Pending::read_head(waiting).finish().refused(503, "unavailable_error");
    world.ended().unwrap();
}

#[test]
fn a_key_with_the_scope_can_end_the_server() {
    let mut setup = roomy(Duration::from_secs(60));
    let mut keys = Keys::default();
    keys.add("ruler", Scopes::NONE.with(Scope::Admin)).unwrap();
    setup.server.access = Access { keys, ..Access::default() };
    let mut world = World::start(setup);
    let drained = world.ask("POST", "/admin/drain", &[("X-Api-Key", "ruler")]);
    assert_eq!(drained.ok(), json!({"status": "stopping"}));
    world.ended().unwrap();
}

#[test]
fn a_server_stops_while_its_model_is_loaded() {
    let setup = roomy(Duration::from_secs(60));
    let app = std::sync::Arc::new(muser_server::App::new(setup.service));
    let (mut world, app) = World::start_loading(app);
    assert_eq!(world.get("/health").status, 503);
    world.ask_to_stop();
    world.ended().unwrap();
    drop(app);
}

#[test]
fn the_end_of_the_engine_is_the_end_of_the_server_and_clients_are_told() {
    let (mut world, app) = World::start_holding(roomy(Duration::from_secs(60)), |server| server);
    let mut stream = world.begin("POST", "/completion", &long(true, 2000));
    stream.chunk();
    let whole = world.send("POST", "/completion", &long(false, 2000));
    wait_until("both run", || world.metric("llamacpp:requests_processing") == 2.0);
    app.service_or_none().unwrap().host.stop();
    assert!(stream.finish().body.trim_end().rsplit("data: ").next().unwrap().contains("\"error\""));
    assert!(Pending::read_head(whole).status >= 500);
    assert!(matches!(world.ended(), Err(ServeError::Engine(_))));
}

#[test]
fn a_device_that_fails_ends_the_server_and_every_client_hears_its_name() {
    let mut setup = roomy(Duration::from_secs(60));
    let lost = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&lost);
    setup.faults = Arc::new(move |_| fails.load(Ordering::SeqCst).then(Fault::lost));
    setup.slots = 1;
    let mut world = World::start(setup);
    let (stream, waiting) = one_runs_and_one_waits(&world);
    lost.store(true, Ordering::SeqCst);
    let name = "the faulty device failed: it was taken away";
    let rest = stream.finish().body;
    let last = rest.trim_end().rsplit("data: ").next().unwrap();
    let error = &serde_json::from_str::<Value>(last).unwrap()["error"];
    assert_eq!((&error["code"], &error["message"]), (&json!(500), &json!(name)), "{last}");
    assert_eq!(Pending::read_head(waiting).finish().refused(500, "server_error"), name);
    assert!(matches!(world.ended(), Err(ServeError::Engine(reason)) if reason == name));
}
