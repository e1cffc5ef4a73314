//! Checks of the `Host` and `Origin` headers, against DNS rebinding and cross-site requests.
//!
//! A browser lets any page send requests to any address, this machine's own included. Two headers, which no page can
//! forge, identify such requests: `Host` is the name that the browser looked up, `Origin` the page that sends.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};

/// Origins of pages, besides the server's own, that may send requests (CORS).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    listed: Vec<String>,
    any: bool,
}

/// An origin that cannot be compared with what browsers send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no origin: an origin is a scheme, a host and perhaps a port, as in https://example.org:8443 or \
     tauri://localhost, or * for all"
)]
pub struct NoOrigin(pub String);

/// Source of a request, by its `Origin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// No page, or a page of this server.
    Own,
    /// A page of an allowed origin; the value of its `Access-Control-Allow-Origin`.
    Allowed(HeaderValue),
    /// Any other page.
    Foreign,
}

impl Origins {
    /// Adds an origin, or all by `*`.
    ///
    /// # Errors
    /// If it is none.
    pub fn add(&mut self, origin: &str) -> Result<(), NoOrigin> {
        if origin == "*" {
            self.any = true;
            return Ok(());
        }
        let authority = authority_of_any(origin).filter(|authority| !authority.is_empty());
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@\\".contains(&b));
        if !authority.is_some_and(is_plain) {
            return Err(NoOrigin(origin.to_owned()));
        }
        self.listed.push(origin.to_ascii_lowercase());
        Ok(())
    }

    /// Source of a request, by its headers. `Asker::Foreign` are several `Origin` headers, one that is no text, and a
    /// request without `Origin` that `Sec-Fetch-Site` marks as cross-site, unless its method is safe: a `GET` may come
    /// from a link.
    pub fn asker(&self, method: &Method, headers: &HeaderMap) -> Asker {
        if !headers.contains_key(header::ORIGIN) && !method.is_safe() && is_from_elsewhere(headers) {
            return Asker::Foreign;
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let (Some(value), None) = (origins.next(), origins.next()) else {
            return if headers.contains_key(header::ORIGIN) { Asker::Foreign } else { Asker::Own };
        };
        let Ok(origin) = value.to_str() else { return Asker::Foreign };
        let host = only(headers).unwrap_or_default();
        if authority_of(origin).is_some_and(|authority| !host.is_empty() && authority.eq_ignore_ascii_case(host)) {
            Asker::Own
        } else if self.listed.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
            Asker::Allowed(value.clone())
        } else if self.any {
            Asker::Allowed(HeaderValue::from_static("*"))
        } else {
            Asker::Foreign
        }
    }
}

/// True if `Sec-Fetch-Site` says that the request comes from a page of another origin.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let sites = headers.get_all("sec-fetch-site").iter();
    sites.into_iter().any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
}

/// True if the request addresses this machine by `localhost` or by an IP address, in `Host` and, if present, in the
/// URI. A page whose name was made to resolve to this machine (DNS rebinding) sends that name.
pub fn names_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let of_uri = uri.authority().is_none_or(|authority| is_local(authority.as_str()));
    of_uri && only(headers).is_some_and(is_local)
}

fn is_local(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if is_port(port) => host,
            _ => return false,
        },
        None => match authority.split_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            None => authority,
            Some(_) => return false,
        },
    };
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok()
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// The `Host` header, if there is exactly one and it is text.
fn only(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    }
}

/// Schemes of addresses whose pages have no origin that could be listed.
const WITHOUT_ORIGIN: [&str; 8] = ["about", "blob", "data", "file", "ftp", "javascript", "ws", "wss"];

/// Authority of an origin: the part after `://` of any scheme that has origins, those of applications included.
fn authority_of_any(origin: &str) -> Option<&str> {
    let (scheme, authority) = origin.split_once("://")?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(is_plain);
    let has_origin = !WITHOUT_ORIGIN.iter().any(|other| other.eq_ignore_ascii_case(scheme));
    (is_scheme && has_origin).then_some(authority)
}

