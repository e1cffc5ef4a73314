//! SentencePiece vocabularies: a tiny one against what llama.cpp gives for it, and what holds for random ones.

use crate::random::{self, BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, add_token};
use crate::support;
use fastrand::Rng;
use muser_text::{ControlTokens, Specials, StreamDecoder, TokenKind, Tokenizer, VocabularyData, VocabularyError};

const GOLDENS: &str = include_str!("../golden/tiny-spm.json");
const VOCABULARY: &str = include_str!("../golden/tiny-spm-vocab.json");

fn tokenizer() -> Tokenizer {
    Tokenizer::new(support::vocabulary(VOCABULARY).expect("well-formed JSON")).expect("a good vocabulary")
}

/// `<unk>`, `<s>`, `</s>`, the bytes at 3 to 258, and the given pieces, the first of which has the highest score, with
/// the space as the last if it is not among them.
fn vocabulary(pieces: &[&str]) -> VocabularyData {
    let mut data = random::bytes_only("gpt-2");
    (data.model, data.pre, data.tokens, data.token_types) = ("llama".to_owned(), None, Vec::new(), None);
    for (text, kind) in [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)] {
        add_token(&mut data, text, kind);
    }
    for byte in 0..=u8::MAX {
        add_token(&mut data, &format!("<0x{byte:02X}>"), BYTE);
    }
    let space = Some(&"\u{2581}").filter(|space| !pieces.contains(space));
    for piece in pieces.iter().chain(space) {
        add_token(&mut data, piece, NORMAL);
    }
    let scores = (0..data.tokens.len()).map(|id| -f32::from(u16::try_from(id).expect("a small vocabulary")));
    data.scores = Some(scores.collect());
    data
}

fn refusal(change: impl FnOnce(&mut VocabularyData)) -> VocabularyError {
    let mut data = vocabulary(&["a"]);
    change(&mut data);
    Tokenizer::new(data).expect_err("accepted")
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, Specials::AsText)
}

#[test]
fn every_golden_text_has_the_ids_that_llama_cpp_gives() {
    let tokenizer = tokenizer();
    let goldens = support::goldens(GOLDENS).expect("well-formed JSON");
    assert!(goldens.plain.len() > 150 && goldens.special.len() > 150);
    for golden in &goldens.plain {
        assert_eq!(tokenizer.encode(&golden.text, Specials::AsText), golden.ids, "{:?}", golden.text);
    }
    for golden in &goldens.special {
        assert_eq!(tokenizer.encode(&golden.text, Specials::Parse), golden.ids, "{:?}", golden.text);
    }
}

#[test]
fn the_highest_score_goes_first_and_of_equal_ones_the_leftmost() {
    let mut data = vocabulary(&["bc", "ab", "aa", "a", "b", "c"]);
    data.add_space_prefix = Some(false);
    let by_score = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!(ids(&by_score, "abc"), [262, 259]);
    assert_eq!(ids(&by_score, "aaa"), [261, 262]);
    data.scores = Some(vec![-0.0; data.tokens.len()]);
    let by_place = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(ids(&by_place, "abc"), [260, 264]);
}

#[test]
fn a_character_without_a_token_becomes_its_bytes_or_else_the_unknown_token() {
    let mut data = vocabulary(&["a"]);
    data.add_space_prefix = Some(false);
    let with_bytes = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!(ids(&with_bytes, "aé"), [259, 3 + 0xc3, 3 + 0xa9]);
    data.unknown = Some(0);
    data.tokens[3 + 0xa9] = "another".to_owned();
    data.token_types.as_mut().expect("types")[3 + 0xa9] = NORMAL;
    let without = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!(without.missing_bytes(), [0xa9]);
    assert_eq!(ids(&without, "aéa"), [259, 0, 259]);
    data.unknown = None;
    assert_eq!(Tokenizer::new(data).err(), Some(VocabularyError::MissingByte { byte: 0xa9 }));
}

#[test]
fn text_follows_a_space_at_the_start_and_after_special_tokens_unless_the_file_says_no() {
    let mut data = vocabulary(&["\u{2581}a", "a", "\u{2581}"]);
    let prefixed = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!(ids(&prefixed, "a a"), [259, 259]);
    assert_eq!(prefixed.encode("a<s>a", Specials::Parse), [259, 1, 259]);
    assert!(ids(&prefixed, "").is_empty());
    assert_eq!(prefixed.detokenize(&[259, 259], ControlTokens::Hide).as_deref(), Ok(b"a a".as_slice()));
    assert_eq!(prefixed.decode(&[259, 259], ControlTokens::Hide).as_deref(), Ok(b" a a".as_slice()));
    assert_eq!(prefixed.detokenize(&[1, 259], ControlTokens::Hide).as_deref(), Ok(b" a".as_slice()));
    data.add_space_prefix = Some(false);
    let plain = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(ids(&plain, "a a"), [260, 259]);
    assert_eq!(plain.detokenize(&[259], ControlTokens::Hide).as_deref(), Ok(b" a".as_slice()));
}

