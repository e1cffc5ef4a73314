//! Access control: keys and scopes, origins, host names.

use std::sync::Arc;

use muser_server::{Access, App, Exposure, Keys, Log, Origins, RequestRecord, Scope, Scopes, ServeError, Server};
use serde_json::json;

use crate::client::{Pending, connect, send};
use crate::world::{Setup, World, shipped};

const USE: &str = "key-that-uses";
const METRICS: &str = "key-that-counts";
const ADMIN: &str = "key-that-rules";

fn keys() -> Keys {
    let mut keys = Keys::default();
    for (key, scope) in [(USE, Scope::Use), (METRICS, Scope::Metrics), (ADMIN, Scope::Admin)] {
        keys.add(key, Scopes::NONE.with(scope)).unwrap();
    }
    keys
}

fn setup(access: Access) -> Setup {
    let mut setup = Setup::of(shipped());
    setup.server.access = access;
    setup
}

fn with_keys() -> World {
    World::start(setup(Access { keys: keys(), ..Access::default() }))
}

fn with_origins(origins: &[&str]) -> World {
    let mut allowed = Origins::default();
    origins.iter().for_each(|origin| allowed.add(origin).unwrap());
    World::start(setup(Access { origins: allowed, ..Access::default() }))
}

#[test]
fn a_key_opens_what_its_scope_says_and_nothing_else() {
    let world = with_keys();
    let bearer = |key: &str| format!("Bearer {key}");
    // The statuses for no key, a wrong key, and the keys of each scope.
    let cases = [
        ("GET", "/", [200, 200, 200, 200, 200]),
        ("GET", "/page.js", [200, 200, 200, 200, 200]),
        ("GET", "/page.css", [200, 200, 200, 200, 200]),
        ("GET", "/health", [200, 200, 200, 200, 200]),
        ("GET", "/v1/health", [200, 200, 200, 200, 200]),
        ("GET", "/models", [200, 200, 200, 200, 200]),
        ("GET", "/v1/models", [200, 200, 200, 200, 200]),
        ("GET", "/props", [401, 401, 200, 403, 200]),
        ("POST", "/completion", [401, 401, 400, 403, 400]),
        ("POST", "/tokenize", [401, 401, 400, 403, 400]),
        ("GET", "/slots", [401, 401, 403, 200, 200]),
        ("GET", "/metrics", [401, 401, 403, 200, 200]),
        ("GET", "/admin/drain", [401, 401, 403, 403, 405]),
        ("GET", "/no/such/path", [401, 401, 404, 403, 404]),
        ("GET", "/metrics/", [401, 401, 404, 403, 404]),
        ("OPTIONS", "/completion", [204, 204, 204, 204, 204]),
    ];
    for (method, path, expected) in cases {
        let asks = [None, Some("key-that-use"), Some(USE), Some(METRICS), Some(ADMIN)];
        for (key, status) in asks.into_iter().zip(expected) {
            let bearer = key.map(bearer);
            let by_bearer: Vec<_> = bearer.iter().map(|value| ("Authorization", value.as_str())).collect();
            let by_name: Vec<_> = key.iter().map(|key| ("X-Api-Key", *key)).collect();
            for headers in [by_bearer, by_name] {
                let answer = world.ask(method, path, &headers);
                assert_eq!(answer.status, status, "{method} {path} {headers:?}: {}", answer.body);
            }
        }
    }
    let refused = world.ask("GET", "/props", &[("Authorization", &bearer(METRICS))]);
    assert!(refused.refused(403, "permission_error").contains("the scope use"));
    let refused = world.ask("GET", "/props", &[]);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(refused.refused(401, "authentication_error"), "Invalid API Key");
    for scheme in ["Basic ", "", "Bearer"] {
        let value = format!("{scheme}{USE}");
        assert_eq!(world.ask("GET", "/props", &[("Authorization", &value)]).status, 401, "{scheme}");
    }
    assert_eq!(world.ask("GET", "/props", &[("Authorization", &format!("bearer  {USE} "))]).status, 200);
}

