//! A byte-level BPE tokenizer small enough for any model: all bytes, a few merges, one token that ends a text.

use super::tensors::GenerateError;
use muser_weights::gguf::{GgufWriter, Value};

/// Tokens every vocabulary has: the end of a text and 256 bytes.
const TOKENS_MIN: u32 = 257;
const END_OF_TEXT: &str = "<|endoftext|>";
/// GGUF's token types.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;
/// Merges in order of rank; each side is a byte or an earlier merge. `Ġ` stands for a space.
const MERGES: [(&str, &str); 14] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġt", "he"),
    ("i", "n"),
    ("a", "n"),
    ("an", "d"),
    ("Ġ", "a"),
    ("Ġ", "and"),
    ("e", "r"),
    ("o", "n"),
    ("r", "e"),
    ("in", "g"),
    ("Ġ", "s"),
    ("l", "l"),
];
const CHAT_TEMPLATE: &str = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}\
     {% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

/// Adds the tokenizer of a vocabulary of `vocab` tokens: the end of a text, the bytes, as many merges as have room, and
/// unused tokens to fill up.
pub(super) fn set_keys(writer: &mut GgufWriter, vocab: u32) -> Result<(), GenerateError> {
    let room = vocab.checked_sub(TOKENS_MIN).ok_or(GenerateError::VocabTooSmall { vocab, min: TOKENS_MIN })?;
    let merges = || MERGES.iter().zip(0..room).map(|(merge, _)| merge);
    let bytes = byte_characters().map(String::from);
    let mut tokens: Vec<String> = std::iter::once(END_OF_TEXT.into()).chain(bytes).collect();
    tokens.extend(merges().map(|(left, right)| format!("{left}{right}")));
    let used = tokens.len();
    tokens.extend((0..vocab).skip(used).map(|id| format!("[PAD{id}]")));
    let kind = |id| match id {
        0 => CONTROL,
        _ if id < used => NORMAL,
        _ => UNUSED,
    };
    let kinds: Vec<i32> = (0..tokens.len()).map(kind).collect();
    let merges: Vec<String> = merges().map(|(left, right)| format!("{left} {right}")).collect();
    writer.set("tokenizer.ggml.model", Value::String(b"gpt2"))?;
    writer.set("tokenizer.ggml.pre", Value::String(b"smollm"))?;
    writer.set_array("tokenizer.ggml.tokens", &tokens)?;
    writer.set_array("tokenizer.ggml.token_type", &kinds)?;
    writer.set_array("tokenizer.ggml.merges", &merges)?;
    writer.set("tokenizer.ggml.bos_token_id", Value::U32(0))?;
    writer.set("tokenizer.ggml.eos_token_id", Value::U32(0))?;
    writer.set("tokenizer.ggml.add_bos_token", Value::Bool(false))?;
    writer.set("tokenizer.chat_template", Value::String(CHAT_TEMPLATE.as_bytes()))?;
    Ok(())
}

/// The characters that stand for the 256 bytes, in the order GPT-2 numbers them: first the bytes that are printable in
/// Latin-1, as themselves, then the others as the characters from U+0100 on.
pub(crate) fn byte_characters() -> impl Iterator<Item = char> {
    let others = (0..=u8::MAX).filter(|byte| !is_printable(*byte)).count();
    (0..=u8::MAX).filter(|byte| is_printable(*byte)).map(char::from).chain(('\u{100}'..).take(others))
}

/// The character that stands for `byte`.
pub(crate) fn byte_character(byte: u8) -> char {
    let others_before = (0..byte).filter(|byte| !is_printable(*byte)).count();
    if is_printable(byte) { byte.into() } else { ('\u{100}'..).nth(others_before).unwrap_or_default() }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let characters: Vec<char> = byte_characters().collect();
        let distinct: std::collections::BTreeSet<_> = characters.iter().collect();
        assert_eq!((characters.len(), distinct.len()), (256, 256));
        // The space is the 33rd of the bytes without a character of their own.
        assert_eq!((characters[0], characters[255], characters[188 + 32]), ('!', '\u{143}', 'Ġ'));
    }

    #[test]
    fn both_sides_of_every_merge_are_tokens_of_lower_rank() {
        let mut known: Vec<String> = byte_characters().map(String::from).collect();
        for (left, right) in MERGES {
            assert!(known.iter().any(|token| token == left), "{left}");
            assert!(known.iter().any(|token| token == right), "{right}");
            known.push(format!("{left}{right}"));
        }
    }
}
