//! Checks a vocabulary against golden token ids, whatever their size:
//! `cargo run --release --example check_goldens -- VOCABULARY.json GOLDENS.json`.
//!
//! `scripts/extract_vocabulary.py` writes the first file. Exits with 1 if any text gives other ids, or does not decode
//! to itself.

#[path = "../tests/support/mod.rs"]
mod support;

use muser_text::{ControlTokens, Specials, Tokenizer};
use std::error::Error;
use std::process::ExitCode;
use support::Golden;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [vocabulary, goldens] = arguments.as_slice() else {
        return Err("usage: check_goldens VOCABULARY.json GOLDENS.json".into());
    };
    let tokenizer = Tokenizer::new(support::vocabulary(&std::fs::read_to_string(vocabulary)?)?)?;
    let goldens = support::goldens(&std::fs::read_to_string(goldens)?)?;
    println!("bytes without a token: {:02x?}", tokenizer.missing_bytes());
    println!("end of generation: {:?}", tokenizer.end_of_generation_ids());
    let wrong =
        check(&tokenizer, &goldens.plain, Specials::AsText)? + check(&tokenizer, &goldens.special, Specials::Parse)?;
    println!("{} texts, {wrong} wrong", goldens.plain.len() + goldens.special.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints each golden that does not hold; how many.
fn check(tokenizer: &Tokenizer, goldens: &[Golden], specials: Specials) -> Result<usize, Box<dyn Error>> {
    let mut wrong = 0;
    for golden in goldens {
        let ids = tokenizer.encode(&golden.text, specials);
        if ids != golden.ids {
            wrong += 1;
            println!("{specials:?} {:?}\n  expected {:?}\n  got      {ids:?}", golden.text, golden.ids);
            continue;
        }
        let mut expressible = golden.text.clone().into_bytes();
        let missing = tokenizer.missing_bytes();
        expressible.retain(|byte| !missing.contains(byte));
        let decoded = tokenizer.decode(&ids, ControlTokens::Show)?;
        if decoded != expressible {
            wrong += 1;
            println!("{specials:?} {:?}\n  decodes to {:?}", golden.text, String::from_utf8_lossy(&decoded));
        }
    }
    Ok(wrong)
}
