//! Properties of every vocabulary and text.

use crate::random::{self, CONTROL, NORMAL, USER_DEFINED, add_token, bytes_only};
use crate::{golden, naive};
use fastrand::Rng;
use muser_text::{ControlTokens, Specials, TokenKind, Tokenizer};
use std::slice::from_ref;
use unicode_normalization::UnicodeNormalization;

#[test]
fn merging_gives_what_the_step_by_step_definition_gives() {
    for seed in 0..3000 {
        let mut random = Rng::with_seed(seed);
        let mut data = random::vocabulary(&mut random);
        // Under this name a stretch of one letter is one word, so that only merging is compared.
        data.pre = Some("gpt-2".to_owned());
        let letters = ["a", "b", "é"];
        let word: String = (0..random.usize(..30)).map(|_| *random.choice(&letters).unwrap()).collect();
        let expected = naive::encode_word(&data, &word);
        data.token_types = Some(vec![NORMAL; data.tokens.len()]);
        let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
        assert_eq!(tokenizer.encode(&word, Specials::AsText), expected, "seed {seed}: {word:?}");
    }
}

#[test]
fn whatever_is_encoded_decodes_to_itself() {
    let shipped = golden::tokenizer();
    for seed in 0..4000 {
        let mut random = Rng::with_seed(seed);
        let data = random::vocabulary(&mut random);
        let composes = random::composes(&data);
        let made = Tokenizer::new(data).expect("a good vocabulary");
        let text = random::text(&mut random, 40);
        for (tokenizer, composes) in [(&shipped, false), (&made, composes)] {
            for specials in [Specials::AsText, Specials::Parse] {
                let ids = tokenizer.encode(&text, specials);
                let decoded = tokenizer.decode(&ids, ControlTokens::Show).expect("its own ids");
                let decoded = String::from_utf8(decoded).expect("whole characters");
                // Specials are found before the rest is composed, so that they may end within what would be composed.
                let form = |text: &str| if composes { text.nfc().collect() } else { text.to_owned() };
                assert_eq!(form(&decoded), form(&text), "seed {seed}, {specials:?}");
            }
        }
    }
}

#[test]
fn text_never_becomes_a_control_token_unless_the_caller_allows_it() {
    let mut parsed = 0;
    for seed in 0..4000 {
        let mut random = Rng::with_seed(seed);
        let tokenizer = Tokenizer::new(random::vocabulary(&mut random)).expect("a good vocabulary");
        let text = random::text(&mut random, 40);
        let controls = |specials| {
            let ids = tokenizer.encode(&text, specials);
            ids.into_iter().filter(|&id| tokenizer.token_kind(id) == Ok(TokenKind::Control)).count()
        };
        assert_eq!(controls(Specials::AsText), 0, "seed {seed}: {text:?}");
        parsed += controls(Specials::Parse);
    }
    assert!(parsed > 1000, "the texts hold too few control tokens to show anything: {parsed}");
}

#[test]
fn control_tokens_are_parsed_exactly_where_they_lie_within_a_span() {
    let mut data = bytes_only("gpt-2");
    let control = add_token(&mut data, "<|a|>", CONTROL);
    let defined = add_token(&mut data, "<|a|>!", USER_DEFINED);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    let is_parsed =
        |start: usize, end: usize| tokenizer.encode_spans("x<|a|>y", from_ref(&(start..end))).contains(&control);
    assert!(is_parsed(1, 6) && is_parsed(0, 7) && is_parsed(0, 99));
    assert!(!is_parsed(0, 5) && !is_parsed(2, 7) && !is_parsed(0, 0));
    assert_eq!(tokenizer.encode_spans("<|a|><|a|>", &[0..1, 1..5, 5..10]), [60, 124, 97, 124, 62, control]);
    assert_eq!(tokenizer.encode_spans("<|a|>!<|a|>!", from_ref(&(0..5))), [defined, defined]);
}

#[test]
fn spans_change_nothing_but_which_control_tokens_are_parsed() {
    let mut parsed = 0;
    for seed in 0..3000 {
        let mut random = Rng::with_seed(seed);
        let data = random::vocabulary(&mut random);
        let composes = random::composes(&data);
        let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
        let text = random::text(&mut random, 40);
        let text = if composes { text.nfc().collect() } else { text };
        let mut cuts: Vec<usize> = (0..6).map(|_| random.usize(..=text.len())).collect();
        cuts.sort_unstable();
        let spans = [cuts[0]..cuts[1], cuts[2]..cuts[3], cuts[4]..cuts[5]];
        let mut at = 0;
        for id in tokenizer.encode_spans(&text, &spans) {
            let end = at + tokenizer.token_bytes(id, ControlTokens::Show).expect("its own id").len();
            if tokenizer.token_kind(id) == Ok(TokenKind::Control) {
                assert!(spans.iter().any(|span| span.start <= at && end <= span.end), "seed {seed}: {id} in {text:?}");
                parsed += 1;
            }
            at = end;
        }
        assert_eq!(at, text.len());
        assert_eq!(tokenizer.encode_spans(&text, &[]), tokenizer.encode(&text, Specials::AsText));
        assert_eq!(tokenizer.encode_spans(&text, from_ref(&(0..text.len()))), tokenizer.encode(&text, Specials::Parse));
    }
    assert!(parsed > 300, "the texts hold too few control tokens to show anything: {parsed}");
}

