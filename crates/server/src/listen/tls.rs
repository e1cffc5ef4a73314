//! TLS: a certificate and its key, as PEM.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// TLS 1.2 and 1.3 acceptor with the server's certificates.
#[derive(Clone)]
pub struct Tls(pub(super) TlsAcceptor);

/// Error of a certificate or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificates cannot be read.
    #[error("no certificates in PEM: {0}")]
    Certificates(pem::Error),
    /// There is no certificate.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// The private key cannot be read.
    #[error("no private key in PEM: {0}")]
    Key(pem::Error),
    /// They do not belong together, or are of a kind that is not supported.
    #[error("certificate and key cannot be used together: {0}")]
    Unusable(rustls::Error),
}

impl Tls {
    /// From the texts of two files: the certificates, the server's own first, and its private key.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(TlsError::Certificates)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Key)?;
        // Named here, so that no other crate's choice of a provider matters.
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let mut config = builder
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(TlsError::Unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Never shows the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
