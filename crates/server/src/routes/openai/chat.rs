//! `POST /v1/chat/completions` and `POST /apply-template`: conversations through the model's own template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use muser_engine::{LogprobsStage, LogprobsWanted};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Envelope, finish_reason, take_include_usage, take_meaningless, usage};
use crate::access::Client;
use crate::app::App;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Ending, Generation, Progress, Stop, StreamEvent};
use crate::limits::{N_PROBS_MAX, TOP_LOGPROBS_MAX};
use crate::options::Options;
use crate::pool::Load;
use crate::probabilities::Probabilities;
use crate::routes::completion::prompt_progress;
use crate::service::Service;
use crate::stream::{Collected, Dialect, collect, respond, write_whole};
use crate::text::Piece;

/// State of this route's answers.
struct Chat {
    service: Arc<Service>,
    envelope: Envelope,
    options: Options,
    include_usage: bool,
    /// For each answer, true once the chunk with the role was sent.
    begun: Vec<bool>,
}

/// A whole answer.
#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    message: Value,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: &'static str,
}

/// Probabilities in OpenAI's envelope.
#[derive(Serialize)]
struct Logprobs<'a> {
    content: Probabilities<'a>,
}

/// A request that has been read.
struct Asked {
    prompt: Vec<u32>,
    options: Options,
    logprobs: Option<LogprobsWanted>,
    include_usage: bool,
}

fn read(service: &Service, body: &[u8]) -> Result<Asked, ApiError> {
    let mut fields = Fields::parse(body)?;
    let conversation = Conversation::take(&mut fields)?;
    let options = Options::take(&mut fields, service)?;
    let logprobs = take_logprobs(&mut fields)?;
    let include_usage = take_include_usage(&mut fields, options.stream)?;
    take_later_features(&mut fields)?;
    take_meaningless(&mut fields)?;
    fields.finish()?;
    let prompt = conversation.tokens(service)?;
    Ok(Asked { prompt, options, logprobs, include_usage })
}

/// Answers the request.
pub async fn chat_completions(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let service = app.service()?;
    let reading = Arc::clone(&service);
    let asked = app.pool.run(Load::template(body.len()), move || read(&reading, &body)).await??;
    let Asked { prompt, options, logprobs, include_usage } = asked;
    let prompts = vec![prompt];
    let charge = app.memory.charge(options.bytes(&service, &prompts, logprobs)?)?;
    let (stream, ping) = (options.stream, service.settings.ping);
    let begun = vec![false; options.answers];
    let envelope = Envelope::new(&app, "chatcmpl");
    if stream {
        let starting = options.starting(&service, client, prompts, logprobs, charge);
        return respond(starting, Chat { service, envelope, options, include_usage, begun }, ping).await;
    }
    let whole = collect(options.start(&service, client, prompts, logprobs).await?).await?;
    let chat = Chat { service, envelope, options, include_usage, begun };
    write_whole(&app.pool, whole, charge, move |whole| {
        let choices = whole.iter().enumerate().map(|(index, collected)| chat.whole_choice(index, collected)).collect();
        serde_json::to_vec(&chat.envelope.whole("chat.completion", choices, (whole, chat.options.answers)))
    })
    .await
}

/// The text that a conversation becomes; nothing is generated.
pub async fn apply_template(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let service = app.service()?;
    app.pool.run(Load::template(body.len()), move || text_of(&service, &body)).await?
}

fn text_of(service: &Service, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let conversation = Conversation::take(&mut fields)?;
    take_meaningless(&mut fields)?;
    fields.finish()?;
    let rendered = conversation.render(&service.words)?;
    Ok(Json(json!({"prompt": rendered.text()})).into_response())
}

/// OpenAI's switch and count; llama.cpp's count switches it on by itself.
fn take_logprobs(fields: &mut Fields<'_>) -> Result<Option<LogprobsWanted>, ApiError> {
    let wanted = fields.take("logprobs")?;
    let top = fields.take_within("top_logprobs", 0, TOP_LOGPROBS_MAX.into())?;
    let n_probs = fields.take_within("n_probs", 0, N_PROBS_MAX.into())?.filter(|n| *n > 0);
    let after_sampling = fields.take("post_sampling_probs")?.unwrap_or(false);
    if top.is_some_and(|top| top > 0) && wanted != Some(true) {
        return Err(ApiError::invalid("top_logprobs: needs logprobs to be true"));
    }
    if wanted != Some(true) && n_probs.is_none() {
        return Ok(None);
    }
    let count = usize::try_from(top.or(n_probs).unwrap_or(0)).unwrap_or(usize::MAX);
    let stage = if after_sampling { LogprobsStage::Draw } else { LogprobsStage::Model };
    Ok(Some(LogprobsWanted { count, stage }))
}

