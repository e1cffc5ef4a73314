//! Tokens to text as a client sees it: whole characters only, cut at stop strings, each token given with its text.

use std::collections::VecDeque;

use muser_text::{ControlTokens, EmptyStopString, StopStrings, StreamDecoder, Tokenizer};

use muser_engine::engine::ChosenToken;

/// The text of one answer while it grows.
#[derive(Debug)]
pub struct AnswerText {
    decoder: StreamDecoder,
    stops: StopStrings,
    /// Bytes of text that the tokens so far have made, held back or not.
    made: usize,
    /// Bytes of text given out.
    given: usize,
    /// Tokens of which no text was given out yet, with the place where theirs begins.
    held: VecDeque<(usize, ChosenToken)>,
}

/// Final text, and the tokens whose text begins in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// The tokens.
    pub tokens: Vec<ChosenToken>,
    /// For each token, the byte of the text where its own begins.
    starts: Vec<usize>,
}

impl AnswerText {
    /// An answer at its beginning.
    ///
    /// # Errors
    /// If a stop string is empty.
    pub fn new(stops: Vec<String>) -> Result<Self, EmptyStopString> {
        let decoder = StreamDecoder::new(ControlTokens::Hide);
        Ok(Self { decoder, stops: StopStrings::new(stops)?, made: 0, given: 0, held: VecDeque::new() })
    }

    /// Takes a token of `tokenizer`. Gives what is certain now, and the place of the stop string that ended the text.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: ChosenToken) -> (Piece, Option<usize>) {
        let text = self.decoder.push(tokenizer, token.token).expect("the model and its tokenizer have one size");
        self.held.push_back((self.made, token));
        self.made += text.len();
        let (text, stopped) = self.stops.push(&text);
        (self.give(text), stopped)
    }

    /// Ends an answer that no stop string ended: the rest of its text. A character that was cut short is left out; its
    /// tokens are not.
    pub fn finish(&mut self) -> Piece {
        let text = self.stops.finish();
        let mut piece = self.give(text);
        let end = piece.text.len();
        for (_, token) in self.held.drain(..) {
            piece.tokens.push(token);
            piece.starts.push(end);
        }
        piece
    }

    fn give(&mut self, text: String) -> Piece {
        let before = self.given;
        self.given += text.len();
        let begun = self.held.iter().take_while(|(start, _)| *start < self.given).count();
        let mut piece = Piece { text, ..Piece::default() };
        for (start, token) in self.held.drain(..begun) {
            piece.tokens.push(token);
            // It is held still, so its text did not begin in what was given out before.
            piece.starts.push(start - before);
        }
        piece
    }
}

impl Piece {
    /// True if it has neither text nor tokens.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }

    /// The tokens, each with the byte of the text where its own begins.
    pub fn tokens_with_starts(&self) -> impl Iterator<Item = (usize, &ChosenToken)> {
        self.starts.iter().copied().zip(&self.tokens)
    }

    /// Adds what comes after it.
    pub fn append(&mut self, more: Self) {
        self.starts.extend(more.starts.iter().map(|start| self.text.len() + start));
        self.text.push_str(&more.text);
        self.tokens.extend(more.tokens);
    }
}
