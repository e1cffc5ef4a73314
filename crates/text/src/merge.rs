//! Byte-pair merging: the symbols of a word are joined two by two, the pair of lowest rank first and the leftmost of
//! equal pairs first, until no pair has a rank.
//!
//! Symbols are token ids, so a pair is looked up without touching text. Pairs wait in a heap; a pair that a merge has
//! destroyed stays there until it comes up and is seen not to exist any more. A word of `n` bytes costs `O(n log n)`.
//! Source: Sennrich et al. 2016, section 3.2, applied to bytes as in Radford et al. 2019.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The id of a byte for which the vocabulary has no token. Such a symbol never merges, and is left out at the end.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// What a pair of tokens becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower goes first. No two pairs have the same rank.
    pub(crate) rank: u32,
    /// The joined token.
    pub(crate) result: u32,
}

/// The merges of one vocabulary.
pub(crate) struct MergeTable {
    /// The token of each byte, or [`NO_TOKEN`].
    pub(crate) byte_ids: [u32; 256],
    /// What each pair of tokens becomes.
    pub(crate) merges: HashMap<(u32, u32), Merge>,
}

/// Buffers to be used again from word to word.
#[derive(Default)]
pub(crate) struct MergeScratch {
    symbols: Vec<Symbol>,
    waiting: BinaryHeap<Reverse<(u32, usize)>>,
}

/// A stretch of the word that is one token by now. Merging moves it into its left neighbour.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// The symbol before this one; meaningless for the first.
    previous: usize,
    /// The symbol after this one; the number of symbols if there is none.
    next: usize,
    /// How this symbol and the next merge. `None` also once this symbol is no more.
    with_next: Option<Merge>,
}

impl MergeTable {
    /// Appends the tokens of `word` to `ids`.
    pub(crate) fn encode_word(&self, word: &[u8], scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        let MergeScratch { symbols, waiting } = scratch;
        symbols.clear();
        waiting.clear();
        symbols.extend(word.iter().enumerate().map(|(at, &byte)| Symbol {
            id: self.byte_ids[usize::from(byte)],
            previous: at.wrapping_sub(1),
            next: at + 1,
            with_next: None,
        }));
        for at in 0..symbols.len() {
            self.look_up_pair(symbols, waiting, at);
        }
        while let Some(Reverse((rank, at))) = waiting.pop() {
            let Some(merge) = symbols[at].with_next.filter(|merge| merge.rank == rank) else { continue };
            let gone = symbols[at].next;
            let after = symbols[gone].next;
            symbols[gone].with_next = None;
            symbols[at] = Symbol { id: merge.result, next: after, ..symbols[at] };
            if let Some(symbol) = symbols.get_mut(after) {
                symbol.previous = at;
            }
            self.look_up_pair(symbols, waiting, at);
            if at > 0 {
                let before = symbols[at].previous;
                self.look_up_pair(symbols, waiting, before);
            }
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
            }
            at = symbol.next;
        }
    }

    /// Notes how the symbol at `at` merges with the one after it, and puts the pair in the queue if it does.
    fn look_up_pair(&self, symbols: &mut [Symbol], waiting: &mut BinaryHeap<Reverse<(u32, usize)>>, at: usize) {
        let right = symbols.get(symbols[at].next).map(|symbol| symbol.id);
        let merge = right.and_then(|right| self.merges.get(&(symbols[at].id, right)).copied());
        symbols[at].with_next = merge;
        if let Some(merge) = merge {
            waiting.push(Reverse((merge.rank, at)));
        }
    }
}
