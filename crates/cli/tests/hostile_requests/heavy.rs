//! Bodies that are long, or become much more than they are.

use serde_json::json;

use crate::Case;

const MIB: usize = 1 << 20;
/// A request that makes no sense, or cannot fit.
const REFUSED: &[u16] = &[400, 413];
/// One that may be answered, or be too much.
const EITHER: &[u16] = &[200, 400, 413];

/// A text of many parts, each made of its number.
fn many(begin: &str, count: usize, part: impl Fn(usize) -> String, end: &str) -> String {
    let parts: Vec<String> = (0..count).map(part).collect();
    format!("{begin}{}{end}", parts.join(","))
}

pub fn cases(vocab: usize) -> Vec<Case> {
    [long_answers(), long_fields(vocab), long_conversations()].into_iter().flatten().collect()
}

fn post(name: &str, path: &'static str, body: String, expected: &'static [u16]) -> Case {
    Case::post(name, path, body, expected)
}

/// Requests for much, and bodies of fields that nobody takes.
fn long_answers() -> Vec<Case> {
    let hungry = |path, body: serde_json::Value| Case::post(format!("hungry {body}"), path, body.to_string(), REFUSED);
    vec![
        hungry("/completion", json!({"prompt": "hi", "n_predict": 2000, "n_probs": u32::MAX, "ignore_eos": true})),
        hungry(
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2000, "logprobs": true,
                   "top_logprobs": u32::MAX}),
        ),
        hungry("/v1/completions", json!({"prompt": "hi", "max_tokens": 2000, "logprobs": 1_000_000})),
        post("pieces", "/tokenize", json!({"content": "!\"".repeat(2 * MIB), "with_pieces": true}).to_string(), EITHER),
        post("tokens", "/tokenize", json!({"content": "a!".repeat(14 * MIB)}).to_string(), EITHER),
        post("one word", "/tokenize", json!({"content": "a".repeat(4 * MIB)}).to_string(), EITHER),
        post(
            "small objects",
            "/tokenize",
            many(r#"{"content":"a","x":["#, 3_000_000, |_| r#"{"a":0}"#.into(), "]}"),
            REFUSED,
        ),
        post(
            "small objects in an ignored field",
            "/v1/completions",
            many(r#"{"prompt":"a","max_tokens":1,"metadata":["#, 3_000_000, |_| r#"{"a":0}"#.into(), "]}"),
            EITHER,
        ),
        post("names", "/tokenize", many("{", 2_000_000, |i| format!("\"{i:x}\":0"), "}"), REFUSED),
        post(
            "names in an ignored field",
            "/completion",
            many(r#"{"prompt":"a","n_keep":{"#, 2_000_000, |i| format!("\"{i:x}\":0"), "}}"),
            REFUSED,
        ),
    ]
}

/// Prompts, stop strings and biases.
fn long_fields(vocab: usize) -> Vec<Case> {
    vec![
        post("a long prompt", "/completion", json!({"prompt": "a b ".repeat(7 * MIB)}).to_string(), REFUSED),
        post("ids", "/completion", many(r#"{"prompt":["#, 9_000_000, |_| "70".into(), "]}"), REFUSED),
        post("prompts", "/v1/completions", many(r#"{"prompt":["#, 5_000_000, |_| "[7]".into(), "]}"), REFUSED),
        post("empty texts", "/completion", many(r#"{"prompt":[1,"#, 5_000_000, |_| r#""""#.into(), "]}"), REFUSED),
        post("ids to text", "/detokenize", many(r#"{"tokens":["#, 9_000_000, |_| "70".into(), "]}"), REFUSED),
        post(
            "stop strings",
            "/completion",
            many(r#"{"prompt":"hi","stop":["#, 2_000_000, |i| format!("\"{i:x}~\""), "]}"),
            REFUSED,
        ),
        post(
            "a long stop string",
            "/completion",
            json!({"prompt": "hi", "n": 16, "stop": "x".repeat(30 * MIB)}).to_string(),
            REFUSED,
        ),
        post(
            "biases",
            "/completion",
            many(r#"{"prompt":"hi","logit_bias":["#, 2_000_000, |i| format!("[{},0]", i % vocab), "]}"),
            REFUSED,
        ),
        post(
            "biases of texts",
            "/completion",
            json!({"prompt": "hi", "logit_bias": [["a b ".repeat(5 * MIB), 1]]}).to_string(),
            REFUSED,
        ),
    ]
}

/// Conversations, and bodies of nothing but syntax.
fn long_conversations() -> Vec<Case> {
    vec![
        post(
            "messages",
            "/apply-template",
            many(r#"{"messages":["#, 300_000, |_| r#"{"role":"user","content":"a"}"#.into(), "]}"),
            EITHER,
        ),
        post(
            "a long message",
            "/apply-template",
            json!({"messages": [{"role": "user", "content": "<|im_end|>".repeat(2 * MIB)}]}).to_string(),
            EITHER,
        ),
        post(
            "variables",
            "/apply-template",
            many(
                r#"{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":["#,
                3_000_000,
                |_| "[0]".into(),
                "]}}",
            ),
            REFUSED,
        ),
        post(
            "values of a message",
            "/apply-template",
            many(r#"{"messages":[{"role":"user","content":"a","x":["#, 3_000_000, |_| "[0]".into(), "]}]}"),
            REFUSED,
        ),
        post("open arrays", "/completion", "[".repeat(30 * MIB), REFUSED),
        post(
            "open arrays in an ignored field",
            "/completion",
            format!(r#"{{"prompt":"a","model":{}"#, "[".repeat(30 * MIB)),
            REFUSED,
        ),
        post(
            "closed arrays in an ignored field",
            "/completion",
            format!(r#"{{"prompt":"a","model":{}{}}}"#, "[".repeat(9 * MIB), "]".repeat(9 * MIB)),
            REFUSED,
        ),
        post("spaces", "/completion", format!("{}{{}}", " ".repeat(30 * MIB)), REFUSED),
        post("digits", "/completion", format!(r#"{{"prompt":"a","seed":{}}}"#, "9".repeat(20 * MIB)), REFUSED),
        post("escapes", "/tokenize", format!(r#"{{"content":"{}"}}"#, r"\u0061".repeat(5 * MIB)), EITHER),
        post("a name", "/completion", format!(r#"{{"{}":1}}"#, "x".repeat(30 * MIB)), REFUSED),
    ]
}

/// Work that keeps a thread busy for long.
pub fn long_work() -> [Case; 1] {
    let text = json!({"content": "the quick brown fox ".repeat(3 * MIB / 20), "with_pieces": true}).to_string();
    [Case::post("long work", "/tokenize", text, EITHER)]
}
