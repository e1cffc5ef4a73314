//! Bytes as lower-case hexadecimal digits, and back.

/// Two digits a byte.
pub fn encode(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Exactly `N` bytes, or nothing. Takes digits of either case.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_and_other_text_is_refused() {
        let bytes: [u8; 256] = std::array::from_fn(|index| index.to_le_bytes()[0]);
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(encode(&[0x0f, 0xa0]), "0fa0");
        assert_eq!(decode("0FA0"), Some([0x0f, 0xa0]));
        for text in ["", "0", "0fa", "0fa00", "0fag", "0fa\u{e9}"] {
            assert_eq!(decode::<2>(text), None, "{text}");
        }
    }
}
