//! Download of one file: a partial file is resumed by range, the whole is verified, and only then renamed to its final
//! name.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::address::HttpAddress;
use crate::answer::{AnswerFault, Facts};
use crate::client::{Answer, Client, Rest};
use crate::digest::{Hasher, Sha256};
use crate::error::Error;
use crate::place::{Note, Place, begins_with};
use crate::retry::{PullEvent, Retries, Watch, tell};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 128 << 10;
/// First bytes that the error of a wrong magic number shows.
const SHOWN_BYTES: usize = 16;
/// Bytes after which an interrupted attempt counts as progress: the retries begin anew.
const ADVANCE_BYTES: u64 = 4 << 20;

/// Download of one file.
pub(crate) struct Job<'a> {
    /// File name shown in events and errors.
    pub(crate) file: &'a str,
    pub(crate) address: &'a HttpAddress,
    pub(crate) place: &'a Place,
    /// Its size, if known.
    pub(crate) bytes: Option<u64>,
    /// Its digest, if known.
    pub(crate) sha256: Option<Sha256>,
    /// Its first bytes; empty for any.
    pub(crate) magic: &'static [u8],
    pub(crate) naming: Naming,
}

/// Relation between the file's final name and its content: decides if a file already there may be used as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// Content-addressed: a file that has the name has the content.
    ByContent,
    /// Not content-addressed: the file under the name may have other content, so its digest or the server decides.
    ByPlace,
    /// As [`Self::ByPlace`], and only the digest counts; an unchanged validator does not.
    Doubted,
}

/// Result of one download.
pub(crate) struct Done {
    pub(crate) bytes: u64,
    /// Its digest, if it was computed or is known.
    pub(crate) sha256: Option<Sha256>,
    pub(crate) from_cache: bool,
}

/// Downloads the file, unless it is in place.
pub(crate) fn fetch(client: &Client, job: &Job<'_>, watch: &mut Watch<'_>) -> Result<Done, Error> {
    let _held = job.place.lock(job.file, watch)?;
    if let Some(done) = already_there(job, watch)? {
        return Ok(done);
    }
    let mut partial = Partial::open(job, watch)?;
    let mut retries = Retries::new(&client.settings.retry_pauses);
    let mut advanced_from = partial.have();
    loop {
        let error = match attempt(client, job, &mut partial, watch) {
            Ok(Outcome::Whole) => return partial.finish(job),
            Ok(Outcome::Unchanged(bytes)) => {
                job.place.forget_partial()?;
                return Ok(Done { bytes, sha256: None, from_cache: true });
            }
            Err(error) => error,
        };
        if partial.have() >= advanced_from.saturating_add(ADVANCE_BYTES) {
            retries.reset();
            advanced_from = partial.have();
        }
        let kept = partial.can_go_on(job).then(|| (job.place.partial.clone(), partial.have()));
        retries.after(error, kept, watch)?;
    }
}

/// The file under the final name, if its name or digest proves it without a request.
fn already_there(job: &Job<'_>, watch: &mut Watch<'_>) -> Result<Option<Done>, Error> {
    let Some(bytes) = job.place.whole_bytes_of(job.magic)? else { return Ok(None) };
    if job.bytes.is_some_and(|expected| expected != bytes) {
        return Ok(None);
    }
    let sha256 = match (job.naming, job.sha256) {
        (Naming::ByContent, known) => known,
        (Naming::ByPlace | Naming::Doubted, None) => return Ok(None),
        (Naming::ByPlace | Naming::Doubted, Some(expected)) => {
            let mut hasher = Hasher::new();
            let mut file = File::open(&job.place.path).map_err(Error::disk("open", &job.place.path))?;
            hash(&mut hasher, &mut file, job, watch)?;
            if hasher.finish() != expected {
                return Ok(None);
            }
            Some(expected)
        }
    };
    Ok(Some(Done { bytes, sha256, from_cache: true }))
}

