//! HTTP client of the hub. It follows redirects itself, because each hop decides anew if the token is sent.

use std::io::Read;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use ureq::http::header;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, ProxyProtocol};

use crate::address::{HttpAddress, HttpAddressError, encode};
use crate::answer::Facts;
use crate::error::Error;
use crate::file_name::FileName;
use crate::listing::Listing;
use crate::reference::{RepoId, Revision};
use crate::settings::{Proxy, Settings, SettingsError};

/// Redirects in a row.
const REDIRECTS_MAX: usize = 10;

/// Reasons to refuse a redirect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedirectFault {
    /// More than any server needs; most likely a circle.
    #[error("redirected more than {max} times")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// No `Location` header.
    #[error("redirected without saying where to")]
    NoLocation,
    /// The `Location` is no usable address.
    #[error("redirected to an unusable address: {0}")]
    Address(HttpAddressError),
    /// From `https` to `http`: the file would arrive unencrypted.
    #[error("redirected from https to http, at {0}")]
    Insecure(String),
}

/// HTTP client with one user's settings.
pub(crate) struct Client {
    pub(crate) settings: Settings,
    http: Agent,
    https: Agent,
}

/// A success, with its body not yet read.
pub(crate) struct Answer {
    /// 200 or 206, or 416 if a range was asked for.
    pub(crate) status: u16,
    pub(crate) facts: Facts,
    pub(crate) body: Body,
}

/// The rest of a file that is asked for.
pub(crate) struct Rest<'a> {
    /// First byte.
    pub(crate) from: u64,
    /// Only of the content that has this strong etag; otherwise all of it.
    pub(crate) if_etag: Option<&'a str>,
}

/// Size and headers of a file, found by `HEAD` before its bytes are fetched.
pub(crate) struct Located {
    pub(crate) facts: Facts,
    /// Size of the file, if the hub says so.
    pub(crate) bytes: Option<u64>,
}

enum Method {
    Get,
    Head,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Result<Self, SettingsError> {
        if settings.endpoint.uri().query().is_some() {
            return Err(SettingsError::EndpointQuery(settings.endpoint));
        }
        let http = agent(&settings, settings.http_proxy.as_ref())?;
        let https = agent(&settings, settings.https_proxy.as_ref())?;
        Ok(Self { settings, http, https })
    }

    /// Lists the GGUF files of a repository at a revision, from the hub's `api/models` endpoint.
    pub(crate) fn listing(&self, repo: &RepoId, revision: &Revision) -> Result<Listing, Error> {
        let revision = encode(revision.as_str());
        let address = self.endpoint(&format!("api/models/{}/revision/{revision}", path(repo)))?;
        let answer = self.get(&address, None)?;
        let mut json = Vec::new();
        let mut limited = answer.body.into_reader().take(Listing::BYTES_MAX as u64 + 1);
        limited.read_to_end(&mut json).map_err(|reason| Error::Interrupted {
            address: address.to_string(),
            bytes: json.len() as u64,
            expected: answer.facts.body_bytes,
            reason,
        })?;
        Listing::parse(&json).map_err(|reason| Error::Listing { address: address.to_string(), reason })
    }

    /// The address of a repository's file at a commit.
    pub(crate) fn file_address(&self, repo: &RepoId, commit: &str, file: &FileName) -> Result<HttpAddress, Error> {
        let name = file.parts().map(encode).collect::<Vec<_>>().join("/");
        self.endpoint(&format!("{}/resolve/{commit}/{name}", path(repo)))
    }

    /// Size and headers of the file at `address`, by `HEAD`.
    pub(crate) fn locate(&self, address: &HttpAddress) -> Result<Located, Error> {
        let mut hops = Hops::new(self, address);
        loop {
            let (status, facts, _) = hops.ask(&Method::Head, None)?;
            // The hub tells of the file in the redirect to where the bytes are; that place need not be asked.
            if facts.linked_etag.is_some() {
                let bytes = facts.linked_bytes;
                return Ok(Located { facts, bytes });
            }
            if !is_redirect(status) {
                hops.check(status, &facts)?;
                let bytes = facts.linked_bytes.or(facts.body_bytes);
                return Ok(Located { facts, bytes });
            }
            hops.follow(&facts)?;
        }
    }

    /// Requests the bytes at `address`, all or the rest.
    pub(crate) fn get(&self, address: &HttpAddress, rest: Option<&Rest<'_>>) -> Result<Answer, Error> {
        let mut hops = Hops::new(self, address);
        loop {
            let (status, facts, body) = hops.ask(&Method::Get, rest)?;
            if is_redirect(status) {
                hops.follow(&facts)?;
                continue;
            }
            if status != 416 || rest.is_none() {
                hops.check(status, &facts)?;
            }
            return Ok(Answer { status, facts, body });
        }
    }