/// Tools, formats and reasoning: refused, unless they ask for nothing.
fn take_later_features(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let empty_list = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    let plain = |value: &Value| value == "none" || value == "auto";
    for name in ["tools", "functions"] {
        fields.unsupported(name, empty_list)?;
    }
    // Without tools there is nothing to choose from.
    for name in ["tool_choice", "function_call"] {
        fields.unsupported(name, plain)?;
    }
    fields.accept(&["parallel_tool_calls"])?;
    fields.unsupported("response_format", |value| *value == json!({"type": "text"}))?;
    fields.unsupported("modalities", |value| *value == json!(["text"]))?;
    // Nothing is taken out of the text here, which is what both of these mean without a format to take it from.
    fields.unsupported("reasoning_format", plain)?;
    fields.unsupported("parse_tool_calls", |value| *value == Value::Bool(false))?;
    for name in ["audio", "prediction", "web_search_options", "thinking_budget_tokens"] {
        fields.unsupported(name, |_| false)?;
    }
    Ok(())
}

impl Dialect for Chat {
    const SAYS_DONE: bool = true;

    fn chunks(&mut self, index: usize, generation: &Generation, event: StreamEvent) -> Vec<Value> {
        let mut chunks = self.beginning(index);
        match event {
            StreamEvent::Progress(progress) if self.options.return_progress => {
                chunks.push(self.progress(index, progress));
            }
            StreamEvent::Progress(_) => {}
            StreamEvent::Text(piece) => chunks.push(self.piece(index, generation, &piece)),
            StreamEvent::Ended(Ending { rest, stop }) => {
                if !rest.is_empty() {
                    chunks.push(self.piece(index, generation, &rest));
                }
                let mut last = self.chunk(index, json!({}), None, Some(&stop));
                last["timings"] = generation.timings();
                chunks.push(last);
            }
        }
        chunks
    }

    fn producer_progress(&mut self, index: usize, progress: Progress) -> Vec<Value> {
        if !self.options.return_progress {
            return Vec::new();
        }
        let mut chunks = self.beginning(index);
        chunks.push(self.progress(index, progress));
        chunks
    }

    fn last_chunks(&mut self, generations: &[Generation]) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.envelope.object("chat.completion.chunk", Vec::new());
        chunk["usage"] = usage(&generations.iter().collect::<Vec<_>>(), self.options.answers);
        vec![chunk]
    }
}

impl Chat {
    /// The first chunk of an answer, with the role, unless it was sent before.
    fn beginning(&mut self, index: usize) -> Vec<Value> {
        if std::mem::replace(&mut self.begun[index], true) {
            return Vec::new();
        }
        vec![self.chunk(index, json!({"role": "assistant", "content": null}), None, None)]
    }

    fn progress(&self, index: usize, progress: Progress) -> Value {
        let mut chunk = self.chunk(index, json!({}), None, None);
        chunk["prompt_progress"] = prompt_progress(progress);
        chunk
    }

    fn piece(&self, index: usize, generation: &Generation, piece: &Piece) -> Value {
        let mut chunk = self.chunk(
            index,
            json!({"content": piece.text}),
            self.logprobs(generation, piece).map(|found| json!(found)),
            None,
        );
        if self.options.timings_per_token {
            chunk["timings"] = generation.timings();
        }
        chunk
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Option<Value>, stop: Option<&Stop>) -> Value {
        let finish_reason = stop.map(finish_reason);
        let mut choice = json!({"index": index, "delta": delta, "finish_reason": finish_reason});
        if let Some(logprobs) = logprobs {
            choice["logprobs"] = logprobs;
        }
        let mut chunk = self.envelope.object("chat.completion.chunk", vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn whole_choice<'a>(
        &'a self,
        index: usize,
        Collected { generation, piece, ending }: &'a Collected,
    ) -> WholeChoice<'a> {
        WholeChoice {
            index,
            message: json!({"role": "assistant", "content": piece.text}),
            logprobs: self.logprobs(generation, piece),
            finish_reason: finish_reason(&ending.stop),
        }
    }

    fn logprobs<'a>(&'a self, generation: &Generation, piece: &'a Piece) -> Option<Logprobs<'a>> {
        let stage = generation.plan().generate.logprobs?.stage;
        Some(Logprobs { content: Probabilities { tokenizer: self.service.tokenizer(), tokens: &piece.tokens, stage } })
    }
}
