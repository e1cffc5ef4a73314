//! Fields of all routes that generate text.

use std::sync::Arc;

use muser_engine::engine::{Generate, PrefixReuse};
use muser_engine::{LogprobsWanted, SamplingSettings};
use muser_kv::Realm;
use serde_json::Value;
use tokio::sync::mpsc::unbounded_channel;

use crate::access::Client;
use crate::error::ApiError;
use crate::fields::{Fields, FromField};
use crate::generation::{Generation, Plan, Progress};
use crate::limits::{
    ANSWER_BYTES_MAX, Bounds, PROMPT_TOKEN_BYTES, STOP_BYTES_MAX, STOPS_MAX, STREAMED_PROBABILITY_BYTES,
    WHOLE_PROBABILITY_BYTES,
};
use crate::memory::Charge;
use crate::sampling::take_sampling;
use crate::service::Service;
use crate::stream::Starting;

/// Characters of `cache_salt` at most.
pub const CACHE_SALT_CHARACTERS_MAX: usize = 256;

/// Fields of a request other than its prompt and those of its route alone.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sampler settings.
    pub sampling: SamplingSettings,
    /// Tokens to generate at most.
    pub tokens_max: Option<usize>,
    /// Strings that end the text.
    pub stops: Vec<String>,
    /// True if the answer is streamed.
    pub stream: bool,
    /// True if the stream reports prefill progress.
    pub return_progress: bool,
    /// True if each piece of the stream comes with timings.
    pub timings_per_token: bool,
    /// True if cached prefixes are used, and this request's are kept for others.
    cache_prompt: bool,
    /// Salt that divides the client's realm of prefixes.
    cache_salt: Option<String>,
    /// Answers per prompt.
    pub answers: usize,
    /// The slot that answers report, if the request names one.
    pub slot: Option<i64>,
}

impl Options {
    /// Takes the fields.
    ///
    /// # Errors
    /// If one has a wrong type or an unsupported value.
    pub fn take(fields: &mut Fields<'_>, service: &Service) -> Result<Self, ApiError> {
        let options = Self {
            sampling: take_sampling(fields, service)?,
            tokens_max: take_tokens_max(fields)?.unwrap_or(service.settings.tokens_max),
            stops: take_stops(fields)?,
            stream: fields.take("stream")?.unwrap_or(false),
            return_progress: fields.take("return_progress")?.unwrap_or(false),
            timings_per_token: fields.take("timings_per_token")?.unwrap_or(false),
            cache_prompt: fields.take("cache_prompt")?.unwrap_or(true),
            cache_salt: take_cache_salt(fields)?,
            answers: take_answers(fields, service.settings.answers_max)?,
            slot: take_slot(fields, service)?,
        };
        take_unsupported(fields)?;
        Ok(options)
    }

    /// Bytes to charge for the answers: for prompts, and for probabilities until the client has them.
    ///
    /// # Errors
    /// If one request may not have so many.
    pub fn bytes(
        &self,
        service: &Service,
        prompts: &[Vec<u32>],
        logprobs: Option<LogprobsWanted>,
    ) -> Result<usize, ApiError> {
        let each = if self.stream { STREAMED_PROBABILITY_BYTES } else { WHOLE_PROBABILITY_BYTES };
        let count = logprobs.map_or(0, |wanted| wanted.count.saturating_add(1));
        let of_prompt = |prompt: &Vec<u32>| {
            let room = service.context.saturating_sub(prompt.len());
            let tokens = self.tokens_max.map_or(room, |most| most.min(room));
            let probabilities = tokens.saturating_mul(count).saturating_mul(each);
            probabilities.saturating_add(prompt.len().saturating_mul(PROMPT_TOKEN_BYTES)).saturating_mul(self.answers)
        };
        let bytes = prompts.iter().map(of_prompt).fold(0, usize::saturating_add);
        if count > 0 && bytes > ANSWER_BYTES_MAX {
            return Err(ApiError::invalid(format!(
                "n_probs, n_predict and n (or top_logprobs, max_tokens): {count} probabilities at each place of the answers \
                 would take {bytes} bytes, and at most {ANSWER_BYTES_MAX} are kept for a request"
            )));
        }
        Ok(bytes)
    }

    /// Starts the answers to all prompts: those to the first prompt first. Of several answers to one prompt, each has the
    /// seed after the one before.
    ///
    /// # Errors
    /// If the engine does not take one of them; none is left then.
    pub async fn start(
        &self,
        service: &Arc<Service>,
        client: Client,
        prompts: Vec<Vec<u32>>,
        logprobs: Option<LogprobsWanted>,
    ) -> Result<Vec<Generation>, ApiError> {
        self.start_telling((service, client), prompts, logprobs, &mut |_, _| ()).await
    }

    /// As [`Self::start`], for a stream, which can report the progress of producers meanwhile.
    pub fn starting(
        &self,
        service: &Arc<Service>,
        client: Client,
        prompts: Vec<Vec<u32>>,
        logprobs: Option<LogprobsWanted>,
        charge: Charge,
    ) -> Starting {
        let (sender, progress) = unbounded_channel();
        let (options, service) = (self.clone(), Arc::clone(service));
        let started = async move {
            // The receiver awaits this future, too.
            let mut listener = |index, progress| {
                let _ = sender.send((index, progress));
            };
            options.start_telling((&service, client), prompts, logprobs, &mut listener).await
        };
        Starting { started: Box::pin(started), progress, charge }
    }