#[test]
fn the_key_is_asked_for_before_the_body_is_read() {
    let world = with_keys();
    // The body never comes; the answer does.
    for key in ["wrong", METRICS] {
        let head = [("X-Api-Key", key), ("Content-Length", "1000000")];
        let mut stream = connect(world.address);
        let mut text = format!("POST /completion HTTP/1.1\r\nHost: {}\r\n", world.address);
        head.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        std::io::Write::write_all(&mut stream, format!("{text}\r\n{{").as_bytes()).unwrap();
        let answer = Pending::read_head(stream);
        assert_eq!(answer.status, if key == "wrong" { 401 } else { 403 });
    }
}

#[test]
fn while_the_model_is_loaded_everybody_is_told_so_before_any_key() {
    let setup = setup(Access { keys: keys(), ..Access::default() });
    let (world, app) = World::start_loading(Arc::new(App::with_server(setup.service, setup.server)));
    for path in ["/props", "/metrics", "/slots", "/nowhere"] {
        let answer = world.ask("GET", path, &[("X-Api-Key", "wrong")]);
        assert_eq!(answer.refused(503, "unavailable_error"), "Loading model", "{path}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(world.get("/health").refused(503, "unavailable_error"), "Loading model");
    assert_eq!(world.get("/v1/models").ok()["data"][0]["meta"], json!(null));
    drop(app);
}

#[test]
fn nobody_ends_a_server_without_keys_from_outside() {
    let world = World::shipped();
    let message = world.post("/admin/drain", &json!({})).refused(403, "permission_error");
    assert!(message.contains("admin"), "{message}");
    assert_eq!(world.get("/health").status, 200);
}

#[test]
fn without_keys_a_name_that_leads_here_by_deceit_is_refused() {
    let world = World::shipped();
    for host in ["127.0.0.1", "localhost:9931", "[::1]:1", "192.168.1.5"] {
        assert_eq!(world.ask("GET", "/health", &[("Host", host)]).status, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example:9931", ""] {
        for path in ["/health", "/props", "/v1/models"] {
            let message = world.ask("GET", path, &[("Host", host)]).refused(403, "permission_error");
            assert!(message.contains("Host"), "{message}");
        }
        let origin = format!("http://{host}");
        assert_eq!(world.ask("POST", "/completion", &[("Host", host), ("Origin", &origin)]).status, 403);
    }
    // With keys, or meant for everybody, a server may have any name.
    let public = World::start(setup(Access { exposure: Exposure::Public, ..Access::default() }));
    assert_eq!(public.ask("GET", "/props", &[("Host", "muser.example")]).status, 200);
    let keyed = with_keys();
    assert_eq!(keyed.ask("GET", "/props", &[("Host", "muser.example"), ("X-Api-Key", USE)]).status, 200);
}

#[test]
fn a_page_of_another_origin_gets_nothing_done_and_reads_nothing() {
    let world = World::shipped();
    let before = world.metric("llamacpp:n_decode_total");
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost"] {
        for (method, path) in [("GET", "/health"), ("POST", "/completion"), ("OPTIONS", "/completion"), ("GET", "/x")] {
            // What a page may send without asking first.
            let headers = [("Origin", origin), ("Content-Type", "text/plain")];
            let body = br#"{"prompt": "a", "n_predict": 1}"#;
            let answer = Pending::read_head(send(world.address, method, path, &headers, body)).finish();
            answer.refused(403, "permission_error");
            assert!(
                !answer.headers.iter().any(|(name, _)| name.starts_with("access-control-")),
                "{:?}",
                answer.headers
            );
        }
    }
    assert_eq!(world.metric("llamacpp:n_decode_total"), before);
    let own = format!("http://{}", world.address);
    let answer = world.ask("GET", "/health", &[("Origin", &own)]);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));
}

#[test]
fn a_page_of_an_allowed_origin_reads_answers_and_refusals() {
    let world = with_origins(&["https://app.example"]);
    let origin = ("Origin", "https://app.example");
    for (path, status) in [("/health", 200), ("/nowhere", 404)] {
        let answer = world.ask("GET", path, &[origin]);
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
        assert_eq!(answer.header("vary"), Some("Origin"));
    }
    let asks = [origin, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "x-a,x-b")];
    let preflight = world.ask("OPTIONS", "/completion", &asks);
    assert_eq!((preflight.status, preflight.body.as_str()), (204, ""));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("x-a,x-b"));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("GET, POST, OPTIONS"));
    assert_eq!(world.ask("GET", "/health", &[("Origin", "https://other.example")]).status, 403);
}

