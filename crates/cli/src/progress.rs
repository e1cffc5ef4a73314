//! Progress of a download on standard error: a bar on a terminal, a line per tenth elsewhere.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};
use muser_hub::PullEvent;

use crate::output::{one_line, tell};

/// Bytes per progress line of a download of unknown size.
const LINE_BYTES: u64 = 100_000_000;

/// Verbosity of downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Progress and notices.
    Progress,
    /// Only notices: retries, and waits for another process.
    Troubles,
}

/// Shows the events of downloads, one file after the other.
pub struct DownloadProgress {
    style: Style,
    file: String,
    bytes: Option<u64>,
    /// Lines that the file has had: tenths, or steps of [`LINE_BYTES`].
    lines: u64,
}

enum Style {
    Bar(ProgressBar),
    Lines,
    Silent,
}

impl DownloadProgress {
    /// The way that suits standard error.
    pub fn new(shown: Shown) -> Self {
        let style = match shown {
            Shown::Troubles => Style::Silent,
            Shown::Progress if io::stderr().is_terminal() => Style::Bar(ProgressBar::no_length()),
            Shown::Progress => Style::Lines,
        };
        Self { style, file: String::new(), bytes: None, lines: 0 }
    }

    /// Shows an event.
    pub fn hear(&mut self, event: &PullEvent<'_>) {
        match event {
            PullEvent::Waiting { file } => self.notice(&format!("{file}: another process is fetching it; waiting")),
            PullEvent::Retrying { error, pause } => {
                self.notice(&format!("{error}; trying again in {} s", pause.as_secs()));
            }
            PullEvent::Began { file, bytes, have } => self.begin(file, *bytes, *have),
            PullEvent::Received { have } => self.advance(*have),
            PullEvent::Idle => {}
        }
    }

    fn begin(&mut self, file: &str, bytes: Option<u64>, have: u64) {
        self.bytes = bytes;
        self.lines = self.step(have);
        self.file = one_line(file).into_owned();
        match &self.style {
            Style::Bar(bar) => {
                let template = match bytes {
                    Some(_) => "{msg} [{wide_bar}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
                    None => "{msg} {decimal_bytes} {decimal_bytes_per_sec}",
                };
                let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
                bar.set_style(style.progress_chars("#>-"));
                match bytes {
                    Some(bytes) => bar.set_length(bytes),
                    None => bar.unset_length(),
                }
                // Before the estimate begins anew, so that bytes of an earlier pull do not count as fast ones.
                bar.set_position(have);
                bar.reset_eta();
                bar.set_message(self.file.clone());
            }
            Style::Lines => {
                let size = bytes.map_or("size unknown".into(), |bytes| format!("{bytes} bytes"));
                let from = if have > 0 { format!(", going on from {have}") } else { String::new() };
                tell(format_args!("{}: {size}{from}", self.file));
            }
            Style::Silent => {}
        }
    }

    fn advance(&mut self, have: u64) {
        match &self.style {
            Style::Bar(bar) => bar.set_position(have),
            Style::Lines => {
                let step = self.step(have);
                if step > self.lines {
                    self.lines = step;
                    match self.bytes {
                        Some(_) => tell(format_args!("{}: {} %", self.file, step * 10)),
                        None => tell(format_args!("{}: {have} bytes", self.file)),
                    }
                }
            }
            Style::Silent => {}
        }
    }

    /// Number of progress lines due at `have` bytes.
    fn step(&self, have: u64) -> u64 {
        match self.bytes {
            // Ten steps reach the end exactly; wide, because ten times the size may not fit.
            Some(bytes) => u64::try_from(u128::from(have) * 10 / u128::from(bytes.max(1))).unwrap_or(u64::MAX),
            None => have / LINE_BYTES,
        }
    }

    fn notice(&self, text: &str) {
        match &self.style {
            Style::Bar(bar) => bar.suspend(|| tell(text)),
            Style::Lines | Style::Silent => tell(text),
        }
    }
}

impl Drop for DownloadProgress {
    fn drop(&mut self) {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
    }
}
