//! Vocabularies that must be refused, and what is made of odd ones that need not be.

use crate::random::{CONTROL, NORMAL, add_token, bytes_only};
use muser_text::{ControlTokens, Specials, Tokenizer, VocabularyData, VocabularyError};

/// Refusal of the smallest good vocabulary after `change`.
fn refusal(change: impl FnOnce(&mut VocabularyData)) -> VocabularyError {
    let mut data = bytes_only("smollm");
    change(&mut data);
    match Tokenizer::new(data) {
        Ok(_) => panic!("accepted"),
        Err(error) => error,
    }
}

fn merge(merge: &str) -> VocabularyError {
    refusal(|data| data.merges = vec!["a b".to_owned(), merge.to_owned()])
}

#[test]
fn the_smallest_vocabulary_is_accepted() {
    let tokenizer = Tokenizer::new(bytes_only("smollm")).expect("a good vocabulary");
    assert_eq!(tokenizer.token_count(), 256);
    assert_eq!(tokenizer.encode("é", Specials::AsText), [0xc3, 0xa9]);
}

#[test]
fn unknown_names_are_refused_with_those_that_are_known() {
    let error = refusal(|data| data.model = "bert".to_owned());
    assert_eq!(error, VocabularyError::UnknownModel { model: "bert".to_owned() });
    assert!(error.to_string().contains("`bert`") && error.to_string().contains("gpt2"), "{error}");
    let error = refusal(|data| data.pre = Some("bloom".to_owned()));
    assert_eq!(error, VocabularyError::UnknownPreTokenizer { pre: "bloom".to_owned() });
    assert!(error.to_string().contains("`bloom`") && error.to_string().contains("smollm, "), "{error}");
    // llama.cpp's `default` is a pattern of its own, kept for files that forgot to say which one they need.
    assert!(matches!(
        refusal(|data| data.pre = Some("default".to_owned())),
        VocabularyError::UnknownPreTokenizer { .. }
    ));
    assert_eq!(refusal(|data| data.pre = None), VocabularyError::MissingPreTokenizer);
}

#[test]
fn token_types_must_be_known_and_as_many_as_the_tokens() {
    let error = refusal(|data| data.token_types = Some(vec![NORMAL; 255]));
    assert_eq!(error, VocabularyError::TokenTypeCount { tokens: 256, types: 255 });
    let error = refusal(|data| {
        add_token(data, "x", 7);
    });
    assert_eq!(error, VocabularyError::UnknownTokenType { id: 256, value: 7 });
    let error = refusal(|data| {
        add_token(data, "<0x1>", 6);
    });
    assert_eq!(error, VocabularyError::MalformedByteToken { id: 256, text: "<0x1>".to_owned() });
}

#[test]
fn a_role_must_be_a_token_of_the_vocabulary() {
    let error = refusal(|data| data.eot = Some(256));
    assert_eq!(error, VocabularyError::RoleOutOfRange { role: "eot", id: 256, tokens: 256 });
    assert_eq!(refusal(|data| data.add_bos = Some(true)), VocabularyError::MissingBos);
}

#[test]
fn a_merge_must_be_two_tokens_that_join_to_a_third() {
    assert!(matches!(merge("ab"), VocabularyError::MergeTokenMissing { index: 0, .. }));
    let mut with_ab = bytes_only("smollm");
    add_token(&mut with_ab, "ab", NORMAL);
    for (wrong, error) in [
        ("", VocabularyError::MalformedMerge { index: 1, merge: String::new() }),
        (" ", VocabularyError::MalformedMerge { index: 1, merge: " ".to_owned() }),
        ("a ", VocabularyError::MalformedMerge { index: 1, merge: "a ".to_owned() }),
        ("ab", VocabularyError::MalformedMerge { index: 1, merge: "ab".to_owned() }),
        ("ab c", VocabularyError::MergeTokenMissing { index: 1, text: "abc".to_owned() }),
        ("a b c", VocabularyError::MergeTokenMissing { index: 1, text: "ab c".to_owned() }),
    ] {
        let mut data = with_ab.clone();
        data.merges = vec!["a b".to_owned(), wrong.to_owned()];
        assert_eq!(Tokenizer::new(data).err(), Some(error), "{wrong:?}");
    }
}

