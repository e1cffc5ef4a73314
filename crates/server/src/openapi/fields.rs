//! The fields of requests, each in one place, in groups as the routes take them.
//!
//! A field says which values are taken: everything else is refused with a 400 that names it. Tests ask a running server
//! for both, so these tables cannot say anything else than the code that takes the fields.

use muser_engine::{SAMPLER_SETTINGS, SAMPLER_STAGES, SamplerSetting, SettingValue};
use serde_json::{Value, json};

use crate::limits::{
    DETOKENIZED_MAX, MESSAGES_MAX, N_PROBS_MAX, RESPONSE_FIELDS_MAX, STOP_BYTES_MAX, STOPS_MAX, TEXT_BYTES_MAX,
    TEXT_LOGPROBS_MAX, TOP_LOGPROBS_MAX,
};
use crate::options::CACHE_SALT_CHARACTERS_MAX;

/// A field of a request.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The values it may have, with what it means.
    pub schema: Value,
    /// True if it must be present.
    pub is_required: bool,
}

/// A group of fields.
pub type Group = fn() -> Vec<Field>;

impl Field {
    /// A field that may be absent or null.
    fn of(name: &'static str, schema: Value, says: &str) -> Self {
        let mut field = Self { name, schema: or_null(schema), is_required: false };
        field.schema["description"] = says.into();
        field
    }

    /// A field that must be there.
    fn required(name: &'static str, mut schema: Value, says: &str) -> Self {
        schema["description"] = says.into();
        Self { name, schema, is_required: true }
    }

    /// A field that is true or false.
    fn switch(name: &'static str, default: bool, says: &str) -> Self {
        Self::of(name, json!({"type": "boolean"}), says).default(default)
    }

    /// A field that is accepted with any value, and ignored.
    fn ignored(name: &'static str, why: &str) -> Self {
        Self { name, schema: json!({"description": why, "x-muser-ignored": true}), is_required: false }
    }

    /// A known field of an unsupported feature: it may only have a neutral value, one of `schema`.
    fn unsupported(name: &'static str, schema: Value, neutral: Value, says: &str) -> Self {
        let mut field = Self::of(name, schema, &format!("Not supported: {says}. Only neutral values are accepted."));
        field.schema["x-muser-unsupported"] = neutral;
        field
    }

    /// As [`Self::unsupported`], where the neutral values can be listed.
    fn unsupported_unless(name: &'static str, neutral: Value, says: &str) -> Self {
        Self::unsupported(name, json!({"enum": neutral}), neutral, says)
    }

    /// Adds the value that counts if the field is absent.
    fn default(mut self, value: impl Into<Value>) -> Self {
        self.schema["default"] = value.into();
        self
    }

    /// Notes that the server's own setting counts if the field is absent.
    fn default_of_server(mut self) -> Self {
        self.schema["x-muser-default"] = "default_generation_settings of GET /props".into();
        self
    }
}

/// A schema that takes null as well.
pub fn or_null(mut schema: Value) -> Value {
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    } else if let Some(schemas) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        schemas.push(json!({"type": "null"}));
    } else if let Some(one) = schema.get_mut("type") {
        *one = json!([one.take(), "null"]);
    } else {
        schema = json!({"anyOf": [schema, {"type": "null"}]});
    }
    schema
}

fn whole(minimum: i64) -> Value {
    json!({"type": "integer", "minimum": minimum})
}

fn count_of_probabilities(maximum: u32) -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": maximum})
}

fn text() -> Value {
    json!({"type": "string"})
}

/// The prompt, on the routes of raw text.
pub fn prompt() -> Vec<Field> {
    vec![Field::required("prompt", json!({"$ref": "#/components/schemas/Prompt"}), "The text to continue.")]
}

/// A conversation.
pub fn conversation() -> Vec<Field> {
    let message = json!({"$ref": "#/components/schemas/Message"});
    vec![
        Field::required(
            "messages",
            json!({"type": "array", "items": message, "minItems": 1, "maxItems": MESSAGES_MAX}),
            "The conversation, oldest message first.",
        ),
        Field::switch("add_generation_prompt", true, "Ends the text where the model's answer begins."),
        Field::of(
            "chat_template_kwargs",
            json!({"type": "object"}),
            "Variables of the chat template. Names that the renderer sets are refused: messages, tools, bos_token and the like.",
        ),
        Field::unsupported_unless("continue_final_message", json!([false]), "continuation of the last message"),
        Field::of("reasoning_effort", json!({"enum": ["none"]}), EFFORT),
        Field::of("verbosity", json!({"enum": ["medium"]}), EFFORT),
    ]
}

const EFFORT: &str =
    "A variable of the model's chat template: any string, if the template reads it; otherwise the neutral value only.";

