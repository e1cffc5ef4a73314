//! The description of the server at `/openapi.json` says what the server does: every field, value, route, key and answer of
//! it is tried on a running server.

pub mod schema;

use std::collections::BTreeSet;

use muser_server::{Access, Keys, Scope, Scopes};
use serde_json::{Value, json};

use self::schema::{Document, Operation, Unnamed};
use crate::client::{Answer, begin};
use crate::world::{Setup, World, shipped};

const CHECKED_IN: &str = include_str!("../../openapi.json");
const CHECKED_IN_AT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

/// A server that generates a token where a request says nothing.
fn world() -> (World, Document) {
    let mut setup = Setup::of(shipped());
    setup.service.tokens_max = Some(1);
    let world = World::start(setup);
    let document = Document(world.get("/openapi.json").ok());
    (world, document)
}

const SCOPES: [Scope; 3] = [Scope::Use, Scope::Metrics, Scope::Admin];

/// A server with a key for each scope, which has the scope's name.
fn world_with_keys() -> (World, Document) {
    let mut keys = Keys::default();
    SCOPES.iter().for_each(|scope| keys.add(scope.name(), Scopes::NONE.with(*scope)).unwrap());
    let mut setup = Setup::of(shipped());
    setup.server.access = Access { keys, ..Access::default() };
    let world = World::start(setup);
    let document = Document(world.get("/openapi.json").ok());
    (world, document)
}

/// All routes; the one that ends the server is the last.
fn draining_last(document: &Document) -> Vec<Operation<'_>> {
    let mut operations = document.operations();
    operations.sort_by_key(|operation| operation.path == "/admin/drain");
    operations
}

/// The least that a route needs to answer.
fn minimal(document: &Document, operation: Operation<'_>) -> Value {
    let mut body = json!({});
    for name in document.request(operation).unwrap()["required"].as_array().unwrap() {
        body[name.as_str().unwrap()] = match name.as_str().unwrap() {
            "prompt" | "content" => json!("Once"),
            "messages" => json!([{"role": "user", "content": "Hi"}]),
            "tokens" => json!([300]),
            other => panic!("nothing to put into {other}"),
        };
    }
    body
}

/// The routes that take fields, under their main paths.
fn that_take_fields(document: &Document) -> Vec<Operation<'_>> {
    let operations = document.operations().into_iter();
    let found: Vec<_> = operations
        .filter(|operation| operation.says.get("x-muser-alias-of").is_none())
        .filter(|operation| document.request(*operation).is_some())
        .collect();
    assert_eq!(found.len(), 6);
    found
}

/// Fails if the description of the route does not have the answer's status.
#[track_caller]
fn assert_status_is_listed(operation: Operation<'_>, answer: &Answer) {
    let responses = operation.says["responses"].as_object().unwrap();
    assert!(responses.contains_key(&answer.status.to_string()), "{} {}", operation.path, answer.body);
}

#[test]
fn the_description_that_is_checked_in_is_the_one_that_is_served() {
    let (world, _) = world();
    let answer = world.get("/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    if answer.body != CHECKED_IN {
        let renewed = concat!(env!("CARGO_TARGET_TMPDIR"), "/openapi.json");
        std::fs::write(renewed, &answer.body).unwrap();
        panic!(
            "{CHECKED_IN_AT} differs from what is served. See:\n  diff {CHECKED_IN_AT} {renewed}\n\
             and if that is what clients shall see:\n  cp {renewed} {CHECKED_IN_AT}"
        );
    }
}

#[test]
fn every_route_of_the_description_is_there_for_its_method_and_no_other() {
    let (world, document) = world_with_keys();
    for operation in draining_last(&document) {
        let (method, other) = match operation.method {
            "get" => ("GET", "POST"),
            "post" => ("POST", "GET"),
            unknown => panic!("no method of a route: {unknown}"),
        };
        let ask = |method: &str| world.ask(method, operation.path, &[("X-Api-Key", "admin")]);
        assert_eq!(ask(other).status, 405, "{other} {}", operation.path);
        let answer = ask(method);
        assert!([200, 400].contains(&answer.status), "{method} {}: {}", operation.path, answer.body);
        assert_status_is_listed(operation, &answer);
    }
}

#[test]
fn the_router_has_no_path_but_those_of_the_tables() {
    let router = include_str!("../../src/routes/mod.rs");
    let page = include_str!("../../src/routes/page.rs");
    for (text, only) in [(router, ".route(path, handler(operation.action))"), (page, ".route(file.path, ")] {
        assert_eq!((text.matches(".route(").count(), text.matches(only).count()), (1, 1), "a path beside {only}");
        assert!(!text.contains(".nest(") && !text.contains("_service("));
    }
    assert_eq!(router.matches(".merge(").count(), 1);
}

