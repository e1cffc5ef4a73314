//! The classes of characters that decide where words end, as of Unicode 15.1.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// Character class in the splitting rules. The classes do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CharClass {
    /// General category L.
    Letter,
    /// General category N: digits, and also fractions, Roman numerals and the like.
    Number,
    /// General category M: marks that combine with the letter before them.
    Mark,
    /// The property `White_Space`.
    Space,
    /// Everything else: punctuation, symbols, controls, unassigned.
    Other,
}

/// The class of `c`.
pub(super) fn class_of(c: char) -> CharClass {
    match c {
        'a'..='z' | 'A'..='Z' => CharClass::Letter,
        ' ' | '\t'..='\r' => CharClass::Space,
        '0'..='9' => CharClass::Number,
        '\0'..='\x7f' => CharClass::Other,
        _ if c.is_whitespace() => CharClass::Space,
        _ => match c.general_category_group() {
            GeneralCategoryGroup::Letter => CharClass::Letter,
            GeneralCategoryGroup::Number => CharClass::Number,
            GeneralCategoryGroup::Mark => CharClass::Mark,
            _ => CharClass::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(class: CharClass) -> usize {
        ('\0'..=char::MAX).filter(|&c| class_of(c) == class).count()
    }

    #[test]
    fn the_classes_are_those_of_unicode_15_1() {
        assert_eq!(unicode_properties::UNICODE_VERSION, (15, 1, 0));
        let counts = [CharClass::Letter, CharClass::Number, CharClass::Mark, CharClass::Space].map(count);
        assert_eq!(counts, [136_726, 1831, 2450, 25]);
    }

    #[test]
    fn the_short_cut_for_ascii_agrees_with_the_table() {
        for c in '\0'..='\x7f' {
            let from_table = match c.general_category_group() {
                _ if c.is_whitespace() => CharClass::Space,
                GeneralCategoryGroup::Letter => CharClass::Letter,
                GeneralCategoryGroup::Number => CharClass::Number,
                GeneralCategoryGroup::Mark => CharClass::Mark,
                _ => CharClass::Other,
            };
            assert_eq!(class_of(c), from_table, "{c:?}");
        }
    }
}
