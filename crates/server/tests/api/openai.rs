//! OpenAI's routes.

use serde_json::{Value, json};

use crate::world::World;

fn text_of(chunks: &[Value], at: impl Fn(&Value) -> &Value) -> String {
    chunks.iter().filter_map(|chunk| at(&chunk["choices"][0]).as_str()).collect()
}

fn conversation() -> Value {
    json!([{"role": "system", "content": [{"type": "text", "text": "You tell"}, {"type": "text", "text": "stories."}]},
           {"role": "user", "content": "Begin."}])
}

#[test]
fn a_chat_stream_has_the_shape_that_clients_read_and_the_text_of_the_whole_answer() {
    let world = World::shipped();
    let body = |stream: bool| {
        let mut body = json!({"model": "gpt-4o", "messages": conversation(), "max_completion_tokens": 12, "seed": 3,
                              "logprobs": true, "top_logprobs": 2, "stop": null, "user": "somebody"});
        if stream {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    };
    let whole = world.post("/v1/chat/completions", &body(false)).ok();
    let answer = world.post("/v1/chat/completions", &body(true));
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    let chunks = answer.chunks();
    let (first, rest) = chunks.split_first().unwrap();
    let (usage, rest) = rest.split_last().unwrap();
    let (last, pieces) = rest.split_last().unwrap();

    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    assert_eq!(text_of(pieces, |choice| &choice["delta"]["content"]), whole["choices"][0]["message"]["content"]);
    let streamed: Vec<&Value> =
        pieces.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(json!(streamed), whole["choices"][0]["logprobs"]["content"]);
    assert_eq!((streamed.len(), streamed[0]["top_logprobs"].as_array().unwrap().len()), (12, 2));
    assert!(pieces.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null() && chunk["usage"].is_null()));
    assert_eq!(last["choices"][0], json!({"index": 0, "delta": {}, "finish_reason": "length"}));
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(12)));
    assert_eq!(usage["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    assert!(chunks.iter().all(|chunk| chunk["id"] == first["id"] && chunk["object"] == "chat.completion.chunk"));
    assert_eq!(whole["object"], "chat.completion");
}

#[test]
fn several_answers_and_prompts_have_their_own_indices_and_the_seed_counts_up() {
    let world = World::shipped();
    let body = |prompt: Value, n: u32, seed: u64| json!({"prompt": prompt, "n": n, "seed": seed, "max_tokens": 8, "logprobs": 1});
    let both = world.post("/v1/completions", &body(json!(["Once", "The cat"]), 2, 5)).ok();
    let mut at = 0;
    for prompt in ["Once", "The cat"] {
        for seed in [5, 6] {
            let alone = world.post("/v1/completions", &body(json!(prompt), 1, seed)).ok();
            let choice = &both["choices"][at];
            assert_eq!(
                (&choice["index"], &choice["text"]),
                (&json!(at), &alone["choices"][0]["text"]),
                "{prompt} {seed}"
            );
            assert_eq!(choice["logprobs"], alone["choices"][0]["logprobs"]);
            at += 1;
        }
    }
    assert_eq!(both["usage"]["completion_tokens"], 32);
    let prompts: u64 = ["Once", "The cat"]
        .iter()
        .map(|text| {
            world.post("/tokenize", &json!({"content": text, "add_special": true})).ok()["tokens"]
                .as_array()
                .unwrap()
                .len() as u64
        })
        .sum();
    assert_eq!(both["usage"]["prompt_tokens"], prompts);
}

#[test]
fn offsets_of_tokens_count_the_characters_of_the_answer_in_streams_too() {
    let world = World::shipped();
    let body =
        |stream: bool| json!({"prompt": "Once upon", "max_tokens": 16, "seed": 1, "logprobs": 0, "stream": stream});
    let whole = world.post("/v1/completions", &body(false)).ok();
    let logprobs = &whole["choices"][0]["logprobs"];
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let mut at = 0;
    for (token, offset) in
        logprobs["tokens"].as_array().unwrap().iter().zip(logprobs["text_offset"].as_array().unwrap())
    {
        assert_eq!(*offset, json!(at));
        let token = token.as_str().unwrap();
        assert!(text[at..].starts_with(token), "{token:?} in {:?}", &text[at..]);
        at += token.len();
    }
    let chunks = world.post("/v1/completions", &body(true)).chunks();
    let offsets: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array()).flatten().collect();
    assert_eq!(json!(offsets), logprobs["text_offset"]);
}

#[test]
fn what_comes_with_later_features_is_refused_and_what_asks_for_nothing_is_not() {
    let world = World::shipped();
    let with = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        body[name] = value;
        world.post("/v1/chat/completions", &body)
    };
    let refused = [
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("response_format", json!({"type": "json_object"})),
        ("json_schema", json!({"type": "object"})),
        ("reasoning_effort", json!("high")),
        ("messages", json!([])),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])),
        ("messages", json!([{"content": "Hi"}])),
        ("stream_options", json!({"include_usage": true})),
        ("top_logprobs", json!(3)),
        ("n", json!(0)),
    ];
    for (name, value) in refused {
        let message = with(name, value.clone()).refused(400, "invalid_request_error");
        assert!(message.contains(name), "{name} {value}: {message}");
    }
    let nothing = [
        ("tools", json!([])),
        ("tools", Value::Null),
        ("tool_choice", json!("auto")),
        ("response_format", json!({"type": "text"})),
        ("stop", json!("")),
        ("stop", json!([])),
        ("max_completion_tokens", Value::Null),
        ("reasoning_format", json!("auto")),
        ("store", json!(false)),
    ];
    for (name, value) in nothing {
        with(name, value).ok();
    }
}

#[test]
fn the_template_is_applied_without_generating() {
    let world = World::shipped();
    let text = world.post("/apply-template", &json!({"messages": conversation()})).ok();
    let text = text["prompt"].as_str().unwrap();
    assert!(text.contains("You tell\nstories.") && text.contains("Begin."), "{text}");
    let without = json!({"messages": conversation(), "add_generation_prompt": false});
    let without = world.post("/apply-template", &without).ok();
    assert!(text.starts_with(without["prompt"].as_str().unwrap()) && text != without["prompt"]);
}