#[test]
fn a_stream_from_the_start_gives_the_text_and_one_that_continues_keeps_the_space() {
    let tokenizer = Tokenizer::new(vocabulary(&["\u{2581}a", "a"])).expect("a good vocabulary");
    let streamed = |mut stream: StreamDecoder| {
        [259, 259, 3 + 0xc3, 3 + 0xa9].map(|id| stream.push(&tokenizer, id).expect("an id of this vocabulary")).concat()
    };
    assert_eq!(streamed(StreamDecoder::at_start(ControlTokens::Hide)), "a aé");
    assert_eq!(streamed(StreamDecoder::new(ControlTokens::Hide)), " a aé");
}

#[test]
fn prompts_start_with_bos_and_end_with_eos_as_the_file_says() {
    let mut data = vocabulary(&["\u{2581}a"]);
    let tokenizer = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.encode_prompt("a", Specials::AsText), [1, 259]);
    assert_eq!(tokenizer.encode_prompt("<s>a", Specials::Parse), [1, 259]);
    (data.add_bos, data.add_eos) = (Some(false), Some(true));
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.encode_prompt("a", Specials::AsText), [259, 2]);
    assert!(tokenizer.adds_eos() && !tokenizer.adds_bos());
}

/// In llama.cpp merging reaches these: text that spells a control token part by part becomes the token.
#[test]
fn merging_never_ends_in_a_control_or_a_byte_token() {
    let mut data = vocabulary(&["<", "s", ">", "<s", "0", "x", "4", "1", "<0", "<0x", "<0x4", "<0x41"]);
    data.add_space_prefix = Some(false);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(ids(&tokenizer, "<s>"), [262, 261]);
    assert_eq!(ids(&tokenizer, "<0x41>"), [270, 261]);
}

#[test]
fn a_user_defined_token_that_ends_texts_is_a_control_token() {
    let mut data = vocabulary(&["\u{2581}a"]);
    let types = data.token_types.as_mut().expect("types");
    types[2] = USER_DEFINED;
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.token_kind(2), Ok(TokenKind::Control));
    assert!(!ids(&tokenizer, "a</s>").contains(&2));
}

#[test]
fn scores_must_be_numbers_and_as_many_as_the_tokens() {
    assert_eq!(refusal(|data| data.scores = None), VocabularyError::MissingScores);
    let error = refusal(|data| data.scores = Some(vec![0.0; 260]));
    assert_eq!(error, VocabularyError::ScoreCount { tokens: 261, scores: 260 });
    let error = refusal(|data| data.scores.as_mut().expect("scores")[7] = f32::NAN);
    assert_eq!(error, VocabularyError::ScoreIsNan { id: 7 });
    let error = refusal(|data| data.tokens[259] = "a".repeat(513));
    assert_eq!(error, VocabularyError::TokenTooLong { id: 259, bytes: 513, max: 512 });
    assert_eq!(refusal(|data| data.tokens[260] = "b".to_owned()), VocabularyError::MissingByte { byte: b' ' });
    let error = refusal(|data| (data.eos, data.add_eos) = (Some(261), Some(true)));
    assert_eq!(error, VocabularyError::RoleOutOfRange { role: "eos", id: 261, tokens: 261 });
}

/// A step that looks at the whole rest of the text once per merge would take minutes here.
#[test]
fn a_text_of_a_million_bytes_does_not_take_quadratic_time() {
    let tokenizer = Tokenizer::new(vocabulary(&["aaaa", "aa", "a", "ab"])).expect("a good vocabulary");
    let text = "aab".repeat(1 << 19);
    let ids = ids(&tokenizer, &text);
    assert!(tokenizer.detokenize(&ids, ControlTokens::Hide).as_deref() == Ok(text.as_bytes()));
}