#[test]
fn a_word_that_is_a_control_token_as_a_whole_stays_text() {
    let mut data = bytes_only("llama-bpe");
    let control = add_token(&mut data, "stop", CONTROL);
    let word = add_token(&mut data, "Ġgo", NORMAL);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.encode("stop go", Specials::Parse), [control, word]);
    let as_text = tokenizer.encode("stop go", Specials::AsText);
    assert_eq!(as_text, [115, 116, 111, 112, word]);
}

#[test]
fn user_defined_tokens_are_always_recognised_and_plain_ones_that_look_special_never() {
    let mut data = bytes_only("smollm");
    let defined = add_token(&mut data, "<tool>", USER_DEFINED);
    add_token(&mut data, "<s>", NORMAL);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    for specials in [Specials::AsText, Specials::Parse] {
        assert_eq!(tokenizer.encode("a<tool>", specials), [97, defined]);
        assert_eq!(tokenizer.encode("<s>", specials), [60, 115, 62]);
    }
    assert_eq!(tokenizer.token_bytes(defined, ControlTokens::Hide), Ok(b"<tool>".as_slice()));
}

#[test]
fn a_user_defined_token_is_not_what_the_bytes_spell_that_it_looks_like() {
    // As text this token is the letter é, two bytes. In the byte alphabet the same letter spells the byte 0xE9.
    let mut data = bytes_only("smollm");
    data.tokens[0xe9] = "é!".to_owned();
    let defined = add_token(&mut data, "é", USER_DEFINED);
    let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(tokenizer.encode("é", Specials::AsText), [defined]);
    assert_eq!(tokenizer.missing_bytes(), [0xe9]);
    assert_eq!(tokenizer.encode("\u{9e80}", Specials::AsText), [0xba, 0x80]);
}

#[test]
fn bos_comes_before_a_prompt_exactly_once() {
    let mut data = bytes_only("llama-bpe");
    let bos = add_token(&mut data, "<|begin|>", CONTROL);
    data.bos = Some(bos);
    let tokenizer = Tokenizer::new(data.clone()).expect("a good vocabulary");
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode_prompt("a", Specials::Parse), [bos, 97]);
    assert_eq!(tokenizer.encode_prompt("<|begin|>a", Specials::Parse), [bos, 97]);
    assert_eq!(tokenizer.encode_prompt("", Specials::Parse), [bos]);
    assert_eq!(tokenizer.encode("a", Specials::Parse), [97]);
    data.add_bos = Some(false);
    let silent = Tokenizer::new(data).expect("a good vocabulary");
    assert_eq!(silent.encode_prompt("a", Specials::Parse), [97]);
}

/// A step that looks at the whole rest of the text once per word or per merge would take minutes to hours here.
#[test]
fn very_long_words_and_runs_do_not_take_quadratic_time() {
    let tokenizers = ["gpt-2", "smollm", "llama-bpe", "qwen35", "gpt-4o"].map(|pre| {
        let mut data = bytes_only(pre);
        for merge in ["a a", "aa aa", "aaaa aaaa", "Ġ Ġ", "1 1", "a b"] {
            add_token(&mut data, &merge.replace(' ', ""), NORMAL);
            data.merges.push(merge.to_owned());
        }
        add_token(&mut data, &"<a".repeat(250), CONTROL);
        Tokenizer::new(data).expect("a good vocabulary")
    });
    let long = [("aab", 1 << 20)];
    let pieces = ["a", " ", "1", "\n", " \n", "!", "'s", "\u{301}", "é", "🦙", "<a"].map(|piece| (piece, 1 << 17));
    for (piece, bytes) in long.into_iter().chain(pieces) {
        let text = piece.repeat(bytes / piece.len());
        for tokenizer in &tokenizers {
            let ids = tokenizer.encode(&text, Specials::Parse);
            assert_eq!(tokenizer.decode(&ids, ControlTokens::Show).as_deref(), Ok(text.as_bytes()), "{piece:?}");
        }
    }
}

#[test]
fn vocabularies_of_qwen_compose_text_and_others_do_not() {
    let tokenizer = |pre: &str| {
        let mut data = bytes_only(pre);
        data.merges = vec!["Ã ©".to_owned()];
        let letter = add_token(&mut data, "Ã©", NORMAL);
        let control = add_token(&mut data, "<|e\u{301}|>", CONTROL);
        (Tokenizer::new(data).expect("a good vocabulary"), letter, control)
    };
    for pre in ["qwen2", "qwen35", "deepseek-r1-qwen", "f2llmv2"] {
        let (tokenizer, letter, control) = tokenizer(pre);
        let ids = |text: &str| tokenizer.encode(text, Specials::Parse);
        assert_eq!(ids("e\u{301}"), [letter], "{pre}");
        assert_eq!(ids("e\u{301}x"), ids("éx"));
        assert_eq!(ids("\u{1112}\u{1161}\u{11ab}"), ids("한"));
        assert_eq!(ids("a\u{301}\u{323}"), ids("ạ\u{301}"), "marks are put in order");
        // What is composed already, and what has no composed form, stays as it is.
        assert_eq!(
            tokenizer.decode(&ids("é x\u{301} ﬁ"), ControlTokens::Hide).as_deref(),
            Ok("é x\u{301} ﬁ".as_bytes())
        );
        // The spelling of a special token is looked for in the text as it was written.
        assert_eq!(ids("e\u{301}<|e\u{301}|>"), [letter, control]);
        assert!(!ids("<|é|>").contains(&control));
    }
    for pre in ["llama-bpe", "smollm", "tekken", "stablelm2"] {
        let (tokenizer, letter, _) = tokenizer(pre);
        assert!(!tokenizer.encode("e\u{301}", Specials::AsText).contains(&letter), "{pre}");
    }
}
