//! The letters of a word in GPT-4o, Llama 4 and Tekken, where a word ends before a capital that follows a small letter:
//! `[^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?`, where `U` is any letter or mark but a small letter
//! (`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`), `W` any but a capital (`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`), and `C` an English contraction
//! of any case, which Tekken does without.
//!
//! Source: the patterns that the models' own tokenizers publish. llama.cpp's are narrower: there marks are no part of words,
//! and letters outside ASCII have no case.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::char_class::{CharClass, class_of};
use super::{contraction_of_any_case, first_char_len, leading_chars};

/// Case of a letter or a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LetterCase {
    /// Categories Lu and Lt.
    Capital,
    /// Category Ll.
    Small,
    /// Categories Lm, Lo and M: goes with either.
    Neutral,
}

/// Bytes of the letters at the start of `text` and of the one character that may stand before them; 0 if there are no
/// letters.
pub(super) fn letters(text: &str) -> usize {
    // A mark may stand before letters as any character that is no letter may, but also begin them.
    let before = match text.chars().next().map(class_of) {
        None | Some(CharClass::Letter | CharClass::Number) => 0,
        Some(_) if text.starts_with(['\r', '\n']) => return 0,
        Some(_) => first_char_len(text),
    };
    let starts = [before, 0];
    let starts = if before == 0 { &starts[..1] } else { &starts };
    let found = |word: fn(&str) -> usize| {
        let ends = starts.iter().map(|&start| (start, word(&text[start..])));
        ends.into_iter().find(|(_, length)| *length > 0).map(|(start, length)| start + length)
    };
    found(with_small_letter).or_else(|| found(with_capital)).unwrap_or(0)
}

/// As [`letters`], with the contraction that may follow them.
pub(super) fn letters_and_contraction(text: &str) -> usize {
    match letters(text) {
        0 => 0,
        length => length + contraction_of_any_case(&text[length..]),
    }
}

/// `U*W+`.
fn with_small_letter(text: &str) -> usize {
    let capitals = leading_chars(text, is_not_small);
    let small = leading_chars(&text[capitals..], is_no_capital);
    if small > 0 {
        return capitals + small;
    }
    // `W+` needs one character, and gets the last of those before that goes with either, with what stands before it.
    let last_neutral = text[..capitals].char_indices().rfind(|(_, c)| is_no_capital(*c));
    last_neutral.map_or(0, |(at, c)| at + c.len_utf8())
}

/// `U+W*`.
fn with_capital(text: &str) -> usize {
    match leading_chars(text, is_not_small) {
        0 => 0,
        capitals => capitals + leading_chars(&text[capitals..], is_no_capital),
    }
}

fn is_not_small(c: char) -> bool {
    matches!(case_of(c), Some(LetterCase::Capital | LetterCase::Neutral))
}

fn is_no_capital(c: char) -> bool {
    matches!(case_of(c), Some(LetterCase::Small | LetterCase::Neutral))
}

/// `None` for what is neither a letter nor a mark.
fn case_of(c: char) -> Option<LetterCase> {
    match c {
        'a'..='z' => Some(LetterCase::Small),
        'A'..='Z' => Some(LetterCase::Capital),
        '\0'..='\x7f' => None,
        _ => match c.general_category() {
            GeneralCategory::UppercaseLetter | GeneralCategory::TitlecaseLetter => Some(LetterCase::Capital),
            GeneralCategory::LowercaseLetter => Some(LetterCase::Small),
            GeneralCategory::ModifierLetter | GeneralCategory::OtherLetter => Some(LetterCase::Neutral),
            GeneralCategory::NonspacingMark | GeneralCategory::SpacingMark | GeneralCategory::EnclosingMark => {
                Some(LetterCase::Neutral)
            }
            _ => None,
        },
    }
}
