//! URLs of files: `http` or `https`, without user name and password, and shown without their query.

use std::fmt;
use std::str::FromStr;

use ureq::http::Uri;
use ureq::http::uri::Scheme;

use crate::file_name::FileName;

/// An absolute `http` or `https` address without user name and password.
///
/// Shown without what follows `?`, since that may hold a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAddress(Uri);

/// Parse error of an [`HttpAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpAddressError {
    /// Not an absolute address with a host.
    #[error("{0:?} is not a whole address, like https://host/file.gguf")]
    Malformed(String),
    /// Neither `http` nor `https`.
    #[error("an address that begins with {0:?}; only http and https are known")]
    Scheme(String),
    /// A user name or password in it.
    #[error("an address with a user name in it is not supported")]
    UserName,
}

/// Web origin: scheme, lower-case host, port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) is_https: bool,
    host: String,
    port: u16,
}

impl FromStr for HttpAddress {
    type Err = HttpAddressError;

    fn from_str(text: &str) -> Result<Self, HttpAddressError> {
        let uri: Uri = text.parse().map_err(|_| malformed(text))?;
        let scheme = uri.scheme().ok_or_else(|| malformed(text))?;
        if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS {
            return Err(HttpAddressError::Scheme(scheme.to_string()));
        }
        let authority = uri.authority().ok_or_else(|| malformed(text))?;
        if authority.as_str().contains('@') {
            return Err(HttpAddressError::UserName);
        }
        let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok());
        if authority.host().is_empty() || !is_port {
            return Err(malformed(text));
        }
        Ok(Self(uri))
    }
}

/// [`HttpAddressError::Malformed`] with at most 200 characters of the text, without what may be a secret: the query, and all that
/// stands before an `@`.
fn malformed(text: &str) -> HttpAddressError {
    let without_query = text.split('?').next().unwrap_or_default();
    let shown = without_query.rsplit('@').next().unwrap_or_default();
    HttpAddressError::Malformed(shown.chars().take(200).collect())
}

impl HttpAddress {
    /// The address as a request needs it.
    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }

    pub(crate) fn origin(&self) -> Origin {
        let is_https = self.0.scheme() == Some(&Scheme::HTTPS);
        let port = self.0.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Origin { is_https, host: self.0.host().unwrap_or_default().to_ascii_lowercase(), port }
    }

    /// Resolves the `Location` of a redirect against this address.
    pub(crate) fn join(&self, location: &str) -> Result<Self, HttpAddressError> {
        let scheme = self.0.scheme_str().unwrap_or("http");
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        if let Some(rest) = location.strip_prefix("//") {
            return format!("{scheme}://{rest}").parse();
        }
        if location.starts_with('/') {
            return format!("{scheme}://{authority}{location}").parse();
        }
        // A scheme is letters up to the first colon, before any slash or question mark.
        let before_path = location.split(['/', '?', '#']).next().unwrap_or_default();
        if before_path.contains(':') {
            return location.parse();
        }
        let path = self.0.path();
        let kept = if location.starts_with('?') { path } else { &path[..=path.rfind('/').unwrap_or(0)] };
        format!("{scheme}://{authority}{kept}{location}").parse()
    }

    /// The address of `path`, which is encoded already, below this one.
    pub(crate) fn below(&self, path: &str) -> Result<Self, HttpAddressError> {
        let base = self.to_string();
        format!("{}/{path}", base.trim_end_matches('/')).parse()
    }

    /// The name of the file at this address, decoded; `None` if it has none that a folder could take.
    pub(crate) fn file_name(&self) -> Option<FileName> {
        let name = String::from_utf8(decode(self.0.path().rsplit('/').next()?)).ok()?;
        // Decoded, it may contain a slash; and what ends so is what a half-finished file is called.
        let is_single = !name.contains('/') && !name.ends_with(".incomplete");
        name.parse().ok().filter(|_| is_single)
    }

    /// The address of the file `name` beside this one, with the same query.
    pub(crate) fn beside(&self, name: &FileName) -> Result<Self, HttpAddressError> {
        let path = self.0.path();
        let folder = &path[..=path.rfind('/').unwrap_or(0)];
        let query = self.0.query().map(|query| format!("?{query}")).unwrap_or_default();
        let scheme = self.0.scheme_str().unwrap_or("http");
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        format!("{scheme}://{authority}{folder}{}{query}", encode(name.last())).parse()
    }

    /// The address of the folder, with the query: equal for files that belong together.
    pub(crate) fn folder(&self) -> String {
        let path = self.0.path();
        let folder = &path[..=path.rfind('/').unwrap_or(0)];
        let Origin { is_https, host, port } = self.origin();
        format!("{is_https} {host}:{port}{folder}?{}", self.0.query().unwrap_or_default())
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}{}", self.0.scheme_str().unwrap_or("http"), self.0.path())
    }
}