fn hash(hasher: &mut Hasher, file: &mut File, job: &Job<'_>, watch: &mut Watch<'_>) -> Result<(), Error> {
    let mut is_wanted = Ok(());
    let read = hasher.read(file, |_| {
        is_wanted = tell(watch, PullEvent::Idle);
        is_wanted.is_ok()
    });
    read.map_err(Error::disk("read", &job.place.partial))?;
    is_wanted
}

/// Partial file, with the running hash of its bytes.
struct Partial<'a> {
    place: &'a Place,
    file: File,
    hasher: Hasher,
    /// Strong etag of the content that its bytes belong to.
    etag: Option<String>,
    /// Latest validator of the server: [`Facts::validator`](crate::answer::Facts::validator).
    validator: Option<String>,
}

impl<'a> Partial<'a> {
    /// Opens the partial file of an earlier pull, or a new one.
    fn open(job: &Job<'a>, watch: &mut Watch<'_>) -> Result<Self, Error> {
        let place = job.place;
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&place.partial);
        let file = opened.map_err(Error::disk("create", &place.partial))?;
        let bytes = file.metadata().map_err(Error::disk("read", &place.partial))?.len();
        let etag = place.note(Note::Partial).filter(|etag| etag.starts_with('"'));
        let mut partial = Self { place, file, hasher: Hasher::new(), etag, validator: None };
        if partial.is_known(job) && job.bytes.is_none_or(|expected| bytes <= expected) {
            hash(&mut partial.hasher, &mut partial.file, job, watch)?;
        } else {
            partial.begin(None)?;
        }
        Ok(partial)
    }

    fn have(&self) -> u64 {
        self.hasher.bytes
    }

    /// True if a resumed download can be verified, by strong etag or by the final digest.
    fn is_known(&self, job: &Job<'_>) -> bool {
        self.etag.is_some() || job.sha256.is_some()
    }

    /// True if the partial file has bytes and a range request can resume them.
    fn can_go_on(&self, job: &Job<'_>) -> bool {
        self.have() > 0 && self.is_known(job)
    }

    /// Truncates the partial file. The bytes that follow have the strong etag `etag`.
    fn begin(&mut self, etag: Option<&str>) -> Result<(), Error> {
        // First the note: without it the bytes are of no use, while the other way round they would be of the wrong content.
        self.place.set_note(Note::Partial, None)?;
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(Error::disk("write", &self.place.partial))?;
        self.hasher = Hasher::new();
        self.etag = etag.map(str::to_owned);
        self.place.set_note(Note::Partial, etag)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all(bytes);
        if written.is_err() {
            // Some of it may have been written; the file and its digest must agree.
            let _ = self.file.set_len(self.have());
        }
        written.map_err(Error::disk("write", &self.place.partial))?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Verifies the whole file and renames it to its final name.
    fn finish(self, job: &Job<'_>) -> Result<Done, Error> {
        let found = self.hasher.finish();
        if let Some(expected) = job.sha256.filter(|expected| *expected != found) {
            self.place.forget_partial()?;
            return Err(Error::Digest { file: job.file.into(), expected, found });
        }
        if !begins_with(&self.place.partial, job.magic) {
            let mut first = [0; SHOWN_BYTES];
            let count = File::open(&self.place.partial).and_then(|mut file| file.read(&mut first)).unwrap_or(0);
            self.place.forget_partial()?;
            let (magic, found) = [job.magic, &first[..count]].map(|bytes| bytes.escape_ascii().to_string()).into();
            return Err(Error::Magic { file: job.file.into(), magic, found });
        }
        self.file.sync_all().map_err(Error::disk("write", &self.place.partial))?;
        self.place.name(self.validator.as_deref())?;
        Ok(Done { bytes: self.have(), sha256: Some(found), from_cache: false })
    }
}

enum Outcome {
    /// All bytes were received.
    Whole,
    /// The server has no other content than the file under the final name; its size, bytes.
    Unchanged(u64),
}