/// The definition, step by step: join the best pair of the whole text until there is none.
fn merged_by_definition(data: &VocabularyData, text: &str) -> Vec<String> {
    let scores = data.scores.as_ref().expect("scores");
    let score = |text: &str| data.tokens.iter().position(|token| token == text).map(|id| scores[id]);
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..symbols.len() {
            if let Some(score) = score(&format!("{}{}", symbols[at - 1], symbols[at]))
                && best.is_none_or(|(highest, _)| score > highest)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { return symbols };
        let right = symbols.remove(at);
        symbols[at - 1].push_str(&right);
    }
}

fn random_pieces(random: &mut Rng) -> Vec<String> {
    let mut pieces: Vec<String> = ["a", "b", "\u{2581}", "é"].map(str::to_owned).to_vec();
    for _ in 0..random.usize(..30) {
        let [left, right] = [(); 2].map(|()| random.choice(&pieces).expect("not empty").clone());
        let joined = left + &right;
        if joined.chars().count() <= 8 && !pieces.contains(&joined) {
            pieces.push(joined);
        }
    }
    random.shuffle(&mut pieces);
    pieces
}

#[test]
fn merging_gives_what_the_step_by_step_definition_gives() {
    for seed in 0..3000 {
        let mut random = Rng::with_seed(seed);
        let pieces = random_pieces(&mut random);
        let mut data = vocabulary(&pieces.iter().map(String::as_str).collect::<Vec<_>>());
        data.add_space_prefix = Some(false);
        for score in data.scores.as_mut().expect("scores") {
            *score = -f32::from(random.u8(..12));
        }
        let text: String = (0..random.usize(..30)).map(|_| *random.choice(&["a", "b", "é", " "]).unwrap()).collect();
        let expected = merged_by_definition(&data, &text.replace(' ', "\u{2581}"));
        let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
        let got: Vec<&str> = ids(&tokenizer, &text).iter().map(|&id| tokenizer.token_spelling(id).unwrap()).collect();
        assert_eq!(got, expected, "seed {seed}: {text:?}");
    }
}

#[test]
fn whatever_is_encoded_detokenizes_to_itself_and_holds_no_control_token() {
    let tiny = tokenizer();
    for seed in 0..4000 {
        let mut random = Rng::with_seed(seed);
        let pieces = random_pieces(&mut random);
        let made = Tokenizer::new(vocabulary(&pieces.iter().map(String::as_str).collect::<Vec<_>>())).expect("good");
        let text = random::text(&mut random, 40) + random.choice(["", "<s>", "</s>", "[INST]", "<unk>x"]).unwrap();
        for tokenizer in [&tiny, &made] {
            let ids = ids(tokenizer, &text);
            let decoded = tokenizer.detokenize(&ids, ControlTokens::Show).expect("its own ids");
            // A special token at the start has no space before it to take away, and there is none in these texts.
            assert_eq!(String::from_utf8(decoded), Ok(text.replace('\u{2581}', " ")), "seed {seed}");
            let steers = |id| matches!(tokenizer.token_kind(id), Ok(TokenKind::Control | TokenKind::Unknown));
            assert!(!ids.iter().any(|&id| steers(id)), "seed {seed}: {text:?}");
        }
    }
}

#[test]
fn bytes_are_found_by_their_spelling_whatever_their_type() {
    let text = "a\nb\t🦙 <0x0A>";
    let typed = Tokenizer::new(vocabulary(&["a"])).expect("a good vocabulary");
    let expected = ids(&typed, text);
    assert!(expected.contains(&(3 + 0x0a)));
    for kind in [None, Some(NORMAL), Some(5), Some(CONTROL), Some(USER_DEFINED), Some(UNKNOWN)] {
        let mut data = vocabulary(&["a"]);
        data.unknown = Some(0);
        match (kind, data.token_types.as_mut()) {
            (Some(kind), Some(types)) => types[3..3 + 256].fill(kind),
            _ => data.token_types = None,
        }
        let found = Tokenizer::new(data).expect("a good vocabulary");
        for specials in [Specials::AsText, Specials::Parse] {
            assert_eq!(found.encode(text, specials), expected, "{kind:?}");
        }
        let decoded = found.detokenize(&expected, ControlTokens::Hide).expect("its own ids");
        assert_eq!(String::from_utf8(decoded).as_deref(), Ok(text), "{kind:?}");
    }
    // Another token with the spelling of a byte that has its own is what the file says.
    let mut data = vocabulary(&["a"]);
    let other = add_token(&mut data, "<0x0A>", USER_DEFINED);
    data.scores.as_mut().expect("scores").push(0.0);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.token_kind(other), Ok(TokenKind::UserDefined));
    assert!(ids(&tokenizer, "\n").contains(&(3 + 0x0a)));
}
