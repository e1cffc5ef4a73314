//! `POST /completion`: llama.cpp's own route, raw text in and raw text out.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use muser_engine::{LogprobsStage, LogprobsWanted};
use serde_json::{Map, Value, json};

use crate::access::Client;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Ending, Generation, Progress, Stop, StreamEvent};
use crate::limits::{Bounds, N_PROBS_MAX};
use crate::options::Options;
use crate::pool::Load;
use crate::probabilities::Probabilities;
use crate::prompt::{Prompt, take_prompts};
use crate::sampling::sampling_settings;
use crate::service::Service;
use crate::stream::{Collected, Dialect, collect, respond, write_whole};
use crate::text::Piece;

/// An answer in one object, whose probabilities are serialised directly and never become a tree.
#[derive(serde::Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    last: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Probabilities<'a>>,
}

/// State of this route's answers.
struct Native {
    service: Arc<Service>,
    /// The prompts as the client wrote them.
    prompts: Vec<String>,
    /// Answers to each prompt.
    answers: usize,
    return_tokens: bool,
    return_progress: bool,
    timings_per_token: bool,
    slot: Option<i64>,
    /// Paths of the fields that the last object is to have; empty for all.
    response_fields: Vec<String>,
}

/// A request that has been read.
struct Asked {
    prompts: Vec<Vec<u32>>,
    options: Options,
    logprobs: Option<LogprobsWanted>,
    native: Native,
}

/// Answers the request.
pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let service = app.service()?;
    let reading = Arc::clone(&service);
    let asked = app.pool.run(Load::linear(body.len()), move || read(&reading, &body)).await??;
    let Asked { prompts, options, logprobs, native } = asked;
    let charge = app.memory.charge(options.bytes(&service, &prompts, logprobs)?)?;
    if options.stream {
        return respond(options.starting(&service, client, prompts, logprobs, charge), native, service.settings.ping)
            .await;
    }
    let whole = collect(options.start(&service, client, prompts, logprobs).await?).await?;
    write_whole(&app.pool, whole, charge, move |whole| match whole {
        [one] => serde_json::to_vec(&native.whole(0, one)),
        several => serde_json::to_vec(
            &several.iter().enumerate().map(|(index, one)| native.whole(index, one)).collect::<Vec<_>>(),
        ),
    })
    .await
}

fn read(service: &Arc<Service>, body: &[u8]) -> Result<Asked, ApiError> {
    let mut fields = Fields::parse(body)?;
    let options = Options::take(&mut fields, service)?;
    let logprobs = take_logprobs(&mut fields)?;
    let mut native = Native {
        service: Arc::clone(service),
        prompts: Vec::new(),
        answers: options.answers,
        return_tokens: fields.take("return_tokens")?.unwrap_or(false),
        return_progress: options.return_progress,
        timings_per_token: options.timings_per_token,
        slot: options.slot,
        response_fields: fields.take_bounded("response_fields", Bounds::RESPONSE_FIELDS)?.unwrap_or_default(),
    };
    // One model, whatever it is called.
    fields.accept(&["model"])?;
    let prompts = take_prompts(&mut fields, service)?;
    fields.finish()?;
    let prompts = prompts.into_iter().map(|Prompt { ids, written }| {
        native.prompts.push(written);
        ids
    });
    let prompts = prompts.collect();
    Ok(Asked { prompts, options, logprobs, native })
}

