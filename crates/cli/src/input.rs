//! Text that users write, in files or on the command line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::Failure;
use crate::settings::PromptArgs;
use crate::usage::UsageError;

/// Most bytes of a text, and of a file of settings, keys or certificates.
const TEXT_BYTES_MAX: u64 = 32 << 20;

/// The whole file at `path`, if it has at most [`TEXT_BYTES_MAX`]: a device may have no end.
///
/// # Errors
/// If it is longer, or cannot be read.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        let message = format!("it has more than {TEXT_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// The whole file at `path`, which must be UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = read_file(path).map_err(Failure::io(path))?;
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
        (None, None) => Err(UsageError::NoPrompt.into()),
    }
}

/// Escape in a text that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EscapeError {
    /// A backslash before something that has no meaning there.
    #[error("\\{shown} stands for nothing; a backslash is written \\\\")]
    Unknown {
        /// The next characters behind the backslash, at most three.
        shown: String,
    },
    /// The bytes of escapes make no UTF-8.
    #[error("byte {byte} of the text is not UTF-8")]
    NotUtf8 {
        /// Index of the first such byte.
        byte: usize,
    },
}

/// `text` with each backslash and what belongs to it replaced by what they stand for.
pub fn unescape(text: &str) -> Result<String, EscapeError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let (byte, length) = match escape.as_bytes() {
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [same @ (b'\\' | b'\'' | b'"'), ..] => (*same, 1),
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (u8::from_str_radix(&escape[1..3], 16).expect("two digits"), 3)
            }
            _ => {
                return Err(EscapeError::Unknown { shown: escape.chars().take(3).collect() });
            }
        };
        bytes.push(byte);
        rest = &escape[length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).map_err(|error| EscapeError::NotUtf8 { byte: error.utf8_error().valid_up_to() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_what_they_stand_for_and_everything_else_stays() {
        let read = |text| unescape(text).unwrap();
        assert_eq!(read(r#"a\nb\r\t\"\'\\n"#), "a\nb\r\t\"'\\n");
        assert_eq!(read(r"\xe2\x82\xAC \x41"), "€ A");
        assert_eq!(read("naïve 🦙"), "naïve 🦙");
        assert_eq!(read(""), "");
    }

    #[test]
    fn what_is_no_escape_is_refused() {
        for text in [r"\", r"a\q", r"\x4", r"\xg0", r"\é", r"\x+1", r"\\\"] {
            assert!(unescape(text).unwrap_err().to_string().contains("stands for nothing"), "{text}");
        }
        assert!(unescape(r"ab\xff").unwrap_err().to_string().contains("byte 2"));
    }
}
