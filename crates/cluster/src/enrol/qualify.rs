//! The qualification: a prompt that is the same everywhere, computed by the producer and by the decoder, and compared bit by
//! bit: every page in its canonical form, then the first token and the probability of every other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muser_engine::engine::{Generate, Installed, Job, PrefixReuse, ReadyPage, RequestEvent};
use muser_engine::{LogprobsStage, LogprobsWanted, SamplingSettings};
use muser_enrol::{Difference, Qualification};
use muser_host::{Answer, EngineHost};
use muser_kv::{PAGE_ROWS, PageLayout};

use super::failure::EnrolError;
use crate::handoff::{Remote, Shape};

/// BLAKE3 key-derivation context of the prompt's tokens.
const PROMPT_CONTEXT: &str = "muser 2026 qualification prompt, version 1";

/// The engine of a node that is enrolled, or that enrols.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Host of the engine. It needs a context of at least `prompt_tokens + 1`, and room for three such sequences and
    /// for an installation of one.
    pub host: EngineHost,
    /// Shape of the model's KV pages, and its identity.
    pub shape: Shape,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Tokens of the qualification prompt, at least 2.
    pub prompt_tokens: usize,
}

/// First token after the prompt, with the bits of every candidate's probability.
#[derive(PartialEq)]
struct First {
    token: u32,
    probabilities: Vec<(u32, u64)>,
}

impl Machine {
    /// The prompt: pseudo-random tokens, the same on every machine.
    fn prompt(&self) -> Vec<u32> {
        let mut stream = blake3::Hasher::new_derive_key(PROMPT_CONTEXT).finalize_xof();
        let mut token = || {
            let mut bytes = [0; 4];
            stream.fill(&mut bytes);
            u32::from_le_bytes(bytes) % self.vocab.max(1)
        };
        (0..self.prompt_tokens).map(|_| token()).collect()
    }

    /// Computes the prompt here, brings it by `remote`, and compares.
    ///
    /// # Errors
    /// [`EnrolError`]. A difference is a result, not an error.
    pub(super) async fn qualify(&self, remote: &Remote) -> Result<Qualification, EnrolError> {
        let prompt = self.prompt();
        let pages = self.pages_of(&prompt).await?;
        let local = Job::generate(prompt.as_slice(), PrefixReuse::Isolate, self.one_token());
        let began = Instant::now();
        let (expected, local) = first_of(self.host.submit(local).await?, began).await?;
        let began = Instant::now();
        let mut installation = self.host.begin_installation(prompt.clone(), PrefixReuse::Isolate).await?;
        remote.bring(&mut installation).await?;
        let installed = installation.finish()?;
        let brought = began.elapsed();
        let of_pages = first_difference(self.shape.spec().layout(), &pages, &installed)?;
        let (payload_bytes, count) = (pages.iter().map(|page| page.bytes.as_ref().len() as u64).sum(), pages.len());
        drop(pages);
        // The comparison is no part of what a handoff takes.
        let began = Instant::now();
        let last = prompt[installed.tokens().len()];
        let answer = self.host.submit(Job::generate_from(installed, last, self.one_token())).await?;
        let (found, rest) = first_of(answer, began).await?;
        let position = number(prompt.len() - 1);
        let of_logits = (found != expected).then_some(Difference::Logits { position });
        Ok(Qualification {
            rows: position,
            pages: number(count),
            payload_bytes,
            local: in_microseconds(local),
            remote: in_microseconds(brought + rest),
            difference: of_pages.or(of_logits),
        })
    }

    /// Pages of the prompt as a producer would send them: of all tokens but the last.
    async fn pages_of(&self, prompt: &[u32]) -> Result<Vec<ReadyPage>, EnrolError> {
        let rows = prompt.len().saturating_sub(1);
        let mut answer = self.host.submit(Job::export(&prompt[..rows], PrefixReuse::Isolate, 0)).await?;
        let mut all = Vec::new();
        while let Some(timed) = answer.next().await {
            match timed.event {
                RequestEvent::Progress { pages, .. } => all.extend(pages),
                RequestEvent::Finished(_) => return Ok(all),
                RequestEvent::Failed(error) => return Err(EnrolError::Engine(error.to_string())),
                _ => {}
            }
        }
        Err(EnrolError::Engine("it has stopped".into()))
    }

    fn one_token(&self) -> Generate {
        Generate {
            tokens_max: Some(1),
            context: self.prompt_tokens + 1,
            stop_tokens: Arc::new([]),
            sampling: SamplingSettings::greedy(),
            logprobs: Some(LogprobsWanted { count: self.vocab as usize, stage: LogprobsStage::Model }),
        }
    }
}

async fn first_of(mut answer: Answer, began: Instant) -> Result<(First, Duration), EnrolError> {
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Token(chosen) => {
                let top = chosen.logprobs.map(|found| found.top).unwrap_or_default();
                let probabilities = top.iter().map(|top| (top.token, top.logprob.to_bits())).collect();
                return Ok((First { token: chosen.token, probabilities }, timed.at - began));
            }
            RequestEvent::Failed(error) => return Err(EnrolError::Engine(error.to_string())),
            _ => {}
        }
    }
    Err(EnrolError::Engine("it has stopped".into()))
}

/// The first page whose bytes are not those that were installed.
fn first_difference(
    layout: PageLayout,
    pages: &[ReadyPage],
    installed: &Installed,
) -> Result<Option<Difference>, EnrolError> {
    for ReadyPage { layer, page, bytes } in pages {
        let (here, brought) = (bytes.as_ref(), installed.page(*layer, *page)?.bytes);
        if here != brought {
            let row = differing_row(layout, here, brought);
            let position = number(page * PAGE_ROWS + row);
            return Ok(Some(Difference::Page { layer: number(*layer), position }));
        }
    }
    Ok(None)
}

/// The first row that differs between two pages that do.
fn differing_row(layout: PageLayout, one: &[u8], other: &[u8]) -> usize {
    let differs = |row: &usize| {
        (0..layout.kv_heads()).any(|head| {
            let rows = *row..row + 1;
            let parts = [
                layout.k_rows(head, rows.clone()),
                layout.v_rows(head, rows.clone()),
                layout.k_scales(head, rows.clone()),
                layout.v_scales(head, rows),
            ];
            parts.into_iter().any(|part| one.get(part.clone()) != other.get(part))
        })
    };
    (0..PAGE_ROWS).find(differs).unwrap_or(0)
}

/// Rounded to microseconds as on the wire, so that both ends show the same time.
fn in_microseconds(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