/// Authority of a web page's origin: the part after `http://` or `https://`.
fn authority_of(origin: &str) -> Option<&str> {
    ["http://", "https://"].iter().find_map(|scheme| {
        let (start, rest) = origin.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn append(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn only_local_names_and_addresses_name_this_machine() {
        let uri = Uri::from_static("/x");
        for host in ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1", "10.1.2.3:80", "[::1]", "[::1]:9931"] {
            assert!(names_this_machine(&uri, &headers(&[("host", host)])), "{host}");
        }
        let others =
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "[::1", "::1"];
        for host in others {
            assert!(!names_this_machine(&uri, &headers(&[("host", host)])), "{host}");
        }
        assert!(!names_this_machine(&uri, &HeaderMap::new()));
        let two = append(&[(header::HOST, "localhost"), (header::HOST, "evil.example")]);
        assert!(!names_this_machine(&uri, &two));
        let absolute = Uri::from_static("http://evil.example/x");
        assert!(!names_this_machine(&absolute, &headers(&[("host", "localhost")])));
    }

    #[test]
    fn an_origin_is_own_if_its_host_is_the_one_asked_and_foreign_unless_listed() {
        let mut origins = Origins::default();
        origins.add("https://app.example:8443").unwrap();
        let asker =
            |origin: &str| origins.asker(&Method::POST, &headers(&[("host", "127.0.0.1:9931"), ("origin", origin)]));
        assert_eq!(origins.asker(&Method::POST, &headers(&[("host", "x")])), Asker::Own);
        assert_eq!(asker("http://127.0.0.1:9931"), Asker::Own);
        assert_eq!(asker("https://app.example:8443"), Asker::Allowed("https://app.example:8443".parse().unwrap()));
        for foreign in ["null", "http://127.0.0.1", "http://evil.example", "http://app.example:8443", "file://x", ""] {
            assert_eq!(asker(foreign), Asker::Foreign, "{foreign}");
        }
        let two = append(&[(header::HOST, "a"), (header::ORIGIN, "http://a"), (header::ORIGIN, "http://evil.example")]);
        assert_eq!(origins.asker(&Method::POST, &two), Asker::Foreign);
        // Without a host nothing is the same as it.
        assert_eq!(origins.asker(&Method::POST, &headers(&[("origin", "http://")])), Asker::Foreign);
        origins.add("*").unwrap();
        let any = origins.asker(&Method::POST, &headers(&[("host", "a"), ("origin", "http://evil.example")]));
        assert_eq!(any, Asker::Allowed("*".parse().unwrap()));
    }

    #[test]
    fn pages_of_applications_may_be_listed() {
        let mut origins = Origins::default();
        for origin in ["vscode-file://vscode-app", "tauri://localhost", "chrome-extension://abc"] {
            let asker = |origins: &Origins| {
                origins.asker(&Method::GET, &headers(&[("host", "127.0.0.1:9931"), ("origin", origin)]))
            };
            assert_eq!(asker(&origins), Asker::Foreign, "{origin}");
            origins.add(origin).unwrap();
            assert_eq!(asker(&origins), Asker::Allowed(origin.parse().unwrap()));
        }
    }

    #[test]
    fn what_no_browser_sends_is_no_origin() {
        let texts =
            ["", "example.org", "https://", "https://a/", "https://a/b", "ftp://a", "null", "https://u@a", "**"];
        for text in texts.into_iter().chain(["file://x", "://a", "1a://b", "tauri://", "tauri://a/b"]) {
            assert_eq!(Origins::default().add(text), Err(NoOrigin(text.into())));
        }
    }

    #[test]
    fn a_page_without_an_origin_is_foreign_if_its_browser_says_so_and_it_does_not_only_read() {
        let asker = |method: Method, site: &str| {
            Origins::default().asker(&method, &headers(&[("host", "a"), ("sec-fetch-site", site)]))
        };
        for site in ["cross-site", "same-site", "Cross-Site", ""] {
            assert_eq!(asker(Method::POST, site), Asker::Foreign, "{site}");
            assert_eq!(asker(Method::GET, site), Asker::Own, "a link may lead here");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(asker(Method::POST, site), Asker::Own, "{site}");
        }
    }
}
