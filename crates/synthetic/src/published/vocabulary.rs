//! A byte-level BPE vocabulary of any size: all bytes, random merges of letters into words, and control tokens at the end.

use std::collections::HashSet;

use crate::small::byte_characters;
use muser_weights::gguf::{GgufWriter, Value, WriteError};

/// Types of tokens in a GGUF file.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
/// Control tokens of a vocabulary: one in this many, at least four, and all beyond the most words.
const CONTROL_PART: u32 = 100;
/// Most tokens that are words.
const WORDS_MAX: u32 = 200_000;
/// Characters of a token at most.
const LENGTH_MAX: usize = 12;

/// Adds the keys of a vocabulary of `vocab` tokens.
pub(super) fn set_keys(writer: &mut GgufWriter, vocab: u32, seed: u64) -> Result<(), WriteError> {
    let controls = (vocab / CONTROL_PART).max(4).max(vocab.saturating_sub(WORDS_MAX)) as usize;
    let (mut tokens, merges) = words(vocab as usize - controls, seed);
    let named = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", "<|eom|>"].map(str::to_owned);
    let first = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    tokens.extend(named.into_iter().chain((4..controls).map(|index| format!("<|reserved_{index}|>"))));
    let kinds: Vec<i32> =
        (0..tokens.len()).map(|id| if id < vocab as usize - controls { NORMAL } else { CONTROL }).collect();
    writer.set("tokenizer.ggml.model", Value::String(b"gpt2"))?;
    writer.set("tokenizer.ggml.pre", Value::String(b"llama4"))?;
    writer.set_array("tokenizer.ggml.tokens", &tokens)?;
    writer.set_array("tokenizer.ggml.token_type", &kinds)?;
    writer.set_array("tokenizer.ggml.merges", &merges)?;
    writer.set("tokenizer.ggml.bos_token_id", Value::U32(first))?;
    writer.set("tokenizer.ggml.eos_token_id", Value::U32(first + 1))?;
    writer.set("tokenizer.ggml.eot_token_id", Value::U32(first + 2))?;
    writer.set("tokenizer.ggml.add_bos_token", Value::Bool(true))
}

/// The 256 bytes, and merges of earlier tokens until there are `count`.
fn words(count: usize, seed: u64) -> (Vec<String>, Vec<String>) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x766f_6361_6275_6c61);
    let mut tokens: Vec<String> = byte_characters().map(String::from).collect();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    // Words grow from letters, and from the space in front of them.
    let mut parts: Vec<usize> =
        (0..tokens.len()).filter(|&id| tokens[id].chars().all(|c| c.is_ascii_lowercase() || c == 'Ġ')).collect();
    let mut merges = Vec::new();
    while tokens.len() < count {
        let (left, right) = (&tokens[parts[random.usize(..parts.len())]], &tokens[parts[random.usize(..parts.len())]]);
        let joined = format!("{left}{right}");
        if right.starts_with('Ġ') || joined.chars().count() > LENGTH_MAX || !known.insert(joined.clone()) {
            continue;
        }
        merges.push(format!("{left} {right}"));
        parts.push(tokens.len());
        tokens.push(joined);
    }
    (tokens, merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_unique_and_every_merge_joins_two_earlier_ones_to_the_next() {
        let (tokens, merges) = words(3000, 7);
        assert_eq!((tokens.len(), merges.len()), (3000, 3000 - 256));
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 3000);
        for (index, merge) in merges.iter().enumerate() {
            let (left, right) = merge.split_once(' ').unwrap();
            let earlier = &tokens[..256 + index];
            assert!(earlier.iter().any(|token| token == left) && earlier.iter().any(|token| token == right), "{merge}");
            assert_eq!(format!("{left}{right}"), tokens[256 + index]);
        }
    }
}
