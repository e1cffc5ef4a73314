//! Pairwise merging: the symbols of a word are joined two by two, the pair of lowest rank first and the leftmost of
//! equal pairs first, until no pair has a rank.
//!
//! Pairs wait in a heap; a pair that a merge has destroyed stays there until it comes up and is seen not to exist any
//! more. A word of `n` symbols costs `O(n log n)`. In byte-pair encoding symbols start as bytes and a pair of tokens is
//! looked up without touching text; [`crate::score_merge`] looks up the text of a pair instead.
//! Source: Sennrich et al. 2016, section 3.2, applied to bytes as in Radford et al. 2019.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The id of a byte for which the vocabulary has no token. Such a symbol never merges, and is left out at the end.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// Merge of a pair of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower goes first.
    pub(crate) rank: u32,
    /// The joined token.
    pub(crate) result: u32,
}

/// The merges of one vocabulary.
pub(crate) struct MergeTable {
    /// The token of each byte, or [`NO_TOKEN`].
    pub(crate) byte_ids: [u32; 256],
    /// Merge of each pair of tokens that has one.
    pub(crate) merges: HashMap<(u32, u32), Merge>,
}

/// Buffers to be used again from word to word.
#[derive(Default)]
pub(crate) struct MergeScratch {
    symbols: Vec<Symbol>,
    waiting: BinaryHeap<Reverse<(u32, usize)>>,
}

/// A part of the word that is merged into one token so far. Merging moves it into its left neighbour.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    /// The token, or [`NO_TOKEN`].
    pub(crate) id: u32,
    /// Byte offset of its start in the word. It ends at the start of the next symbol.
    pub(crate) start: usize,
    /// The symbol before this one; meaningless for the first.
    previous: usize,
    /// The symbol after this one; the number of symbols if there is none.
    next: usize,
    /// Merge of this symbol with the next; `None` if they do not merge, and once this symbol was merged away.
    with_next: Option<Merge>,
}

impl MergeScratch {
    /// Begins a word: `symbols` gives the token and the start of each of its smallest parts.
    pub(crate) fn begin(&mut self, symbols: impl Iterator<Item = (u32, usize)>) {
        self.waiting.clear();
        self.symbols.clear();
        self.symbols.extend(symbols.enumerate().map(|(at, (id, start))| Symbol {
            id,
            start,
            previous: at.wrapping_sub(1),
            next: at + 1,
            with_next: None,
        }));
    }

    /// Merges until no pair has a rank. `look_up` gives what a symbol, the next one and where that one ends become; a pair
    /// must always become the same.
    pub(crate) fn merge_all(&mut self, bytes: usize, look_up: impl Fn(&Symbol, &Symbol, usize) -> Option<Merge>) {
        let Self { symbols, waiting } = self;
        let look_up_pair = |symbols: &mut [Symbol], waiting: &mut BinaryHeap<Reverse<(u32, usize)>>, at: usize| {
            let left = symbols[at];
            let merge = symbols.get(left.next).and_then(|right| {
                let end = symbols.get(right.next).map_or(bytes, |after| after.start);
                look_up(&left, right, end)
            });
            symbols[at].with_next = merge;
            if let Some(merge) = merge {
                waiting.push(Reverse((merge.rank, at)));
            }
        };
        for at in 0..symbols.len() {
            look_up_pair(symbols, waiting, at);
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
            look_up_pair(symbols, waiting, at);
            if at > 0 {
                let before = symbols[at].previous;
                look_up_pair(symbols, waiting, before);
            }
        }
    }

    /// Calls `symbol` with the token of each symbol that is left and where it starts.
    pub(crate) fn each_symbol(&self, mut symbol: impl FnMut(u32, usize)) {
        let mut at = 0;
        while let Some(left) = self.symbols.get(at) {
            symbol(left.id, left.start);
            at = left.next;
        }
    }
}

impl MergeTable {
    /// Appends the tokens of `word` to `ids`.
    pub(crate) fn encode_word(&self, word: &[u8], scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        scratch.begin(word.iter().enumerate().map(|(start, &byte)| (self.byte_ids[usize::from(byte)], start)));
        scratch.merge_all(word.len(), |left, right, _| self.merges.get(&(left.id, right.id)).copied());
        scratch.each_symbol(|id, _| {
            if id != NO_TOKEN {
                ids.push(id);
            }
        });
    }
}