#[test]
fn any_origin_may_read_if_so_asked_but_not_with_credentials() {
    let world = with_origins(&["*"]);
    let answer = world.ask("GET", "/health", &[("Origin", "https://other.example")]);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
}

#[test]
fn an_address_that_others_can_reach_needs_keys() {
    for host in ["0.0.0.0", "::"] {
        let refused = Server::open(host, 0, &Access::default());
        assert!(matches!(refused, Err(ServeError::Public { .. })), "{host}: {refused:?}");
    }
    Server::open("0.0.0.0", 0, &Access { keys: keys(), ..Access::default() }).unwrap();
    Server::open("0.0.0.0", 0, &Access { exposure: Exposure::Public, ..Access::default() }).unwrap();
    for host in ["127.0.0.1", "localhost", "::ffff:127.0.0.1"] {
        Server::open(host, 0, &Access::default()).unwrap();
    }
    let unknown = Server::open("no.such.name.invalid", 0, &Access::default());
    assert!(matches!(unknown, Err(ServeError::Resolve { .. })), "{unknown:?}");
}

#[test]
fn bodies_that_a_form_can_send_are_refused_and_what_curl_sends_is_not() {
    let world = World::shipped();
    let post = |headers: &[(&str, &str)]| {
        let body = br#"{"content": "a"}"#;
        Pending::read_head(send(world.address, "POST", "/tokenize", headers, body)).finish()
    };
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    for headers in
        [&[][..], &[("Content-Type", "application/json; charset=utf-8")], &[form], &[("Content-Encoding", "identity")]]
    {
        assert_eq!(post(headers).status, 200, "{headers:?}");
    }
    let own_page = ("Sec-Fetch-Site", "same-origin");
    for headers in [
        &[("Content-Type", "text/plain")][..],
        &[("Content-Type", "Text/Plain;charset=UTF-8")],
        &[("Content-Type", "multipart/form-data; boundary=x")],
        &[form, own_page],
        &[("Content-Encoding", "gzip")],
    ] {
        post(headers).refused(415, "invalid_request_error");
    }
    for site in ["cross-site", "same-site"] {
        post(&[("Sec-Fetch-Site", site)]).refused(403, "permission_error");
    }
    assert_eq!(post(&[own_page]).status, 200);
    assert_eq!(world.ask("GET", "/", &[("Sec-Fetch-Site", "cross-site")]).status, 200);
}

// It stood in the log with all of its 30,000 characters.
#[test]
fn a_method_that_a_client_made_up_is_not_told() {
    let (told, heard) = std::sync::mpsc::channel();
    let mut setup = Setup::of(shipped());
    setup.server.log = Log(Some(Arc::new(move |record: &RequestRecord| told.send(record.method).unwrap())));
    let world = World::start(setup);
    for method in ["SECRET", &"M".repeat(20_000), "GET"] {
        world.ask(method, "/health", &[]);
    }
    assert_eq!(heard.iter().take(3).collect::<Vec<_>>(), ["other", "other", "GET"]);
}

#[test]
fn a_log_record_holds_no_word_of_prompt_answer_path_or_key() {
    let (told, heard) = std::sync::mpsc::channel();
    let mut setup = setup(Access { keys: keys(), ..Access::default() });
    setup.server.log = Log(Some(Arc::new(move |record: &RequestRecord| told.send(format!("{record:?}")).unwrap())));
    let world = World::start(setup);
    let body = json!({"prompt": "A confidential question", "n_predict": 4}).to_string();
    let headers = [("X-Api-Key", USE), ("Content-Type", "application/json")];
    let mut answers = Vec::new();
    for path in ["/completion?hidden=1", "/hidden/path"] {
        let answer = Pending::read_head(send(world.address, "POST", path, &headers, body.as_bytes())).finish();
        answers.push(answer);
    }
    let text = answers[0].ok()["content"].as_str().unwrap().trim().to_owned();
    assert!(answers[1].status == 404 && text.len() > 2, "{text:?}");
    for record in heard.iter().take(2) {
        for word in ["confidential", text.as_str(), "hidden", USE] {
            assert!(!record.contains(word), "{word} in {record}");
        }
    }
}
