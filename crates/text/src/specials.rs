//! Finding special tokens in text: the leftmost first, and of several that start at the same place the longest.
//!
//! The spellings are kept sorted. Those that a text starts with are found by narrowing a range of the list byte by
//! byte, so looking at one place costs at most the length of the longest spelling, which the vocabulary's checks bound.

/// The longest spelling of a special token, in bytes. Real ones stay below 64; a bound keeps a hostile vocabulary from
/// making every text expensive.
pub(crate) const SPECIAL_BYTES_MAX: usize = 512;

/// A set of special tokens to look for.
pub(crate) struct SpecialMatcher {
    /// Spellings, sorted, without duplicates or empty ones, and their ids.
    entries: Vec<(String, u32)>,
    /// Per byte value, true if some spelling starts with it.
    starts: [bool; 256],
}

/// A special token in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Byte offset of its start.
    pub(crate) start: usize,
    /// Byte offset of its end, exclusive.
    pub(crate) end: usize,
    /// Token id.
    pub(crate) id: u32,
}

impl SpecialMatcher {
    /// Looks for `tokens`. Empty spellings are left out; of equal ones the lowest id counts.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut entries: Vec<(String, u32)> =
            tokens.filter(|(text, _)| !text.is_empty()).map(|(text, id)| (text.to_owned(), id)).collect();
        entries.sort_unstable();
        entries.dedup_by(|later, first| later.0 == first.0);
        let mut starts = [false; 256];
        for (text, _) in &entries {
            starts[usize::from(text.as_bytes()[0])] = true;
        }
        Self { entries, starts }
    }

    /// True if some spelling starts with `byte`.
    pub(crate) fn starts_with(&self, byte: u8) -> bool {
        self.starts[usize::from(byte)]
    }

    /// Length and id of the longest spelling with which `bytes` starts.
    pub(crate) fn longest_start_of(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        // Every entry of `left` agrees with `bytes` in its first `depth` bytes.
        let mut left = self.entries.as_slice();
        let mut longest = None;
        for depth in 0.. {
            if let Some((text, id)) = left.first()
                && text.len() == depth
            {
                longest = Some((depth, *id));
                left = &left[1..];
            }
            let Some(&byte) = bytes.get(depth).filter(|_| !left.is_empty()) else { break };
            // The list has no duplicates, so every entry left is longer than `depth`.
            let start = left.partition_point(|(text, _)| text.as_bytes()[depth] < byte);
            let end = left.partition_point(|(text, _)| text.as_bytes()[depth] <= byte);
            left = &left[start..end];
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher() -> SpecialMatcher {
        SpecialMatcher::new([("<a>", 1), ("<a>b", 2), ("", 3), ("é!", 4), ("<a>", 0), ("a", 5)].into_iter())
    }

    /// The first special token in `text` at or after byte `from`.
    fn find(matcher: &SpecialMatcher, text: &str, from: usize) -> Option<Found> {
        let bytes = text.as_bytes();
        (from..bytes.len()).filter(|&start| matcher.starts_with(bytes[start])).find_map(|start| {
            let (length, id) = matcher.longest_start_of(&bytes[start..])?;
            Some(Found { start, end: start + length, id })
        })
    }

    #[test]
    fn the_longest_of_those_that_start_at_the_leftmost_place_wins() {
        assert_eq!(find(&matcher(), "x<a>bx", 0), Some(Found { start: 1, end: 5, id: 2 }));
        assert_eq!(find(&matcher(), "x<a>c", 0), Some(Found { start: 1, end: 4, id: 0 }));
        assert_eq!(find(&matcher(), "x<a>", 2), Some(Found { start: 2, end: 3, id: 5 }));
        assert_eq!(find(&matcher(), "éé!", 0), Some(Found { start: 2, end: 5, id: 4 }));
    }

    #[test]
    fn a_text_without_special_tokens_has_none() {
        for text in ["", "<", "<b>", "é", "É!"] {
            assert_eq!(find(&matcher(), text, 0), None, "{text:?}");
        }
    }

    #[test]
    fn every_find_agrees_with_trying_each_spelling_at_each_place() {
        let mut random = fastrand::Rng::with_seed(11);
        let word = |length_max: usize, random: &mut fastrand::Rng| -> String {
            (0..random.usize(..=length_max)).map(|_| random.choice(['a', 'b', 'é']).unwrap()).collect()
        };
        for seed in 0..3000 {
            let spellings: Vec<String> = (0..random.usize(..6)).map(|_| word(4, &mut random)).collect();
            let text = word(12, &mut random);
            let listed = || spellings.iter().map(String::as_str).zip(0..);
            let by_trying = (0..text.len()).filter(|&at| text.is_char_boundary(at)).find_map(|start| {
                let fits = listed().filter(|(s, _)| !s.is_empty() && text[start..].starts_with(s));
                let (longest, id) = fits.max_by_key(|&(s, id)| (s.len(), std::cmp::Reverse(id)))?;
                Some(Found { start, end: start + longest.len(), id })
            });
            assert_eq!(
                find(&SpecialMatcher::new(listed()), &text, 0),
                by_trying,
                "seed {seed}: {spellings:?} in {text:?}"
            );
        }
    }
}