/// One attempt: requests the missing bytes and appends them.
fn attempt(client: &Client, job: &Job<'_>, partial: &mut Partial<'_>, watch: &mut Watch<'_>) -> Result<Outcome, Error> {
    // A pull may have ended between the last byte and the name.
    if partial.have() > 0 && job.bytes == Some(partial.have()) {
        return Ok(Outcome::Whole);
    }
    let answer = ask(client, job, partial)?;
    let fault = |reason| Error::Answer { address: job.address.to_string(), reason };
    if let Some(encoding) = answer.facts.encoding {
        return Err(fault(AnswerFault::Encoding(encoding)));
    }
    let stated = if answer.status == 206 {
        answer.facts.content_range().and_then(|(_, bytes)| bytes)
    } else {
        if let Some(bytes) = unchanged(job, &answer.facts)? {
            return Ok(Outcome::Unchanged(bytes));
        }
        partial.begin(answer.facts.strong_etag())?;
        answer.facts.body_bytes
    };
    if let Some((stated, expected)) = stated.zip(job.bytes).filter(|(stated, expected)| stated != expected) {
        return Err(fault(AnswerFault::Size { stated, expected }));
    }
    partial.validator = answer.facts.validator().map(str::to_owned);
    let expected = job.bytes.or(stated);
    tell(watch, PullEvent::Began { file: job.file, bytes: expected, have: partial.have() })?;
    take_body(answer.body.into_reader(), job, expected, partial, watch)?;
    Ok(Outcome::Whole)
}

/// Requests the bytes after the partial file's end, or all of them if the response does not continue it.
fn ask(client: &Client, job: &Job<'_>, partial: &mut Partial<'_>) -> Result<Answer, Error> {
    let can_go_on = partial.can_go_on(job);
    let rest = can_go_on.then(|| Rest { from: partial.have(), if_etag: partial.etag.as_deref() });
    let answer = client.get(job.address, rest.as_ref())?;
    let answer = match answer.status {
        200 => return Ok(answer),
        206 if can_go_on && continues(&answer.facts, partial) => return Ok(answer),
        _ if can_go_on => {
            partial.begin(None)?;
            client.get(job.address, None)?
        }
        _ => answer,
    };
    if answer.status == 200 {
        return Ok(answer);
    }
    let answered = answer.facts.range.unwrap_or_default();
    let reason = AnswerFault::Range { asked: 0, answered };
    Err(Error::Answer { address: job.address.to_string(), reason })
}

/// True if a partial response starts where `partial` ends, and no strong etag says that its content is another.
fn continues(facts: &Facts, partial: &Partial<'_>) -> bool {
    let is_next = facts.content_range().is_some_and(|(first, _)| first == partial.have());
    let is_same = match (facts.strong_etag(), &partial.etag) {
        (Some(answered), Some(known)) => answered == known,
        _ => true,
    };
    is_next && is_same
}

/// The size of the file that has the final name, if the server has the same.
fn unchanged(job: &Job<'_>, facts: &Facts) -> Result<Option<u64>, Error> {
    // With a digest it was looked at already.
    let may_be = job.naming == Naming::ByPlace && job.sha256.is_none();
    let Some(bytes) = job.place.whole_bytes_of(job.magic)?.filter(|_| may_be) else { return Ok(None) };
    let is_same = facts.body_bytes == Some(bytes) && facts.validator() == job.place.note(Note::Whole).as_deref();
    Ok(is_same.then_some(bytes))
}

fn take_body(
    mut body: impl Read,
    job: &Job<'_>,
    expected: Option<u64>,
    partial: &mut Partial<'_>,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let interrupted = |bytes, reason| Error::Interrupted { address: job.address.to_string(), bytes, expected, reason };
    loop {
        let count = match body.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(interrupted(partial.have(), error)),
        };
        let after = partial.have() + count as u64;
        if let Some(expected) = expected.filter(|expected| after > *expected) {
            let reason = AnswerFault::TooLong(expected);
            return Err(Error::Answer { address: job.address.to_string(), reason });
        }
        if count == 0 {
            return match expected.filter(|expected| after < *expected) {
                Some(_) => Err(interrupted(after, io::ErrorKind::UnexpectedEof.into())),
                None => Ok(()),
            };
        }
        partial.write(&chunk[..count])?;
        tell(watch, PullEvent::Received { have: after })?;
    }
}
