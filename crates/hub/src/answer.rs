//! Response headers, parsed. They come from an untrusted server: a malformed value counts as absent or is an
//! [`AnswerFault`].

use ureq::http::HeaderMap;

use crate::digest::Sha256;
use crate::reference::is_commit;

/// Bytes of the longest etag that is kept.
const ETAG_BYTES_MAX: usize = 256;

/// Fault of a response that contradicts the request, an earlier response or the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// Part of the file, but not the part that was asked for.
    #[error("asked for the bytes from {asked} on, the answer is {answered:?}")]
    Range {
        /// First byte asked for.
        asked: u64,
        /// The `Content-Range`.
        answered: String,
    },
    /// The file has another size than the hub says.
    #[error("the file has {stated} bytes, {expected} were expected")]
    Size {
        /// Size in this response, bytes.
        stated: u64,
        /// Size known before, bytes.
        expected: u64,
    },
    /// More bytes than the file has.
    #[error("more than the {0} bytes of the file came")]
    TooLong(u64),
    /// The body is compressed, which was not asked for.
    #[error("the body is encoded as {0:?}")]
    Encoding(String),
    /// The hub names no etag for a file, or one that cannot be a file name.
    #[error("the hub names no usable etag for the file: {0:?}")]
    Etag(Option<String>),
    /// The hub answers with another commit than it was asked for.
    #[error("the file is of commit {answered:?}, {asked} was asked for")]
    Commit {
        /// Requested commit.
        asked: String,
        /// Commit in `X-Repo-Commit`.
        answered: String,
    },
}

/// Headers of one answer, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `X-Repo-Commit`.
    pub(crate) commit: Option<String>,
    /// `X-Linked-Etag`, without quotes: of the file that a redirect leads to.
    pub(crate) linked_etag: Option<String>,
    /// `X-Linked-Size`.
    pub(crate) linked_bytes: Option<u64>,
    /// `ETag`, as it is written.
    pub(crate) etag: Option<String>,
    /// `Last-Modified`, as it is written.
    pub(crate) last_modified: Option<String>,
    /// `Content-Length`.
    pub(crate) body_bytes: Option<u64>,
    /// `Content-Range`, as it is written.
    pub(crate) range: Option<String>,
    /// `Content-Encoding`, unless it is the identity.
    pub(crate) encoding: Option<String>,
    /// `Retry-After` in seconds.
    pub(crate) retry_after_s: Option<u64>,
    /// `Location`.
    pub(crate) location: Option<String>,
}

impl Facts {
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let number = |name| text(name).and_then(|text| text.parse().ok());
        let short = |name| text(name).filter(|text| !text.is_empty() && text.len() <= ETAG_BYTES_MAX);
        Self {
            commit: short("x-repo-commit").map(str::to_owned),
            linked_etag: short("x-linked-etag").map(|etag| bare(etag).to_owned()),
            linked_bytes: number("x-linked-size"),
            etag: short("etag").map(str::to_owned),
            last_modified: short("last-modified").map(str::to_owned),
            body_bytes: number("content-length"),
            range: short("content-range").map(str::to_owned),
            encoding: short("content-encoding")
                .filter(|name| !name.eq_ignore_ascii_case("identity"))
                .map(str::to_owned),
            retry_after_s: number("retry-after"),
            location: text("location").map(str::to_owned),
        }
    }

    /// Headers of a server outside the endpoint's origin: without `X-Repo-Commit`, `X-Linked-Etag` and `X-Linked-Size`,
    /// which only the hub is trusted with.
    pub(crate) fn without_hub_headers(self) -> Self {
        Self { commit: None, linked_etag: None, linked_bytes: None, ..self }
    }

    /// The etag, if it is a strong validator: equal ones mean equal bytes. `None` for a weak one.
    pub(crate) fn strong_etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"'))
    }

    /// Validator that changes with the content: the `ETag`, or else `Last-Modified`.
    pub(crate) fn validator(&self) -> Option<&str> {
        self.etag.as_deref().or(self.last_modified.as_deref())
    }

    /// First byte and whole size of `Content-Range: bytes 5-9/10`; the size may be `*`.
    pub(crate) fn content_range(&self) -> Option<(u64, Option<u64>)> {
        let (span, size) = self.range.as_deref()?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let size: Option<u64> = if size == "*" { None } else { Some(size.parse().ok()?) };
        let is_sound = first <= last && size.is_none_or(|size| last < size);
        is_sound.then_some((first, size))
    }

    /// The name of the file's content in the hub's cache, and its digest if the name is one.
    pub(crate) fn blob(&self) -> Result<(String, Option<Sha256>), AnswerFault> {
        let etag = self.linked_etag.as_deref().or(self.etag.as_deref().map(bare));
        let is_name = |etag: &&str| etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        // It becomes a file's name, beside names that end in `.incomplete`.
        match etag.filter(|etag| (1..=128).contains(&etag.len())).filter(is_name) {
            Some(etag) => Ok((etag.to_owned(), etag.parse().ok())),
            None => Err(AnswerFault::Etag(etag.map(str::to_owned))),
        }
    }

    /// Refuses an answer out of another commit than `asked`.
    pub(crate) fn check_commit(&self, asked: &str) -> Result<(), AnswerFault> {
        match self.commit.as_deref() {
            Some(answered) if !is_commit(answered) || answered != asked => {
                Err(AnswerFault::Commit { asked: asked.into(), answered: answered.into() })
            }
            _ => Ok(()),
        }
    }
}

/// An etag without `W/` and quotes.
fn bare(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(headers: &[(&'static str, &str)]) -> Facts {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Facts::read(&map)
    }

    #[test]
    fn a_range_is_believed_only_if_it_makes_sense() {
        let range = |text| facts(&[("content-range", text)]).content_range();
        assert_eq!(range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(range("bytes 0-0/*"), Some((0, None)));
        for wrong in ["bytes 5-9", "5-9/10", "bytes 9-5/10", "bytes 5-10/10", "bytes */10", "bytes a-b/c", "x"] {
            assert_eq!(range(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_blob_is_named_by_the_linked_etag_and_by_nothing_that_is_a_path() {
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let quoted = format!("\"{digest}\"");
        let linked = facts(&[("x-linked-etag", &quoted), ("etag", "\"other\"")]).blob().unwrap();
        assert_eq!(linked, (digest.to_owned(), digest.parse().ok()));
        assert_eq!(facts(&[("etag", "W/\"0a1b\"")]).blob(), Ok(("0a1b".into(), None)));
        for wrong in ["\"../x\"", "\"a.incomplete\"", "\"\"", "a b", &"a".repeat(129)] {
            assert!(facts(&[("etag", wrong)]).blob().is_err(), "{wrong}");
        }
        assert_eq!(facts(&[]).blob(), Err(AnswerFault::Etag(None)));
    }

    #[test]
    fn only_a_strong_etag_says_the_same_bytes() {
        assert_eq!(facts(&[("etag", "\"a\"")]).strong_etag(), Some("\"a\""));
        for weak in ["W/\"a\"", "a", "\"\"", "\""] {
            assert_eq!(facts(&[("etag", weak)]).strong_etag(), None, "{weak}");
        }
    }
}