#[test]
fn operations_have_names_of_their_own_and_aliases_say_what_their_route_says() {
    let (_world, document) = world();
    let operations = document.operations();
    let names: BTreeSet<&str> = operations.iter().map(|one| one.says["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), operations.len());
    for alias in operations.iter().filter(|one| one.says.get("x-muser-alias-of").is_some()) {
        let main = operations
            .iter()
            .find(|one| one.says["x-muser-alias-of"].is_null() && one.path == alias.says["x-muser-alias-of"]);
        for key in ["summary", "requestBody", "responses", "security"] {
            assert_eq!(alias.says[key], main.unwrap().says[key], "{} {key}", alias.path);
        }
    }
}

#[test]
fn each_route_needs_the_key_that_the_description_says() {
    let (world, document) = world_with_keys();
    let schemes = document.0["components"]["securitySchemes"].as_object().unwrap();
    assert_eq!(schemes.keys().collect::<Vec<_>>(), ["Bearer", "XApiKey"]);
    for operation in draining_last(&document) {
        let method = operation.method.to_uppercase();
        let stranger = world.ask(&method, operation.path, &[]).status;
        let security = &operation.says["security"];
        let Some(needed) = security[0]["Bearer"][0].as_str() else {
            assert_eq!((security, stranger), (&json!([]), 200), "{}", operation.path);
            continue;
        };
        assert_eq!((&security[1]["XApiKey"][0], stranger), (&json!(needed), 401), "{}", operation.path);
        for scope in SCOPES {
            let answer = world.ask(&method, operation.path, &[("X-Api-Key", scope.name())]);
            let opens = scope.name() == needed || scope == Scope::Admin;
            assert_eq!(![401, 403].contains(&answer.status), opens, "{} {}", operation.path, answer.body);
            assert_status_is_listed(operation, &answer);
        }
    }
}

#[test]
fn the_fields_of_the_description_are_those_that_the_routes_know() {
    let (world, document) = world();
    let names = |schema: &Value| {
        let mut names: Vec<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        names.sort_unstable();
        json!(names)
    };
    let known = |operation: Operation<'_>, body: &Value| {
        let answer = world.post(operation.path, body);
        answer.refused(400, "invalid_request_error");
        let error = answer.json();
        assert_eq!(document.fault(document.named("Error"), &error, Unnamed::Fault), None);
        error["error"]["known_fields"].clone()
    };
    let mut asked = 0;
    for operation in document.operations() {
        let Some(schema) = document.request(operation) else { continue };
        let mut body = minimal(&document, operation);
        body["no_such_field"] = 1.into();
        assert_eq!(known(operation, &body), names(schema), "{}", operation.path);
        asked += 1;
        if schema["properties"].get("stream_options").is_some() {
            let mut body = minimal(&document, operation);
            (body["stream"], body["stream_options"]) = (true.into(), json!({"no_such_field": 1}));
            assert_eq!(known(operation, &body), names(document.named("StreamOptions")), "{}", operation.path);
        }
    }
    assert_eq!(asked, 8);
}

/// Values of all types, and those at which the schema says something.
fn values_around(schema: &Value) -> Vec<Value> {
    if schema.get("x-muser-ignored").is_some() {
        return vec![json!(null), json!(true), json!(-1.5), json!("text"), json!([true]), json!({"text": true})];
    }
    let mut values = vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(0.5),
        json!(-1.5),
        json!(""),
        json!("text"),
        json!("none"),
        json!([]),
        json!(["text"]),
        json!([true]),
        json!([[300, 1.5]]),
        json!([[300, 1.5, 2]]),
        json!({}),
        json!({"text": true}),
        json!({"type": "text"}),
    ];
    for (key, values_there) in [("enum", schema.get("enum")), ("neutral", schema.get("x-muser-unsupported"))] {
        let found = values_there.map(|values| values.as_array().unwrap_or_else(|| panic!("{key}: {values}")));
        values.extend(found.into_iter().flatten().cloned());
    }
    values.extend(schema.get("default").cloned());
    for (key, step) in [("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 1)] {
        if let Some(limit) = schema.get(key).and_then(Value::as_i64) {
            values.extend([json!(limit), json!(limit + step)]);
        }
    }
    values
}

/// A request that has `value` in `name`, and what the field needs to mean something.
fn with(mut body: Value, name: &str, value: Value) -> Value {
    match name {
        "stream_options" => body["stream"] = true.into(),
        "top_logprobs" => body["logprobs"] = true.into(),
        _ => {}
    }
    body[name] = value;
    body
}

/// The refusal of the sampler's own limits is in words.
fn names(message: &str, name: &str) -> bool {
    let in_words = |divider: &str| message.contains(&name.replace('_', divider));
    message.contains(name) || in_words("-") || in_words(" ") || name == "typ_p" && message.contains("typical-p")
}

#[test]
fn completion_takes_the_values_that_the_description_allows_and_names_the_field_of_others() {
    assert_values_are_taken_or_refused(|path| path == "/completion");
}

#[test]
fn openai_completions_take_the_values_that_the_description_allows_and_name_the_field_of_others() {
    assert_values_are_taken_or_refused(|path| path == "/v1/completions");
}

#[test]
fn chat_takes_the_values_that_the_description_allows_and_names_the_field_of_others() {
    assert_values_are_taken_or_refused(|path| path == "/v1/chat/completions");
}

#[test]
fn routes_that_do_not_generate_take_the_values_that_the_description_allows_and_name_the_field_of_others() {
    assert_values_are_taken_or_refused(|path| !path.ends_with("completion") && !path.ends_with("completions"));
}

fn assert_values_are_taken_or_refused(among: fn(&str) -> bool) {
    let (world, document) = world();
    let (mut taken, mut refused) = (0, 0);
    for operation in that_take_fields(&document).into_iter().filter(|operation| among(operation.path)) {
        for (name, schema) in document.request(operation).unwrap()["properties"].as_object().unwrap() {
            for value in values_around(schema) {
                // Whether an empty text has a token is the vocabulary's to say.
                if name == "prompt" && value == "" {
                    continue;
                }
                let body = with(minimal(&document, operation), name, value.clone());
                let answer = world.post(operation.path, &body);
                assert_status_is_listed(operation, &answer);
                match document.fault(schema, &value, Unnamed::Fine) {
                    None => {
                        assert_eq!(answer.status, 200, "{} {name} {value}: {}", operation.path, answer.body);
                        taken += 1;
                    }
                    Some(fault) => {
                        assert_eq!(answer.status, 400, "{} {name} {value} is taken against {fault}", operation.path);
                        let message = answer.refused(400, "invalid_request_error");
                        assert!(names(&message, name), "{} {name} {value}: {message}", operation.path);
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(taken > 50 && refused > 50, "{taken} {refused}");
}

#[test]
fn a_default_that_is_sent_changes_no_answer() {
    let (world, document) = world();
    // What differs from one answer to the next, whatever was asked.
    let answer = |path: &str, body: &Value| {
        let mut answer = world.post(path, body).ok();
        let object = answer.as_object_mut().unwrap();
        ["id", "created", "id_slot", "timings"].iter().for_each(|name| drop(object.remove(*name)));
        if let Some(usage) = object.get_mut("usage") {
            usage["prompt_tokens_details"] = Value::Null;
        }
        answer
    };
    let mut sent = 0;
    for operation in that_take_fields(&document) {
        let properties = document.request(operation).unwrap()["properties"].as_object().unwrap();
        let mut body = minimal(&document, operation);
        if properties.contains_key("seed") {
            body["seed"] = 1.into();
        }
        let without = answer(operation.path, &body);
        for (name, schema) in properties {
            let Some(default) = schema.get("default").filter(|_| name != "seed") else { continue };
            let found = answer(operation.path, &with(body.clone(), name, default.clone()));
            assert_eq!(found, without, "{} {name} {default}", operation.path);
            sent += 1;
        }
    }
    assert!(sent > 30, "{sent}");
}

#[test]
fn ignored_fields_allow_everything_and_unsupported_ones_their_neutral_values() {
    let (_world, document) = world();
    let (mut ignored, mut unsupported) = (0, 0);
    for operation in that_take_fields(&document) {
        for (name, schema) in document.request(operation).unwrap()["properties"].as_object().unwrap() {
            assert!(schema["description"].as_str().is_some_and(|says| !says.is_empty()), "{name}");
            let allows = |value: &Value| document.fault(schema, value, Unnamed::Fine).is_none();
            let (around, neutral) = (values_around(schema), schema["x-muser-unsupported"].as_array());
            if schema["x-muser-ignored"] == true {
                assert!(around.iter().all(allows), "{name}");
                ignored += 1;
            }
            if let Some(neutral) = neutral {
                assert!(neutral.iter().all(allows) && !around.iter().all(allows), "{name}");
                unsupported += 1;
            }
            assert!(schema.get("default").is_none_or(allows), "{name}");
        }
    }
    assert!(ignored > 40 && unsupported > 60, "{ignored} {unsupported}");
}

#[test]
fn wrong_values_within_messages_and_stream_options_are_named() {
    let (world, document) = world();
    let ask = |within: &str, name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        match within {
            "Message" => body["messages"][0][name] = value,
            "TextPart" => {
                body["messages"][0]["content"] = json!([{"type": "text", "text": "Hi"}]);
                body["messages"][0]["content"][0][name] = value;
            }
            _ => (body["stream"], body["stream_options"]) = (true.into(), json!({name: value})),
        }
        world.post("/v1/chat/completions", &body)
    };
    let mut refused = 0;
    for within in ["Message", "TextPart", "StreamOptions"] {
        for (name, schema) in document.named(within)["properties"].as_object().unwrap() {
            for value in values_around(schema) {
                let answer = ask(within, name, value.clone());
                if document.fault(schema, &value, Unnamed::Fine).is_some() {
                    let message = answer.refused(400, "invalid_request_error");
                    let place = if within == "TextPart" { "messages[0].content[0]" } else { name };
                    assert!(message.contains(place), "{within} {name} {value}: {message}");
                    refused += 1;
                } else if within == "StreamOptions" {
                    assert_eq!(answer.status, 200, "{name} {value}: {}", answer.body);
                }
            }
        }
    }
    assert!(refused > 30, "{refused}");
}

#[test]
fn the_values_of_queries_are_those_of_the_description_and_others_name_their_parameter() {
    let (world, document) = world();
    let mut asked = 0;
    for operation in document.operations() {
        for parameter in operation.says["parameters"].as_array().into_iter().flatten() {
            let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
            for (text, value) in
                [("0", json!(0)), ("1", json!(1)), ("256", json!(256)), ("-1", json!(-1)), ("x", json!("x"))]
            {
                let answer = world.get(&format!("{}?{name}={text}", operation.path));
                if document.fault(schema, &value, Unnamed::Fine).is_none() {
                    assert_eq!(answer.status, 200, "{name} {text}: {}", answer.body);
                } else {
                    assert!(answer.refused(400, "invalid_request_error").contains(name), "{text}: {}", answer.body);
                }
                asked += 1;
            }
        }
    }
    assert_eq!(asked, 5);
}

#[test]
fn answers_have_the_shapes_of_the_description_whole_and_streamed() {
    let (world, document) = world();
    let options = [
        json!({}),
        json!({"n": 2, "max_tokens": 4, "stop": ["zzz"], "timings_per_token": true, "return_progress": true}),
        json!({"max_tokens": 3, "n_probs": 2, "return_tokens": true}),
        json!({"max_tokens": 3, "n_probs": 2, "post_sampling_probs": true}),
        json!({"max_tokens": 3, "logprobs": 1}),
        json!({"max_tokens": 3, "logprobs": true, "top_logprobs": 2}),
        json!({"max_tokens": 2, "stream_options": {"include_usage": true}}),
        json!({"content": "Nín hǎo \u{1f600}", "with_pieces": true}),
    ];
    let mut streamed = 0;
    for operation in document.operations() {
        let content = &operation.says["responses"]["200"]["content"];
        let (whole, event) = (&content["application/json"]["schema"], &content["text/event-stream"]["x-muser-event"]);
        let assert_is = |schema: &Value, value: &Value| {
            let fault = document.fault(schema, value, Unnamed::Fault);
            assert_eq!(fault, None, "{} {value}", operation.path);
        };
        let Some(request) = document.request(operation) else {
            let answer = world.ask(&operation.method.to_uppercase(), operation.path, &[]);
            if operation.path == "/admin/drain" {
                assert_is(document.named("Error"), &answer.json());
            } else if whole.is_null() {
                let media_types: Vec<&str> = content.as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!((answer.status, media_types), (200, vec![answer.header("content-type").unwrap()]));
            } else if operation.path != "/openapi.json" {
                assert_is(whole, &answer.ok());
            }
            continue;
        };
        for options in &options {
            let mut body = minimal(&document, operation);
            body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
            // Options of other routes are not for this one.
            if document.fault(request, &body, Unnamed::Fine).is_some() {
                continue;
            }
            if options.get("stream_options").is_none() {
                assert_is(whole, &world.post(operation.path, &body).ok());
            }
            if !event.is_null() {
                body["stream"] = true.into();
                for object in world.post(operation.path, &body).chunks() {
                    assert_is(event, &object);
                    streamed += 1;
                }
            }
        }
    }
    assert!(streamed > 100, "{streamed}");
}

#[test]
fn refusals_have_the_shape_of_the_description() {
    let (world, document) = world();
    let headers = [("Host", "elsewhere.example")];
    let too_long = json!({"prompt": vec![300; 600]});
    let answers = [
        (world.get("/no/such/path"), 404),
        (world.get("/completion"), 405),
        (world.post("/completion", &json!({"prompt": 1})), 400),
        (world.post("/completion", &too_long), 400),
        (begin(world.address, "GET", "/health", &headers, b"").finish(), 403),
    ];
    for (answer, status) in answers {
        assert_eq!(answer.status, status);
        assert_eq!(document.fault(document.named("Error"), &answer.json(), Unnamed::Fault), None, "{}", answer.body);
    }
}
