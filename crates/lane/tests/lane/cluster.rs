//! A cluster in temporary folders, and the two ends of a connection on the loopback interface.

use std::sync::Arc;
use std::time::Duration;

use muser_lane::{Acceptor, Connector, Lane, LaneError, LaneSettings, UnixClock, Wanted};
use muser_trust::identity::{
    ClusterAuthority, ClusterFolder, Grant, NodeIdentity, NodeKey, NodeName, Revocations, Role, Roles,
};
use muser_trust::keys::KeyRing;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;

/// The time of all certificates, and of all clocks that are right.
pub const NOW: u64 = 1_800_000_000;

pub struct Cluster {
    pub authority: ClusterAuthority,
}

pub struct Node {
    pub identity: NodeIdentity,
    pub revocations: Arc<Revocations>,
    folder: tempfile::TempDir,
}

pub fn any(role: Role) -> Wanted {
    Wanted { role, id: None }
}

impl Cluster {
    pub fn new() -> Self {
        let name = NodeName::new("desk").unwrap();
        Self { authority: ClusterAuthority::create(&name, NOW).unwrap() }
    }

    /// A node with a certificate from `issued` on, for an hour.
    pub fn node(&self, name: &str, roles: Roles, issued: u64) -> Node {
        let path = tempfile::tempdir().unwrap();
        let folder = ClusterFolder::new(path.path());
        folder.join(self.authority.certificate_pem(), &KeyRing::generate(NOW).unwrap()).unwrap();
        let key = NodeKey::generate().unwrap();
        folder.save_node_key(&key).unwrap();
        let grant = Grant { name: NodeName::new(name).unwrap(), roles, lifetime_s: 3600 };
        let certificate = self.authority.sign(&key.request().unwrap(), &grant, issued).unwrap();
        folder.save_node_certificate(&certificate).unwrap();
        let revocations = Arc::new(folder.load_revocations().unwrap());
        Node { identity: folder.load_identity().unwrap(), revocations, folder: path }
    }

    /// The usual two: a decoder that connects, a producer that accepts.
    pub fn pair(&self) -> (Node, Node) {
        (self.node("decoder", Roles::Decoder, NOW), self.node("producer", Roles::Producer, NOW))
    }
}

impl Node {
    pub fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.folder.path().join("node.pem")).unwrap()
    }

    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(self.folder.path().join("node.key")).unwrap()
    }

    pub fn settings(&self) -> LaneSettings {
        let clock: UnixClock = Arc::new(|| NOW);
        LaneSettings { revocations: self.revocations.clone(), handshake_timeout: Duration::from_secs(20), clock }
    }

    pub fn connector(&self) -> Connector {
        Connector::new(&self.identity, self.settings()).unwrap()
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor::new(&self.identity, self.settings(), any(Role::Decoder)).unwrap()
    }
}

/// Both ends' outcome: the decoder's, then the producer's.
pub async fn meet(decoder: &Node, producer: &Node) -> (Result<Lane, LaneError>, Result<Lane, LaneError>) {
    meet_as(decoder, producer, any(Role::Producer)).await
}

pub async fn meet_as(
    decoder: &Node,
    producer: &Node,
    wanted: Wanted,
) -> (Result<Lane, LaneError>, Result<Lane, LaneError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connector, acceptor) = (decoder.connector(), producer.acceptor());
    let accepting = async { acceptor.accept(listener.accept().await.unwrap().0).await };
    tokio::join!(connector.connect(address, wanted), accepting)
}
