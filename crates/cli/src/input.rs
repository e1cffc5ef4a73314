//! Files that users write.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// The whole file at `path`, which must be UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = fs::read(path).map_err(Failure::io(path))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        Failure::Input { path: path.to_owned(), line, reason: "not UTF-8".into() }
    })
}
