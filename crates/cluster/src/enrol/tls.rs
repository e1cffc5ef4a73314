//! TLS of an enrolment: version 1.3, protocol name [`PROTOCOL`], nothing resumed. The enrolling node proves that it has the
//! CA's key, by a certificate that only the CA makes; the new node proves nothing yet.

use std::sync::Arc;

use muser_lane::{UnixClock, time_by};
use muser_trust::identity::{ClusterAuthority, ENROLLING_SERVER_NAME, cluster_id};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::failure::EnrolError;

/// ALPN protocol name, required of both ends.
pub const PROTOCOL: &[u8] = b"muser-enrol/2";

/// TLS settings of the enrolling side, with a certificate valid for `lifetime_s` from now.
pub(super) fn server(
    authority: &ClusterAuthority,
    lifetime_s: u64,
    clock: &UnixClock,
) -> Result<ServerConfig, EnrolError> {
    let (chain, key) = authority.enrolling(lifetime_s, clock())?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_details(provider, time_by(clock))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(refused)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// TLS settings of the new node, which accepts the CA of this cluster alone.
pub(super) fn client(cluster_id: [u8; 32], clock: &UnixClock) -> Result<ClientConfig, EnrolError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(OfCluster { cluster_id, provider: Arc::clone(&provider) });
    let mut config = ClientConfig::builder_with_details(provider, time_by(clock))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Server name in the enrolling node's certificate.
pub(super) fn server_name() -> Result<ServerName<'static>, EnrolError> {
    ServerName::try_from(ENROLLING_SERVER_NAME).map_err(|error| EnrolError::Tls { reason: error.to_string() })
}

fn refused(error: TlsError) -> EnrolError {
    EnrolError::Tls { reason: error.to_string() }
}

/// Accepts a chain whose last certificate has the wanted digest and has signed the first, for [`ENROLLING_SERVER_NAME`].
///
/// A node's certificate is for another name. So a node of the cluster cannot pose as its CA.
#[derive(Debug)]
struct OfCluster {
    cluster_id: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OfCluster {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let unknown = || TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let authority = intermediates.iter().find(|shown| cluster_id(shown) == self.cluster_id).ok_or_else(unknown)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|error| TlsError::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
