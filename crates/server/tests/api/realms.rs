//! Isolation of keys: prefix realms that no request of another key can reach, and turns in scheduling.

use muser_server::{Access, Keys, Realms, Scope, Scopes};
use serde_json::{Value, json};

use crate::client::{Answer, begin};
use crate::world::{Setup, World, shipped};

const KEYS: [&str; 2] = ["key-of-alice", "key-of-bob"];

/// A server with two keys.
fn world(realms: Realms) -> World {
    World::start(setup(realms))
}

fn setup(realms: Realms) -> Setup {
    let mut keys = Keys::default();
    KEYS.iter().for_each(|key| keys.add(key, Scopes::NONE.with(Scope::Use)).unwrap());
    let mut setup = Setup::of(shipped());
    setup.server.access = Access { keys, realms, ..Access::default() };
    setup
}

fn by_key() -> Realms {
    Realms::by_key([9; 32])
}

fn ask(world: &World, key: &str, path: &str, body: &Value) -> Answer {
    let headers = [("Content-Type", "application/json"), ("X-Api-Key", key)];
    begin(world.address, "POST", path, &headers, body.to_string().as_bytes()).finish()
}

/// A text of more than 130 tokens, another one for each route.
fn text(path: &str) -> String {
    format!("{path}: ") + &"There was an old house by the sea, and nobody had lived in it for years. ".repeat(14)
}

/// A request of one token, by the fields of a route, with others besides.
fn body(path: &str, more: &Value) -> Value {
    let mut body = match path {
        "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": text(path)}]}),
        _ => json!({"prompt": text(path)}),
    };
    let object = body.as_object_mut().unwrap();
    object.insert("max_tokens".into(), json!(1));
    object.extend(more.as_object().unwrap().clone());
    body
}

/// Tokens of the prompt that an answer says were there already.
fn cached(path: &str, answer: &Answer) -> u64 {
    let answer = answer.ok();
    let cached = match path {
        "/completion" => &answer["timings"]["cache_n"],
        _ => &answer["usage"]["prompt_tokens_details"]["cached_tokens"],
    };
    cached.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

const PATHS: [&str; 3] = ["/completion", "/v1/completions", "/v1/chat/completions"];

#[test]
fn a_prompt_that_another_key_asked_is_as_new_as_any() {
    let world = world(by_key());
    let plain = json!({});
    for path in PATHS {
        let asked = |key| cached(path, &ask(&world, key, path, &body(path, &plain)));
        for key in KEYS {
            assert_eq!(asked(key), 0, "{key} on {path}");
        }
        for key in KEYS {
            assert!(asked(key) >= 128, "{key} on {path}, again");
        }
    }
}

#[test]
fn keys_share_prefixes_if_the_server_was_told_so() {
    let world = world(Realms::COMMON);
    let [alice, bob] =
        KEYS.map(|key| cached("/completion", &ask(&world, key, "/completion", &body("/completion", &json!({})))));
    assert_eq!(alice, 0);
    assert!(bob >= 128, "{bob}");
}

#[test]
fn a_salt_divides_what_a_key_has_and_leads_to_nobody_else() {
    for realms in [by_key(), Realms::COMMON] {
        let is_common = format!("{realms:?}") == "Realms(common)";
        let world = world(realms);
        for path in ["/completion", "/v1/chat/completions"] {
            let asked =
                |key, salt: Value| cached(path, &ask(&world, key, path, &body(path, &json!({"cache_salt": salt}))));
            assert_eq!(asked(KEYS[0], Value::Null), 0);
            assert_eq!(asked(KEYS[0], json!("tenant 1")), 0);
            assert_eq!(asked(KEYS[0], json!("tenant 2")), 0);
            assert!(asked(KEYS[0], json!("tenant 1")) >= 128);
            assert_eq!(asked(KEYS[1], json!("tenant 2")) >= 128, is_common);
            assert_eq!(asked(KEYS[1], json!(KEYS[0])), 0);
        }
    }
}

#[test]
fn a_salt_that_divides_nothing_or_is_too_long_is_refused_by_name() {
    let world = world(by_key());
    for (salt, count) in [(String::new(), 0), ("s".repeat(257), 257)] {
        let refused = ask(&world, KEYS[0], "/completion", &body("/completion", &json!({"cache_salt": salt})));
        let message = refused.refused(400, "invalid_request_error");
        assert_eq!(message, format!("cache_salt: needs from 1 to 256 characters, and has {count}"));
    }
    let longest = json!({"cache_salt": "é".repeat(256)});
    assert_eq!(cached("/completion", &ask(&world, KEYS[0], "/completion", &body("/completion", &longest))), 0);
}

#[test]
fn a_key_that_fills_places_and_queue_does_not_keep_another_one_out() {
    let mut setup = setup(by_key());
    (setup.waiting_max, setup.context) = (6, 2048);
    let world = World::start(setup);
    let headers = [("Content-Type", "application/json"), ("X-Api-Key", KEYS[0])];
    // Longer than anything else in this test takes: none ends by itself.
    let fill = |answers: usize| {
        let long = json!({"prompt": "Once", "n_predict": 2000, "n": answers, "ignore_eos": true, "stream": true});
        begin(world.address, "POST", "/completion", &headers, long.to_string().as_bytes())
    };
    // In two parts: answers that are queued before the first ones have left the queue would find it full.
    let running = fill(2);
    world.wait_until("both places are taken", |status| status.running() == 2 && status.waiting == 0);
    let queued = fill(6);
    world.wait_until("the queue is full", |status| status.running() == 2 && status.waiting == 6);
    let one = json!({"prompt": "Hi", "n_predict": 1});
    let more = ask(&world, KEYS[0], "/completion", &one);
    more.refused(429, "rate_limit_error");
    ask(&world, KEYS[1], "/completion", &one).ok();
    // It came before the end of any of the other key's answers: it waited neither for the queue nor for a place.
    let status = world.status();
    assert_eq!(status.running() + status.waiting, 8, "{status:?}");
    drop((running, queued));
    world.wait_until_idle();
}

#[test]
fn without_keys_all_share_one_realm() {
    let mut setup = Setup::of(shipped());
    setup.server.access.realms = by_key();
    let world = World::start(setup);
    let [first, second] =
        [0; 2].map(|_| cached("/completion", &world.post("/completion", &body("/completion", &json!({})))));
    assert_eq!(first, 0);
    assert!(second >= 128, "{second}");
}
