//! Sampler settings: defaults, ranges, and the errors of values out of range.

use std::collections::BTreeSet;

/// Settings of the sampler stages. The default is neutral: a draw from the plain softmax with seed 0.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    /// Seeds the random numbers; not used when greedy.
    pub seed: u64,
    /// Logits are divided by this before the softmax; 0 takes the most likely of what the other stages leave. Finite,
    /// not negative, 1 by default.
    pub temperature: f32,
    /// Added to the logits of single tokens before everything else; several of one token add up.
    pub logit_bias: Vec<LogitBias>,
    /// The logit of a token that occurred is divided by this where it is positive and multiplied where it is not. Finite,
    /// above 0; 1, the default, is neutral.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token for each time it occurred. Finite; 0, the default, is neutral.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of a token that occurred. Finite; 0, the default, is neutral.
    pub presence_penalty: f32,
    /// Number of last tokens, the prompt's included, that the three penalties look at. 64 by default, 0 for none,
    /// `usize::MAX` for all.
    pub penalty_tokens: usize,
    /// Keeps this many of the likeliest tokens; 0, the default, keeps all.
    pub top_k: usize,
    /// Keeps the tokens whose surprise is closest to the expected one, up to this probability in sum. Above 0 and at most 1;
    /// 1, the default, keeps all.
    pub typical_p: f32,
    /// Keeps the likeliest tokens up to this probability in sum. Above 0 and at most 1; 1, the default, keeps all.
    pub top_p: f32,
    /// Keeps the tokens at least this likely, measured by the likeliest. From 0, the default, which keeps all, to 1.
    pub min_p: f32,
}

/// Bias added to one token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    /// The token.
    pub token: u32,
    /// Finite, or minus infinity, which bans the token.
    pub bias: f32,
}

/// A sampling setting that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// Negative, infinite or not a number.
    #[error("temperature {0} is not a finite number >= 0")]
    Temperature(f32),
    /// Zero, negative, infinite or not a number.
    #[error("repeat penalty {0} is not a finite number > 0")]
    RepeatPenalty(f32),
    /// Infinite or not a number.
    #[error("frequency penalty {0} is not a finite number")]
    FrequencyPenalty(f32),
    /// Infinite or not a number.
    #[error("presence penalty {0} is not a finite number")]
    PresencePenalty(f32),
    /// Outside the range.
    #[error("typical-p {0} is not above 0 and at most 1")]
    TypicalP(f32),
    /// Outside the range.
    #[error("top-p {0} is not above 0 and at most 1")]
    TopP(f32),
    /// Outside the range.
    #[error("min-p {0} is not from 0 to 1")]
    MinP(f32),
    /// A bias of a token that does not exist.
    #[error("logit bias of token {token}: the vocabulary has {vocab}")]
    BiasedToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A bias that is not a number, or plus infinity.
    #[error("logit bias {bias} of token {token} is neither finite nor minus infinity")]
    Bias {
        /// The token.
        token: u32,
        /// Its bias.
        bias: f32,
    },
    /// Biases ban every token that the model does not suppress.
    #[error("logit biases ban all {vocab} tokens of the vocabulary, apart from those that are never chosen")]
    NothingAllowed {
        /// Size of the vocabulary.
        vocab: usize,
    },
}

impl SamplingSettings {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks that every setting is in range, for a vocabulary of `vocab` tokens of which `suppressed` are never chosen.
    pub(super) fn check(&self, vocab: usize, suppressed: &[u32]) -> Result<(), SamplingError> {
        let share = |p: f32| p > 0.0 && p <= 1.0;
        let checks = [
            (self.temperature.is_finite() && self.temperature >= 0.0, SamplingError::Temperature(self.temperature)),
            (
                self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0,
                SamplingError::RepeatPenalty(self.repeat_penalty),
            ),
            (self.frequency_penalty.is_finite(), SamplingError::FrequencyPenalty(self.frequency_penalty)),
            (self.presence_penalty.is_finite(), SamplingError::PresencePenalty(self.presence_penalty)),
            (share(self.typical_p), SamplingError::TypicalP(self.typical_p)),
            (share(self.top_p), SamplingError::TopP(self.top_p)),
            ((0.0..=1.0).contains(&self.min_p), SamplingError::MinP(self.min_p)),
        ];
        for (fine, refused) in checks {
            if !fine {
                return Err(refused);
            }
        }
        self.check_biases(vocab, suppressed)
    }

    fn check_biases(&self, vocab: usize, suppressed: &[u32]) -> Result<(), SamplingError> {
        let mut banned: BTreeSet<u32> = suppressed.iter().copied().collect();
        for &LogitBias { token, bias } in &self.logit_bias {
            if token as usize >= vocab {
                return Err(SamplingError::BiasedToken { token, vocab });
            }
            if bias == f32::NEG_INFINITY {
                banned.insert(token);
            } else if !bias.is_finite() {
                return Err(SamplingError::Bias { token, bias });
            }
        }
        if banned.len() == vocab { Err(SamplingError::NothingAllowed { vocab }) } else { Ok(()) }
    }
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            temperature: 1.0,
            logit_bias: Vec::new(),
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_tokens: 64,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}
