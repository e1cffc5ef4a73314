//! Any vocabulary is refused or works: what it encodes decodes to the text, and text never becomes a control token.
//!
//! Run in this folder: `cargo +nightly fuzz run tokenizer -- -max_len=4096 -rss_limit_mb=1000`

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use muser_text::{ControlTokens, Specials, StreamDecoder, TokenKind, Tokenizer, VocabularyData};

/// A good vocabulary of bytes, with additions of any kind, and a text.
#[derive(Arbitrary, Debug)]
struct Input {
    sentence_piece: bool,
    pre: u8,
    /// Further tokens, their types and scores.
    tokens: Vec<(String, u8, f32)>,
    merges: Vec<(u16, u16)>,
    roles: [Option<u16>; 5],
    flags: [Option<bool>; 3],
    text: String,
    spans: Vec<(u16, u16)>,
}

/// The names of all ways of cutting words, in the order of `muser_text::pre_tokenizer_names`.
fn pre(index: u8) -> Option<String> {
    let names = muser_text::pre_tokenizer_names();
    let names: Vec<&str> = names.split(", ").collect();
    names.get(usize::from(index) % (names.len() + 1)).map(|name| (*name).to_owned())
}

fn byte_token(byte: u8, sentence_piece: bool, next: &mut u32) -> String {
    if sentence_piece {
        return format!("<0x{byte:02X}>");
    }
    let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
    *next += u32::from(!printable);
    char::from_u32(if printable { byte.into() } else { *next }).map(String::from).unwrap_or_default()
}

fn vocabulary(input: &Input) -> VocabularyData {
    let mut next = 0xff;
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| byte_token(byte, input.sentence_piece, &mut next)).collect();
    let mut types = vec![if input.sentence_piece { 6 } else { 1 }; 256];
    let mut scores = vec![0.0; 256];
    let space = ("\u{2581}".to_owned(), 1, -1.0);
    for (text, kind, score) in input.tokens.iter().chain([&space]) {
        tokens.push(text.clone());
        types.push(i32::from(kind % 8));
        scores.push(*score);
    }
    let mut merges = Vec::new();
    for &(left, right) in &input.merges {
        let [left, right] = [left, right].map(|index| tokens[usize::from(index) % tokens.len()].clone());
        merges.push(format!("{left} {right}"));
        tokens.push(left + &right);
        types.push(1);
        scores.push(-2.0);
    }
    let [bos, eos, eot, eom, unknown] = input.roles.map(|role| role.map(u32::from));
    let [add_bos, add_eos, add_space_prefix] = input.flags;
    VocabularyData {
        model: if input.sentence_piece { "llama" } else { "gpt2" }.to_owned(),
        pre: pre(input.pre),
        tokens,
        raw_tokens: BTreeMap::new(),
        token_types: Some(types),
        scores: Some(scores),
        merges,
        bos,
        eos,
        eot,
        eom,
        unknown,
        add_bos,
        add_eos,
        add_space_prefix,
    }
}

fuzz_target!(|input: Input| {
    let Ok(tokenizer) = Tokenizer::new(vocabulary(&input)) else { return };
    let missing = tokenizer.missing_bytes();
    let text = &input.text;
    let ids = tokenizer.encode(text, Specials::AsText);
    for &id in &ids {
        let kind = tokenizer.token_kind(id).expect("its own id");
        // A character that cannot be spelled may become the unknown token.
        assert!(kind != TokenKind::Control || Some(id) == tokenizer.unknown(), "{id} in {ids:?}");
    }
    let decoded = tokenizer.detokenize(&ids, ControlTokens::Show).expect("its own ids");
    let special = |id: &u32| tokenizer.token_kind(*id) != Ok(TokenKind::Normal);
    let qwen = ["qwen2", "qwen35", "deepseek-r1-qwen", "f2llmv2"];
    let may_compose = !text.is_ascii() && pre(input.pre).is_some_and(|pre| qwen.contains(&pre.as_str()));
    if missing.is_empty() && !may_compose && (!input.sentence_piece || !ids.iter().any(special)) {
        let readable = if input.sentence_piece { text.replace('\u{2581}', " ") } else { text.clone() };
        assert_eq!(String::from_utf8_lossy(&decoded), readable);
    }
    let mut stream = StreamDecoder::at_start(ControlTokens::Show);
    let mut streamed: String = ids.iter().map(|&id| stream.push(&tokenizer, id).expect("its own id")).collect();
    streamed += &stream.finish();
    assert_eq!(streamed, String::from_utf8_lossy(&decoded));
    let spans: Vec<_> = input.spans.iter().map(|&(start, end)| usize::from(start)..usize::from(end)).collect();
    let _ids = tokenizer.encode_spans(text, &spans);
    let prompt = tokenizer.encode_prompt(text, Specials::Parse);
    assert!(!tokenizer.adds_bos() || prompt.first() == tokenizer.bos().as_ref());
});
