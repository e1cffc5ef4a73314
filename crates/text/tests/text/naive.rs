//! Byte-pair merging as it is defined, step by step: find the best pair, join it, start over.

use crate::random::byte_spellings;
use muser_text::VocabularyData;

/// The ids of `word`, nothing in it special and no cutting into words.
pub fn encode_word(data: &VocabularyData, word: &str) -> Vec<u32> {
    let spellings = byte_spellings();
    let mut symbols: Vec<String> = word.bytes().map(|byte| spellings[usize::from(byte)].to_string()).collect();
    while let Some(at) = best_pair(data, &symbols) {
        let right = symbols.remove(at + 1);
        symbols[at].push_str(&right);
    }
    symbols.iter().filter_map(|symbol| id_of(data, symbol)).collect()
}

/// Index of the pair of lowest rank; the leftmost of equal ones.
fn best_pair(data: &VocabularyData, symbols: &[String]) -> Option<usize> {
    let rank = |pair: &[String]| data.merges.iter().position(|merge| *merge == format!("{} {}", pair[0], pair[1]));
    let ranked = symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((rank(pair)?, at)));
    ranked.min().map(|(_, at)| at)
}

fn id_of(data: &VocabularyData, symbol: &str) -> Option<u32> {
    data.tokens.iter().position(|token| token == symbol).and_then(|at| u32::try_from(at).ok())
}