fn take_logprobs(fields: &mut Fields<'_>) -> Result<Option<LogprobsWanted>, ApiError> {
    let count = fields.take_within("n_probs", 0, N_PROBS_MAX.into())?.unwrap_or(0);
    let stage = match fields.take("post_sampling_probs")? {
        Some(true) => LogprobsStage::Draw,
        Some(false) | None => LogprobsStage::Model,
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok((count > 0).then_some(LogprobsWanted { count, stage }))
}

impl Dialect for Native {
    const SAYS_DONE: bool = false;

    fn chunks(&mut self, index: usize, generation: &Generation, event: StreamEvent) -> Vec<Value> {
        match event {
            StreamEvent::Progress(progress) if self.return_progress => {
                let mut chunk = self.chunk(index, generation, &Piece::default());
                chunk["prompt_progress"] = prompt_progress(progress);
                vec![chunk]
            }
            StreamEvent::Progress(_) => Vec::new(),
            StreamEvent::Text(piece) => vec![self.chunk(index, generation, &piece)],
            StreamEvent::Ended(Ending { rest, stop }) => {
                let mut chunks = Vec::new();
                if !rest.is_empty() {
                    chunks.push(self.chunk(index, generation, &rest));
                }
                chunks.push(self.last(index, generation, &Piece::default(), &stop));
                chunks
            }
        }
    }

    fn producer_progress(&mut self, index: usize, progress: Progress) -> Vec<Value> {
        if !self.return_progress {
            return Vec::new();
        }
        // It has no slot yet.
        let chunk = json!({
            "index": index,
            "content": "",
            "tokens": [],
            "stop": false,
            "id_slot": self.slot.unwrap_or(-1),
            "tokens_predicted": 0,
            "tokens_evaluated": progress.total,
            "prompt_progress": prompt_progress(progress),
        });
        vec![chunk]
    }

    fn last_chunks(&mut self, _: &[Generation]) -> Vec<Value> {
        Vec::new()
    }
}

impl Native {
    /// The slot that was asked for, or else the one that it has.
    fn slot(&self, generation: &Generation) -> Value {
        self.slot.map_or_else(|| json!(generation.slot()), Value::from)
    }

    fn chunk(&self, index: usize, generation: &Generation, piece: &Piece) -> Value {
        let usage = generation.usage();
        let ids: Vec<u32> = piece.tokens.iter().map(|token| token.token).collect();
        let mut chunk = json!({
            "index": index,
            "content": piece.text,
            "tokens": ids,
            "stop": false,
            "id_slot": self.slot(generation),
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
        });
        if let Some(found) = self.probabilities(generation, piece) {
            chunk["completion_probabilities"] = json!(found);
        }
        if self.timings_per_token {
            chunk["timings"] = generation.timings();
        }
        chunk
    }

    /// An answer in one object.
    fn whole<'a>(&'a self, index: usize, Collected { generation, piece, ending }: &'a Collected) -> Whole<'a> {
        let wanted =
            |name: &str| self.response_fields.is_empty() || self.response_fields.iter().any(|path| path == name);
        let found = self.probabilities(generation, piece).filter(|_| wanted("completion_probabilities"));
        Whole { last: self.last(index, generation, piece, &ending.stop), completion_probabilities: found }
    }

    /// The object that ends an answer, without probabilities; `piece` is what it contains itself.
    fn last(&self, index: usize, generation: &Generation, piece: &Piece, stop: &Stop) -> Value {
        let usage = generation.usage();
        let ids: &[_] = if self.return_tokens { &piece.tokens } else { &[] };
        let (stop_type, word) = match stop {
            Stop::EndOfGeneration => ("eos", ""),
            Stop::Limit | Stop::ContextFull => ("limit", ""),
            Stop::Word(word) => ("word", word.as_str()),
        };
        let last = json!({
            "index": index,
            "content": piece.text,
            "tokens": ids.iter().map(|token| token.token).collect::<Vec<_>>(),
            "id_slot": self.slot(generation),
            "stop": true,
            "model": self.service.settings.alias,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "generation_settings": generation_settings(&self.service, generation),
            "prompt": self.prompts.get(index / self.answers.max(1)),
            "truncated": *stop == Stop::ContextFull,
            "stop_type": stop_type,
            "stopping_word": word,
            // The last token has no keys and values, as none is computed after it.
            "tokens_cached": (usage.prompt + usage.generated).saturating_sub(usize::from(usage.generated > 0)),
            "timings": generation.timings(),
        });
        if self.response_fields.is_empty() { last } else { only(&last, &self.response_fields) }
    }

    fn probabilities<'a>(&'a self, generation: &Generation, piece: &'a Piece) -> Option<Probabilities<'a>> {
        let stage = generation.plan().generate.logprobs?.stage;
        let found = Probabilities { tokenizer: self.service.tokenizer(), tokens: &piece.tokens, stage };
        Some(found).filter(|found| !found.is_empty())
    }
}

/// The `prompt_progress` object, by llama.cpp's names.
pub fn prompt_progress(progress: Progress) -> Value {
    let Progress { total, reused, computed, elapsed } = progress;
    json!({"total": total, "cache": reused, "processed": computed, "time_ms": elapsed.as_secs_f64() * 1e3})
}

/// The settings that an answer was generated with.
fn generation_settings(service: &Service, generation: &Generation) -> Value {
    let plan = generation.plan();
    let mut settings = sampling_settings(&plan.generate.sampling);
    settings["n_predict"] = plan.generate.tokens_max.map_or(json!(-1), Into::into);
    settings["n_ctx"] = service.context.into();
    settings["stop"] = plan.stops.clone().into();
    settings["n_probs"] = plan.generate.logprobs.map_or(0, |wanted| wanted.count).into();
    settings
}

/// The values at `paths`, whose parts are divided by slashes, each under the last part of its path. What is not there is
/// left out.
fn only(object: &Value, paths: &[String]) -> Value {
    let mut found = Map::new();
    for path in paths {
        let value = path.split('/').try_fold(object, |at, part| at.get(part));
        if let Some(value) = value {
            let name = path.rsplit('/').next().unwrap_or(path);
            found.insert(name.to_owned(), value.clone());
        }
    }
    Value::Object(found)
}
