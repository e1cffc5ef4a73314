//! Files are not to be trusted: whatever a vocabulary says, it is refused or it works.

use crate::random;
use fastrand::Rng;
use muser_text::{ControlTokens, Specials, StreamDecoder, TokenKind, Tokenizer, VocabularyData};
use unicode_normalization::UnicodeNormalization;

/// A spelling, a merge or a name of no particular kind.
fn string(random: &mut Rng) -> String {
    let pieces = ["a", "b", " ", "  ", "Ġ", "é", "<0x41>", "<|end|>", "\0", "\u{ffff}", "🦙", "", "<unk>"];
    (0..random.usize(..5)).map(|_| *random.choice(&pieces).unwrap()).collect()
}

/// An index into a list of `length`, or just past its end.
fn index(random: &mut Rng, length: usize) -> usize {
    random.usize(..=length)
}

/// One random change to a vocabulary.
fn damage(random: &mut Rng, data: &mut VocabularyData) {
    let text = string(random);
    match random.u8(..12) {
        0 => data.merges.insert(index(random, data.merges.len()), text),
        1 => data.merges.truncate(index(random, data.merges.len())),
        2 => data.tokens.insert(index(random, data.tokens.len()), text),
        3 => data.tokens.truncate(index(random, data.tokens.len())),
        4 => data.token_types = None,
        5 => data.token_types.get_or_insert_default().push(random.i32(-1..8)),
        6 => data.add_bos = Some(random.bool()),
        7 => data.pre = Some(text).filter(|_| random.bool()),
        8 => {
            let role = Some(random.u32(..400));
            let roles = [&mut data.bos, &mut data.eos, &mut data.eot, &mut data.eom, &mut data.unknown];
            *random.choice(roles).unwrap() = role;
        }
        9 => {
            let at = index(random, data.tokens.len());
            if let Some(token) = data.tokens.get_mut(at) {
                *token = text;
            }
        }
        _ => {
            let types = data.token_types.get_or_insert_default();
            let at = index(random, types.len());
            if let Some(kind) = types.get_mut(at) {
                *kind = random.i32(-1..8);
            }
        }
    }
}

/// Everything that a caller can do with `text`, checked for what must hold.
fn use_everything(tokenizer: &Tokenizer, text: &str) {
    let missing = tokenizer.missing_bytes();
    let expressible: Vec<u8> = text.bytes().filter(|byte| !missing.contains(byte)).collect();
    for specials in [Specials::AsText, Specials::Parse] {
        let ids = tokenizer.encode(text, specials);
        let decoded = tokenizer.decode(&ids, ControlTokens::Show).expect("its own ids");
        let without_missing: Vec<u8> = decoded.iter().copied().filter(|byte| !missing.contains(byte)).collect();
        assert_eq!(without_missing, expressible);
        if specials == Specials::AsText {
            let steers = |id| matches!(tokenizer.token_kind(id), Ok(TokenKind::Control | TokenKind::Unknown) | Err(_));
            assert!(!ids.iter().any(|&id| steers(id)), "{ids:?}");
        }
        let prompt = tokenizer.encode_prompt(text, specials);
        assert!(prompt.len() == ids.len() || (prompt.len() == ids.len() + 1 && tokenizer.adds_bos()));
        let mut stream = StreamDecoder::new(ControlTokens::Show);
        let mut streamed: String = ids.iter().map(|&id| stream.push(tokenizer, id).expect("its own ids")).collect();
        streamed += &stream.finish();
        assert_eq!(streamed, String::from_utf8_lossy(&decoded));
    }
    for id in (0..=300).chain([u32::MAX]) {
        let known = usize::try_from(id).is_ok_and(|id| id < tokenizer.token_count());
        assert_eq!(tokenizer.token_bytes(id, ControlTokens::Hide).is_ok(), known);
        assert!(known || !tokenizer.is_end_of_generation(id));
    }
}

#[test]
fn a_damaged_vocabulary_is_refused_or_works() {
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..6000 {
        let mut random = Rng::with_seed(seed);
        let mut data = random::vocabulary(&mut random);
        for _ in 0..random.usize(..4) {
            damage(&mut random, &mut data);
        }
        let composes = random::composes(&data);
        match Tokenizer::new(data) {
            Ok(tokenizer) => {
                accepted += 1;
                let text = random::text(&mut random, 30);
                let text = if composes { text.nfc().collect() } else { text };
                use_everything(&tokenizer, &text);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(refused > 500 && accepted > 500, "one-sided: {refused} refused, {accepted} accepted");
}

#[test]
fn a_vocabulary_of_nothing_but_noise_is_refused_without_harm() {
    for seed in 0..6000 {
        let mut random = Rng::with_seed(seed);
        let mut data = random::bytes_only("qwen2");
        data.tokens = (0..random.usize(..300)).map(|_| string(&mut random)).collect();
        data.token_types = Some((0..data.tokens.len()).map(|_| random.i32(-1..8)).collect());
        data.merges = (0..random.usize(..50)).map(|_| string(&mut random)).collect();
        assert!(Tokenizer::new(data).is_err(), "seed {seed}");
    }
}
