//! Model references as users write them: an address, or a repository of the hub with a quantisation.

use std::fmt;
use std::str::FromStr;

use crate::address::{HttpAddress, HttpAddressError};

/// Characters of each half of a repository's name.
const ID_CHARACTERS_MAX: usize = 96;
/// Characters of a quantisation or a revision.
const TAG_CHARACTERS_MAX: usize = 128;

/// Reference to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The file at an address.
    Address(HttpAddress),
    /// A file of a repository.
    Repo {
        /// The repository.
        id: RepoId,
        /// The quantisation asked for, if any.
        quant: Option<Quant>,
    },
}

/// Parse error of a [`Reference`] or of an option that goes with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Not `user/repo[:QUANT]`.
    #[error("{0:?} is neither an address (https://host/file.gguf) nor a repository (user/repo or user/repo:QUANT)")]
    Shape(String),
    /// Something after the colon that no quantisation is called.
    #[error("{0:?} is not the name of a quantisation, like Q4_K_M")]
    Quant(String),
    /// Something that no branch, tag or commit is called.
    #[error("{0:?} is not the name of a branch, tag or commit")]
    Revision(String),
    /// A wrong address.
    #[error(transparent)]
    Address(#[from] HttpAddressError),
    /// The address has no file name.
    #[error("{0} does not end in a file name; say where to put the file")]
    NoFileName(String),
    /// A flag that only repositories have a use for.
    #[error("a {0} belongs to a repository, and the reference is an address")]
    OnlyForRepositories(&'static str),
    /// Two ways to choose a file.
    #[error("the quantisation {quant} and the file {file:?} are both given; one of them chooses the file")]
    QuantAndFile {
        /// The quantisation.
        quant: Quant,
        /// The file.
        file: String,
    },
    /// One path or digest for several files.
    #[error("the model is split into {parts} files, and {what} is about one")]
    OnlyForOneFile {
        /// Parts of the split model.
        parts: usize,
        /// Name of the option.
        what: &'static str,
    },
}

/// A repository: `user/name`, in letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId {
    user: String,
    name: String,
}

/// The name of a quantisation, such as `Q4_K_M`. Names are compared without regard to case.
#[derive(Clone, Debug)]
pub struct Quant(String);

/// A branch, a tag or a commit of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision(String);

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.contains("://") {
            return Ok(Self::Address(text.parse()?));
        }
        let (id, quant) = match text.split_once(':') {
            Some((id, quant)) => (id, Some(quant.parse()?)),
            None => (text, None),
        };
        Ok(Self::Repo { id: id.parse()?, quant })
    }
}

impl FromStr for RepoId {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let refused = || ReferenceError::Shape(text.chars().take(200).collect());
        let (user, name) = text.split_once('/').ok_or_else(refused)?;
        // Two dashes separate the halves in the cache's folder names, so the hub allows them in neither.
        let good = |half: &str| is_tag(half, ID_CHARACTERS_MAX) && !half.contains("--") && !half.contains("..");
        if good(user) && good(name) { Ok(Self { user: user.into(), name: name.into() }) } else { Err(refused()) }
    }
}

impl RepoId {
    /// `user`.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// `name`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// As users write it.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Repo { id, quant: None } => id.fmt(f),
            Self::Repo { id, quant: Some(quant) } => write!(f, "{id}:{quant}"),
        }
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.name)
    }
}

impl Quant {
    /// Quantisation preferred when the user names none: `Q4_K_M`.
    pub(crate) fn default_choice() -> Self {
        Self("Q4_K_M".into())
    }

