//! The objects of answers, and those within requests.
//!
//! A name with `?` at its end is that of a property that an answer may lack. Tests hold the answers of a running server
//! against these, and find a property that is missing here as well as one that is missing there.

use muser_engine::{SAMPLER_SETTINGS, SettingValue};
use serde_json::{Map, Value, json};

use super::fields::or_null;

/// All objects that are not made of the fields of a request, by name.
pub fn all() -> Map<String, Value> {
    [within_requests(), of_the_server(), of_completions(), of_openai(), of_probabilities()]
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}

/// A reference to an object.
pub fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

type Named = Vec<(&'static str, Value)>;

fn within_requests() -> Named {
    let token = json!({"anyOf": [integer(), text()]});
    let one = json!({"anyOf": [text(), {"type": "array", "items": token, "minItems": 1}]});
    let bias = json!({"anyOf": [number(), {"const": false}]});
    let pair = json!({"type": "array", "prefixItems": [token, bias], "items": false, "minItems": 2});
    let part = json!({
        "description": "A part of a message; only text is supported, and in the assistant's messages parts of type refusal, which have one instead.",
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": text()},
        "required": ["type", "text"],
    });
    let message = json!({
        "description": "A message. name, reasoning_content, tool_calls of the assistant and tool_call_id reach templates that read them; a refusal is \
            content; annotations change nothing. Other fields are refused unless the model's template reads them, and so are calls that it leaves out.",
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"], "description": "Who speaks. developer is system."},
            "content": {"anyOf": [text(), array(named("TextPart")), {"type": "null"}]},
        },
        "required": ["role"],
    });
    vec![
        (
            "Prompt",
            json!({
                "description": "A text, ids of tokens, or both in a row; an array of several texts, or of several such arrays, is several prompts.",
                "anyOf": [one, {"type": "array", "items": {"type": "array", "items": token, "minItems": 1}, "minItems": 1}],
            }),
        ),
        (
            "LogitBias",
            json!({
                "description": "Pairs of a token and its bias; false bans the token. A token is an id, or a text whose tokens all get the bias.",
                "anyOf": [array(pair), {"type": "object", "additionalProperties": bias}],
            }),
        ),
        ("TextPart", part),
        ("Message", message),
    ]
}

fn of_the_server() -> Named {
    let status = || object(&json!({"status": text()}));
    let slot = object(&json!({
        "id": integer(),
        "id_task": described(json!({"type": "integer"}), "Number of the running request; -1 if there is none."),
        "n_ctx": integer(),
        "is_processing": boolean(),
        "n_prompt_tokens": integer(),
        "n_prompt_tokens_processed": integer(),
        "n_decoded": integer(),
    }));
    let meta = object(&json!({
        "n_vocab": integer(),
        "n_ctx": integer(),
        "n_ctx_train": integer(),
        "n_embd": integer(),
        "n_params": integer(),
        "size": described(integer(), "Bytes of the weights."),
    }));
    let model = object(&json!({
        "id": text(),
        "object": {"const": "model"},
        "created": integer(),
        "owned_by": text(),
        "meta": described(or_null(meta), "Null while the model is being loaded."),
        "architecture": object(&json!({"input_modalities": array(text()), "output_modalities": array(text())})),
    }));
    let mut params = sampling_settings();
    params["n_predict"] = json!({"type": "integer"});
    let props = object(&json!({
        "default_generation_settings": object(&json!({"n_ctx": integer(), "params": object(&params)})),
        "total_slots": integer(),
        "model_alias": text(),
        "model_path": or_null(text()),
        "chat_template": or_null(text()),
        "modalities": object(&json!({"vision": boolean(), "audio": boolean()})),
        "bos_token": or_null(text()),
        "eos_token": or_null(text()),
        "build_info": text(),
        "is_sleeping": boolean(),
    }));
    vec![
        ("Health", status()),
        ("Stopping", status()),
        ("Slots", array(slot)),
        ("Models", object(&json!({"object": {"const": "list"}, "data": array(model)}))),
        ("Props", props),
        ("TemplatedPrompt", object(&json!({"prompt": text()}))),
        ("Text", object(&json!({"content": text()}))),
        ("Tokens", tokens()),
    ]
}

fn tokens() -> Value {
    let piece = described(json!({"anyOf": [text(), array(integer())]}), "A text, or bytes where they are not UTF-8.");
    let with_piece = object(&json!({"id": integer(), "piece": piece}));
    object(&json!({"tokens": {"anyOf": [array(integer()), array(with_piece)]}}))
}

