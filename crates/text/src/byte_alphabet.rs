//! The 256 characters in which byte-level vocabularies spell bytes.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68, in order, are U+0100 to U+0143. So a space
//! is spelled `Ġ` and a newline `Ċ`. Source: Radford et al. 2019 (GPT-2), the published encoder's byte table.

/// The character that spells each byte.
const SPELLINGS: [char; 256] = spellings();

/// The first character that stands for a byte which is not printable.
const SHIFTED_FIRST: u32 = 0x100;

/// The character that spells `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    SPELLINGS[usize::from(byte)]
}

/// Reads spellings back. Built once, because going from character to byte needs a table.
pub(crate) struct ByteAlphabet {
    /// The bytes spelled U+0100, U+0101 and so on.
    shifted: Vec<u8>,
}

impl ByteAlphabet {
    /// The alphabet of GPT-2.
    pub(crate) fn new() -> Self {
        Self { shifted: (0..=u8::MAX).filter(|&byte| !stands_for_itself(byte)).collect() }
    }

    /// The byte that `c` spells, if it spells one.
    pub(crate) fn byte_of(&self, c: char) -> Option<u8> {
        match u8::try_from(u32::from(c)) {
            Ok(byte) => stands_for_itself(byte).then_some(byte),
            Err(_) => {
                let index = usize::try_from(u32::from(c) - SHIFTED_FIRST).ok()?;
                self.shifted.get(index).copied()
            }
        }
    }

    /// The bytes that `spelling` spells, or `None` if one of its characters spells no byte.
    pub(crate) fn bytes_of(&self, spelling: &str) -> Option<Vec<u8>> {
        spelling.chars().map(|c| self.byte_of(c)).collect()
    }
}

const fn spellings() -> [char; 256] {
    let mut spellings = ['\0'; 256];
    let mut shifted = SHIFTED_FIRST;
    let mut byte = 0u8;
    loop {
        spellings[byte as usize] = if stands_for_itself(byte) {
            byte as char
        } else {
            shifted += 1;
            // Evaluated by the compiler, so this would be an error of the build.
            char::from_u32(shifted - 1).expect("a character of Latin Extended-A")
        };
        if byte == u8::MAX {
            return spellings;
        }
        byte += 1;
    }
}

const fn stands_for_itself(byte: u8) -> bool {
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
