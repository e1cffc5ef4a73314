//! Tokenizers out of files that others run and that are not quite as the format says.

use muser_engine::load_tokenizer;
use muser_text::{Specials, Tokenizer};
use muser_weights::gguf::{Gguf, GgufWriter, Value};

/// The tokenizer of a file with a byte for each character of ASCII, `more` tokens behind them, and these keys.
fn tokenizer(more: &[&str], keys: &[(&str, Value<'_>)]) -> Tokenizer {
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
    for (key, value) in keys {
        writer.set(key, *value).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file, |_, _| Ok(())).unwrap();
    load_tokenizer(&Gguf::parse(&file).unwrap().metadata(), tokens.len()).unwrap()
}

#[test]
fn a_padding_token_that_does_not_exist_is_no_reason_to_refuse() {
    for absent in [Value::U32(u32::MAX), Value::I32(-1), Value::U32(128)] {
        let tokenizer = tokenizer(&[], &[("tokenizer.ggml.padding_token_id", absent)]);
        assert_eq!(tokenizer.encode("ab", Specials::AsText), [97, 98]);
    }
}