#[test]
fn a_merge_must_not_arrive_at_a_control_token() {
    let error = refusal(|data| {
        add_token(data, "ab", CONTROL);
        data.merges.push("a b".to_owned());
    });
    assert_eq!(error, VocabularyError::MergeTokenMissing { index: 0, text: "ab".to_owned() });
}

#[test]
fn special_tokens_have_a_longest_spelling() {
    let error = refusal(|data| {
        add_token(data, &"x".repeat(513), CONTROL);
    });
    assert_eq!(error, VocabularyError::SpecialTooLong { id: 256, bytes: 513, max: 512 });
}

#[test]
fn printable_ascii_must_have_tokens_and_other_bytes_may_be_missing() {
    assert_eq!(refusal(|data| data.tokens[0x7e] = "~~".to_owned()), VocabularyError::MissingByte { byte: 0x7e });
    assert_eq!(refusal(|data| data.tokens.clear()), VocabularyError::TokenTypeCount { tokens: 0, types: 256 });
    let empty = refusal(|data| (data.tokens, data.token_types) = (Vec::new(), None));
    assert_eq!(empty, VocabularyError::MissingByte { byte: b'\n' });
    let mut data = bytes_only("smollm");
    for byte in [0x04, 0xf1, 0xff] {
        data.tokens[byte] = format!("unused{byte}");
    }
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    // 0xFF is missing too, but no text has it.
    assert_eq!(tokenizer.missing_bytes(), [0x04, 0xf1]);
    assert_eq!(tokenizer.encode("a\u{4}b", Specials::AsText), [97, 98]);
}

#[test]
fn a_missing_byte_keeps_its_neighbours_from_merging() {
    let mut data = bytes_only("smollm");
    data.tokens[0x04] = "unused".to_owned();
    let ab = add_token(&mut data, "ab", NORMAL);
    data.merges.push("a b".to_owned());
    data.pre = Some("llama-bpe".to_owned());
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.encode("ab", Specials::AsText), [ab]);
    assert_eq!(tokenizer.encode("a\u{4}b", Specials::AsText), [97, 98]);
}

#[test]
fn of_two_tokens_spelled_alike_text_becomes_the_lower_and_both_decode() {
    let mut data = bytes_only("smollm");
    let twin = add_token(&mut data, "a", NORMAL);
    let controls = [(); 2].map(|()| add_token(&mut data, "<x>", CONTROL));
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.encode("a<x>", Specials::Parse), [97, controls[0]]);
    assert_eq!(tokenizer.token_bytes(twin, ControlTokens::Hide), Ok(b"a".as_slice()));
    assert_eq!(tokenizer.token_bytes(controls[1], ControlTokens::Show), Ok(b"<x>".as_slice()));
}

#[test]
fn of_two_equal_merges_the_first_counts() {
    let mut data = bytes_only("smollm");
    let [_, bc] = ["ab", "bc"].map(|text| add_token(&mut data, text, NORMAL));
    data.merges = ["b c", "a b", "b c"].map(str::to_owned).to_vec();
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.encode("abc", Specials::AsText), [97, bc]);
}

#[test]
fn a_spelling_outside_the_byte_alphabet_stands_for_itself() {
    let mut data = bytes_only("smollm");
    let id = add_token(&mut data, "▁x", NORMAL);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.token_bytes(id, ControlTokens::Hide), Ok("▁x".as_bytes()));
}

#[test]
fn generation_ends_with_named_ids_and_with_control_tokens_known_for_it() {
    let mut data = bytes_only("smollm");
    add_token(&mut data, "</s>", NORMAL);
    let turn = add_token(&mut data, "<end_of_turn>", CONTROL);
    let end = add_token(&mut data, "<|end|>", CONTROL);
    add_token(&mut data, "<|start|>", CONTROL);
    data.eos = Some(7);
    let tokenizer = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!(tokenizer.end_of_generation_ids(), [7, turn, end]);
    // With these two, `<|end|>` closes a message and the turn goes on.
    let [back, call] = ["<|return|>", "<|call|>"].map(|text| add_token(&mut data, text, CONTROL));
    let tokenizer = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert_eq!(tokenizer.end_of_generation_ids(), [7, turn, back, call]);
    data.eot = Some(end);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.end_of_generation_ids(), [7, turn, end, back, call]);
}
