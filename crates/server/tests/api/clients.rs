//! Requests of stock clients, and the fields that they read, beyond those the routes themselves need.

use serde_json::{Value, json};

use crate::client::begin;
use crate::world::World;

fn chat(more: &Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "seed": 1, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_path_that_leads_nowhere_is_told_in_the_shape_of_its_clients() {
    let world = World::shipped();
    let asked = |path: &str| {
        let answer = world.post(path, &json!({}));
        assert_eq!(answer.status, 404, "{path}");
        answer.json()
    };
    assert_eq!(asked("/api/chat"), json!({"error": "there is no /api/chat"}));
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let error = json!({"type": "not_found_error", "message": format!("there is no {path}")});
        assert_eq!(asked(path), json!({"type": "error", "error": error}));
    }
    assert_eq!(asked("/v1/responses")["error"]["message"], "there is no /v1/responses");
    for (path, meant) in [
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
    ] {
        let message = format!("there is no {path} (did you mean {meant}?)");
        assert_eq!(asked(path)["error"], json!({"code": 404, "message": message, "type": "not_found_error"}));
    }
    let long = asked(&format!("/{}", "a".repeat(20_000)));
    assert!(long["error"]["message"].as_str().unwrap().len() < 300);
}

#[test]
fn saving_a_slot_is_known_and_not_supported() {
    let world = World::shipped();
    for action in ["save", "restore", "erase"] {
        let answer = world.post(&format!("/slots/0?action={action}"), &json!({"filename": "a.bin"}));
        answer.refused(501, "not_supported_error");
    }
    assert_eq!(world.get("/slots/0").status, 404);
    assert_eq!(world.post("/slots/x?action=save", &json!({})).status, 404);
}

#[test]
fn an_answer_names_the_slot_that_was_asked_for() {
    let world = World::shipped();
    let body = |slot: Value| json!({"prompt": "Once", "n_predict": 2, "id_slot": slot});
    for (slot, named) in [(json!(1), 1), (json!(0), 0), (json!(-1), 0), (Value::Null, 0)] {
        assert_eq!(world.post("/completion", &body(slot.clone())).ok()["id_slot"], named, "{slot}");
    }
    let mut streamed = body(json!(1));
    streamed["stream"] = true.into();
    let chunks = world.post("/completion", &streamed).chunks();
    assert!(chunks.len() > 1 && chunks.iter().all(|chunk| chunk["id_slot"] == 1), "{chunks:?}");
    let message = world.post("/completion", &body(json!(2))).refused(400, "invalid_request_error");
    assert!(message.starts_with("id_slot: "), "{message}");
}

#[test]
fn names_of_other_servers_mean_the_same_and_what_means_nothing_here_is_taken() {
    let world = World::shipped();
    let text = |more: Value| {
        let answer = world.post("/v1/chat/completions", &chat(&more)).ok();
        answer["choices"][0]["message"]["content"].clone()
    };
    let penalty = |name: &str| text(json!({name: 50.0, "max_tokens": 24, "temperature": 0}));
    assert_eq!(penalty("repetition_penalty"), penalty("repeat_penalty"));
    assert_ne!(penalty("repetition_penalty"), text(json!({"max_tokens": 24, "temperature": 0})));
    let both = chat(&json!({"repetition_penalty": 1.5, "repeat_penalty": 1.25}));
    let message = world.post("/v1/chat/completions", &both).refused(400, "invalid_request_error");
    assert!(message.contains("which one?"), "{message}");
    let plain = text(json!({"temperature": 0}));
    assert_eq!(text(json!({"temperature": 0, "top_p": 0})), plain);
    world.post("/v1/chat/completions", &chat(&json!({"top_p": 0}))).refused(400, "invalid_request_error");
    for more in [
        json!({"session_id": "s", "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": 1}}),
        json!({"reasoning_effort": "none"}),
    ] {
        let mut with = more.clone();
        with["temperature"] = 0.into();
        assert_eq!(text(with), plain, "{more}");
    }
}

#[test]
fn usage_counts_no_reasoning_and_a_400_tells_the_field() {
    let world = World::shipped();
    let usage = world.post("/v1/chat/completions", &chat(&json!({}))).ok()["usage"].clone();
    assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": 0}));
    let param = |more: &Value| {
        let answer = world.post("/v1/chat/completions", &chat(more));
        answer.refused(400, "invalid_request_error");
        answer.json()["error"]["param"].clone()
    };
    assert_eq!(param(&json!({"stream": 1})), "stream");
    assert_eq!(param(&json!({"zzz": 1})), "zzz");
    assert_eq!(param(&json!({"tools": [{"type": "function"}]})), "tools");
    assert_eq!(param(&json!({"messages": [{"role": "banana", "content": ""}]})), "messages[0].role");
    assert_eq!(param(&json!({"chat_template_kwargs": {"messages": []}})), "chat_template_kwargs.messages");
    let answer = begin(world.address, "POST", "/v1/chat/completions", &[], b"{").finish();
    assert_eq!(answer.json()["error"]["param"], Value::Null, "{}", answer.body);
    assert!(answer.json()["error"].as_object().unwrap().contains_key("param"));
}

#[test]
fn a_name_that_is_refused_without_keys_tells_the_ways_out() {
    let world = World::shipped();
    let headers = [("Host", "host.docker.internal:9931")];
    let answer = begin(world.address, "GET", "/health", &headers, b"").finish();
    let message = answer.refused(403, "permission_error");
    assert!(message.contains("--api-key-file") && message.contains("address"), "{message}");
}
