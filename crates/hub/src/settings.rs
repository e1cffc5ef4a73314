//! Settings of the hub client: endpoint, token, folders, proxies and timeouts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::address::HttpAddress;

/// Plain values for a [`Hub`](crate::Hub).
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hub, such as `https://huggingface.co`.
    pub endpoint: HttpAddress,
    /// Access token; sent to the endpoint's own origin only.
    pub token: Option<Token>,
    /// The hub's cache: the folder that holds `models--USER--NAME`.
    pub hub_cache: PathBuf,
    /// Folder of files pulled by address, and of the notes on unfinished files.
    pub downloads: PathBuf,
    /// The proxy for `http` addresses.
    pub http_proxy: Option<Proxy>,
    /// The proxy for `https` addresses.
    pub https_proxy: Option<Proxy>,
    /// Timeout for resolving and connecting to a host.
    pub connect_timeout: Duration,
    /// Timeout of every single read or write; a longer stall counts as an interruption.
    pub stall_timeout: Duration,
    /// Pauses before retries, used in order; their number is the most retries in a row without progress.
    pub retry_pauses: Vec<Duration>,
}

/// Access token. Its text is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A token that cannot be sent. The text itself is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is empty or has characters that no token has")]
pub struct TokenError;

/// A proxy, and the hosts that are reached without it.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Its address, `http://[user:password@]host[:port]`.
    pub address: String,
    /// Hosts that are reached without it, separated by commas.
    pub exceptions: Option<String>,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A proxy of another kind than HTTP, or no address. It is not shown, since it may hold a password.
    #[error("the proxy's address is not of the form http://host:port")]
    Proxy,
    /// Not what a hub's address looks like.
    #[error("the hub's address {0} has a query")]
    EndpointQuery(HttpAddress),
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if good { Ok(Self(text.into())) } else { Err(TokenError) }
    }
}

impl Token {
    /// The value of the header that carries it.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proxy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let token: Token = "hf_secret".parse().unwrap();
        assert_eq!(format!("{token:?}"), "Token");
        assert_eq!(token.authorization(), "Bearer hf_secret");
        for wrong in ["", "a b", "a\r\nX: y", "ü"] {
            assert_eq!(wrong.parse::<Token>(), Err(TokenError));
        }
    }
}