/// Settings of the sampler.
pub fn sampling() -> Vec<Field> {
    let stages: Vec<&str> = SAMPLER_STAGES.iter().map(|stage| stage.name).collect();
    let mut fields = Vec::new();
    for setting in SAMPLER_SETTINGS {
        let says = [Some(setting.says), setting.note].into_iter().flatten().collect::<Vec<_>>().join(" ");
        fields.push(Field::of(setting.name, setting_schema(setting), &says).default_of_server());
        let alias = setting.alias.as_ref();
        fields.extend(alias.map(|alias| Field::of(alias.name, setting_schema(setting), alias.says)));
    }
    fields.extend([
        Field::of("seed", whole(-1), "Seed of the random numbers; -1 takes a new one each time.").default(-1),
        Field::of(
            "samplers",
            json!({"type": "array", "items": {"enum": stages}}),
            "Sampler stages to run, in the order listed here; all by default.",
        ),
        Field::of(
            "logit_bias",
            json!({"$ref": "#/components/schemas/LogitBias"}),
            "Biases added to the logits of tokens.",
        ),
        Field::switch("ignore_eos", false, "Bans the tokens that end a text."),
    ]);
    fields
}

/// The values that a sampler setting accepts.
fn setting_schema(setting: &SamplerSetting) -> Value {
    let range = match setting.value {
        SettingValue::Number { range, .. } => range,
        SettingValue::Whole { minimum: None, .. } => return json!({"type": "integer"}),
        SettingValue::Whole { minimum: Some(minimum), .. } => return whole(minimum),
    };
    let mut schema = json!({"type": "number"});
    for (keyword, bound) in [("exclusiveMinimum", range.above), ("minimum", range.from), ("maximum", range.to)] {
        if let Some(bound) = bound {
            // 0 and not 0.0, as a person would write it.
            schema[keyword] = bound.to_string().parse().map_or(Value::Null, Value::Number);
        }
    }
    schema
}

/// Samplers of other servers.
pub fn other_samplers() -> Vec<Field> {
    let off = || json!({"type": "number", "maximum": 0});
    let unsupported = |(name, says)| Field::unsupported(name, off(), json!([0]), says);
    let numbers = [
        ("dynatemp_range", "dynamic temperature"),
        ("xtc_probability", "XTC sampling"),
        ("dry_multiplier", "DRY penalties"),
        ("mirostat", "mirostat sampling"),
        ("min_keep", "a least number of kept tokens"),
        ("adaptive_target", "adaptive-target sampling"),
        ("top_n_sigma", "top-n-sigma sampling"),
        ("t_max_predict_ms", "time limits of answers"),
    ];
    let mut fields: Vec<Field> = numbers.into_iter().map(unsupported).collect();
    fields.push(Field::unsupported_unless("backend_sampling", json!([false]), "sampling on a device"));
    fields.push(Field::unsupported_unless("n_indent", json!([0]), "indentation constraints"));
    let shapes = "Parameter of a sampler that this server lacks.";
    let ignored = [
        "dynatemp_exponent",
        "xtc_threshold",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_decay",
    ];
    fields.extend(ignored.map(|name| Field::ignored(name, shapes)));
    fields
}

/// Fields of all routes that generate, besides the sampler's.
pub fn options() -> Vec<Field> {
    let tokens_max = |name, says| Field::of(name, whole(-1), says).default_of_server();
    let answers = json!({"type": "integer", "minimum": 1});
    // Characters are bytes at least, and the limit is one of bytes.
    let one = json!({"type": "string", "maxLength": STOP_BYTES_MAX});
    let stop = json!({"anyOf": [one, {"type": "array", "items": one, "maxItems": STOPS_MAX}]});
    let salt = json!({"type": "string", "minLength": 1, "maxLength": CACHE_SALT_CHARACTERS_MAX});
    let mut fields = vec![
        tokens_max("n_predict", "Tokens to generate at most; -1 is no limit."),
        tokens_max("max_tokens", "Another name of n_predict; if several are given, they must agree."),
        tokens_max("max_completion_tokens", "Another name of n_predict; if several are given, they must agree."),
        Field::of("stop", stop, "Stop strings: one, or an array. They are not part of the text; empty ones are ignored."),
        Field::switch("stream", false, "Streams the answer as server-sent events."),
        Field::switch("return_progress", false, "Adds prefill progress to a stream."),
        Field::switch("timings_per_token", false, "Adds timings to each piece of a stream."),
        Field::switch("cache_prompt", true, "Reuses cached prefixes and caches this prompt: among requests of the same key, or of all keys with --share-prefixes."),
        Field::of("cache_salt", salt, "Narrows the scope of the prefix cache: only requests with the same salt share prefixes."),
        Field::of("n", answers.clone(), "Answers to each prompt, each with the seed after the one before. The server limits the answers of one request.").default(1),
        Field::of("n_cmpl", answers, "Another name of n, which overrides it.").default(1),
        Field::of("id_slot", whole(-1), "Slot number repeated in answers, as in llama.cpp. Without other effect: every slot can reuse every prefix.").default(-1),
    ];
    let later = [
        ("grammar", "grammar-constrained answers"),
        ("grammar_triggers", "grammar-constrained answers"),
        ("preserved_tokens", "grammar-constrained answers"),
        ("json_schema", "schema-constrained answers"),
        ("lora", "LoRA adapters"),
        ("image_data", "images"),
        ("suffix", "infilling before a suffix"),
    ];
    fields.extend(later.map(|(name, says)| Field::unsupported_unless(name, json!(["", []]), says)));
    fields.push(Field::unsupported_unless("grammar_lazy", json!([false]), "grammar-constrained answers"));
    let never_cut = "The context is never cut, so there is nothing to keep or discard.";
    fields.extend(["n_keep", "n_discard"].map(|name| Field::ignored(name, never_cut)));
    fields
}

