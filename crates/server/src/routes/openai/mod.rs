//! OpenAI's routes: the common parts of texts and conversations.

pub mod chat;
pub mod completions;

use serde::Serialize;
use serde_json::{Value, json};

use crate::app::{App, seconds_since_1970};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, Stop};
use crate::stream::Collected;

/// All answers in one object, whose choices are serialised directly and never become a tree.
#[derive(Serialize)]
struct Whole<C> {
    #[serde(flatten)]
    head: Value,
    choices: Vec<C>,
    usage: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
}

/// Fields of every object of an answer.
#[derive(Clone, Debug)]
struct Envelope {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Envelope {
    /// The envelope of a new answer, with an id that begins with `prefix`.
    fn new(app: &App, prefix: &str) -> Self {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
        Self {
            id: format!("{prefix}-{random}"),
            created: seconds_since_1970(),
            model: app.settings.alias.clone(),
            fingerprint: app.settings.build.clone(),
        }
    }

    /// An object with these choices.
    fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        let mut object = self.head(kind);
        object["choices"] = choices.into();
        object
    }

    /// The fields of every object before its choices.
    fn head(&self, kind: &str) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        })
    }

    /// All answers in one object, with timings if there is one answer.
    fn whole<C: Serialize>(&self, kind: &str, choices: Vec<C>, (all, answers): (&[Collected], usize)) -> Whole<C> {
        let generations: Vec<&Generation> = all.iter().map(|collected| &collected.generation).collect();
        let timings = if let [one] = *generations { Some(one.timings()) } else { None };
        Whole { head: self.head(kind), choices, usage: usage(&generations, answers), timings }
    }
}

/// True if the stream ends with a chunk that reports the usage.
fn take_include_usage(fields: &mut Fields<'_>, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.take_fields("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::invalid("stream_options: only a stream has options"));
    }
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    // Padding against an observer who counts bytes; it changes no content.
    options.accept(&["include_obfuscation"])?;
    options.finish()?;
    Ok(include_usage)
}

/// Takes the fields that OpenAI's clients may send and that mean nothing to one model on one machine.
fn take_meaningless(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.accept(&["model", "user", "metadata", "service_tier", "safety_identifier", "session_id"])?;
    // Where and how long prefixes are kept is the server's to say.
    fields.accept(&["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"])?;
    fields.unsupported("store", |value| *value == Value::Bool(false))
}

/// Tokens of all answers; a prompt counts once, however many answers it gets.
fn usage(generations: &[&Generation], answers_per_prompt: usize) -> Value {
    let prompts = || generations.iter().step_by(answers_per_prompt.max(1)).map(|generation| generation.usage());
    let prompt: usize = prompts().map(|usage| usage.prompt).sum();
    let reused: usize = prompts().map(|usage| usage.reused).sum();
    let generated: usize = generations.iter().map(|generation| generation.usage().generated).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": reused},
        // What a model thinks is part of its text here.
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

fn finish_reason(stop: &Stop) -> &'static str {
    match stop {
        Stop::EndOfGeneration | Stop::Word(_) => "stop",
        Stop::Limit | Stop::ContextFull => "length",
    }
}
