//! `POST /v1/completions`: raw text in OpenAI's shape.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use muser_engine::{LogprobsStage, LogprobsWanted};
use serde_json::{Map, Value, json};

use super::{Envelope, finish_reason, take_include_usage, take_meaningless, usage};
use crate::access::Client;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Ending, Generation, Happening, Progress};
use crate::options::Options;
use crate::pool::Load;
use crate::probabilities::bytes_of;
use crate::prompt::prompts;
use crate::routes::completion::prompt_progress;
use crate::service::Service;
use crate::stream::{Collected, Dialect, collect, respond};
use crate::text::Piece;

const OBJECT: &str = "text_completion";

/// How this route answers.
struct Texts {
    service: Arc<Service>,
    envelope: Envelope,
    options: Options,
    include_usage: bool,
    /// Characters given of each answer: `text_offset` counts them.
    given: Vec<usize>,
}

/// A request that has been read.
struct Asked {
    prompts: Vec<Vec<u32>>,
    options: Options,
    logprobs: Option<LogprobsWanted>,
    include_usage: bool,
}

fn read(service: &Service, body: &[u8]) -> Result<Asked, ApiError> {
    let mut fields = Fields::parse(body)?;
    let prompt: Value = fields.require("prompt")?;
    let options = Options::take(&mut fields, service)?;
    let count = fields.take_within("logprobs", 0, i64::from(u32::MAX))?;
    let count = count.or(fields.take_within("n_probs", 0, i64::from(u32::MAX))?.filter(|n| *n > 0));
    let logprobs = count.map(|count| LogprobsWanted {
        count: usize::try_from(count).unwrap_or(usize::MAX),
        stage: LogprobsStage::Model,
    });
    let include_usage = take_include_usage(&mut fields, options.stream)?;
    fields.unsupported("echo", |value| *value == Value::Bool(false))?;
    fields.unsupported("best_of", |value| value.as_u64().is_some_and(|n| n <= 1))?;
    take_meaningless(&mut fields)?;
    fields.finish()?;
    let prompts = prompts(service.tokenizer(), "prompt", &prompt)?;
    Ok(Asked { prompts, options, logprobs, include_usage })
}

/// Answers the request.
pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let service = app.service()?;
    let reading = Arc::clone(&service);
    let asked = app.pool.run(Load::linear(body.len()), move || read(&reading, &body)).await??;
    let Asked { prompts, options, logprobs, include_usage } = asked;
    let (stream, ping) = (options.stream, service.settings.ping);
    let given = vec![0; prompts.len().saturating_mul(options.answers)];
    let envelope = Envelope::new(&app, "cmpl");
    if stream {
        let starting = options.starting(&service, client, prompts, logprobs);
        return respond(starting, Texts { service, envelope, options, include_usage, given }, ping).await;
    }
    let whole = collect(options.start(&service, client, prompts, logprobs).await?).await?;
    let mut texts = Texts { service, envelope, options, include_usage, given };
    let mut choices = Vec::with_capacity(whole.len());
    for (index, Collected { generation, piece, ending }) in whole.iter().enumerate() {
        choices.push(texts.choice(index, generation, piece, Some(finish_reason(&ending.stop))));
    }
    let mut object = texts.envelope.object(OBJECT, choices);
    let generations: Vec<&Generation> = whole.iter().map(|collected| &collected.generation).collect();
    object["usage"] = usage(&generations, texts.options.answers);
    if let [one] = *generations {
        object["timings"] = one.timings();
    }
    Ok(Json(object).into_response())
}

impl Dialect for Texts {
    const SAYS_DONE: bool = true;

    fn chunks(&mut self, index: usize, generation: &Generation, happening: Happening) -> Vec<Value> {
        match happening {
            Happening::Progress(progress) if self.options.return_progress => {
                let mut chunk = self.chunk(index, generation, &Piece::default(), None);
                chunk["prompt_progress"] = prompt_progress(progress);
                vec![chunk]
            }
            Happening::Progress(_) => Vec::new(),
            Happening::Piece(piece) => {
                let mut chunk = self.chunk(index, generation, &piece, None);
                if self.options.timings_per_token {
                    chunk["timings"] = generation.timings();
                }
                vec![chunk]
            }
            Happening::Ended(Ending { rest, stop }) => {
                let mut chunks = Vec::new();
                if !rest.is_empty() {
                    chunks.push(self.chunk(index, generation, &rest, None));
                }
                let mut last = self.chunk(index, generation, &Piece::default(), Some(finish_reason(&stop)));
                last["timings"] = generation.timings();
                chunks.push(last);
                chunks
            }
        }
    }

    fn bringing(&mut self, index: usize, progress: Progress) -> Vec<Value> {
        if !self.options.return_progress {
            return Vec::new();
        }
        let choice = json!({"index": index, "text": "", "logprobs": null, "finish_reason": null});
        let mut chunk = self.envelope.object(OBJECT, vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk["prompt_progress"] = prompt_progress(progress);
        vec![chunk]
    }

    fn last_chunks(&mut self, generations: &[Generation]) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.envelope.object(OBJECT, Vec::new());
        chunk["usage"] = usage(&generations.iter().collect::<Vec<_>>(), self.options.answers);
        vec![chunk]
    }
}

impl Texts {
    fn chunk(&mut self, index: usize, generation: &Generation, piece: &Piece, finish: Option<&str>) -> Value {
        let choice = self.choice(index, generation, piece, finish);
        let mut chunk = self.envelope.object(OBJECT, vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&mut self, index: usize, generation: &Generation, piece: &Piece, finish: Option<&str>) -> Value {
        let logprobs = generation.plan().logprobs.map(|_| self.logprobs(index, piece));
        self.given[index] += piece.text.chars().count();
        json!({"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": finish})
    }

    /// Four lists side by side. An offset is where the text of a token begins, in characters of the answer.
    fn logprobs(&self, index: usize, piece: &Piece) -> Value {
        let spelling = |token| String::from_utf8_lossy(bytes_of(self.service.tokenizer(), token)).into_owned();
        let (mut tokens, mut chosen, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (start, token) in piece.tokens_with_starts() {
            let Some(found) = &token.logprobs else { continue };
            tokens.push(spelling(token.token));
            chosen.push(found.chosen.logprob);
            let likeliest = found.top.iter().map(|top| (spelling(top.token), json!(top.logprob)));
            top.push(Value::Object(likeliest.collect::<Map<_, _>>()));
            offsets.push(self.given[index] + piece.text[..start].chars().count());
        }
        json!({"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets})
    }
}
