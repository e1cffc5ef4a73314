//! Output of the program: streamed text, files that get their name only once complete, and messages on standard error.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use muser_text::{ControlTokens, StopStrings, StreamDecoder, Tokenizer};

use crate::failure::Failure;

/// A file being written. It has another name, in the same folder, until [`Self::finish`]; dropped before, it is removed.
///
/// Something at the path that is no regular file, such as a device or a pipe, is written to as it is.
pub struct NewFile {
    out: BufWriter<File>,
    path: PathBuf,
    /// The name until it is whole; `None` once it is, and for what is written to as it is.
    partial: Option<PathBuf>,
}

impl NewFile {
    /// Begins the file that will be at `path`, replacing what is there then.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let created = match fs::metadata(path) {
            Ok(found) if !found.is_file() => File::create(path).map(|file| (file, path.to_owned(), None)),
            // Through links, so that renaming replaces the file and not the link to it.
            Ok(_) => fs::canonicalize(path).and_then(Self::begin),
            Err(_) => Self::begin(path.to_owned()),
        };
        let (file, path, partial) = created.map_err(Failure::io(path))?;
        Ok(Self { out: BufWriter::new(file), path, partial })
    }

    /// Gives the file its name, once its bytes are on the disk.
    pub fn finish(mut self) -> Result<(), Failure> {
        let named = self.out.flush().and_then(|()| match &self.partial {
            Some(partial) => self.out.get_ref().sync_all().and_then(|()| fs::rename(partial, &self.path)),
            None => Ok(()),
        });
        named.map_err(Failure::io(&self.path))?;
        self.partial = None;
        Ok(())
    }

    fn begin(path: PathBuf) -> io::Result<(File, PathBuf, Option<PathBuf>)> {
        // The process's number keeps two that write the same file from disturbing each other.
        let mut partial = OsString::from(&path);
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        Ok((File::create_new(&partial)?, path, Some(partial)))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Best effort: the failure that led here is what the user needs to read.
            let _ = fs::remove_file(partial);
        }
    }
}

/// The text of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintedText {
    /// All of it.
    pub answer: String,
    /// Index of the stop string that ended it.
    pub stop_string: Option<usize>,
}

/// Writes the text of one answer as soon as it is complete; a failure to write ends the answer and is reported once.
pub struct Printer<'a> {
    tokenizer: &'a Tokenizer,
    decoder: StreamDecoder,
    stops: StopStrings,
    out: io::StdoutLock<'static>,
    /// Text to write in front of the answer; emptied once it is written.
    before: &'a str,
    text: PrintedText,
    failure: Option<io::Error>,
}

impl<'a> Printer<'a> {
    /// A printer of the text of `tokenizer`'s tokens up to one of `stops`, which writes `before` with the first of it.
    pub fn new(tokenizer: &'a Tokenizer, stops: StopStrings, before: &'a str) -> Self {
        let decoder = StreamDecoder::new(ControlTokens::Hide);
        let (out, text) = (io::stdout().lock(), PrintedText::default());
        Self { tokenizer, decoder, stops, out, before, text, failure: None }
    }

    /// Writes the text that `token` completes; `Break` if that ends the text, or if writing failed.
    pub fn token(&mut self, token: u32) -> ControlFlow<()> {
        let text = self.decoder.push(self.tokenizer, token).expect("the model and its tokenizer have one size");
        self.show(&text);
        if self.failure.is_some() || self.text.stop_string.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Writes what was held back and a line break; all that was printed before that.
    pub fn finish(mut self) -> Result<PrintedText, Failure> {
        let rest = self.decoder.finish();
        self.show(&rest);
        let held = self.stops.finish();
        self.write(&held);
        self.text.answer += &held;
        self.write("\n");
        self.failure.map_or(Ok(self.text), |error| Err(Failure::Stdout(error)))
    }

    /// Writes of `text` what can be no part of a stop string.
    fn show(&mut self, text: &str) {
        let (certain, stop_string) = self.stops.push(text);
        self.text.stop_string = stop_string;
        self.write(&certain);
        self.text.answer += &certain;
    }

    fn write(&mut self, text: &str) {
        let before = std::mem::take(&mut self.before);
        let written = [before, text].iter().try_for_each(|text| self.out.write_all(text.as_bytes()));
        self.failure = self.failure.take().or(written.and_then(|()| self.out.flush()).err());
    }
}

/// Longest line on standard error, in characters: names and values out of a file can be as long as the file.
const LINE_CHARS_MAX: usize = 4000;

/// Writes a line of at most [`LINE_CHARS_MAX`] to standard error. Write errors are ignored.
pub fn tell(line: impl Display) {
    let line = line.to_string();
    let (shown, more) = match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((at, _)) => (&line[..at], "..."),
        None => (line.as_str(), ""),
    };
    let _ = writeln!(io::stderr().lock(), "{}{more}", one_line(shown));
}

/// `text` with escapes for what would break the line or steer a terminal: names out of a file may hold anything.
pub fn one_line(text: &str) -> Cow<'_, str> {
    // Line and paragraph separators, and what turns the direction of writing, are not controls by Unicode's list.
    let steers = |c: char| {
        c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}'..='\u{200f}')
    };
    if !text.contains(steers) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_text_and_cannot_steer_a_terminal() {
        assert!(matches!(one_line("naïve – 日本 \u{1f600} \\ \""), Cow::Borrowed(_)));
        assert_eq!(one_line("a\nb\r\u{1b}[31mc\u{9b}d\u{7f}\t"), "a\\nb\\r\\u{1b}[31mc\\u{9b}d\\u{7f}\\t");
        assert_eq!(one_line("x\u{202e}gpj\u{2028}"), "x\\u{202e}gpj\\u{2028}");
    }
}
