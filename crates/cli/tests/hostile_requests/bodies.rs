//! Bodies that are no JSON, say what makes no sense, or stand at the edge of what does.

use muser_engine::{SAMPLER_SETTINGS, SamplerSetting, SettingValue};
use serde_json::{Value, json};

use crate::Case;

const BAD: &[u16] = &[400];
const OK: &[u16] = &[200];
const EITHER: &[u16] = &[200, 400];
const C: &str = "/completion";
const V1: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const APPLY: &str = "/apply-template";

/// A request for little, with one more field.
fn with(name: &str, value: &Value) -> Vec<u8> {
    let mut body = json!({"prompt": "hi", "n_predict": 2});
    body[name] = value.clone();
    body.to_string().into_bytes()
}

/// A conversation, with one more field.
fn chat(name: &str, value: &Value) -> Vec<u8> {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
    body[name] = value.clone();
    body.to_string().into_bytes()
}

pub fn cases(vocab: usize, context: usize) -> Vec<Case> {
    [no_json(), wrong_values(vocab), fine_values(vocab), prompts(vocab, context), conversations(), other_routes(vocab)]
        .into_iter()
        .flatten()
        .collect()
}

fn no_json() -> Vec<Case> {
    let raw = |name: &str, body: &[u8], expected| Case::post(name, C, body, expected);
    let texts: &[(&str, &str, &[u16])] = &[
        ("nothing", "", BAD),
        ("an array", "[]", BAD),
        ("a string", "\"x\"", BAD),
        ("null", "null", BAD),
        ("a number", "7", BAD),
        ("no fields", "{}", BAD),
        ("a mark in front", "\u{feff}{\"prompt\":\"a\"}", BAD),
        ("something behind", r#"{"prompt":"a"}x"#, BAD),
        ("two objects", r#"{"prompt":"a"}{"prompt":"b"}"#, BAD),
        ("half an object", r#"{"prompt":"a""#, BAD),
        ("a comma too many", r#"{"prompt":"a",}"#, BAD),
        ("single quotes", "{'prompt':'a'}", BAD),
        ("a comment", r#"{"prompt":"a"/*x*/}"#, BAD),
        ("NaN", r#"{"prompt":"a","temperature":NaN}"#, BAD),
        ("infinity", r#"{"prompt":"a","temperature":1e999}"#, BAD),
        ("infinity in an ignored field", r#"{"prompt":"a","model":[1e999]}"#, BAD),
        ("a number with a zero in front", r#"{"prompt":"a","seed":01}"#, BAD),
        ("half a pair", r#"{"prompt":"\ud800"}"#, BAD),
        ("a pair the wrong way round", r#"{"prompt":"\udc00\ud800"}"#, BAD),
        ("half a pair in an ignored field", r#"{"prompt":"a","model":"\ud800"}"#, BAD),
        ("a pair", r#"{"prompt":"\ud83e\udd99","n_predict":1}"#, OK),
        ("an unknown escape", r#"{"prompt":"\x41"}"#, BAD),
        ("a control character", "{\"prompt\":\"a\u{1}\"}", BAD),
        ("a name twice", r#"{"prompt":"a","prompt":"b","n_predict":1}"#, BAD),
        ("a name twice, once escaped", r#"{"prompt":"a","n_predict":1,"n_predic\u0074":1}"#, BAD),
        ("a name twice within", r#"{"prompt":"a","logit_bias":{"5":1,"5":2},"n_predict":1}"#, BAD),
        ("a name twice where nobody looks", r#"{"prompt":"a","model":{"a":{"b":1,"b":1}},"n_predict":1}"#, BAD),
        ("a null for a field of nobody", r#"{"prompt":"a","n_predict":1,"nobody":null}"#, OK),
        ("a field of nobody", r#"{"prompt":"a","nobody":1}"#, BAD),
        ("a misspelt field", r#"{"prompt":"a","temprature":1}"#, BAD),
        ("a field in capitals", r#"{"Prompt":"a"}"#, BAD),
    ];
    let mut cases: Vec<Case> =
        texts.iter().map(|(name, body, expected)| raw(name, body.as_bytes(), expected)).collect();
    let long = [
        ("no UTF-8", b"{\"prompt\":\"\xff\xfe\"}".to_vec()),
        ("no UTF-8 in an ignored field", b"{\"prompt\":\"a\",\"model\":\"\xc3\x28\"}".to_vec()),
        ("many open arrays", "[".repeat(100_000).into_bytes()),
        ("many open objects", "{\"a\":".repeat(50_000).into_bytes()),
        ("a deep prompt", format!("{{\"prompt\":{}{}}}", "[".repeat(126), "]".repeat(126)).into_bytes()),
        (
            "a deep field of nobody",
            format!("{{\"prompt\":\"a\",\"user\":{}{}}}", "[".repeat(500), "]".repeat(500)).into_bytes(),
        ),
        ("10,000 digits", format!("{{\"prompt\":\"a\",\"seed\":{}}}", "9".repeat(10_000)).into_bytes()),
        ("an exponent of 9,999 digits", format!("{{\"prompt\":\"a\",\"seed\":1e{}}}", "9".repeat(9_999)).into_bytes()),
        ("a long name", format!("{{\"prompt\":\"a\",\"{}\":1}}", "x".repeat(60_000)).into_bytes()),
    ];
    cases.extend(long.into_iter().map(|(name, body)| Case::post(name, C, body, BAD)));
    cases
}

/// For each field, values that it does not take.
fn wrong_values(vocab: usize) -> Vec<Case> {
    let banned: Vec<Value> = (0..vocab).map(|id| json!([id, false])).collect();
    let table = [
        ("n_predict", json!([1.5, -2, 9_223_372_036_854_775_808_u64, u64::MAX, "1", true, [1], {}])),
        ("max_tokens", json!([3, -7])),
        ("seed", json!([-2, 9_223_372_036_854_775_808_u64, 1.5, "x"])),
        ("n", json!([0, -1, 17, 1_u64 << 40, 1_u64 << 63])),
        ("n_probs", json!([-1, 101, 4_294_967_296_u64, 1.5])),
        ("id_slot", json!([-2, 4096])),
        ("stop", json!([1, [1], [["a"]], {}, vec!["a"; 65], "x".repeat(1025)])),
        ("stream", json!([1, "true"])),
        ("samplers", json!(["top_k", ["nope"], ["temperature", "top_k"], [1], vec!["top_k"; 1000]])),
        ("response_fields", json!([1, [1], vec!["content"; 65], ["x".repeat(9000)]])),
        ("grammar", json!(["root ::= (", "x".repeat(60_000)])),
        ("json_schema", json!([{"type": "object"}])),
        (
            "logit_bias",
            json!([[[1, "x"]], [[-1, 1]], [[1.5, 1]], [[1]], [1], 5, {"1": 1e39}, [[1, true]], [["a".repeat(1025), 1]]]),
        ),
        ("logit_bias", json!([{vocab.to_string(): 1}, {"4294967296": 1}, [[vocab, 1]], [[1, 2, 3]], banned])),
        ("logit_bias", json!([vec![[1, 0]; vocab + 1]])),
        ("mirostat", json!([2])),
        ("dry_multiplier", json!([1])),
        ("cache_prompt", json!([1])),
        ("cache_salt", json!(["", "x".repeat(257), 1])),
        ("lora", json!([[{"id": 0}]])),
    ];
    let mut cases = Vec::new();
    for (name, values) in table.into_iter().chain(SAMPLER_SETTINGS.iter().map(wrong_settings)) {
        for (index, value) in values.as_array().unwrap().iter().enumerate() {
            cases.push(Case::post(format!("{name}, wrong value {index}"), C, with(name, value), BAD));
        }
    }
    for (name, value) in
        [("echo", json!(true)), ("best_of", json!(99)), ("logprobs", json!(6)), ("logprobs", json!(-1))]
    {
        cases.push(Case::post(format!("{name} {value}"), V1, with(name, &value), BAD));
    }
    let without_a_stream = json!({"include_usage": true});
    cases.push(Case::post("options without a stream", V1, with("stream_options", &without_a_stream), BAD));
    cases
}

/// The name of a sampler setting, and values that it does not take.
fn wrong_settings(setting: &SamplerSetting) -> (&'static str, Value) {
    let mut values = vec![json!("1"), json!(false), json!([])];
    match setting.value {
        SettingValue::Number { range, .. } => {
            values.extend([json!(3.5e38), json!(-3.5e38), json!("x")]);
            values.extend(range.above.into_iter().flat_map(|bound| [json!(bound), json!(bound - 1.0)]));
            values
                .extend(range.from.into_iter().flat_map(|bound| [json!(f64::from(bound) - 1e-45), json!(bound - 1.0)]));
            values
                .extend(range.to.into_iter().flat_map(|bound| [json!(f64::from(bound) + 0.0001), json!(bound + 1.0)]));
        }
        SettingValue::Whole { minimum, .. } => {
            values.extend([json!(1.5), json!(1_u64 << 63), json!(u64::MAX)]);
            values.extend(minimum.map(|minimum| json!(minimum - 1)));
        }
    }
    (setting.name, values.into())
}

/// Values at the edge of what is taken.
fn fine_values(vocab: usize) -> Vec<Case> {
    let one_left: Vec<Value> = (0..vocab).filter(|id| *id != 70).map(|id| json!([id, false])).collect();
    let table = [
        ("n_predict", json!([0, 2.0, 2])),
        ("temperature", json!([1e-45, 0, 3e38])),
        ("repeat_penalty", json!([1e-38, 3e38])),
        ("presence_penalty", json!([3e38, -3e38])),
        ("top_k", json!([-1, 0, 1_000_000])),
        ("seed", json!([-1, i64::MAX])),
        ("stop", json!([null, "", ["", ""], vec!["zz"; 64], "z".repeat(1024)])),
        ("n_probs", json!([0, 100])),
        ("logit_bias", json!([[], {}, one_left, vec![json!([70, 3e38]); 1000], [["hi", -3e38]]])),
        ("cache_salt", json!(["x".repeat(256)])),
        ("response_fields", json!([["content", "timings/prompt_n", "no/such/thing"]])),
    ];
    let mut cases = Vec::new();
    for (name, values) in table {
        for (index, value) in values.as_array().unwrap().iter().enumerate() {
            cases.push(Case::post(format!("{name}, fine value {index}"), C, with(name, value), OK));
        }
    }
    cases
}

fn prompts(vocab: usize, context: usize) -> Vec<Case> {
    let wrong = json!([
        [],
        [[]],
        [[[1]]],
        [-1],
        [vocab],
        [1_u64 << 31],
        [u64::MAX],
        [1.5],
        [null],
        [true],
        {},
        5,
        null,
        "",
        [["a"], 1],
        ["a", ["b"]],
        [""],
        vec!["a"; 17],
        vec![[1]; 17],
        [1, {}],
        [[1], {}],
        [[1], [null]]
    ]);
    let fine = json!([
        [1, "a", 2],
        ["a", 1],
        ["a", "b"],
        [[70], [71]],
        "a\u{0}b",
        "\u{ffff}\u{202e}\u{feff}",
        [["a", 1], [2]]
    ]);
    let prompt = |value: &Value| json!({"prompt": value, "n_predict": 1}).to_string();
    let mut cases = Vec::new();
    for path in [C, V1] {
        let wrong = wrong.as_array().unwrap().iter().enumerate();
        cases.extend(wrong.map(|(index, value)| Case::post(format!("wrong prompt {index}"), path, prompt(value), BAD)));
        let fine = fine.as_array().unwrap().iter().enumerate();
        cases.extend(fine.map(|(index, value)| Case::post(format!("fine prompt {index}"), path, prompt(value), OK)));
        let of_length = |length: usize| prompt(&json!(vec![70; length]));
        cases.push(Case::post("a prompt with room for one token", path, of_length(context - 1), OK));
        cases.push(Case::post("a prompt without room", path, of_length(context), BAD));
        cases.push(Case::post("a prompt that is too long", path, of_length(context + 1), BAD));
        let stream = json!({"prompt": vec![70; context + 1], "stream": true}).to_string();
        cases.push(Case::post("a stream of a prompt that is too long", path, stream, BAD));
    }
    cases
}

fn conversations() -> Vec<Case> {
    let of = |messages: Value| json!({"messages": messages, "max_tokens": 1}).to_string();
    let image = json!([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]);
    let wrong = [
        ("no messages", json!([])),
        ("an object of messages", json!({})),
        ("a message that is a string", json!(["a"])),
        ("a role that is a number", json!([{"role": 1, "content": "a"}])),
        ("no role", json!([{"content": "a"}])),
        ("a content that is a number", json!([{"role": "user", "content": 5}])),
        ("an image", json!([{"role": "user", "content": image}])),
        ("a part without a type", json!([{"role": "user", "content": [{}]}])),
        ("a part without a text", json!([{"role": "user", "content": [{"type": "text"}]}])),
        ("a part that is a number", json!([{"role": "user", "content": [1]}])),
    ];
    let mut cases: Vec<Case> =
        wrong.into_iter().map(|(name, messages)| Case::post(name, CHAT, of(messages), BAD)).collect();
    for (name, value) in [
        ("chat_template_kwargs", json!(1)),
        ("tools", json!([{"type": "function"}])),
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(4_294_967_296_u64)),
        ("n_probs", json!(101)),
        ("response_format", json!({"type": "json_object"})),
    ] {
        cases.push(Case::post(format!("{name} {value}"), CHAT, chat(name, &value), BAD));
    }
    let many = json!({"messages": vec![json!({"role": "user", "content": ""}); 5000]}).to_string();
    cases.push(Case::post("5,000 empty messages", APPLY, many, EITHER));
    let role = of(json!([{"role": "r".repeat(60_000), "content": "a"}]));
    cases.push(Case::post("a long role", CHAT, role, EITHER));
    let fields: serde_json::Map<String, Value> = (0..500).map(|index| (format!("f{index}"), json!(index))).collect();
    let mut message = Value::Object(fields);
    (message["role"], message["content"]) = (json!("user"), json!("a"));
    cases.push(Case::post("a message of 500 fields", APPLY, json!({"messages": [message]}).to_string(), EITHER));
    cases
}

fn other_routes(vocab: usize) -> Vec<Case> {
    let post = |name: &str, path, body: Value, expected| Case::post(name, path, body.to_string(), expected);
    vec![
        post("nothing to tokenize", "/tokenize", json!({}), BAD),
        post("a number to tokenize", "/tokenize", json!({"content": 5}), BAD),
        post("an empty text", "/tokenize", json!({"content": "", "with_pieces": true}), OK),
        post(
            "all switches",
            "/tokenize",
            json!({"content": "a", "with_pieces": true, "add_special": true, "parse_special": false}),
            OK,
        ),
        post("nothing to detokenize", "/detokenize", json!({}), BAD),
        post("no list", "/detokenize", json!({"tokens": 5}), BAD),
        post("an id below zero", "/detokenize", json!({"tokens": [-1]}), BAD),
        post("an id beyond", "/detokenize", json!({"tokens": [vocab]}), BAD),
        post("an id that is a number with a point", "/detokenize", json!({"tokens": [1e9]}), BAD),
        post("a text among ids", "/detokenize", json!({"tokens": [1, "a"]}), BAD),
        post("a list among ids", "/detokenize", json!({"tokens": [[1]]}), BAD),
        post("no ids", "/detokenize", json!({"tokens": []}), OK),
        post("nothing to fill", APPLY, json!({}), BAD),
        Case { method: "PUT", ..Case::post("PUT", C, "{}", &[405]) },
        Case { method: "DELETE", ..Case::post("DELETE", "/health", "", &[405]) },
        Case { method: "GET", ..Case::post("GET", C, "", &[405]) },
        Case::post("a path of nobody", "/no/such/path", "{}", &[404]),
    ]
}
