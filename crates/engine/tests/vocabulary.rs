//! Tokenizers out of files that others run and that are not quite as the format says.

use muser_engine::load_tokenizer;
use muser_text::{ControlTokens, Specials, Tokenizer};
use muser_weights::gguf::{Gguf, GgufWriter, Value};

/// Becomes the bytes FF FE in a file: no UTF-8.
const RAW: &str = "??";

/// The tokenizer of a file with a byte for each character of ASCII, `more` tokens behind them, and these keys.
fn tokenizer(more: &[&str], keys: &[(&str, Value<'_>)]) -> Tokenizer {
    let set = |writer: &mut GgufWriter| keys.iter().for_each(|(key, value)| writer.set(key, *value).unwrap());
    tokenizer_with(more, set)
}

/// As [`tokenizer`], with these types of tokens.
fn tokenizer_of_types(more: &[&str], types: &[i32]) -> Tokenizer {
    tokenizer_with(more, |writer| writer.set_array("tokenizer.ggml.token_type", types).unwrap())
}

fn tokenizer_with(more: &[&str], set: impl FnOnce(&mut GgufWriter)) -> Tokenizer {
    let bytes: Vec<String> = (0..128u32)
        .map(|byte| match byte {
            0x21..0x7f => char::from_u32(byte),
            0x7f => char::from_u32(0x121),
            _ => char::from_u32(0x100 + byte),
        })
        .map(|spelling| spelling.unwrap().to_string())
        .collect();
    let tokens: Vec<&str> = bytes.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let mut writer = GgufWriter::new();
    writer.set("tokenizer.ggml.model", Value::String(b"gpt2")).unwrap();
    writer.set("tokenizer.ggml.pre", Value::String(b"smollm")).unwrap();
    writer.set_array("tokenizer.ggml.tokens", &tokens).unwrap();
    set(&mut writer);
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| Ok(())).unwrap();
    for at in 0..file.len() - 1 {
        if file[at..].starts_with(RAW.as_bytes()) {
            file[at..at + 2].copy_from_slice(b"\xff\xfe");
        }
    }
    load_tokenizer(&Gguf::parse(&file).unwrap().metadata(), tokens.len()).unwrap()
}

#[test]
fn a_padding_token_that_does_not_exist_is_no_reason_to_refuse() {
    for absent in [Value::U32(u32::MAX), Value::I32(-1), Value::U32(128)] {
        let tokenizer = tokenizer(&[], &[("tokenizer.ggml.padding_token_id", absent)]);
        assert_eq!(tokenizer.encode("ab", Specials::AsText), [97, 98]);
    }
}

#[test]
fn a_token_that_is_not_utf8_keeps_its_bytes_and_no_text_becomes_it() {
    for kind in [1, 3, 4, 5] {
        let mut types = vec![1; 128];
        types.extend([kind, kind, 1]);
        let tokenizer = tokenizer_of_types(&[RAW, RAW, "\u{fffd}\u{fffd}"], &types);
        assert_eq!(tokenizer.token_count(), 131);
        for id in [128, 129] {
            assert_eq!(tokenizer.token_bytes(id, ControlTokens::Show), Ok(b"\xff\xfe".as_slice()), "{kind}");
            assert_eq!(tokenizer.token_spelling(id), Ok("\u{fffd}\u{fffd}"));
        }
        for specials in [Specials::AsText, Specials::Parse] {
            let ids = tokenizer.encode("a\u{fffd}\u{fffd}?", specials);
            assert!(ids.iter().all(|&id| id < 128), "{ids:?}");
        }
    }
}
