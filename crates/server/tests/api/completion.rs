//! llama.cpp's own route.

use serde_json::json;

use crate::world::{SHIPPED, Setup, World, load};

#[test]
fn a_stream_tells_what_the_whole_answer_tells() {
    let world = World::shipped();
    let body = |stream: bool| {
        json!({"prompt": "Once upon a time", "n_predict": 20, "seed": 7, "n_probs": 2, "return_tokens": true,
               "stream": stream})
    };
    let whole = world.post("/completion", &body(false)).ok();
    let chunks = world.post("/completion", &body(true)).chunks();
    let (last, pieces) = chunks.split_last().unwrap();
    let text: String = pieces.iter().map(|chunk| chunk["content"].as_str().unwrap()).collect();
    let of_all = |name: &str| -> Vec<_> {
        pieces.iter().filter_map(|chunk| chunk[name].as_array()).flatten().cloned().collect()
    };
    assert_eq!(whole["content"], json!(text));
    assert_eq!(whole["tokens"], json!(of_all("tokens")));
    assert_eq!(whole["completion_probabilities"], json!(of_all("completion_probabilities")));
    assert_eq!((&whole["tokens_predicted"], whole["tokens"].as_array().unwrap().len()), (&json!(20), 20));
    for name in ["stop", "stop_type", "tokens_predicted", "tokens_evaluated", "generation_settings", "prompt"] {
        assert_eq!(whole[name], last[name], "{name}");
    }
}

#[test]
fn what_a_request_gets_wrong_is_named_and_the_next_one_is_answered() {
    let world = World::shipped();
    let cases = [
        (json!({}), "prompt: is missing"),
        (json!({"prompt": ""}), "the prompt has no tokens"),
        (json!({"prompt": "a", "n_predict": -2}), "n_predict: needs a whole number from -1"),
        (json!({"prompt": "a", "temperature": "hot"}), "temperature: needs a number, and is \"hot\""),
        (json!({"prompt": "a", "temprature": 1}), "did you mean temperature?"),
        (json!({"prompt": "a", "grammar": "root ::= \"a\""}), "grammar: this server does not support it"),
        (json!({"prompt": "a", "samplers": ["top_p", "top_k"]}), "\"top_k\" stands in another order"),
        (json!({"prompt": "a", "top_p": 7}), "top-p 7 is not above 0"),
    ];
    for (body, message) in cases {
        let found = world.post("/completion", &body).refused(400, "invalid_request_error");
        assert!(found.contains(message), "{body}: {found}");
        let answer = world.post("/completion", &json!({"prompt": "a", "n_predict": 1})).ok();
        assert_eq!(answer["tokens_predicted"], 1);
    }
    assert_eq!(world.get("/health").ok(), json!({"status": "ok"}));
}

#[test]
fn a_prompt_comes_back_as_it_was_written_where_the_tokenizer_composes_text() {
    let mut file = SHIPPED.to_vec();
    let (pre, qwen) = (b"smollm", b"qwen35");
    let at = file.windows(pre.len()).position(|bytes| bytes == pre).unwrap();
    file[at..at + qwen.len()].copy_from_slice(qwen);
    let world = World::start(Setup::of(load(file)));
    let ask = |prompt: serde_json::Value| world.post("/completion", &json!({"prompt": prompt, "n_predict": 1})).ok();
    let (typed, composed) = ("Cafe\u{301} ", "Caf\u{e9} ");
    assert_eq!(ask(json!(typed))["prompt"], typed);
    assert_eq!(ask(json!(typed))["tokens_evaluated"], ask(json!(composed))["tokens_evaluated"]);
    let ids = world.post("/tokenize", &json!({"content": composed})).ok()["tokens"].clone();
    assert_eq!(world.post("/tokenize", &json!({"content": typed})).ok()["tokens"], ids);
    assert_eq!(ask(ids.clone())["prompt"], composed);
    let mixed = json!([typed, ids[0], typed]);
    let first = world.post("/detokenize", &json!({"tokens": [ids[0]]})).ok()["content"].clone();
    assert_eq!(ask(mixed)["prompt"], format!("{typed}{}{typed}", first.as_str().unwrap()));
    let several = world.post("/completion", &json!({"prompt": ["a", typed], "n_predict": 1, "n": 2})).ok();
    let prompts: Vec<_> = several.as_array().unwrap().iter().map(|answer| answer["prompt"].clone()).collect();
    assert_eq!(prompts, ["a", "a", typed, typed]);
}