    async fn start_telling(
        &self,
        (service, client): (&Arc<Service>, Client),
        prompts: Vec<Vec<u32>>,
        logprobs: Option<LogprobsWanted>,
        listener: &mut (dyn FnMut(usize, Progress) + Send),
    ) -> Result<Vec<Generation>, ApiError> {
        let most = service.settings.answers_max;
        if prompts.len().saturating_mul(self.answers) > most {
            let asked = format!("{} prompts with {} answers each", prompts.len(), self.answers);
            return Err(ApiError::invalid(format!("{asked} are more than {most}, the most of one request")));
        }
        if prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::invalid("the prompt has no tokens, and this model adds none at the start"));
        }
        let mut generations = Vec::with_capacity(prompts.len() * self.answers);
        for prompt in prompts {
            let prompt: Arc<[u32]> = prompt.into();
            for answer in 0..self.answers {
                let seed = self.sampling.seed.wrapping_add(answer as u64);
                let generate = Generate {
                    tokens_max: self.tokens_max,
                    context: service.context,
                    stop_tokens: Arc::clone(&service.end_of_generation),
                    sampling: SamplingSettings { seed, ..self.sampling.clone() },
                    logprobs,
                };
                let plan = Plan {
                    prompt: Arc::clone(&prompt),
                    generate,
                    stops: self.stops.clone(),
                    reuse: self.reuse(client.realm),
                    flow: client.flow,
                    metrics: Arc::clone(&client.metrics),
                };
                let index = generations.len();
                let mut progress = |progress| listener(index, progress);
                generations.push(Generation::start(service, plan, &mut progress).await?);
            }
        }
        Ok(generations)
    }

    /// The part in the reuse of prefixes that a client of `realm` asks for. It can divide its own realm, and has no way to
    /// name another.
    fn reuse(&self, realm: Realm) -> PrefixReuse {
        match (self.cache_prompt, &self.cache_salt) {
            (false, _) => PrefixReuse::Isolate,
            (true, None) => PrefixReuse::Within(realm),
            (true, Some(salt)) => PrefixReuse::Within(realm.divided_by(salt.as_bytes())),
        }
    }
}

/// Salt that divides the realm of prefixes. An empty one is refused, as it would divide nothing.
fn take_cache_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(salt) = fields.take::<String>("cache_salt")? else { return Ok(None) };
    match salt.chars().count() {
        1..=CACHE_SALT_CHARACTERS_MAX => Ok(Some(salt)),
        count => {
            let range = format!("from 1 to {CACHE_SALT_CHARACTERS_MAX}");
            Err(ApiError::invalid(format!("cache_salt: needs {range} characters, and has {count}")))
        }
    }
}

/// The limit on tokens under any of its names; `Some(None)` is no limit.
fn take_tokens_max(fields: &mut Fields<'_>) -> Result<Option<Option<usize>>, ApiError> {
    let mut found: Option<(&'static str, i64)> = None;
    for name in ["n_predict", "max_tokens", "max_completion_tokens"] {
        let Some(limit) = fields.take_within(name, -1, i64::MAX)? else { continue };
        match found {
            Some((other, before)) if before != limit => {
                return Err(ApiError::invalid(format!("{other} is {before} and {name} is {limit}: which one?")));
            }
            _ => found = Some((name, limit)),
        }
    }
    Ok(found.map(|(_, limit)| usize::try_from(limit).ok()))
}

/// Stop strings: one, several, or none. Empty ones are none.
fn take_stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take_bounded::<Value>("stop", Bounds::STOPS)? {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop],
        Some(stops) => Vec::<String>::from_field(stops)
            .ok_or_else(|| ApiError::invalid("stop: needs a string or an array of strings"))?,
    };
    if stops.len() > STOPS_MAX {
        return Err(ApiError::invalid(format!("stop: has {} strings, at most {STOPS_MAX} are taken", stops.len())));
    }
    if let Some((index, stop)) = stops.iter().enumerate().find(|(_, stop)| stop.len() > STOP_BYTES_MAX) {
        let bytes = stop.len();
        return Err(ApiError::invalid(format!(
            "stop: string {index} has {bytes} bytes, at most {STOP_BYTES_MAX} are taken"
        )));
    }
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

/// Answers per prompt under either name.
fn take_answers(fields: &mut Fields<'_>, most: usize) -> Result<usize, ApiError> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (n, cmpl) = (fields.take_within("n", 1, most)?, fields.take_within("n_cmpl", 1, most)?);
    Ok(n.or(cmpl).and_then(|n| usize::try_from(n).ok()).unwrap_or(1))
}

/// A slot that answers are to name. It changes nothing else: every slot finds every prefix that is held.
fn take_slot(fields: &mut Fields<'_>, service: &Service) -> Result<Option<i64>, ApiError> {
    let slots = i64::try_from(service.slots).unwrap_or(i64::MAX);
    Ok(fields.take_within("id_slot", -1, slots - 1)?.filter(|slot| *slot >= 0))
}

/// Features of other servers, and of this one later: each is refused, unless it asks for nothing.
fn take_unsupported(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    for name in ["grammar", "grammar_triggers", "preserved_tokens", "lora", "image_data", "suffix"] {
        fields.unsupported(name, empty)?;
    }
    fields.unsupported("json_schema", empty)?;
    fields.unsupported("grammar_lazy", |value| *value == Value::Bool(false))?;
    // What to do when the context is full: it is never cut here, so there is nothing to keep or discard.
    fields.accept(&["n_keep", "n_discard"])
}