/// `text` as one part of a path, with everything but letters, digits and `-._~` written as `%XX`.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

/// Percent-decodes `text`; a `%` that starts no valid escape stays.
fn decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escape = match (*first, after) {
            (b'%', [high, low, ..]) => hex_digit(*high).zip(hex_digit(*low)),
            _ => None,
        };
        decoded.push(escape.map_or(*first, |(high, low)| high << 4 | low));
        rest = if escape.is_some() { &after[2..] } else { after };
    }
    decoded
}

/// The value of a hexadecimal digit.
pub(crate) fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> HttpAddress {
        text.parse().unwrap()
    }

    #[test]
    fn a_redirect_leads_where_browsers_would_go() {
        let from = address("https://Host:8443/a/b/c.gguf?x=1");
        for (location, expected) in [
            ("https://other/d", "https://other/d"),
            ("//other/d?y", "https://other/d?y"),
            ("/d", "https://Host:8443/d"),
            ("d", "https://Host:8443/a/b/d"),
            ("d/e?z=:/", "https://Host:8443/a/b/d/e?z=:/"),
            ("?y=2", "https://Host:8443/a/b/c.gguf?y=2"),
        ] {
            assert_eq!(from.join(location).unwrap().0.to_string(), expected, "{location}");
        }
        assert_eq!(from.join("file:///etc/passwd"), Err(malformed("file:///etc/passwd")));
        assert_eq!(from.join("ftp://host/x"), Err(HttpAddressError::Scheme("ftp".into())));
        assert_eq!(from.join("https://user:secret@host/x"), Err(HttpAddressError::UserName));
    }

    #[test]
    fn an_error_shows_neither_query_nor_password() {
        for text in ["https://user:hunter2@ho st/x", "user:hunter2@host", "https://ho st/x?token=hunter2@y"] {
            let error = text.parse::<HttpAddress>().unwrap_err().to_string();
            assert!(!error.contains("hunter2") && error.contains("st"), "{error}");
        }
    }

    #[test]
    fn origins_differ_in_scheme_host_or_port_and_in_nothing_else() {
        let origin = |text| address(text).origin();
        assert_eq!(origin("https://HOST/a"), origin("https://host:443/b?c"));
        assert_eq!(origin("http://host"), origin("http://host:80/"));
        for other in ["http://host", "https://host:8443", "https://host.evil", "https://hos", "http://host:443"] {
            assert_ne!(origin("https://host"), origin(other), "{other}");
        }
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        assert_eq!(address("https://host/a.gguf?sig=secret").to_string(), "https://host/a.gguf");
        let refused = "https://user:secret@host/x".parse::<HttpAddress>().unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
        let refused = "host/x?sig=secret".parse::<HttpAddress>().unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[test]
    fn the_files_name_is_decoded_and_stays_in_its_folder() {
        let name = |text| address(text).file_name().map(|name| name.to_string());
        assert_eq!(name("https://h/a/m%20%C3%BC.gguf?x").as_deref(), Some("m ü.gguf"));
        assert_eq!(name("https://h/a%zz").as_deref(), Some("a%zz"));
        for none in ["https://h", "https://h/a/", "https://h/..%2Fx", "https://h/a%2Fb", "https://h/%2e%2E"] {
            assert_eq!(name(none), None, "{none}");
        }
        assert_eq!(name("https://h/%ff"), None);
        assert_eq!(name("https://h/m.gguf.incomplete"), None);
        let beside = address("https://h/a/m.gguf?x=1").beside(&"n ü.gguf".parse().unwrap()).unwrap();
        assert_eq!(beside.0.to_string(), "https://h/a/n%20%C3%BC.gguf?x=1");
    }
}
