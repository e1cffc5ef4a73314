//! Random vocabularies and texts.

use fastrand::Rng;
use muser_text::VocabularyData;
use std::collections::BTreeMap;

/// The names that the random vocabularies use, one of each way of cutting words.
const PRE_TOKENIZERS: [&str; 9] =
    ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "dbrx", "glm4", "gpt-4o", "tekken"];

/// GGUF's number of a normal token.
pub const NORMAL: i32 = 1;
/// GGUF's number of a control token.
pub const CONTROL: i32 = 3;
/// GGUF's number of a user-defined token.
pub const USER_DEFINED: i32 = 4;
/// GGUF's number of an unknown token.
pub const UNKNOWN: i32 = 2;
/// GGUF's number of a byte token.
pub const BYTE: i32 = 6;

/// Byte-level spelling of each byte, found independently of the crate: printable Latin-1 as it is, the others counted
/// up from U+0100.
pub fn byte_spellings() -> Vec<char> {
    let mut next = 0x100u32;
    let spell = |byte: u8| {
        let c = char::from(byte);
        if !c.is_control() && !c.is_whitespace() && byte != 0xad {
            return c;
        }
        next += 1;
        char::from_u32(next - 1).expect("below U+0200")
    };
    (0..=u8::MAX).map(spell).collect()
}

/// The 256 byte tokens with ids in the order of the bytes, no merges, and no roles.
pub fn bytes_only(pre: &str) -> VocabularyData {
    VocabularyData {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: byte_spellings().into_iter().map(String::from).collect(),
        raw_tokens: BTreeMap::new(),
        token_types: Some(vec![NORMAL; 256]),
        scores: None,
        merges: Vec::new(),
        bos: None,
        eos: None,
        eot: None,
        eom: None,
        unknown: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
    }
}

/// Adds a token and gives its id.
pub fn add_token(data: &mut VocabularyData, text: &str, kind: i32) -> u32 {
    data.tokens.push(text.to_owned());
    data.token_types.get_or_insert_default().push(kind);
    u32::try_from(data.tokens.len() - 1).expect("a small vocabulary")
}

/// A vocabulary with up to 40 merges over a few bytes, in no sensible order, and some special tokens.
pub fn vocabulary(random: &mut Rng) -> VocabularyData {
    let mut data = bytes_only(random.choice(PRE_TOKENIZERS).expect("not empty"));
    random.shuffle(&mut data.tokens);
    let mut parts: Vec<String> = ["a", "b", "Ġ", "Ċ", "Ã", "©", "1"].map(str::to_owned).to_vec();
    for _ in 0..random.usize(..=40) {
        let [left, right] = [(); 2].map(|()| random.choice(&parts).expect("not empty").clone());
        let joined = format!("{left}{right}");
        if joined.chars().count() <= 9 {
            data.merges.push(format!("{left} {right}"));
            if !data.tokens.contains(&joined) {
                add_token(&mut data, &joined, NORMAL);
                parts.push(joined);
            }
        }
    }
    random.shuffle(&mut data.merges);
    for spelling in ["<|end|>", "<a>", "ab a", "é\n", "bé"] {
        match random.u8(..4) {
            0 => {
                add_token(&mut data, spelling, CONTROL);
            }
            1 => {
                add_token(&mut data, spelling, USER_DEFINED);
            }
            _ => {}
        }
    }
    data
}

/// True if the vocabulary's own tokenizer composes text (Unicode's NFC).
pub fn composes(data: &VocabularyData) -> bool {
    matches!(data.pre.as_deref(), Some("qwen2" | "qwen35"))
}

/// A text of up to `length_max` pieces: mostly those of which the random vocabularies make tokens.
pub fn text(random: &mut Rng, length_max: usize) -> String {
    let pieces =
        ["a", "b", "ab", "é", " ", "  ", "\n", "\r\n", "1", "½", "'s", "'LL", "!", "\u{301}", "🦙", "<|end|>", "<a>"];
    let mut text = String::new();
    for _ in 0..random.usize(..=length_max) {
        match random.u8(..10) {
            0 => text.push(random.char(..)),
            _ => text.push_str(random.choice(pieces).expect("not empty")),
        }
    }
    text
}
