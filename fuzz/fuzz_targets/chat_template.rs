//! Any template is refused or filled, within its limits, and messages never become control tokens.
//!
//! Run in this folder: `cargo +nightly fuzz run chat_template -- -max_len=4096 -rss_limit_mb=1000`

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use muser_text::{
    ChatOptions, ChatTemplate, ControlTokens, LocalTime, ChatMessage, TokenKind, Tokenizer, VocabularyData, encode_chat,
};
use std::sync::LazyLock;

const CONTROLS: [&str; 5] = ["<s>", "</s>", "<|a|>", "<|b|>", "[c]"];

/// The bytes, and the control tokens from 256 on.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut next = 0xff;
    let mut spell = |byte: u8| {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
        next += u32::from(!printable);
        char::from_u32(if printable { byte.into() } else { next }).expect("a letter").to_string()
    };
    let mut tokens: Vec<String> = (0..=u8::MAX).map(&mut spell).collect();
    tokens.extend(CONTROLS.map(str::to_owned));
    let mut types = vec![1; 256];
    types.extend(CONTROLS.map(|_| 3));
    let data = VocabularyData {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        raw_tokens: BTreeMap::new(),
        token_types: Some(types),
        scores: None,
        merges: Vec::new(),
        bos: Some(256),
        eos: Some(257),
        eot: None,
        eom: None,
        unknown: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
    };
    Tokenizer::new(data).expect("a good vocabulary")
});

#[derive(Arbitrary, Debug)]
struct Input {
    template: String,
    /// Pieces of a template that make sense more often than random text.
    pieces: Vec<u8>,
    messages: Vec<(bool, String)>,
    add_generation_prompt: bool,
}

const PIECES: [&str; 24] = [
    "{% for m in messages %}",
    "{% endfor %}",
    "{{ m.content }}",
    "{{ m.content | trim }}",
    "{{ m['role'] + '<|a|>' }}",
    "{{ m | tojson }}",
    "{{ messages | tojson(indent=1, ensure_ascii=true) }}",
    "{% if '<|b|>' in m.content %}",
    "{% if m.content.startswith('x') %}",
    "{% else %}",
    "{% endif %}",
    "{{ m.content.split('[c]')[-1] }}",
    "{{ m.content | upper | replace('<', '') }}",
    "{% generation %}",
    "{% endgeneration %}",
    "{{ bos_token }}",
    "<|a|>",
    "[c]",
    "{%- set x = m.content ~ '|>' -%}",
    "{{ x[1:] * 3 }}",
    "{{ strftime_now('%Y') }}",
    "{{ raise_exception(m.content) }}",
    "{{ m.content | list | join('') }}",
    "{{ m.content[::-1] }}",
];

/// True if a template with `source` may write the control token `id` itself: it names it, or has its first character, or
/// writes characters by number.
fn may_write(source: &str, id: u32) -> bool {
    let named =
        [(256, "bos_token"), (257, "eos_token")].iter().any(|&(role, name)| role == id && source.contains(name));
    let first = TOKENIZER.token_spelling(id).ok().and_then(|text| text.chars().next());
    named
        || first.is_some_and(|first| source.contains(first))
        || source.contains('\\')
        || source.contains("%c")
        || source.contains("format")
}

fuzz_target!(|input: Input| {
    let pieces: String = input.pieces.iter().map(|&piece| PIECES[usize::from(piece) % PIECES.len()]).collect();
    let source = pieces + &input.template;
    let Ok(template) = ChatTemplate::new(&source) else { return };
    let said = |(user, content): &(bool, String)| ChatMessage::new(if *user { "user" } else { "assistant" }, content);
    let messages: Vec<ChatMessage> = input.messages.iter().map(said).collect();
    let options = ChatOptions {
        add_generation_prompt: input.add_generation_prompt,
        now: Some(LocalTime::from_seconds(0)),
        ..ChatOptions::default()
    };
    let Ok(rendered) = template.render(&TOKENIZER, &messages, &options) else { return };
    let ids = rendered.encode(&TOKENIZER);
    let decoded = TOKENIZER.decode(&ids, ControlTokens::Show).expect("its own ids");
    assert_eq!(String::from_utf8_lossy(&decoded), rendered.text());
    let mut at = 0;
    for &id in &ids {
        let end = at + TOKENIZER.token_bytes(id, ControlTokens::Show).expect("its own id").len();
        if TOKENIZER.token_kind(id) == Ok(TokenKind::Control) {
            assert!(rendered.trusted().iter().any(|span| span.start <= at && end <= span.end));
            assert!(may_write(&source, id), "{id} in {ids:?}");
        }
        at = end;
    }
    let again = encode_chat(&TOKENIZER, &template, &messages, &options).expect("as before");
    assert_eq!(again, ids);
});
