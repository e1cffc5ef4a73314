//! One answer from its request to its end: the engine's events become text, counts and times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muser_engine::Finish;
use muser_engine::engine::{Flow, Generate, Installed, Job, PrefixReuse, RequestEvent};
use serde_json::{Value, json};

use crate::error::{ApiError, ErrorKind};
use crate::record::RequestMetrics;
use crate::remote::{Begun, LocalWatch, ProgressListener, Source};
use crate::service::Service;
use crate::text::{AnswerText, Piece};
use muser_host::{Answer, TimedEvent};

/// Prompt of one answer with its generation settings, from which its job is made once the origin of its keys and values is
/// known.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Token ids to continue.
    pub prompt: Arc<[u32]>,
    /// Limits, sampler settings and log-probabilities.
    pub generate: Generate,
    /// Strings that end the text; none is empty.
    pub stops: Vec<String>,
    /// Prefix reuse: the realm whose cached pages are used and added to, or none.
    pub reuse: PrefixReuse,
    /// Scheduling flow, by which the engine takes turns between clients.
    pub flow: Flow,
    /// Token counts of the request that it is an answer to.
    pub metrics: Arc<RequestMetrics>,
}

/// An answer under way.
#[derive(Debug)]
pub struct Generation {
    service: Arc<Service>,
    /// `None` after the end: dropping it cancels the engine's work after a stop string.
    answer: Option<Answer>,
    text: AnswerText,
    plan: Plan,
    clock: Clock,
    slot: Option<usize>,
    usage: Usage,
    source: Source,
    watch: Option<LocalWatch>,
}

/// Event of one answer as a route renders it: tokens as text, times as durations.
#[derive(Clone, Debug)]
pub enum StreamEvent {
    /// More of the prompt has its keys and values.
    Progress(Progress),
    /// More of the text is final.
    Text(Piece),
    /// The answer is complete.
    Ended(Ending),
}

/// Prefill progress of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Of these, tokens whose keys and values were cached.
    pub reused: usize,
    /// Tokens that have their keys and values, here or at the producer, the reused ones included.
    pub computed: usize,
    /// Time since the request left the queue, plus the time of a producer's handoff before that; before the answer begins
    /// here, time since the producer was asked.
    pub elapsed: Duration,
}

/// End of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Text that was held back as a possible start of a stop string, with its tokens.
    pub rest: Piece,
    /// Reason of the end.
    pub stop: Stop,
}

/// Reason for which an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model chose a token that ends the text.
    EndOfGeneration,
    /// It has as many tokens as the request allows.
    Limit,
    /// The context is full.
    ContextFull,
    /// This stop string occurred.
    Word(String),
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of these, tokens whose keys and values were cached.
    pub reused: usize,
    /// Generated, the one that ended the text included.
    pub generated: usize,
}

/// Times of an answer, by the engine's events; `last` is the latest of any kind.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    started: Option<Instant>,
    first_token: Option<Instant>,
    last: Option<Instant>,
}

impl Plan {
    /// Job that computes the prompt here, as far as it is not kept.
    pub fn job(&self) -> Job {
        Job::generate(Arc::clone(&self.prompt), self.reuse, self.generate.clone()).in_turns_of(self.flow)
    }

    /// Job that starts from a handoff of the prompt.
    ///
    /// # Panics
    /// If the handoff is of another prompt.
    pub fn job_from(&self, installed: Installed) -> Job {
        let last = self.prompt[installed.tokens().len()];
        Job::generate_from(installed, last, self.generate.clone()).in_turns_of(self.flow)
    }
}

impl Generation {
    /// Submits the request to the engine; if a producer computes its prompt, `listener` receives the progress of that.
    ///
    /// # Errors
    /// If the engine does not take it, or a stop string is empty.
    pub async fn start(
        service: &Arc<Service>,
        plan: Plan,
        listener: &mut ProgressListener<'_>,
    ) -> Result<Self, ApiError> {
        let text = AnswerText::new(plan.stops.clone()).map_err(|error| ApiError::invalid(error.to_string()))?;
        let Begun { answer, source, watch } = service.pages.begin(&service.host, &plan, listener).await?;
        let usage = Usage { prompt: plan.prompt.len(), ..Usage::default() };
        plan.metrics.add_prompt(usage.prompt);
        Ok(Self {
            service: Arc::clone(service),
            answer: Some(answer),
            text,
            plan,
            clock: Clock::default(),
            slot: None,
            usage,
            source,
            watch,
        })
    }

