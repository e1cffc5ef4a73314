//! Text that ends where one of some strings appears. A string may be spread over several pieces of text; what may be
//! its beginning is held back, so that no reader sees a part of it.

/// A stop string without characters, which would stop every text before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index} is empty")]
pub struct EmptyStopString {
    /// Index in the list.
    pub index: usize,
}

/// Cuts a stream of text at the first stop string that becomes complete in it.
///
/// All text given out, with that of [`Self::finish`], is the text put in up to where that stop string begins, or all
/// of it if none appears, however it was divided. Of strings that become complete with the same byte, the longest
/// counts. Costs a few steps per byte and stop string, however alike text and strings are.
#[derive(Clone, Debug)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// The end of the text so far that is the beginning of a stop string: shorter than the longest of them.
    held: String,
    /// The stop string that ended the text.
    matched: Option<usize>,
}

impl StopStrings {
    /// A stream at its beginning. Without stop strings, all text goes through as it comes.
    ///
    /// # Errors
    /// [`EmptyStopString`] if one has no characters.
    pub fn new(strings: Vec<String>) -> Result<Self, EmptyStopString> {
        if let Some(index) = strings.iter().position(String::is_empty) {
            return Err(EmptyStopString { index });
        }
        let patterns = strings.into_iter().map(|string| Pattern::new(string.into_bytes())).collect();
        Ok(Self { patterns, held: String::new(), matched: None })
    }

    /// Takes more text. Gives the text that is certain now and was not given before, and the index of the stop string
    /// that has ended the text, if one has. After that, further text is dropped.
    pub fn push(&mut self, text: &str) -> (String, Option<usize>) {
        if self.matched.is_some() {
            return (String::new(), self.matched);
        }
        let before = self.held.len();
        self.held.push_str(text);
        for at in before..self.held.len() {
            let byte = self.held.as_bytes()[at];
            let mut longest: Option<(usize, usize)> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.advance(byte) && longest.is_none_or(|(_, bytes)| pattern.bytes.len() > bytes) {
                    longest = Some((index, pattern.bytes.len()));
                }
            }
            if let Some((index, bytes)) = longest {
                self.matched = Some(index);
                let mut kept = std::mem::take(&mut self.held);
                kept.truncate(at + 1 - bytes);
                return (kept, self.matched);
            }
        }
        // A stop string begins with a whole character, so what begins like one does too.
        let held_bytes = self.patterns.iter().map(|pattern| pattern.agreed).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - held_bytes);
        (std::mem::replace(&mut self.held, held), None)
    }

    /// Ends the text: what was held back, since no stop string became of it. The stream is at its beginning again.
    pub fn finish(&mut self) -> String {
        self.matched = None;
        self.patterns.iter_mut().for_each(|pattern| pattern.agreed = 0);
        std::mem::take(&mut self.held)
    }
}

/// A stop string, and how much of it the text now ends with; found as Knuth, Morris and Pratt do.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each byte, the length of the longest shorter beginning of `bytes` that `bytes` up to and with it ends with.
    fallback: Vec<usize>,
    /// The length of the longest beginning of `bytes` that the text ends with.
    agreed: usize,
}

impl Pattern {
    /// `bytes` are at least one.
    fn new(bytes: Vec<u8>) -> Self {
        let mut pattern = Self { fallback: vec![0; bytes.len()], bytes, agreed: 0 };
        for at in 1..pattern.bytes.len() {
            // The string is the text here, from its second byte.
            pattern.advance(pattern.bytes[at]);
            pattern.fallback[at] = pattern.agreed;
        }
        pattern.agreed = 0;
        pattern
    }

    /// Takes the next byte of the text; true if the string is complete with it. Not called after that.
    fn advance(&mut self, byte: u8) -> bool {
        while self.agreed > 0 && self.bytes[self.agreed] != byte {
            self.agreed = self.fallback[self.agreed - 1];
        }
        self.agreed += usize::from(self.bytes[self.agreed] == byte);
        self.agreed == self.bytes.len()
    }
}