    fn endpoint(&self, path: &str) -> Result<HttpAddress, Error> {
        let address = self.settings.endpoint.below(path);
        address.map_err(|reason| Error::Reference(reason.into()))
    }
}

/// A chain of redirects.
struct Hops<'a> {
    client: &'a Client,
    address: HttpAddress,
    count: usize,
    /// True while every hop so far had the endpoint's own origin. Only then is the token sent, and are the
    /// `X-Repo-Commit` and `X-Linked-*` headers trusted.
    is_at_endpoint: bool,
}

impl<'a> Hops<'a> {
    fn new(client: &'a Client, address: &HttpAddress) -> Self {
        let is_at_endpoint = address.origin() == client.settings.endpoint.origin();
        Self { client, address: address.clone(), count: 0, is_at_endpoint }
    }

    fn ask(&self, method: &Method, rest: Option<&Rest<'_>>) -> Result<(u16, Facts, Body), Error> {
        let agent = if self.address.origin().is_https { &self.client.https } else { &self.client.http };
        let uri = self.address.uri().clone();
        let mut request = match method {
            Method::Get => agent.get(uri),
            Method::Head => agent.head(uri),
        };
        // Sizes and ranges count bytes of the file itself.
        request = request.header(header::ACCEPT_ENCODING, "identity");
        if let Some(token) = self.client.settings.token.as_ref().filter(|_| self.is_at_endpoint) {
            request = request.header(header::AUTHORIZATION, token.authorization());
        }
        if let Some(Rest { from, if_etag }) = rest {
            request = request.header(header::RANGE, format!("bytes={from}-"));
            if let Some(etag) = if_etag {
                request = request.header(header::IF_RANGE, *etag);
            }
        }
        let answer = request.call().map_err(|reason| self.network(reason))?;
        let (head, body) = answer.into_parts();
        let facts = Facts::read(&head.headers);
        let facts = if self.is_at_endpoint { facts } else { facts.without_hub_headers() };
        Ok((head.status.as_u16(), facts, body))
    }

    fn follow(&mut self, facts: &Facts) -> Result<(), Error> {
        let fault = |reason| Error::Redirect { address: self.address.to_string(), reason };
        let location = facts.location.as_deref().ok_or_else(|| fault(RedirectFault::NoLocation))?;
        let next = self.address.join(location).map_err(|reason| fault(RedirectFault::Address(reason)))?;
        if self.count == REDIRECTS_MAX {
            return Err(fault(RedirectFault::TooMany { max: REDIRECTS_MAX }));
        }
        if self.address.origin().is_https && !next.origin().is_https {
            return Err(fault(RedirectFault::Insecure(next.to_string())));
        }
        self.is_at_endpoint &= next.origin() == self.client.settings.endpoint.origin();
        self.address = next;
        self.count += 1;
        Ok(())
    }

    /// Refuses any status but 200 and 206.
    fn check(&self, status: u16, facts: &Facts) -> Result<(), Error> {
        let address = self.address.to_string();
        match status {
            200 | 206 => Ok(()),
            401 | 403 => Err(Error::Denied { address, status }),
            404 | 410 => Err(Error::NotFound { address }),
            status => Err(Error::Status { address, status, retry_after_s: facts.retry_after_s }),
        }
    }

    fn network(&self, reason: ureq::Error) -> Error {
        Error::Network { address: self.address.to_string(), reason: Box::new(reason) }
    }
}

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn path(repo: &RepoId) -> String {
    format!("{}/{}", encode(repo.user()), encode(repo.name()))
}

fn agent(settings: &Settings, proxy: Option<&Proxy>) -> Result<Agent, SettingsError> {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .proxy(proxy.map(of_proxy).transpose()?)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("muser/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(settings.connect_timeout))
        .timeout_connect(Some(settings.connect_timeout))
        .timeout_per_read(Some(settings.stall_timeout))
        .timeout_per_write(Some(settings.stall_timeout))
        // A kept connection may have been closed meanwhile, which would look like an interruption.
        .max_idle_connections(0)
        .build();
    Ok(config.new_agent())
}

fn of_proxy(proxy: &Proxy) -> Result<ureq::Proxy, SettingsError> {
    let parsed = ureq::Proxy::new(&proxy.address).map_err(|_| SettingsError::Proxy)?;
    if !matches!(parsed.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
        return Err(SettingsError::Proxy);
    }
    let mut builder = ureq::Proxy::builder(parsed.protocol()).host(parsed.host()).port(parsed.port());
    if let Some(name) = parsed.username() {
        builder = builder.username(name);
    }
    if let Some(password) = parsed.password() {
        builder = builder.password(password);
    }
    // Everywhere else a host stands for what is below it, too.
    for host in proxy.exceptions.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|host| !host.is_empty())
    {
        builder = builder.no_proxy(host).no_proxy(&format!(".{}", host.trim_start_matches(['*', '.'])));
    }
    builder.build().map_err(|_| SettingsError::Proxy)
}
