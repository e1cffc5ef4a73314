//! Search for many texts at once, in time that does not depend on their number (Aho and Corasick).

/// Texts to be searched for.
#[derive(Debug)]
pub(super) struct Patterns {
    nodes: Vec<Node>,
    count: usize,
}

/// State of the search: the longest end of what was read that begins a pattern.
#[derive(Debug, Default)]
struct Node {
    /// States after one more byte.
    next: Vec<(u8, usize)>,
    /// State of the longest proper end of this one.
    shorter: usize,
    /// Bytes of the longest pattern that ends here, and of which patterns it is one.
    longest: usize,
    pattern: Option<usize>,
    /// Nearest state on the way over `shorter` that ends a pattern itself.
    ends_too: usize,
}

/// Patterns that were found.
#[derive(Debug)]
pub(super) struct Seen {
    nodes: Vec<bool>,
}

impl Node {
    fn after(&self, byte: u8) -> Option<usize> {
        self.next.iter().find(|(next, _)| *next == byte).map(|(_, to)| *to)
    }
}

impl Patterns {
    /// Patterns of which none is empty; of equal ones the first counts.
    pub(super) fn new<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Self {
        let mut nodes = vec![Node::default()];
        let mut count = 0;
        for (index, pattern) in patterns.into_iter().enumerate() {
            count = index + 1;
            let mut at = 0;
            for byte in pattern.bytes() {
                at = nodes[at].after(byte).unwrap_or_else(|| {
                    let fresh = nodes.len();
                    nodes[at].next.push((byte, fresh));
                    nodes.push(Node::default());
                    fresh
                });
            }
            if at > 0 && nodes[at].pattern.is_none() {
                (nodes[at].pattern, nodes[at].longest) = (Some(index), pattern.len());
            }
        }
        let mut patterns = Self { nodes, count };
        patterns.link();
        patterns
    }

    /// Links states with their shorter ones, the states nearest to the start first.
    fn link(&mut self) {
        let mut level: Vec<usize> = self.nodes[0].next.iter().map(|(_, to)| *to).collect();
        while !level.is_empty() {
            let mut deeper = Vec::new();
            for at in level {
                let next = self.nodes[at].next.clone();
                let shorter = self.nodes[at].shorter;
                self.nodes[at].longest = self.nodes[at].longest.max(self.nodes[shorter].longest);
                let ends = self.nodes[shorter].pattern.is_some();
                self.nodes[at].ends_too = if ends { shorter } else { self.nodes[shorter].ends_too };
                for (byte, to) in next {
                    self.nodes[to].shorter = self.step(shorter, byte);
                    deeper.push(to);
                }
            }
            level = deeper;
        }
    }

    fn step(&self, mut at: usize, byte: u8) -> usize {
        loop {
            match self.nodes[at].after(byte) {
                Some(to) => return to,
                None if at == 0 => return 0,
                None => at = self.nodes[at].shorter,
            }
        }
    }

    /// Calls `visit` with each place in `text` that ends a pattern, and the bytes of the longest one there.
    pub(super) fn ends(&self, text: &str, mut visit: impl FnMut(usize, usize)) {
        let mut at = 0;
        for (index, byte) in text.bytes().enumerate() {
            at = self.step(at, byte);
            if self.nodes[at].longest > 0 {
                visit(index + 1, self.nodes[at].longest);
            }
        }
    }

    /// True if a pattern is in `text`.
    pub(super) fn is_in(&self, text: &str) -> bool {
        let mut at = 0;
        text.bytes().any(|byte| {
            at = self.step(at, byte);
            self.nodes[at].longest > 0
        })
    }

    /// Marks in `seen` what `text` has.
    pub(super) fn see(&self, text: &str, seen: &mut Seen) {
        let mut at = 0;
        for byte in text.bytes() {
            at = self.step(at, byte);
            seen.nodes[at] = true;
        }
    }

    /// Nothing seen yet.
    pub(super) fn unseen(&self) -> Seen {
        Seen { nodes: vec![false; self.nodes.len()] }
    }

    /// Flags of the patterns that were seen, by pattern index.
    pub(super) fn seen(&self, seen: &Seen) -> Vec<bool> {
        let mut found = vec![false; self.count];
        let mut passed = vec![false; self.nodes.len()];
        for start in (0..self.nodes.len()).filter(|&at| seen.nodes[at]) {
            let mut at = start;
            // Each state is passed once, from whichever state it was reached.
            while at > 0 && !std::mem::replace(&mut passed[at], true) {
                if let Some(pattern) = self.nodes[at].pattern {
                    found[pattern] = true;
                }
                at = self.nodes[at].ends_too;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// All that `Patterns` tells, by looking for each pattern at each place.
    fn assert_same_as_one_by_one(patterns: &[String], text: &str) {
        let searched = Patterns::new(patterns.iter().map(String::as_str));
        let mut ends = Vec::new();
        searched.ends(text, |end, bytes| ends.push((end, bytes)));
        let longest = |end: usize| patterns.iter().filter(move |p| text.as_bytes()[..end].ends_with(p.as_bytes()));
        let expected = (1..=text.len()).filter_map(|end| longest(end).map(|p| (end, p.len())).max());
        assert_eq!(ends, expected.collect::<Vec<_>>(), "{patterns:?} in {text:?}");
        assert_eq!(searched.is_in(text), !ends.is_empty());
        let mut seen = searched.unseen();
        searched.see(text, &mut seen);
        let first = |index: usize| patterns[..index].iter().all(|other| *other != patterns[index]);
        let expected = (0..patterns.len()).map(|index| first(index) && text.contains(&patterns[index]));
        assert_eq!(searched.seen(&seen), expected.collect::<Vec<_>>(), "{patterns:?} in {text:?}");
    }

    #[test]
    fn patterns_are_found_where_one_by_one_finds_them() {
        let letters = ["a", "b", "c", "é", "<|"];
        for seed in 0..2000 {
            let mut random = Rng::with_seed(seed);
            let text = |random: &mut Rng, most: usize| -> String {
                (0..random.usize(1..=most)).map(|_| *random.choice(&letters).unwrap()).collect()
            };
            let patterns: Vec<String> = (0..random.usize(0..8)).map(|_| text(&mut random, 4)).collect();
            assert_same_as_one_by_one(&patterns, &text(&mut random, 20));
        }
    }
}