    /// True if the file name `name` contains this quantisation as a word: no letter or digit before it, and `.`, `-`,
    /// `/` or the end of the name after it, so that `Q4_K` is not found in `Q4_K_M` nor `Q4_NL` in `IQ4_NL`.
    pub(crate) fn is_in(&self, name: &str) -> bool {
        let (name, wanted) = (name.to_ascii_lowercase(), self.0.to_ascii_lowercase());
        name.match_indices(&wanted).any(|(at, _)| {
            let before = name[..at].chars().next_back();
            let after = name[at + wanted.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && after.is_none_or(|c| matches!(c, '.' | '-' | '/'))
        })
    }
}

impl PartialEq for Quant {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for Quant {}

impl FromStr for Quant {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if is_tag(text, TAG_CHARACTERS_MAX) { Ok(Self(text.into())) } else { Err(ReferenceError::Quant(text.into())) }
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Revision {
    /// The name as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for a commit: 40 lower-case hexadecimal digits.
    pub(crate) fn is_commit(&self) -> bool {
        is_commit(&self.0)
    }
}

impl Default for Revision {
    /// `main`, the branch that every repository has.
    fn default() -> Self {
        Self("main".into())
    }
}

impl FromStr for Revision {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        // It becomes a path below the cache's `refs`.
        let good = text.len() <= TAG_CHARACTERS_MAX && text.split('/').all(|part| is_tag(part, TAG_CHARACTERS_MAX));
        if good { Ok(Self(text.into())) } else { Err(ReferenceError::Revision(text.into())) }
    }
}

/// True for a commit: 40 lower-case hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Letters, digits, `.`, `_`, `-` and `+`, not only dots.
fn is_tag(text: &str, characters_max: usize) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    (1..=characters_max).contains(&text.len()) && text.bytes().all(known) && text.bytes().any(|byte| byte != b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_an_address_or_a_repository_with_a_quantisation() {
        let repo = |id: &str, quant: Option<&str>| Reference::Repo {
            id: id.parse().unwrap(),
            quant: quant.map(|quant| quant.parse().unwrap()),
        };
        assert_eq!("user/repo".parse(), Ok(repo("user/repo", None)));
        assert_eq!("u.s-er/Re_po-1.5:iq4_nl".parse(), Ok(repo("u.s-er/Re_po-1.5", Some("IQ4_NL"))));
        assert!(matches!("http://host/x.gguf".parse(), Ok(Reference::Address(_))));
    }

    #[test]
    fn what_is_neither_is_refused() {
        let shapes = ["", "repo", "a/b/c", "/b", "a/", "../b", "a/..", "a b/c", "a--b/c", "a/b..c", "a/b\n", "ü/b"];
        for text in shapes {
            assert_eq!(text.parse::<Reference>(), Err(ReferenceError::Shape(text.into())));
        }
        for quant in ["", "a b", "a/b", "..", "Q4:K"] {
            assert_eq!(format!("a/b:{quant}").parse::<Reference>(), Err(ReferenceError::Quant(quant.into())));
        }
        for text in ["ftp://h/x", "https://", "https:///x", "https://u:p@h/x", "https://h:99999/x", "http://h/a b"] {
            assert!(matches!(text.parse::<Reference>(), Err(ReferenceError::Address(_))), "{text}");
        }
        for text in ["", "..", "a/../b", "/a", "a//b", "a\\b", "a b", &"a".repeat(129)] {
            assert_eq!(text.parse::<Revision>(), Err(ReferenceError::Revision(text.into())));
        }
        for text in ["main", "refs/pr/1", "v1.0+x"] {
            assert_eq!(text.parse::<Revision>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_quantisation_is_found_as_a_whole_word_in_any_case() {
        let is_in = |quant: &str, name| quant.parse::<Quant>().unwrap().is_in(name);
        let found = ["m-Q4_K.gguf", "m.q4_k.gguf", "Q4_K/m-00001-of-00002.gguf", "m_q4_K-00001-of-00002.gguf", "q4_k"];
        for name in found {
            assert!(is_in("Q4_k", name), "{name}");
        }
        for name in ["m-Q4_K_M.gguf", "m-IQ4_K.gguf", "m-Q4_KS.gguf", "m.gguf", "m-iq4_kq4_kx.gguf"] {
            assert!(!is_in("Q4_K", name), "{name}");
        }
    }
}
