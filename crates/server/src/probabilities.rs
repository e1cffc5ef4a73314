//! Probabilities of tokens as clients read them: llama.cpp's objects, of which OpenAI's are a part.

use muser_engine::{LogprobsStage, TokenLogprob};
use muser_text::{ControlTokens, Tokenizer};
use serde_json::{Value, json};

use muser_host::ChosenToken;

/// One object per token that has probabilities: `{id, token, bytes, logprob, top_logprobs}`, or after sampling
/// `{id, token, bytes, prob, top_probs}`.
pub fn objects(tokenizer: &Tokenizer, tokens: &[ChosenToken], stage: LogprobsStage) -> Vec<Value> {
    let (one_name, top_name) = match stage {
        LogprobsStage::Model => ("logprob", "top_logprobs"),
        LogprobsStage::Draw => ("prob", "top_probs"),
    };
    let object = |&TokenLogprob { token, logprob }: &TokenLogprob| {
        let value = match stage {
            LogprobsStage::Model => logprob,
            LogprobsStage::Draw => logprob.exp(),
        };
        let bytes = bytes_of(tokenizer, token);
        json!({"id": token, "token": String::from_utf8_lossy(bytes), "bytes": bytes, one_name: value})
    };
    let with_top = |token: &ChosenToken| {
        let logprobs = token.logprobs.as_ref()?;
        let mut chosen = object(&logprobs.chosen);
        chosen[top_name] = logprobs.top.iter().map(object).collect();
        Some(chosen)
    };
    tokens.iter().filter_map(with_top).collect()
}

/// The bytes of a token, a control token's spelling included.
pub fn bytes_of(tokenizer: &Tokenizer, token: u32) -> &[u8] {
    tokenizer.token_bytes(token, ControlTokens::Show).expect("the model and its tokenizer have one size")
}
