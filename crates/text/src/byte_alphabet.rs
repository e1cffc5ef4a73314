//! The 256 characters in which byte-level vocabularies spell bytes.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68, in order, are U+0100 to U+0143. So a space
//! is spelled `Ġ` and a newline `Ċ`. Source: Radford et al. 2019 (GPT-2), the published encoder's byte table.

/// How many bytes have no printable Latin-1 character, and so are spelled from U+0100 on.
const SHIFTED: usize = 68;

/// The character that spells `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    if stands_for_itself(byte) {
        return char::from(byte);
    }
    let earlier = (0..byte).filter(|&b| !stands_for_itself(b)).count();
    // At most 67 bytes come earlier, so this is a character of Latin Extended-A.
    char::from_u32(0x100 + u32::try_from(earlier).unwrap_or(0)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Reads spellings back. Built once, because going from character to byte needs a table.
pub(crate) struct ByteAlphabet {
    /// The bytes spelled U+0100, U+0101 and so on.
    shifted: [u8; SHIFTED],
}

impl ByteAlphabet {
    /// The alphabet; there is only one.
    pub(crate) fn new() -> Self {
        let mut shifted = [0; SHIFTED];
        let unprintable = (0..=u8::MAX).filter(|&b| !stands_for_itself(b));
        for (slot, byte) in shifted.iter_mut().zip(unprintable) {
            *slot = byte;
        }
        Self { shifted }
    }

    /// The byte that `c` spells, if it spells one.
    pub(crate) fn byte_of(&self, c: char) -> Option<u8> {
        match u8::try_from(u32::from(c)) {
            Ok(byte) => stands_for_itself(byte).then_some(byte),
            Err(_) => {
                let index = usize::try_from(u32::from(c) - 0x100).ok()?;
                self.shifted.get(index).copied()
            }
        }
    }

    /// The bytes that `spelling` spells, or `None` if one of its characters spells no byte.
    pub(crate) fn bytes_of(&self, spelling: &str) -> Option<Vec<u8>> {
        spelling.chars().map(|c| self.byte_of(c)).collect()
    }
}

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_which_reads_back_as_that_byte() {
        let alphabet = ByteAlphabet::new();
        for byte in 0..=u8::MAX {
            assert_eq!(alphabet.byte_of(char_of(byte)), Some(byte));
        }
    }

    #[test]
    fn the_spellings_are_the_published_ones() {
        assert_eq!((char_of(b'a'), char_of(b' '), char_of(b'\n'), char_of(0)), ('a', 'Ġ', 'Ċ', 'Ā'));
        assert_eq!((char_of(0x7f), char_of(0xa0), char_of(0xad)), ('\u{121}', '\u{142}', '\u{143}'));
    }

    #[test]
    fn characters_outside_the_alphabet_spell_nothing() {
        let alphabet = ByteAlphabet::new();
        for c in [' ', '\n', '\u{7f}', '\u{a0}', '\u{ad}', '\u{144}', '▁', '🦙'] {
            assert_eq!(alphabet.byte_of(c), None, "{c:?}");
        }
        assert_eq!(alphabet.bytes_of("aĠb"), Some(b"a b".to_vec()));
        assert_eq!(alphabet.bytes_of("a b"), None);
    }
}
