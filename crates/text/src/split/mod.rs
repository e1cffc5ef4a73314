//! Cutting text into words before merging: no merge crosses a word boundary.
//!
//! Vocabularies name their way of cutting (`tokenizer.ggml.pre`). The published definitions are regular expressions;
//! here each is a function that finds the first word of a text, which is all an expression without look-behind needs.

mod cased;
mod char_class;
mod gpt2;
mod llama3;

use char_class::{CharClass, class_of};
use llama3::{Case, Llama3Rules};

/// Splitting rules of a `tokenizer.ggml.pre` name, and the settings that come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreTokenizer {
    splitter: Splitter,
    /// A word that is a token as a whole becomes that token, whatever the merges would give.
    pub(crate) whole_words_first: bool,
    /// True if a prompt starts with BOS when the vocabulary does not say.
    pub(crate) adds_bos: bool,
    /// True if text is composed (Unicode's NFC) before it is cut, as the vocabulary's own tokenizer does.
    pub(crate) composes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Splitter {
    Gpt2,
    /// Every number character is a word; the GPT-2 rules cut each stretch between them, seeing nothing outside it.
    DigitsThenGpt2,
    Llama3(Llama3Rules),
}

const GPT2: PreTokenizer =
    PreTokenizer { splitter: Splitter::Gpt2, whole_words_first: false, adds_bos: false, composes: false };
const SMOLLM: PreTokenizer = PreTokenizer { splitter: Splitter::DigitsThenGpt2, ..GPT2 };
const fn llama3(digits_max: usize) -> Llama3Rules {
    Llama3Rules { digits_max, marks_join_letters: false, case: Case::Ignored }
}

const DBRX: PreTokenizer = PreTokenizer { splitter: Splitter::Llama3(llama3(3)), ..GPT2 };
const GLM4: PreTokenizer = PreTokenizer { whole_words_first: true, ..DBRX };
const LLAMA3: PreTokenizer = PreTokenizer { adds_bos: true, ..GLM4 };
const ONE_DIGIT: PreTokenizer = PreTokenizer { splitter: Splitter::Llama3(llama3(1)), ..GPT2 };
/// Vocabularies of Qwen, whose tokenizer composes text first. The others with its pattern are not known to.
const QWEN2: PreTokenizer = PreTokenizer { composes: true, ..ONE_DIGIT };
const QWEN35: PreTokenizer =
    PreTokenizer { splitter: Splitter::Llama3(Llama3Rules { marks_join_letters: true, ..llama3(1) }), ..QWEN2 };
const GPT4O: PreTokenizer = PreTokenizer {
    splitter: Splitter::Llama3(Llama3Rules { case: Case::CutsWordsAfterContractions, ..llama3(3) }),
    ..GPT2
};
const TEKKEN: PreTokenizer = PreTokenizer {
    splitter: Splitter::Llama3(Llama3Rules { case: Case::CutsWords, ..llama3(1) }),
    whole_words_first: true,
    adds_bos: true,
    composes: false,
};

/// Every supported name, grouped by what it means.
const NAMES: [(&str, PreTokenizer); 47] = [
    ("smollm", SMOLLM),
    ("starcoder", SMOLLM),
    ("refact", SMOLLM),
    ("command-r", SMOLLM),
    ("exaone", SMOLLM),
    ("codeshell", SMOLLM),
    ("minerva-7b", SMOLLM),
    ("mellum2", SMOLLM),
    ("gpt-2", GPT2),
    ("phi-2", GPT2),
    ("mpt", GPT2),
    ("olmo", GPT2),
    ("jais", GPT2),
    ("exaone4", GPT2),
    ("trillion", GPT2),
    ("granite-docling", GPT2),
    ("gigachat", GPT2),
    ("a.x-4.0", GPT2),
    ("mellum", GPT2),
    ("llama-bpe", LLAMA3),
    ("llama3", LLAMA3),
    ("llama-v3", LLAMA3),
    ("falcon3", LLAMA3),
    ("falcon-h1", LLAMA3),
    ("pixtral", LLAMA3),
    ("midm-2.0", LLAMA3),
    ("lfm2", LLAMA3),
    ("glm4", GLM4),
    ("glm5", GLM4),
    ("chatglm-bpe", DBRX),
    ("dbrx", DBRX),
    ("smaug-bpe", DBRX),
    ("qwen2", QWEN2),
    ("deepseek-r1-qwen", QWEN2),
    ("megrez", ONE_DIGIT),
    ("hunyuan", ONE_DIGIT),
    ("solar-open", ONE_DIGIT),
    ("stablelm2", ONE_DIGIT),
    ("grok-2", ONE_DIGIT),
    ("kormo", ONE_DIGIT),
    ("f2llmv2", QWEN2),
    ("qwen35", QWEN35),
    ("gpt-4o", GPT4O),
    ("llama4", GPT4O),
    ("kanana2", GPT4O),
    ("talkie", GPT4O),
    ("tekken", TEKKEN),
];

