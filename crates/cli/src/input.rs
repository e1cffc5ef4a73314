//! Text that users write, in files or on the command line.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::settings::PromptArgs;

/// The whole file at `path`, which must be UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = fs::read(path).map_err(Failure::io(path))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        Failure::Input { path: path.to_owned(), line, reason: "not UTF-8".into() }
    })
}

/// The text to continue, from where the user put it.
pub fn prompt_text(args: &PromptArgs) -> Result<Cow<'_, str>, Failure> {
    match (&args.file, args.text.as_ref().or(args.flag.as_ref())) {
        (Some(path), _) => {
            let mut text = read_text(path)?;
            if text.ends_with('\n') {
                text.pop();
            }
            Ok(text.into())
        }
        (None, Some(text)) => Ok(text.into()),
        (None, None) => Err(Failure::Usage("there is no prompt".into())),
    }
}