fn of_completions() -> Named {
    let mut settings = sampling_settings();
    settings["n_predict"] = json!({"type": "integer"});
    settings["n_ctx"] = integer();
    settings["stop"] = array(text());
    settings["n_probs"] = integer();
    let piece = object(&json!({
        "index": integer(),
        "content": text(),
        "tokens": array(integer()),
        "stop": {"const": false},
        "id_slot": integer(),
        "tokens_predicted": integer(),
        "tokens_evaluated": integer(),
        "completion_probabilities?": array(named("TokenProbability")),
        "prompt_progress?": named("PromptProgress"),
        "timings?": named("Timings"),
    }));
    let whole = object(&json!({
        "index": integer(),
        "content": text(),
        "tokens": array(integer()),
        "id_slot": integer(),
        "stop": {"const": true},
        "model": text(),
        "tokens_predicted": integer(),
        "tokens_evaluated": integer(),
        "generation_settings": object(&settings),
        "prompt": text(),
        "truncated": described(boolean(), "Whether the context was full."),
        "stop_type": {"enum": ["eos", "limit", "word"]},
        "stopping_word": text(),
        "tokens_cached": integer(),
        "completion_probabilities?": array(named("TokenProbability")),
        "timings": named("Timings"),
    }));
    vec![
        ("CompletionPiece", piece),
        (
            "Completion",
            described(whole, "A whole answer, and the last object of a stream. response_fields reduces it."),
        ),
        ("Completions", json!({"anyOf": [named("Completion"), array(named("Completion"))]})),
        ("CompletionEvent", json!({"anyOf": [named("CompletionPiece"), named("Completion"), named("Error")]})),
        (
            "PromptProgress",
            object(&json!({"total": integer(), "cache": integer(), "processed": integer(), "time_ms": number()})),
        ),
        ("PrefillChoice", prefill_choice()),
        ("Audit", audit()),
        ("Timings", timings()),
    ]
}

fn timings() -> Value {
    object(&json!({
        "cache_n": described(integer(), "Tokens of the prompt that were cached."),
        "prompt_n": described(integer(), "Tokens of the prompt that were computed."),
        "prompt_ms": number(),
        "prompt_per_token_ms": number(),
        "prompt_per_second": number(),
        "predicted_n": described(integer(), "Tokens generated."),
        "predicted_ms": number(),
        "predicted_per_token_ms": number(),
        "predicted_per_second": number(),
        "kv_source": described(json!({"enum": ["local", "producer"]}), "Source of the prompt's keys and values."),
        "kv_fallback?": described(text(), "Reason for a fallback: the error of each producer that failed, or the reason for asking none."),
        "kv_lost_ms?": described(number(), "Time lost with producers that failed."),
        "kv_choice?": described(named("PrefillChoice"), "Terms of the choice of the machine that computes, if the prompt was long enough."),
        "kv_audit?": described(named("Audit"), "Result of the audit, if there was one: pages of a producer, recomputed and compared."),
        "kv_producer?": described(text(), "The producer's name."),
        "kv_brought_n?": described(integer(), "Tokens of the prompt that the producer computed."),
        "kv_pages?": described(integer(), "Pages received."),
        "kv_payload_bytes?": described(integer(), "Bytes of these pages."),
        "kv_wire_bytes?": described(integer(), "Bytes on the wire."),
        "kv_ms?": described(number(), "Time from the choice of a producer until all pages were verified, milliseconds."),
        "kv_queue_ms?": described(number(), "Of these, waiting for the producer."),
        "kv_compute_ms?": described(number(), "Of these, computing."),
        "kv_pack_ms?": described(number(), "Of these, packing pages into frames."),
        "kv_send_wall_ms?": described(number(), "Of these, from the first page to the last."),
        "kv_send_busy_ms?": described(number(), "Of these, the producer's kernel was sending, if it reports that; in ticks of some milliseconds."),
        "kv_gbit_per_s?": described(number(), "Bytes on the wire, by the time in which the kernel was sending."),
        "kv_wall_gbit_per_s?": described(number(), "Bytes on the wire, by the time from the first page to the last."),
    }))
}

fn audit() -> Value {
    object(&json!({
        "outcome": described(json!({"enum": ["same", "differs", "not_audited"]}), "Result of the comparison of bits; where they differ, nothing of the handoff was used."),
        "tokens": described(integer(), "Tokens recomputed."),
        "ms": described(number(), "Duration, milliseconds."),
        "pages?": described(integer(), "Pages that were compared."),
        "layer?": described(integer(), "The first layer that differs, at that position."),
        "position?": described(integer(), "The first position that differs."),
        "found?": described(text(), "Description of the difference."),
        "reason?": described(text(), "Reason for not auditing."),
    }))
}

fn prefill_choice() -> Value {
    let place = || described(text(), "`local`, or a producer's address.");
    let candidate = object(&json!({
        "place": place(),
        "verdict": {"enum": ["cheapest", "first_try", "retry", "not_chosen", "back_off"]},
        "queue_ms?": described(number(), "Queueing, milliseconds. Expected times are absent where nothing was measured yet."),
        "compute_ms?": described(number(), "Computing, milliseconds."),
        "wire_ms?": described(number(), "Transfer, concurrent with computing, milliseconds."),
        "fixed_ms?": described(number(), "Fixed part, independent of the length, milliseconds."),
        "total_ms?": described(number(), "Queueing, the longer of computing and transfer, and the fixed part, milliseconds."),
        "measured_ms_ago?": described(integer(), "Of a retry: age of the last measurement, milliseconds."),
        "usable_in_ms?": described(integer(), "Of one in backoff after failures: remaining time, milliseconds."),
        "failures?": described(integer(), "Of one in backoff: failures in a row."),
    }));
    object(&json!({"place": place(), "candidates": array(candidate)}))
}

