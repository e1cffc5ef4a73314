//! Choosing the next token from logits.
//!
//! One implementation, on the CPU, in software floating point: the same seed gives the same text on every machine. The
//! biases come first (`logit_bias`), then the rows of the table in `stages`, each neutral by default, and one `draw`. A sum is
//! always taken in an order that the candidates themselves define, never in one that a sorting algorithm happened to leave.
//! `logprobs` looks at the raw logits, or at what the draw was made from, and has no part in the choice.
//!
//! A choice is a function of the logits, the sequence's own tokens and the settings. There is no state from token to token,
//! so it does not matter whether the tokens before were computed here, resumed or received, nor who else is served.

mod candidates;
mod draw;
mod logit_bias;
mod logprobs;
mod setting;
mod settings;
mod stages;

use std::sync::Arc;

use candidates::Candidate;
pub use logprobs::{Logprobs, LogprobsStage, LogprobsWanted, TokenLogprob, TokenLogprobs};
pub use setting::{AliasRule, FieldAlias, SamplerSetting, SettingFlag, SettingRange, SettingValue};
pub use settings::{LogitBias, SamplingError};
pub use stages::{SAMPLER_SETTINGS, SAMPLER_STAGES, SamplerStage, SamplingSettings};

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplingSettings,
    /// Never chosen, whatever the settings say.
    suppressed: Arc<[u32]>,
}

/// Room for choosing among a vocabulary; one serves any number of samplers in turn, and no choice allocates once it is warm.
#[derive(Debug)]
pub struct SamplerWorkspace {
    candidates: Vec<Candidate>,
    recent: Vec<u32>,
    top: Vec<TokenLogprob>,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// [`SamplingError`] when a setting is out of range.
    pub fn new(settings: SamplingSettings, vocab: usize) -> Result<Self, SamplingError> {
        Self::suppressing(settings, vocab, Arc::default())
    }

    /// As [`Self::new`], for a model whose tokens `suppressed`, which exist, are never to be chosen: their logits count as
    /// minus infinity before every stage.
    ///
    /// # Errors
    /// [`SamplingError`] when a setting is out of range, or nothing is left to be chosen.
    pub fn suppressing(
        settings: SamplingSettings,
        vocab: usize,
        suppressed: Arc<[u32]>,
    ) -> Result<Self, SamplingError> {
        settings.check(vocab, &suppressed)?;
        Ok(Self { settings, suppressed })
    }

    /// The settings.
    pub fn settings(&self) -> &SamplingSettings {
        &self.settings
    }

    /// The token that follows `tokens`, the whole sequence so far, given the `logits` after it (finite, one per token of the
    /// vocabulary).
    ///
    /// # Panics
    /// If `logits` has another length than the vocabulary, or if there are no tokens or more than 2^32.
    pub fn choose(&self, logits: &[f32], tokens: &[u32], workspace: &mut SamplerWorkspace) -> u32 {
        let settings = &self.settings;
        candidates::fill(&mut workspace.candidates, logits);
        logit_bias::apply(&mut workspace.candidates, &self.suppressed, &settings.logit_bias);
        for apply in SAMPLER_STAGES.iter().filter_map(|stage| stage.apply) {
            apply(workspace, settings, tokens);
        }
        let position = u32::try_from(tokens.len() - 1).expect("a context is below 2^32");
        draw::choose(&mut workspace.candidates, settings.seed, position)
    }
}

impl SamplerWorkspace {
    /// Room for a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Self { candidates: Vec::with_capacity(vocab), recent: Vec::new(), top: Vec::new() }
    }

    /// The probabilities of `chosen` and of the `count` likeliest tokens under the plain softmax of all `logits`, before any
    /// stage of `sampler` but without the tokens that it suppresses. Fewer than `count` only where there are fewer.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn logprobs(&mut self, sampler: &Sampler, logits: &[f32], chosen: u32, count: usize) -> Logprobs<'_> {
        candidates::fill(&mut self.candidates, logits);
        logit_bias::apply(&mut self.candidates, &sampler.suppressed, &[]);
        logprobs::of(&mut self.candidates, chosen, count, &mut self.top)
    }

    /// The probabilities that `chosen`, the token of the last [`Sampler::choose`] in this workspace, and the `count` likeliest
    /// tokens had in the draw. Fewer than `count` where the samplers left fewer.
    ///
    /// # Panics
    /// If that choice gave another token, or these were asked for already.
    pub fn draw_logprobs(&mut self, chosen: u32, count: usize) -> Logprobs<'_> {
        logprobs::of(&mut self.candidates, chosen, count, &mut self.top)
    }
}
