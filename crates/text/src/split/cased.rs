//! The letters of a word in GPT-4o, Llama 4 and Tekken, where a word ends before a capital that follows a small letter:
//! `[^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?`, where `U` is any letter but `a` to `z`, `W` any letter but `A`
//! to `Z`, and `C` an English contraction of any case, which Tekken does without.
//!
//! Source: llama.cpp's patterns. The models' own use Unicode's categories of case and count marks as letters of either.

use super::char_class::{CharClass, class_of};
use super::{contraction_of_any_case, first_char_len, leading_chars};

/// Bytes of the letters at the start of `text` and of the one character that may stand before them; 0 if there are no
/// letters.
pub(super) fn letters(text: &str) -> usize {
    let Some(first) = text.chars().next() else { return 0 };
    let before = match class_of(first) {
        CharClass::Letter => 0,
        CharClass::Number => return 0,
        _ if matches!(first, '\r' | '\n') => return 0,
        _ => first_char_len(text),
    };
    let word = &text[before..];
    let capitals = leading_chars(word, |c| is_letter(c) && !c.is_ascii_lowercase());
    let small = leading_chars(&word[capitals..], |c| is_letter(c) && !c.is_ascii_uppercase());
    if small > 0 {
        return before + capitals + small;
    }
    // `W+` needs a letter, and gets the last of the capitals that is no ASCII letter, with what stands before it.
    let last_of_both = word[..capitals].char_indices().rfind(|(_, c)| !c.is_ascii());
    match last_of_both {
        Some((at, c)) => before + at + c.len_utf8(),
        None if capitals > 0 => before + capitals,
        None => 0,
    }
}

/// As [`letters`], with the contraction that may follow them.
pub(super) fn letters_and_contraction(text: &str) -> usize {
    match letters(text) {
        0 => 0,
        length => length + contraction_of_any_case(&text[length..]),
    }
}

fn is_letter(c: char) -> bool {
    class_of(c) == CharClass::Letter
}