/// Fields of `/completion` alone.
pub fn native() -> Vec<Field> {
    vec![
        Field::ignored("model", "The server has one model."),
        Field::switch("return_tokens", false, "Adds the token ids to the last object."),
        Field::of(
            "response_fields",
            json!({"type": "array", "items": text(), "maxItems": RESPONSE_FIELDS_MAX}),
            "Paths, divided by slashes, of the fields that the last object is reduced to.",
        ),
    ]
}

/// llama.cpp's count of probabilities.
pub fn probabilities() -> Vec<Field> {
    let says = "Number of likeliest tokens to report at each position, with their probabilities; 0 for none.";
    vec![Field::of("n_probs", count_of_probabilities(N_PROBS_MAX), says).default(0)]
}

/// Stage of the returned probabilities.
pub fn probabilities_after_sampling() -> Vec<Field> {
    vec![Field::switch(
        "post_sampling_probs",
        false,
        "Reports probabilities after all sampler stages instead of the model's own.",
    )]
}

/// Fields of `/v1/completions` alone.
pub fn texts() -> Vec<Field> {
    vec![
        Field::of(
            "logprobs",
            count_of_probabilities(TEXT_LOGPROBS_MAX),
            "Number of likeliest tokens to report; 0 reports the chosen token alone.",
        ),
        Field::unsupported_unless("echo", json!([false]), "echo of the prompt"),
        Field::unsupported_unless("best_of", json!([0, 1]), "selection among several answers"),
    ]
}

/// Fields of `/v1/chat/completions` alone.
pub fn chat() -> Vec<Field> {
    let tools = "tools";
    let mut fields = vec![
        Field::switch("logprobs", false, "Reports the probabilities of tokens."),
        Field::of(
            "top_logprobs",
            count_of_probabilities(TOP_LOGPROBS_MAX),
            "Number of likeliest tokens to report; above 0 it needs logprobs.",
        ),
        Field::unsupported_unless("tools", json!([[]]), tools),
        Field::unsupported_unless("functions", json!([[]]), tools),
        Field::unsupported_unless("tool_choice", json!(["none", "auto"]), tools),
        Field::unsupported_unless("function_call", json!(["none", "auto"]), tools),
        Field::ignored("parallel_tool_calls", "Tools are not supported."),
        Field::unsupported_unless("response_format", json!([{"type": "text"}]), "answer formats"),
        Field::unsupported_unless("modalities", json!([["text"]]), "modalities other than text"),
        Field::unsupported_unless("reasoning_format", json!(["none", "auto"]), "extraction of reasoning"),
        Field::unsupported_unless("parse_tool_calls", json!([false]), tools),
    ];
    let later = [
        ("audio", "audio"),
        ("prediction", "predicted outputs"),
        ("web_search_options", "web search"),
        ("thinking_budget_tokens", "thinking budgets"),
    ];
    fields.extend(later.map(|(name, says)| Field::unsupported_unless(name, json!([]), says)));
    fields
}

/// Options of a stream of OpenAI's.
pub fn stream_options() -> Vec<Field> {
    let options = json!({"$ref": "#/components/schemas/StreamOptions"});
    vec![Field::of("stream_options", options, "Options of a stream; refused without one.")]
}

/// The fields within `stream_options`.
pub fn of_stream_options() -> Vec<Field> {
    vec![
        Field::switch("include_usage", false, "Whether the stream ends with a chunk that counts the tokens."),
        Field::ignored("include_obfuscation", "Padding changes no content, and none is sent."),
    ]
}

/// Fields of OpenAI's clients that have no meaning for one model on one machine.
pub fn meaningless() -> Vec<Field> {
    let mut fields = vec![
        Field::ignored("model", "The server has one model."),
        Field::unsupported_unless("store", json!([false]), "storage of answers"),
    ];
    let names = [
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "session_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    ];
    fields.extend(names.map(|name| Field::ignored(name, "Without effect on a server of one model.")));
    fields
}

/// Fields of `/tokenize`.
pub fn tokenize() -> Vec<Field> {
    vec![
        Field::required(
            "content",
            json!({"type": "string", "maxLength": TEXT_BYTES_MAX}),
            "The text; its limit is in bytes.",
        ),
        Field::switch("add_special", false, "Adds the token that begins a prompt (BOS), if the vocabulary has one."),
        Field::switch("parse_special", true, "Parses control tokens that are spelled in the text."),
        Field::switch("with_pieces", false, "Adds the piece of text of each token."),
    ]
}

/// Fields of `/detokenize`.
pub fn detokenize() -> Vec<Field> {
    vec![Field::required(
        "tokens",
        json!({"type": "array", "items": whole(0), "maxItems": DETOKENIZED_MAX}),
        "Ids of tokens.",
    )]
}
