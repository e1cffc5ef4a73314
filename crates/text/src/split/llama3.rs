//! The words of Llama 3, of Qwen, which takes one digit at a time and of late counts marks as letters, and of GPT-4o and
//! Tekken, which take letters their own way ([`super::cased`]), put a slash among the newlines after symbols, and have
//! no word that is a contraction alone:
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|`
//! ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
//!
//! Source: the pattern in the models' published `tokenizer.json`; the first alternative that matches wins.

use super::char_class::{CharClass, class_of};
use super::{cased, contraction_of_any_case, first_char_len, leading, white_space};

/// One pattern of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Llama3Rules {
    /// The longest word of number characters.
    pub(super) digits_max: usize,
    /// True if `\p{M}` counts as a letter.
    pub(super) marks_join_letters: bool,
    /// Effect of letter case.
    pub(super) case: Case,
}

/// Effect of letter case on word ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// None.
    Ignored,
    /// A word ends before a capital that follows a small letter.
    CutsWords,
    /// The same, and a contraction belongs to the letters before it.
    CutsWordsAfterContractions,
}

impl Llama3Rules {
    /// Bytes of the first word of `text`, which must not be empty.
    pub(super) fn first_word(self, text: &str) -> usize {
        let contracted = if self.case == Case::Ignored { contraction_of_any_case(text) } else { 0 };
        if contracted > 0 {
            return contracted;
        }
        let letters = match self.case {
            Case::Ignored => self.letters(text),
            Case::CutsWords => cased::letters(text),
            Case::CutsWordsAfterContractions => cased::letters_and_contraction(text),
        };
        if letters > 0 {
            return letters;
        }
        let numbers = self.numbers(text);
        if numbers > 0 {
            return numbers;
        }
        let symbols = self.symbols(text);
        if symbols > 0 {
            return symbols;
        }
        let spaces = leading(text, |class| class == CharClass::Space);
        match text[..spaces].rfind(['\r', '\n']) {
            Some(last_newline) => last_newline + 1,
            None => white_space(text),
        }
    }

    /// `[^\r\n\p{L}\p{N}]?\p{L}+`.
    fn letters(self, text: &str) -> usize {
        let Some(first) = text.chars().next() else { return 0 };
        let class = class_of(first);
        if matches!(first, '\r' | '\n') || class == CharClass::Number {
            return 0;
        }
        let before = if self.is_letter(class) { 0 } else { first_char_len(text) };
        match leading(&text[before..], |class| self.is_letter(class)) {
            0 => 0,
            run => before + run,
        }
    }

    /// `\p{N}{1,3}`. Looks no further than the word, so that a long run of digits is not read again for each.
    fn numbers(self, text: &str) -> usize {
        let digits = text.chars().take(self.digits_max).take_while(|&c| class_of(c) == CharClass::Number);
        digits.map(char::len_utf8).sum()
    }

    /// ` ?[^\s\p{L}\p{N}]+[\r\n]*`, with a slash among the newlines where case matters.
    fn symbols(self, text: &str) -> usize {
        let after_space = text.strip_prefix(' ').unwrap_or(text);
        let run = leading(after_space, |class| self.is_symbol(class));
        if run == 0 {
            return 0;
        }
        let after = match self.case {
            Case::Ignored => after_space[run..].trim_start_matches(['\r', '\n']),
            Case::CutsWords | Case::CutsWordsAfterContractions => {
                after_space[run..].trim_start_matches(['\r', '\n', '/'])
            }
        };
        text.len() - after.len()
    }

    fn is_letter(self, class: CharClass) -> bool {
        class == CharClass::Letter || (self.marks_join_letters && class == CharClass::Mark)
    }

    fn is_symbol(self, class: CharClass) -> bool {
        class == CharClass::Other || (!self.marks_join_letters && class == CharClass::Mark)
    }
}
