//! `POST /v1/completions`: raw text in OpenAI's shape.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use muser_engine::TokenLogprobs;
use muser_engine::{LogprobsStage, LogprobsWanted};
use muser_text::Tokenizer;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use super::{Envelope, finish_reason, take_include_usage, take_meaningless, usage};
use crate::access::Client;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Ending, Generation, Progress, StreamEvent};
use crate::limits::{N_PROBS_MAX, TEXT_LOGPROBS_MAX};
use crate::options::Options;
use crate::pool::Load;
use crate::probabilities::bytes_of;
use crate::prompt::take_prompts;
use crate::routes::completion::prompt_progress;
use crate::service::Service;
use crate::stream::{Collected, Dialect, collect, respond, write_whole};
use crate::text::Piece;

const OBJECT: &str = "text_completion";

/// State of this route's answers.
struct Texts {
    service: Arc<Service>,
    envelope: Envelope,
    options: Options,
    include_usage: bool,
    /// Characters given of each answer: `text_offset` counts them.
    given: Vec<usize>,
}

/// A whole answer.
#[derive(serde::Serialize)]
struct WholeChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: &'static str,
}

/// Probabilities of the tokens of `piece`: four lists side by side.
struct Logprobs<'a> {
    tokenizer: &'a Tokenizer,
    piece: &'a Piece,
    /// Characters of the answer before the piece.
    given: usize,
}

impl Logprobs<'_> {
    fn spelling(&self, token: u32) -> Cow<'_, str> {
        String::from_utf8_lossy(bytes_of(self.tokenizer, token))
    }

    /// Tokens that have probabilities.
    fn found(&self) -> impl Iterator<Item = (usize, u32, &TokenLogprobs)> {
        let tokens = self.piece.tokens_with_starts();
        tokens.filter_map(|(start, token)| Some((start, token.token, token.logprobs.as_ref()?)))
    }

    /// Start of each token's text, in characters of the answer.
    fn offsets(&self) -> Vec<usize> {
        let (mut at, mut characters) = (0, self.given);
        let mut offsets = Vec::new();
        for (start, _, _) in self.found() {
            // Texts begin one after the other.
            characters += self.piece.text[at..start].chars().count();
            at = start;
            offsets.push(characters);
        }
        offsets
    }
}

impl Serialize for Logprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut lists = serializer.serialize_map(Some(4))?;
        lists.serialize_entry("tokens", &self.found().map(|(_, token, _)| self.spelling(token)).collect::<Vec<_>>())?;
        let chosen: Vec<f64> = self.found().map(|(_, _, found)| found.chosen.logprob).collect();
        lists.serialize_entry("token_logprobs", &chosen)?;
        lists.serialize_entry("top_logprobs", &Likeliest(self))?;
        lists.serialize_entry("text_offset", &self.offsets())?;
        lists.end()
    }
}

/// The likeliest tokens at each place. Tokens that are spelled alike are one name, so one place at a time becomes a map.
struct Likeliest<'a>(&'a Logprobs<'a>);

impl Serialize for Likeliest<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let at = |found: &TokenLogprobs| -> Map<String, Value> {
            found.top.iter().map(|top| (self.0.spelling(top.token).into_owned(), json!(top.logprob))).collect()
        };
        serializer.collect_seq(self.0.found().map(|(_, _, found)| at(found)))
    }
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
    let options = Options::take(&mut fields, service)?;
    let count = fields.take_within("logprobs", 0, TEXT_LOGPROBS_MAX.into())?;
    let count = count.or(fields.take_within("n_probs", 0, N_PROBS_MAX.into())?.filter(|n| *n > 0));
    let logprobs = count.map(|count| LogprobsWanted {
        count: usize::try_from(count).unwrap_or(usize::MAX),
        stage: LogprobsStage::Model,
    });
    let include_usage = take_include_usage(&mut fields, options.stream)?;
    fields.unsupported("echo", |value| *value == Value::Bool(false))?;
    fields.unsupported("best_of", |value| value.as_u64().is_some_and(|n| n <= 1))?;
    take_meaningless(&mut fields)?;
    let prompts = take_prompts(&mut fields, service)?;
    fields.finish()?;
    let prompts = prompts.into_iter().map(|prompt| prompt.ids).collect();
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
    let charge = app.memory.charge(options.bytes(&service, &prompts, logprobs)?)?;
    let (stream, ping) = (options.stream, service.settings.ping);
    let given = vec![0; prompts.len().saturating_mul(options.answers)];
    let envelope = Envelope::new(&app, "cmpl");
    if stream {
        let starting = options.starting(&service, client, prompts, logprobs, charge);
        return respond(starting, Texts { service, envelope, options, include_usage, given }, ping).await;
    }
    let whole = collect(options.start(&service, client, prompts, logprobs).await?).await?;
    let texts = Texts { service, envelope, options, include_usage, given };
    write_whole(&app.pool, whole, charge, move |whole| {
        let choices = whole.iter().enumerate().map(|(index, one)| texts.whole_choice(index, one)).collect();
        serde_json::to_vec(&texts.envelope.whole(OBJECT, choices, (whole, texts.options.answers)))
    })
    .await
}

impl Dialect for Texts {
    const SAYS_DONE: bool = true;

    fn chunks(&mut self, index: usize, generation: &Generation, event: StreamEvent) -> Vec<Value> {
        match event {
            StreamEvent::Progress(progress) if self.options.return_progress => {
                let mut chunk = self.chunk(index, generation, &Piece::default(), None);
                chunk["prompt_progress"] = prompt_progress(progress);
                vec![chunk]
            }
            StreamEvent::Progress(_) => Vec::new(),
            StreamEvent::Text(piece) => {
                let mut chunk = self.chunk(index, generation, &piece, None);
                if self.options.timings_per_token {
                    chunk["timings"] = generation.timings();
                }
                vec![chunk]
            }
            StreamEvent::Ended(Ending { rest, stop }) => {
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

    fn producer_progress(&mut self, index: usize, progress: Progress) -> Vec<Value> {
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
    fn whole_choice<'a>(
        &'a self,
        index: usize,
        Collected { generation, piece, ending }: &'a Collected,
    ) -> WholeChoice<'a> {
        let tokenizer = self.service.tokenizer();
        WholeChoice {
            index,
            text: &piece.text,
            logprobs: generation.plan().generate.logprobs.map(|_| Logprobs { tokenizer, piece, given: 0 }),
            finish_reason: finish_reason(&ending.stop),
        }
    }

    fn chunk(&mut self, index: usize, generation: &Generation, piece: &Piece, finish: Option<&str>) -> Value {
        let choice = self.choice(index, generation, piece, finish);
        let mut chunk = self.envelope.object(OBJECT, vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&mut self, index: usize, generation: &Generation, piece: &Piece, finish: Option<&str>) -> Value {
        let logprobs = generation
            .plan()
            .generate
            .logprobs
            .map(|_| json!(Logprobs { tokenizer: self.service.tokenizer(), piece, given: self.given[index] }));
        self.given[index] += piece.text.chars().count();
        json!({"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": finish})
    }
}
