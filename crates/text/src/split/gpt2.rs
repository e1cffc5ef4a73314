//! The words of GPT-2:
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
//!
//! Source: Radford et al. 2019 (GPT-2), the published encoder's pattern; the first alternative that matches wins.

use super::char_class::{CharClass, class_of};
use super::{contraction, leading, white_space};

/// Bytes of the first word of `text`, which must not be empty.
pub(super) fn first_word(text: &str) -> usize {
    let contracted = contraction(text.as_bytes());
    if contracted > 0 {
        return contracted;
    }
    let after_space = text.strip_prefix(' ').unwrap_or(text);
    let space = text.len() - after_space.len();
    let run = match after_space.chars().next().map(class_of) {
        None | Some(CharClass::Space) => return white_space(text),
        Some(CharClass::Letter) => leading(after_space, |class| class == CharClass::Letter),
        Some(CharClass::Number) => leading(after_space, |class| class == CharClass::Number),
        Some(CharClass::Mark | CharClass::Other) => {
            leading(after_space, |class| matches!(class, CharClass::Mark | CharClass::Other))
        }
    };
    space + run
}
