//! Streams of bytes and tokens, however they are divided.

use crate::golden;
use fastrand::Rng;
use muser_text::{ControlTokens, StreamDecoder, Utf8Stream};

/// Bytes that are whole characters, parts of characters and bytes that are no part of any.
fn bytes(random: &mut Rng, pieces_max: usize) -> Vec<u8> {
    let pieces: [&[u8]; 16] = [
        b"a",
        "é".as_bytes(),
        "€".as_bytes(),
        "🦙".as_bytes(),
        b"\xf0\x9f",
        b"\xf0\x9f\xa6",
        b"\xe2\x82",
        b"\xc3",
        b"\x80",
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90",
        b"\xe0\x80",
        b"\xf0\x80",
        b"\xf5",
    ];
    (0..random.usize(..=pieces_max)).flat_map(|_| random.choice(pieces).unwrap().to_vec()).collect()
}

#[test]
fn bytes_in_any_two_parts_give_the_text_of_the_whole() {
    for seed in 0..3000 {
        let bytes = bytes(&mut Rng::with_seed(seed), 8);
        for cut in 0..=bytes.len() {
            let mut stream = Utf8Stream::new();
            let mut text = stream.push(&bytes[..cut]);
            text += &stream.push(&bytes[cut..]);
            text += &stream.finish();
            assert_eq!(text, String::from_utf8_lossy(&bytes), "seed {seed}, cut {cut}: {bytes:02x?}");
        }
    }
}

#[test]
fn bytes_in_any_many_parts_give_the_text_of_the_whole() {
    for seed in 0..20_000 {
        let mut random = Rng::with_seed(seed);
        let bytes = bytes(&mut random, 12);
        let part_max = random.usize(1..=5);
        let (mut stream, mut text, mut rest) = (Utf8Stream::new(), String::new(), bytes.as_slice());
        while !rest.is_empty() {
            let (part, after) = rest.split_at(random.usize(0..=part_max).min(rest.len()));
            text += &stream.push(part);
            assert!(stream.held().len() <= 3, "{:02x?}", stream.held());
            rest = after;
        }
        text += &stream.finish();
        assert_eq!(text, String::from_utf8_lossy(&bytes), "seed {seed}: {bytes:02x?}");
        assert_eq!(stream, Utf8Stream::new());
    }
}

#[test]
fn a_character_is_held_back_until_it_is_whole_and_a_wrong_byte_is_not() {
    let mut stream = Utf8Stream::new();
    assert_eq!(stream.push(b"a\xf0\x9f\xa6"), "a");
    assert_eq!(stream.held(), b"\xf0\x9f\xa6");
    assert_eq!(stream.push(b"\x99"), "🦙");
    assert_eq!(stream.push(b"\xff"), "\u{fffd}");
    assert_eq!(stream.push(b"\xe2\x82"), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
}

#[test]
fn random_tokens_stream_to_the_text_of_all_their_bytes() {
    let tokenizer = golden::tokenizer();
    for seed in 0..3000 {
        let mut random = Rng::with_seed(seed);
        // Half of the ids are single bytes, which are rarely whole characters.
        let ids: Vec<u32> =
            (0..20).map(|_| if random.bool() { random.u32(..259) } else { random.u32(..4096) }).collect();
        for controls in [ControlTokens::Hide, ControlTokens::Show] {
            let mut stream = StreamDecoder::new(controls);
            let mut text = String::new();
            for &id in &ids {
                text += &stream.push(&tokenizer, id).expect("an id of this vocabulary");
            }
            text += &stream.finish();
            let bytes = tokenizer.decode(&ids, controls).expect("ids of this vocabulary");
            assert_eq!(text, String::from_utf8_lossy(&bytes), "seed {seed}");
        }
    }
}
