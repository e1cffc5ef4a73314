//! Words of each family, checked against the published patterns by hand.

use std::collections::HashMap;

use super::*;

fn words(pre: &str, text: &str) -> Vec<String> {
    let mut words = Vec::new();
    PreTokenizer::named(pre).expect("a supported name").each_word(text, |word| words.push(word.to_owned()));
    words
}

#[test]
fn gpt2_keeps_one_space_with_the_next_word_and_leaves_the_rest() {
    assert_eq!(words("gpt-2", "a  b\n\n c   "), ["a", " ", " b", "\n\n", " c", "   "]);
    assert_eq!(words("gpt-2", "\t\tx 12 x1"), ["\t", "\t", "x", " 12", " x", "1"]);
    assert_eq!(words("gpt-2", " "), [" "]);
}

#[test]
fn gpt2_cuts_lower_case_contractions_only() {
    assert_eq!(words("gpt-2", "it's we'll 'tis DON'T"), ["it", "'s", " we", "'ll", " '", "tis", " DON", "'", "T"]);
    assert_eq!(words("gpt-2", "'"), ["'"]);
}

#[test]
fn a_combining_mark_is_a_word_of_its_own_unless_marks_join_letters() {
    assert_eq!(words("gpt-2", "e\u{301}a"), ["e", "\u{301}", "a"]);
    assert_eq!(words("qwen2", "e\u{301}a"), ["e", "\u{301}a"]);
    assert_eq!(words("qwen35", "e\u{301}a"), ["e\u{301}a"]);
}

#[test]
fn smollm_cuts_out_every_number_character_before_anything_else() {
    assert_eq!(words("smollm", "a 12½ b"), ["a", " ", "1", "2", "½", " b"]);
    assert_eq!(words("smollm", "a  1"), ["a", "  ", "1"]);
    assert_eq!(words("gpt-2", "a  1"), ["a", " ", " 1"]);
    assert_eq!(words("smollm", "'1s"), ["'", "1", "s"]);
}

#[test]
fn llama3_takes_any_one_character_with_the_letters_after_it() {
    assert_eq!(words("llama-bpe", "(word) \tx\nb"), ["(word", ")", " ", "\tx", "\n", "b"]);
    assert_eq!(words("llama-bpe", "--x"), ["--", "x"]);
}

#[test]
fn llama3_takes_three_digits_and_qwen_one() {
    assert_eq!(words("llama-bpe", "a 1234567"), ["a", " ", "123", "456", "7"]);
    assert_eq!(words("qwen2", "a 123"), ["a", " ", "1", "2", "3"]);
}

#[test]
fn llama3_ends_a_white_space_word_after_the_last_newline() {
    assert_eq!(words("llama-bpe", "a \n \n  b"), ["a", " \n \n", " ", " b"]);
    assert_eq!(words("llama-bpe", "a!\r\n\nb"), ["a", "!\r\n\n", "b"]);
    assert_eq!(words("llama-bpe", "a  "), ["a", "  "]);
}

#[test]
fn llama3_contractions_ignore_case() {
    assert_eq!(words("llama-bpe", "DON'T we'Ll 'x"), ["DON", "'T", " we", "'Ll", " '", "x"]);
}

#[test]
fn gpt4o_and_tekken_end_a_word_before_a_capital_that_follows_a_small_letter() {
    for pre in ["gpt-4o", "llama4", "tekken"] {
        assert_eq!(words(pre, "helloWorld ABCdef (xY"), ["hello", "World", " ABCdef", " (", "x", "Y"]);
        assert_eq!(words(pre, "ABC DEF"), ["ABC", " DEF"]);
    }
}

#[test]
fn gpt4o_and_tekken_count_marks_as_letters_of_either_case() {
    for pre in ["gpt-4o", "llama4", "tekken"] {
        assert_eq!(words(pre, "हिन्दी में"), ["हिन्दी", " में"]);
        assert_eq!(words(pre, "e\u{301}a E\u{301}TE"), ["e\u{301}a", " E\u{301}", "TE"]);
        assert_eq!(words(pre, "éABC ABéCDéEF"), ["é", "ABC", " ABé", "CDé", "EF"]);
        assert_eq!(words(pre, "\u{301}ABC\n!\u{301}x"), ["\u{301}", "ABC", "\n", "!\u{301}x"]);
    }
}

#[test]
fn words_are_those_of_the_published_patterns() {
    let goldens: HashMap<String, Vec<Vec<String>>> =
        serde_json::from_str(include_str!("../../tests/golden/words.json")).unwrap();
    assert_eq!(goldens.len(), 5);
    for (pre, texts) in goldens {
        assert!(texts.len() > 150);
        for cut in texts {
            assert_eq!(words(&pre, &cut.concat()), cut, "{pre}");
        }
    }
}

#[test]
fn gpt4o_keeps_contractions_with_the_letters_before_them_and_tekken_cuts_them_anywhere() {
    assert_eq!(words("gpt-4o", "DON'T we'Ll 's"), ["DON'T", " we'Ll", " '", "s"]);
    assert_eq!(words("tekken", "DON'T"), ["DON", "'T"]);
    assert_eq!(words("gpt-4o", "1234 !//\n/a"), ["123", "4", " !//\n/", "a"]);
    assert_eq!(words("tekken", "12"), ["1", "2"]);
}

#[test]
fn the_words_of_any_text_are_together_the_text() {
    let mut random = fastrand::Rng::with_seed(5);
    let letters =
        ['a', 'Z', '\'', 's', 'l', ' ', ' ', '\n', '\r', '\t', '1', '½', '!', '-', 'é', '\u{301}', '\u{a0}', '🦙'];
    for _ in 0..5000 {
        let text: String = (0..random.usize(..24)).map(|_| random.choice(letters).unwrap()).collect();
        for (name, _) in NAMES {
            let words = words(name, &text);
            assert!(words.iter().all(|word| !word.is_empty()), "{name}: {text:?}");
            assert_eq!(words.concat(), text, "{name}");
        }
    }
}

#[test]
fn no_name_is_listed_twice() {
    for (index, (name, _)) in NAMES.iter().enumerate() {
        assert_eq!(NAMES.iter().position(|(other, _)| other == name), Some(index));
    }
}
