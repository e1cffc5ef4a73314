//! TLS as the lane uses it: version 1.3, one provider, one CA, certificates on both sides, nothing resumed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use muser_trust::identity::{COMMON_SERVER_NAME, NodeIdentity};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{DnsName, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// ALPN protocol name, required of both ends.
pub const PROTOCOL: &[u8] = b"muser-handoff/2";

/// Clock in seconds since 1970.
pub type UnixClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The identity cannot be used for TLS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Rejected by the TLS library.
    #[error("the identity cannot be used for TLS: {reason}")]
    Tls {
        /// Message of the TLS library.
        reason: String,
    },
}

pub(super) fn client(identity: &NodeIdentity, clock: &UnixClock) -> Result<ClientConfig, SetupError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(identity)?, provider.clone());
    let mut config = ClientConfig::builder_with_details(provider, time_by(clock))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_webpki_verifier(verifier.build().map_err(refused)?)
        .with_client_auth_cert(vec![identity.certificate().clone()], identity.private_key())
        .map_err(refused)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

pub(super) fn server(identity: &NodeIdentity, clock: &UnixClock) -> Result<ServerConfig, SetupError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(identity)?, provider.clone());
    let mut config = ServerConfig::builder_with_details(provider, time_by(clock))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(verifier.build().map_err(refused)?)
        .with_single_cert(vec![identity.certificate().clone()], identity.private_key())
        .map_err(refused)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The name that every node's certificate carries.
pub(super) fn server_name() -> ServerName<'static> {
    ServerName::DnsName(DnsName::try_from(COMMON_SERVER_NAME).expect("a constant that the tests resolve"))
}

fn roots(identity: &NodeIdentity) -> Result<Arc<RootCertStore>, SetupError> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.authority().clone()).map_err(refused)?;
    Ok(Arc::new(roots))
}

fn refused(error: impl fmt::Display) -> SetupError {
    SetupError::Tls { reason: error.to_string() }
}

/// Our clock in the library's form.
struct Clock(UnixClock);

/// The clock as rustls takes it.
pub fn time_by(clock: &UnixClock) -> Arc<dyn TimeProvider> {
    Arc::new(Clock(clock.clone()))
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs((self.0)())))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
