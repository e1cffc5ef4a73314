//! API keys and their scopes, kept as hashes only.
//!
//! Keys are secrets. In memory there are only their BLAKE3 hashes, and no message and no debug output contains anything
//! of a key.

use std::fmt;

/// Permission of a key: a group of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything that generates, or reads text.
    Use,
    /// Counts and what runs: `/metrics`, `/slots`.
    Metrics,
    /// The server itself; opens the other two as well.
    Admin,
}

/// Several scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

/// The keys of a server.
#[derive(Clone, Default)]
pub struct Keys(Vec<(blake3::Hash, Scopes)>);

/// Error of a key that cannot be used. Never contains the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeyError {
    /// It has no characters.
    #[error("a key is empty")]
    Empty,
    /// It cannot be sent in a header.
    #[error("a key has a character that is no visible ASCII character")]
    Character,
    /// Its scopes are not known.
    #[error("the scopes of a key are not among use, metrics and admin, divided by commas")]
    Scope,
    /// Text follows the scopes.
    #[error("there is more than a key and its scopes")]
    TooMuch,
}

/// Error of a line in a file of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ApiKeyFileError {
    /// Line, from 1.
    pub line: usize,
    /// The fault of that line.
    pub reason: ApiKeyError,
}

impl Scope {
    /// Its name in key files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Use, Self::Metrics, Self::Admin].into_iter().find(|scope| scope.name() == name)
    }
}

impl Scopes {
    /// No scope.
    pub const NONE: Self = Self(0);

    /// These scopes and `scope`, with those that it implies.
    #[must_use]
    pub fn with(self, scope: Scope) -> Self {
        let bits = match scope {
            Scope::Use => 0b001,
            Scope::Metrics => 0b010,
            Scope::Admin => 0b111,
        };
        Self(self.0 | bits)
    }

    /// These and those.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if they include `scope`, alone or through [`Scope::Admin`].
    pub fn open(self, scope: Scope) -> bool {
        self.with(scope) == self
    }

    /// Reads names divided by commas.
    fn parse(names: &str) -> Result<Self, ApiKeyError> {
        names.split(',').try_fold(Self::NONE, |scopes, name| {
            Scope::named(name).map(|scope| scopes.with(scope)).ok_or(ApiKeyError::Scope)
        })
    }
}

impl Keys {
    /// Adds a key. Added twice, it has the scopes of both.
    ///
    /// # Errors
    /// If it could not be sent in a header.
    pub fn add(&mut self, key: &str, scopes: Scopes) -> Result<(), ApiKeyError> {
        if key.is_empty() {
            return Err(ApiKeyError::Empty);
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ApiKeyError::Character);
        }
        self.0.push((blake3::hash(key.as_bytes()), scopes));
        Ok(())
    }

    /// Adds the keys of a file: one a line, and after white space its scopes, `use` if there are none. What follows `#` at
    /// the start of a line is a comment; empty lines are nothing.
    ///
    /// # Errors
    /// Names the line, never the key.
    pub fn add_file(&mut self, text: &str) -> Result<(), ApiKeyFileError> {
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            let Some(key) = words.next().filter(|key| !key.starts_with('#')) else { continue };
            let scopes = words.next().map_or(Ok(Scopes::NONE.with(Scope::Use)), Scopes::parse);
            let added = match words.next() {
                Some(_) => Err(ApiKeyError::TooMuch),
                None => scopes.and_then(|scopes| self.add(key, scopes)),
            };
            added.map_err(|reason| ApiKeyFileError { line: index + 1, reason })?;
        }
        Ok(())
    }

    /// Scopes of a key; `None` if it is no key of this server. The time it takes does not depend on the key: it is
    /// compared with every hash, each in constant time.
    pub fn scopes(&self, key: &[u8]) -> Option<Scopes> {
        let hash = blake3::hash(key);
        let mut found = None;
        for (known, scopes) in &self.0 {
            if *known == hash {
                found = Some(found.unwrap_or(Scopes::NONE).and(*scopes));
            }
        }
        found
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of keys; one that was added twice counts twice.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Their number, and nothing else.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Keys, ApiKeyFileError> {
        let mut keys = Keys::default();
        keys.add_file(text).map(|()| keys)
    }

    #[test]
    fn a_file_has_a_key_a_line_with_scopes_behind_it() {
        let keys = of("# ours\n\nalpha\n  beta\tuse,metrics \r\n#gamma\ndelta admin\nalpha metrics").unwrap();
        let opens = |key: &str| {
            let scopes = keys.scopes(key.as_bytes())?;
            Some([Scope::Use, Scope::Metrics, Scope::Admin].map(|scope| scopes.open(scope)))
        };
        assert_eq!(opens("alpha"), Some([true, true, false]));
        assert_eq!(opens("beta"), Some([true, true, false]));
        assert_eq!(opens("delta"), Some([true, true, true]));
        for none in ["", "#", "# ours", "#gamma", "gamma", "ALPHA", "alph", "alpha ", "use,metrics"] {
            assert_eq!(opens(none), None, "{none}");
        }
    }

    #[test]
    fn a_line_that_is_wrong_is_named_and_its_key_is_not() {
        let cases = [
            ("a\nsecret-key root", 2, ApiKeyError::Scope),
            ("secret-key use,", 1, ApiKeyError::Scope),
            ("\n\nsecret-key use metrics", 3, ApiKeyError::TooMuch),
            ("sécret-key", 1, ApiKeyError::Character),
        ];
        for (text, line, reason) in cases {
            let error = of(text).unwrap_err();
            assert_eq!(error, ApiKeyFileError { line, reason }, "{text}");
            assert!(!format!("{error} {error:?}").contains("cret"), "{error}");
        }
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let keys = of("secret-key").unwrap();
        let shown = format!("{keys:?}");
        assert_eq!(shown, "Keys(1)");
    }

    #[test]
    fn a_key_that_no_header_can_hold_is_refused() {
        let mut keys = Keys::default();
        assert_eq!(keys.add("", Scopes::NONE), Err(ApiKeyError::Empty));
        assert_eq!(keys.add("a b", Scopes::NONE), Err(ApiKeyError::Character));
        assert_eq!(keys.add("a\n", Scopes::NONE), Err(ApiKeyError::Character));
        assert!(keys.is_empty());
    }
}
