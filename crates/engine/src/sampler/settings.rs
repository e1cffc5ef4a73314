//! Checks of sampler settings, and the errors of values out of range.

use std::collections::BTreeSet;

use super::setting::{SettingRange, SettingValue};
use super::stages::{SAMPLER_SETTINGS, SamplingSettings};

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
    /// A setting outside its range.
    #[error("{setting} {value} is not {range}")]
    OutOfRange {
        /// Its name in messages.
        setting: &'static str,
        /// The value.
        value: f32,
        /// The values that are accepted.
        range: SettingRange,
    },
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
        for setting in SAMPLER_SETTINGS {
            let SettingValue::Number { label, range, get, .. } = setting.value else { continue };
            let value = get(self);
            if !range.contains(value) {
                return Err(SamplingError::OutOfRange { setting: label, value, range });
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