    /// The next event; `None` after the end. Cancel safe.
    ///
    /// # Errors
    /// If the computation failed. Nothing comes after it.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ApiError> {
        while let Some(answer) = &mut self.answer {
            let Some(timed) = answer.next().await else {
                self.answer = None;
                return Err(ApiError::new(ErrorKind::Server, "the engine has stopped"));
            };
            if let Some(event) = self.take(timed)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn take(&mut self, TimedEvent { at, event }: TimedEvent) -> Result<Option<StreamEvent>, ApiError> {
        self.clock.last = Some(at);
        let event = match event {
            RequestEvent::Started { reused, slot } => {
                if let Some(watch) = &mut self.watch {
                    watch.started(at, reused, slot, &self.service.host.status());
                }
                let there = reused;
                if reused < self.source.brought_tokens() {
                    self.source.lose("it was taken back before the request started");
                }
                // What was brought was not there before.
                let reused = reused.saturating_sub(self.source.brought_tokens());
                (self.clock.started, self.slot, self.usage.reused) = (Some(at), Some(slot), reused);
                StreamEvent::Progress(self.progress(there, at))
            }
            // Recomputed after a preemption: the client was told of the whole prompt before.
            RequestEvent::Progress { .. } if self.usage.generated > 0 => return Ok(None),
            RequestEvent::Progress { computed, .. } => StreamEvent::Progress(self.progress(computed, at)),
            RequestEvent::Token(token) => {
                self.clock.first_token.get_or_insert(at);
                if let Some(watch) = self.watch.take() {
                    watch.first_token(at, &self.service.host.status());
                }
                self.usage.generated += 1;
                self.plan.metrics.add_generated();
                if token.is_stop {
                    return Ok(None);
                }
                match self.text.push(self.service.tokenizer(), token) {
                    (rest, Some(index)) => {
                        self.answer = None;
                        StreamEvent::Ended(Ending { rest, stop: Stop::Word(self.plan.stops[index].clone()) })
                    }
                    (piece, None) if piece.is_empty() => return Ok(None),
                    (piece, None) => StreamEvent::Text(piece),
                }
            }
            RequestEvent::Finished(outcome) => {
                self.answer = None;
                let stop = match outcome.finish {
                    Finish::EndOfGeneration => Stop::EndOfGeneration,
                    Finish::Limit => Stop::Limit,
                    Finish::ContextFull => Stop::ContextFull,
                    Finish::Stopped => return Err(ApiError::new(ErrorKind::Unavailable, "the server stops")),
                };
                StreamEvent::Ended(Ending { rest: self.text.finish(), stop })
            }
            RequestEvent::Failed(error) => {
                self.answer = None;
                return Err(ApiError::new(ErrorKind::Server, error.to_string()));
            }
            RequestEvent::Preempted
            | RequestEvent::Paused
            | RequestEvent::Resumed { .. }
            | RequestEvent::Audited(_) => return Ok(None),
        };
        Ok(Some(event))
    }

    fn progress(&self, computed: usize, at: Instant) -> Progress {
        let here = self.clock.started.map_or(Duration::ZERO, |started| at - started);
        let elapsed = here + self.source.handoff.as_ref().map_or(Duration::ZERO, |handoff| handoff.elapsed);
        Progress { total: self.usage.prompt, reused: self.usage.reused, computed, elapsed }
    }

    /// Tokens so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Slot in which it runs; `None` before it has started.
    pub fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// True once the answer has ended.
    pub fn is_over(&self) -> bool {
        self.answer.is_none()
    }

    /// Its prompt and settings.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Times and speeds so far, by llama.cpp's names: the first token comes out of the prompt.
    pub fn timings(&self) -> Value {
        let Usage { prompt, reused, generated } = self.usage;
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => (to - from).as_secs_f64() * 1e3,
            _ => 0.0,
        };
        let prompt_ms = between(self.clock.started, self.clock.first_token.or(self.clock.last));
        let predicted_ms = between(self.clock.first_token, self.clock.last);
        let each = |ms: f64, n: usize| if n > 0 { ms / n as f64 } else { 0.0 };
        let rate = |n: usize, ms: f64| if ms > 0.0 { n as f64 / ms * 1e3 } else { 0.0 };
        let computed = prompt - reused - self.source.brought_tokens();
        // The first token took no time after itself.
        let after_first = generated.saturating_sub(1);
        let mut timings = self.source.fields();
        let times = json!({
            "cache_n": reused,
            "prompt_n": computed,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": each(prompt_ms, computed),
            "prompt_per_second": rate(computed, prompt_ms),
            "predicted_n": generated,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": each(predicted_ms, after_first),
            "predicted_per_second": rate(after_first, predicted_ms),
        });
        timings.extend(times.as_object().cloned().unwrap_or_default());
        Value::Object(timings)
    }
}
