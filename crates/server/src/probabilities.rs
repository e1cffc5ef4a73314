//! Probabilities of tokens as clients read them: llama.cpp's objects, of which OpenAI's are a part.
//!
//! They are serialised straight into the answer: as a tree of JSON values, each would take ten times its text.

use muser_engine::{LogprobsStage, TokenLogprob};
use muser_text::{ControlTokens, Tokenizer};
use serde::ser::{Serialize, SerializeMap, Serializer};

use muser_engine::TokenLogprobs;
use muser_engine::engine::ChosenToken;

/// One object per token that has probabilities: `{id, token, bytes, logprob, top_logprobs}`, or after sampling
/// `{id, token, bytes, prob, top_probs}`.
#[derive(Clone, Copy)]
pub struct Probabilities<'a> {
    /// Decodes the tokens.
    pub tokenizer: &'a Tokenizer,
    /// The tokens.
    pub tokens: &'a [ChosenToken],
    /// Stage at which they are taken: the model's, or those drawn from.
    pub stage: LogprobsStage,
}

impl Probabilities<'_> {
    /// True if no token has log-probabilities.
    pub fn is_empty(&self) -> bool {
        self.tokens.iter().all(|token| token.logprobs.is_none())
    }
}

impl Serialize for Probabilities<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Self { tokenizer, stage, .. } = self;
        let found = self.tokens.iter().filter_map(|token| token.logprobs.as_ref());
        serializer.collect_seq(found.map(|TokenLogprobs { chosen, top }| One {
            tokenizer,
            stage,
            chosen,
            top: Some(top),
        }))
    }
}

/// The probability of one token, and those of the likeliest ones at its place.
struct One<'a> {
    tokenizer: &'a Tokenizer,
    stage: LogprobsStage,
    chosen: &'a TokenLogprob,
    top: Option<&'a [TokenLogprob]>,
}

impl Serialize for One<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Self { tokenizer, stage, chosen: &TokenLogprob { token, logprob }, top } = self;
        let (one_name, top_name, value) = match stage {
            LogprobsStage::Model => ("logprob", "top_logprobs", logprob),
            LogprobsStage::Draw => ("prob", "top_probs", logprob.exp()),
        };
        let bytes = bytes_of(tokenizer, token);
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("id", &token)?;
        object.serialize_entry("token", &String::from_utf8_lossy(bytes))?;
        object.serialize_entry("bytes", bytes)?;
        object.serialize_entry(one_name, &value)?;
        if let Some(top) = top {
            let top = top.iter().map(|chosen| One { tokenizer, stage, chosen, top: None });
            object.serialize_entry(top_name, &Sequence(top))?;
        }
        object.end()
    }
}

/// An array that is made while it is written.
struct Sequence<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Sequence<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// The bytes of a token, a control token's spelling included.
pub fn bytes_of(tokenizer: &Tokenizer, token: u32) -> &[u8] {
    tokenizer.token_bytes(token, ControlTokens::Show).expect("the model and its tokenizer have one size")
}