fn of_openai() -> Named {
    let finish = || json!({"enum": ["stop", "length", null]});
    let usage = object(&json!({
        "prompt_tokens": integer(),
        "completion_tokens": integer(),
        "total_tokens": integer(),
        "prompt_tokens_details": object(&json!({"cached_tokens": integer()})),
        "completion_tokens_details": object(&json!({"reasoning_tokens": integer()})),
    }));
    let text_logprobs = object(&json!({
        "tokens": array(text()),
        "token_logprobs": array(number()),
        "top_logprobs": array(json!({"type": "object", "additionalProperties": number()})),
        "text_offset": described(array(integer()), "Start of each token, in characters of the answer."),
    }));
    let text_choice = object(&json!({
        "index": integer(),
        "text": text(),
        "logprobs": or_null(text_logprobs),
        "finish_reason": finish(),
    }));
    let logprobs = object(&json!({"content": array(named("TokenProbability"))}));
    let message = object(&json!({"role": {"const": "assistant"}, "content": text()}));
    let chat_choice = object(&json!({
        "index": integer(),
        "message": message,
        "logprobs": or_null(logprobs.clone()),
        "finish_reason": finish(),
    }));
    let delta = object(&json!({"role?": {"const": "assistant"}, "content?": or_null(text())}));
    let delta_choice = object(&json!({
        "index": integer(),
        "delta": delta,
        "logprobs?": logprobs,
        "finish_reason": finish(),
    }));
    let mut whole_text = envelope("text_completion", text_choice.clone());
    let mut whole_chat = envelope("chat.completion", chat_choice);
    for whole in [&mut whole_text, &mut whole_chat] {
        whole["usage"] = named("Usage");
        whole["timings?"] = named("Timings");
    }
    let mut text_chunk = envelope("text_completion", text_choice);
    let mut chat_chunk = envelope("chat.completion.chunk", delta_choice);
    for chunk in [&mut text_chunk, &mut chat_chunk] {
        chunk["usage?"] = or_null(named("Usage"));
        chunk["prompt_progress?"] = named("PromptProgress");
        chunk["timings?"] = named("Timings");
    }
    vec![
        ("Usage", usage),
        ("TextCompletion", object(&whole_text)),
        ("TextCompletionChunk", object(&text_chunk)),
        ("TextCompletionEvent", json!({"anyOf": [named("TextCompletionChunk"), named("Error")]})),
        ("ChatCompletion", object(&whole_chat)),
        ("ChatCompletionChunk", object(&chat_chunk)),
        ("ChatCompletionEvent", json!({"anyOf": [named("ChatCompletionChunk"), named("Error")]})),
    ]
}

fn envelope(kind: &str, choice: Value) -> Value {
    json!({
        "id": text(),
        "object": {"const": kind},
        "created": integer(),
        "model": text(),
        "system_fingerprint": text(),
        "choices": array(choice),
    })
}

fn of_probabilities() -> Named {
    let one = |value: &str, top: Option<(&str, &str)>| {
        let mut properties = json!({"id": integer(), "token": text(), "bytes": array(integer()), value: number()});
        if let Some((name, of)) = top {
            properties[name] = array(named(of));
        }
        object(&properties)
    };
    let (of_model, drawn_with) =
        (one("logprob", Some(("top_logprobs", "Logprob"))), one("prob", Some(("top_probs", "Probability"))));
    vec![
        ("Logprob", one("logprob", None)),
        (
            "Probability",
            described(one("prob", None), "A probability after all sampler stages, with post_sampling_probs."),
        ),
        ("TokenProbability", json!({"anyOf": [of_model, drawn_with]})),
    ]
}

fn sampling_settings() -> Value {
    let mut properties = json!({"seed": {"type": "integer"}});
    for setting in SAMPLER_SETTINGS {
        properties[setting.name] = match setting.value {
            SettingValue::Number { .. } => number(),
            SettingValue::Whole { minimum: None, .. } => integer(),
            SettingValue::Whole { minimum: Some(_), .. } => json!({"type": "integer"}),
        };
    }
    properties
}

/// An object with these properties.
pub fn object(properties: &Value) -> Value {
    let properties = properties.as_object().into_iter().flatten();
    let (mut known, mut required) = (Map::new(), Vec::new());
    for (name, schema) in properties {
        match name.strip_suffix('?') {
            Some(name) => drop(known.insert(name.to_owned(), schema.clone())),
            None => {
                required.push(name.as_str());
                known.insert(name.clone(), schema.clone());
            }
        }
    }
    json!({"type": "object", "properties": known, "required": required})
}

/// An array of these.
pub fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Adds a description.
pub fn described(mut schema: Value, says: &str) -> Value {
    schema["description"] = says.into();
    schema
}

/// A text.
pub fn text() -> Value {
    json!({"type": "string"})
}

/// A whole number that counts something.
pub fn integer() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn number() -> Value {
    json!({"type": "number"})
}

fn boolean() -> Value {
    json!({"type": "boolean"})
}
