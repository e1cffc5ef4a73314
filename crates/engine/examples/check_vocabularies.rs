//! Checks the tokenizer against llama.cpp's own vocabulary tests:
//! `cargo run --release -p muser-engine --example check_vocabularies -- DIR [--json]`.
//!
//! DIR holds `NAME.gguf`, with `NAME.gguf.inp` (texts, separated by a line of their own) and `NAME.gguf.out` (the ids of
//! each text, a line each), as in llama.cpp's `models`. `crates/text/scripts/random_goldens.py` writes more of them.
//! Prints what became of each file; exits with 1 if any text gives other ids, or does not decode to itself.

use muser_engine::load_tokenizer;
use muser_text::{ControlTokens, Specials, Tokenizer};
use muser_weights::gguf::ModelFiles;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Separator line between two texts of a `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Result of checking one vocabulary.
enum Verdict {
    /// The loader's error: the file is refused.
    Refused(String),
    /// There is no `.inp` file beside the vocabulary to compare with.
    NoGoldens,
    Checked(Counts),
}

/// Counts of one vocabulary's texts, and of those that pass.
#[derive(Default)]
struct Counts {
    texts: usize,
    /// Texts that give llama.cpp's ids.
    same_ids: usize,
    /// Texts that decode to themselves.
    round_trips: usize,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, json) = match arguments.as_slice() {
        [directory] => (directory, false),
        [directory, flag] if flag == "--json" => (directory, true),
        _ => return Err("usage: check_vocabularies DIR [--json]".into()),
    };
    let mut files =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    files.sort();
    let mut all_hold = true;
    let mut rows = Vec::new();
    for path in &files {
        let verdict = check(path)?;
        all_hold &= !matches!(&verdict, Verdict::Checked(c) if (c.same_ids, c.round_trips) != (c.texts, c.texts));
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        rows.push(if json { json_row(&name, &verdict) } else { table_row(&name, &verdict) });
    }
    if json {
        println!("[\n{}\n]", rows.join(",\n"));
    } else {
        println!("{}", rows.join("\n"));
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(path: &Path) -> Result<Verdict, Box<dyn Error>> {
    let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
    let files = ModelFiles::open(path)?;
    let tokens = files.metadata().strs("tokenizer.ggml.tokens")?.len();
    let tokenizer = match load_tokenizer(&files.metadata(), tokens) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    if !beside(".inp").exists() {
        return Ok(Verdict::NoGoldens);
    }
    let (texts, ids) = (std::fs::read_to_string(beside(".inp"))?, std::fs::read_to_string(beside(".out"))?);
    let texts: Vec<&str> = texts.split(SEPARATOR).collect();
    let ids: Vec<&str> = ids.lines().collect();
    // The files of llama.cpp end with a separator or without one.
    let texts = if texts.len() == ids.len() + 1 { &texts[..ids.len()] } else { &texts[..] };
    if texts.len() != ids.len() {
        return Err(format!("{}: {} texts but ids of {}", path.display(), texts.len(), ids.len()).into());
    }
    let mut counts = Counts::default();
    for (text, line) in texts.iter().zip(ids) {
        let expected = line.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        check_text(&tokenizer, text, &expected, &mut counts)?;
    }
    Ok(Verdict::Checked(counts))
}

fn check_text(tokenizer: &Tokenizer, text: &str, expected: &[u32], counts: &mut Counts) -> Result<(), Box<dyn Error>> {
    let ids = tokenizer.encode(text, Specials::AsText);
    counts.texts += 1;
    if ids == expected {
        counts.same_ids += 1;
    } else {
        eprintln!("{text:?}\n  expected {expected:?}\n  got      {ids:?}");
    }
    let decoded = tokenizer.detokenize(&ids, ControlTokens::Show)?;
    // U+2581 is how SentencePiece spells a space.
    let readable = if tokenizer.prefixes_space() { text.replace('\u{2581}', " ") } else { text.to_owned() };
    let missing = tokenizer.missing_bytes();
    let expressible: Vec<u8> = readable.into_bytes().into_iter().filter(|byte| !missing.contains(byte)).collect();
    if decoded == expressible {
        counts.round_trips += 1;
    } else {
        eprintln!("{text:?}\n  decodes to {:?}", String::from_utf8_lossy(&decoded));
    }
    Ok(())
}

fn table_row(name: &str, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Refused(why) => format!("{name:28} refused: {}", why.split(" (supported").next().unwrap_or_default()),
        Verdict::NoGoldens => format!("{name:28} loads; nothing to compare with"),
        Verdict::Checked(Counts { texts, same_ids, round_trips }) => {
            format!("{name:28} {texts:6} texts, {same_ids:6} with the same ids, {round_trips:6} decode to themselves")
        }
    }
}

fn json_row(name: &str, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Refused(why) => {
            let why = why.split(" (supported").next().unwrap_or_default();
            format!("  {{\"vocabulary\": {name:?}, \"refused\": {why:?}}}")
        }
        Verdict::NoGoldens => format!("  {{\"vocabulary\": {name:?}, \"texts\": 0}}"),
        Verdict::Checked(Counts { texts, same_ids, round_trips }) => format!(
            "  {{\"vocabulary\": {name:?}, \"texts\": {texts}, \"same_ids\": {same_ids}, \"round_trips\": {round_trips}}}"
        ),
    }
}
