//! The merging of SentencePiece vocabularies: two neighbours are joined if together they spell a token, the token of
//! highest score first and the leftmost of equal scores first. Spaces are spelled U+2581. A character that is no token
//! in the end becomes its bytes.
//!
//! Source: Kudo and Richardson 2018 (SentencePiece), its BPE model; the order of equal scores is llama.cpp's.

use crate::merge::{Merge, MergeScratch, NO_TOKEN};
use std::collections::HashMap;

/// Spelling of a space: U+2581.
pub(crate) const SPELLED_SPACE: char = '\u{2581}';

/// The longest token that text may become, in bytes. Real ones stay below 64; a bound keeps a hostile vocabulary from
/// making every text expensive.
pub(crate) const TOKEN_BYTES_MAX: usize = 512;

/// The tokens that text may become.
pub(crate) struct ScoreTable {
    /// Id and rank of each spelling. The higher the score, the lower the rank.
    pub(crate) tokens: HashMap<String, Merge>,
    /// Length of the longest spelling, in bytes.
    pub(crate) longest: usize,
    /// The token of each byte, or [`NO_TOKEN`].
    pub(crate) byte_ids: [u32; 256],
    /// Stands for a character that has neither a token nor tokens for its bytes.
    pub(crate) unknown: Option<u32>,
}

/// The rank of a token with `score`, which is not NaN: lower for higher scores, the same for both zeros.
pub(crate) fn rank_of_score(score: f32) -> u32 {
    // Without their sign, the bits of numbers ascend with their distance from zero.
    let bits = score.to_bits();
    if score < 0.0 { bits } else { !(bits | 1 << 31) }
}

impl ScoreTable {
    /// Appends the tokens of `text`, in which spaces are spelled as such, to `ids`.
    pub(crate) fn encode(&self, text: &str, scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        let text = text.replace(' ', SPELLED_SPACE.encode_utf8(&mut [0; 4]));
        let token = |start: usize, end: usize| {
            let short = end - start <= self.longest;
            if short { self.tokens.get(&text[start..end]).copied() } else { None }
        };
        scratch.begin(text.char_indices().map(|(start, c)| {
            let id = token(start, start + c.len_utf8()).map_or(NO_TOKEN, |merge| merge.result);
            (id, start)
        }));
        scratch.merge_all(text.len(), |left, _, end| token(left.start, end));
        scratch.each_symbol(|id, start| match id {
            NO_TOKEN => self.encode_bytes(&text[start..], ids),
            id => ids.push(id),
        });
    }

    /// Appends the tokens of the bytes of the first character of `text`.
    fn encode_bytes(&self, text: &str, ids: &mut Vec<u32>) {
        // What no token spells is a single character still.
        let length = text.chars().next().map_or(0, char::len_utf8);
        let bytes = || text[..length].bytes().map(|byte| self.byte_ids[usize::from(byte)]);
        if bytes().any(|id| id == NO_TOKEN) {
            ids.extend(self.unknown);
        } else {
            ids.extend(bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_have_lower_ranks() {
        let scores = [f32::INFINITY, 3.5, 1.0, f32::MIN_POSITIVE, 0.0, -f32::MIN_POSITIVE, -1.0, -31_000.0, f32::MIN];
        assert!(scores.windows(2).all(|pair| rank_of_score(pair[0]) < rank_of_score(pair[1])));
        assert_eq!(rank_of_score(0.0), rank_of_score(-0.0));
    }
}
