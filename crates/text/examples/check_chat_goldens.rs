//! Checks chat templates against what jinja2 makes of them:
//! `cargo run --release --example check_chat_goldens -- GOLDENS.json`.
//!
//! `golden/chat/make.py` writes the file, for any templates. Prints a line for each template; exits with 1 if any text is
//! another.

#[path = "../tests/text/random.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod random;
#[path = "../tests/support/chat.rs"]
mod support;

use muser_text::{ChatTemplate, Tracing};
use std::error::Error;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: check_chat_goldens GOLDENS.json")?;
    let (templates, goldens) = support::chat_goldens(&std::fs::read_to_string(path)?)?;
    let tokenizer = support::chat_tokenizer(random::bytes_only("gpt-2"));
    let mut all_hold = true;
    for (name, source) in &templates {
        let template = match ChatTemplate::new(source) {
            Ok(template) => template,
            Err(error) => {
                println!("{name}: {error}");
                all_hold = false;
                continue;
            }
        };
        let (mut texts, mut same, mut traced) = (0, 0, 0);
        for golden in goldens.iter().filter(|golden| golden.template == *name) {
            texts += 1;
            match golden.render(&tokenizer, &template) {
                Ok(rendered) => {
                    same += 1;
                    traced += usize::from(rendered.is_none_or(|rendered| rendered.tracing() == Tracing::Complete));
                }
                Err(difference) => eprintln!("{name}, case {texts}: {difference}"),
            }
        }
        all_hold &= same == texts;
        println!("{name}: {texts} conversations, {same} the same, {traced} completely traced");
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