/// The supported values of `tokenizer.ggml.pre`, separated by commas.
pub fn pre_tokenizer_names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

impl PreTokenizer {
    /// Pre-tokenizer of the `tokenizer.ggml.pre` name `name`, if it is supported.
    pub(crate) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, pre)| *pre)
    }

    /// Calls `word` with each word of `text`, in order; together they are the whole text.
    pub(crate) fn each_word<'a>(&self, text: &'a str, mut word: impl FnMut(&'a str)) {
        match self.splitter {
            Splitter::Gpt2 => each_first(text, gpt2::first_word, &mut word),
            Splitter::DigitsThenGpt2 => {
                let mut rest = text;
                while !rest.is_empty() {
                    let between = leading(rest, |class| class != CharClass::Number);
                    each_first(&rest[..between], gpt2::first_word, &mut word);
                    rest = &rest[between..];
                    let (number, after) = rest.split_at(first_char_len(rest));
                    if !number.is_empty() {
                        word(number);
                    }
                    rest = after;
                }
            }
            Splitter::Llama3(rules) => each_first(text, |rest| rules.first_word(rest), &mut word),
        }
    }
}

/// Calls `word` with every word of `text`. `first_word`: the byte length of the first word of a text that is not empty;
/// at least one character, and ending between characters.
fn each_first<'a>(text: &'a str, first_word: impl Fn(&str) -> usize, word: &mut impl FnMut(&'a str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (first, after) = rest.split_at(first_word(rest));
        word(first);
        rest = after;
    }
}

/// Bytes of the longest start of `text` whose characters all have a class that `belongs`.
fn leading(text: &str, belongs: impl Fn(CharClass) -> bool) -> usize {
    leading_chars(text, |c| belongs(class_of(c)))
}

/// Bytes of the longest start of `text` whose characters all `belong`.
fn leading_chars(text: &str, belong: impl Fn(char) -> bool) -> usize {
    text.char_indices().find(|&(_, c)| !belong(c)).map_or(text.len(), |(at, _)| at)
}

/// Bytes of the first character of `text`; 0 if there is none.
fn first_char_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// Bytes of an English contraction (`'s 't 'm 'd 're 've 'll`) at the start of `text`, lower case only; 0 if none.
fn contraction(text: &[u8]) -> usize {
    match text {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => 2,
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => 3,
        _ => 0,
    }
}

/// As [`contraction()`], whatever the case; `ſ` (U+017F) is a small `s` too.
fn contraction_of_any_case(text: &str) -> usize {
    if text.starts_with("'ſ") {
        return "'ſ".len();
    }
    let lower = |index: usize| text.as_bytes().get(index).map_or(0, u8::to_ascii_lowercase);
    contraction(&[lower(0), lower(1), lower(2)])
}

/// Bytes of the white-space word at the start of `text`: a run that something follows leaves its last character to
/// the next word, unless that is its only one. 0 if `text` does not start with white space.
fn white_space(text: &str) -> usize {
    let run = leading(text, |class| class == CharClass::Space);
    let last = text[..run].chars().next_back().map_or(0, char::len_utf8);
    if run == text.len() || run == last { run } else { run - last }
}

#[cfg(test)]
mod tests;
