//! Text from tokens that arrive one by one. A character may be spread over several tokens; its bytes are held back
//! until it is whole, so that no reader sees half of it.

use crate::tokenizer::{ControlTokens, TokenOutOfRange, Tokenizer};

/// Turns a stream of bytes into text, whole characters at a time.
///
/// All text given out, with that of [`Self::finish`], is [`String::from_utf8_lossy`] of all bytes put in, however they
/// were divided: bytes that can be no part of a character become U+FFFD as soon as that is certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utf8Stream {
    /// The start of a character of which more may come: at most three bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// A stream at its beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more bytes; gives the text that is certain now and was not given before.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        while let Err(error) = std::str::from_utf8(rest) {
            let (valid, after) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            rest = after;
            // Without a length, the end of the bytes is the start of a character.
            let Some(wrong) = error.error_len() else { break };
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[wrong..];
        }
        if let Ok(valid) = std::str::from_utf8(rest) {
            text.push_str(valid);
            rest = &[];
        }
        self.held = rest.to_vec();
        text
    }

    /// Ends the stream: U+FFFD if a character was cut short, else nothing. The stream is at its beginning again.
    pub fn finish(&mut self) -> String {
        let cut_short = !std::mem::take(&mut self.held).is_empty();
        if cut_short { char::REPLACEMENT_CHARACTER.to_string() } else { String::new() }
    }

    /// The bytes held back: the start of a character, at most three bytes.
    pub fn held(&self) -> &[u8] {
        &self.held
    }
}

/// Turns a stream of token ids into text; see [`Utf8Stream`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamDecoder {
    controls: ControlTokens,
    /// True before the first token of a context.
    at_start: bool,
    utf8: Utf8Stream,
}

impl StreamDecoder {
    /// A stream that continues a context, as what a model generates does. `controls` says what control tokens give.
    pub fn new(controls: ControlTokens) -> Self {
        Self { controls, at_start: false, utf8: Utf8Stream::new() }
    }

    /// A stream of a context from its start: gives what [`Tokenizer::detokenize`] gives.
    pub fn at_start(controls: ControlTokens) -> Self {
        Self { at_start: true, ..Self::new(controls) }
    }

    /// Takes one more token of `tokenizer`; gives the text that is certain now and was not given before.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token. The stream is as it was before.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenOutOfRange> {
        let bytes = tokenizer.token_bytes(id, self.controls)?;
        let at_start = std::mem::take(&mut self.at_start);
        let shortened = if at_start && tokenizer.prefixes_space() { bytes.strip_prefix(b" ") } else { None };
        Ok(self.utf8.push(shortened.unwrap_or(bytes)))
    }

    /// Ends the stream: U+FFFD if a character was cut short, else nothing. What follows continues the context.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }

    /// The bytes held back: the start of a character, at most three bytes.
    pub fn held(&self) -> &[u8] {
        self.utf8.held()
    }
}
