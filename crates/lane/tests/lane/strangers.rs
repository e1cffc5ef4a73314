//! Peers that are not nodes: other TLS clients, other protocols, silence.

use std::sync::Arc;
use std::time::Duration;

use muser_lane::{Acceptor, Lane, LaneError, LaneSettings, PROTOCOL, Refusal, Wanted};
use muser_trust::identity::Role;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use crate::cluster::{Cluster, NOW, Node, any};

/// A TLS client that is set up by hand.
pub struct Client {
    config: ClientConfig,
}

#[derive(Debug)]
struct Clock;

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(NOW)))
    }
}

impl Client {
    pub fn of(cluster: &Cluster, proves: Option<&Node>, version: &'static SupportedProtocolVersion) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(cluster.authority.certificate_pem().as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let builder = ClientConfig::builder_with_details(provider, Arc::new(Clock))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_webpki_verifier(verifier);
        let mut config = match proves {
            Some(node) => builder.with_client_auth_cert(vec![node.certificate()], node.private_key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Self { config }
    }

    /// The verdict or error that the client sees last, and the acceptor's outcome.
    pub async fn meet(self, producer: &Node) -> (String, Result<Lane, LaneError>) {
        let connector = TlsConnector::from(Arc::new(self.config));
        meet_with(producer.acceptor(), |tcp| async move {
            let name = ServerName::try_from("node.muser.internal").unwrap();
            let mut stream = match connector.connect(name, tcp).await {
                Ok(stream) => stream,
                Err(error) => return format!("{error:?}"),
            };
            match stream.read_u8().await {
                Ok(byte) => format!("verdict {byte}"),
                Err(error) => format!("{error:?}"),
            }
        })
        .await
    }
}

/// Connects, does what `peer` does, and gives both outcomes.
async fn meet_with<P: Future>(
    acceptor: Acceptor,
    peer: impl FnOnce(TcpStream) -> P,
) -> (P::Output, Result<Lane, LaneError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let peer = async { peer(TcpStream::connect(address).await.unwrap()).await };
    let accepting = async { acceptor.accept(listener.accept().await.unwrap().0).await };
    tokio::join!(peer, accepting)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_certificate_is_refused() {
    let cluster = Cluster::new();
    let producer = cluster.pair().1;
    let (told, far) = Client::of(&cluster, None, &version::TLS13).meet(&producer).await;
    assert!(matches!(far, Err(LaneError::Refused(Refusal::NoCertificate))), "{far:?}");
    assert!(told.contains("CertificateRequired"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_1_2_is_refused() {
    let cluster = Cluster::new();
    let (decoder, producer) = cluster.pair();
    let (told, far) = Client::of(&cluster, Some(&decoder), &version::TLS12).meet(&producer).await;
    assert!(matches!(far, Err(LaneError::Refused(Refusal::IncompatibleTls { .. }))), "{far:?}");
    assert!(told.contains("ProtocolVersion") || told.contains("HandshakeFailure"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_and_none_are_refused() {
    let cluster = Cluster::new();
    let (decoder, producer) = cluster.pair();
    for (protocols, reason) in [(vec![b"h2".to_vec()], "NoApplicationProtocol"), (Vec::new(), "verdict 4")] {
        let mut client = Client::of(&cluster, Some(&decoder), &version::TLS13);
        client.config.alpn_protocols = protocols;
        let (told, far) = client.meet(&producer).await;
        assert!(matches!(far, Err(LaneError::Refused(Refusal::WrongProtocol))), "{far:?}");
        assert!(told.contains(reason), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_tls_are_refused() {
    let producer = Cluster::new().pair().1;
    for bytes in [&b"GET / HTTP/1.1\r\nHost: muser\r\n\r\n"[..], &[0; 64], &[0xff; 20_000]] {
        let (told, far) = meet_with(producer.acceptor(), |mut tcp| async move {
            // The acceptor takes what it does not read, so that its alert arrives and no reset.
            tcp.write_all(bytes).await.unwrap();
            tcp.shutdown().await.unwrap();
            let mut told = Vec::new();
            tcp.read_to_end(&mut told).await.unwrap();
            told
        })
        .await;
        assert_eq!(told.first(), Some(&21), "{told:?}");
        assert!(matches!(far, Err(LaneError::Refused(Refusal::NotTls { .. }))), "{far:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_leaves_is_not_a_failure_of_ours() {
    let producer = Cluster::new().pair().1;
    let (_, far) = meet_with(producer.acceptor(), |tcp| async move { drop(tcp) }).await;
    assert!(matches!(far, Err(LaneError::Closed)), "{far:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_never_ends_is_ended_at_either_side() {
    let cluster = Cluster::new();
    let (decoder, producer) = cluster.pair();
    let limit = Duration::from_millis(200);
    let hasty = |node: &Node| LaneSettings { handshake_timeout: limit, ..node.settings() };
    let acceptor = Acceptor::new(&producer.identity, hasty(&producer), any(Role::Decoder)).unwrap();
    let (_, far) = meet_with(acceptor, |mut tcp| async move {
        // The beginning of a record of 512 bytes, then one byte at a time until the acceptor has enough.
        tcp.write_all(&[22, 3, 1, 2, 0]).await.unwrap();
        while tcp.write_all(&[1]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(matches!(far, Err(LaneError::Timeout { limit: told }) if told == limit), "{far:?}");

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connector = muser_lane::Connector::new(&decoder.identity, hasty(&decoder)).unwrap();
    let wanted = Wanted { role: Role::Producer, id: None };
    let near = connector.connect(silent.local_addr().unwrap(), wanted).await;
    assert!(matches!(near, Err(LaneError::Timeout { .. })), "{near:?}");
    let address = silent.local_addr().unwrap();
    drop(silent);
    let near = decoder.connector().connect(address, wanted).await;
    assert!(matches!(near, Err(LaneError::Connect { .. })), "{near:?}");
}
