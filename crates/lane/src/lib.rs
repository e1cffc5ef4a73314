//! The lane: one encrypted connection between two nodes of one cluster, admitted by both.
//!
//! TLS 1.3 only, both sides with certificates of the cluster's CA, protocol name [`PROTOCOL`], no resumption: every
//! lane checks certificates anew. After the handshake each side checks the other's certificate against its deny-list
//! and the role that it needs, and sends its verdict in one byte; a [`Lane`] exists only after both verdicts are
//! welcome. So both sides know the reason of a refusal, and a client sees it during the handshake, which with TLS 1.3
//! alone it would see at its first read.
//!
//! - `config` sets up TLS, `refusal` has the error types.
//! - `pacing` limits a lane's send rate, `accounting` measures it; `socket_options` sets and reads the kernel's TCP
//!   options.

pub mod accounting;
mod config;
pub mod pacing;
mod refusal;
#[cfg(target_os = "linux")]
pub mod socket_options;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use muser_trust::identity::{NodeFacts, NodeId, NodeIdentity, Revocations, Role};
use muser_wire::LaneBinding;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, TlsConnector, TlsStream};

pub use config::{PROTOCOL, SetupError, UnixClock, time_by};
pub use refusal::{LaneError, PeerRefusal, Refusal};

/// Time and bytes for which a refused peer's connection is drained, so that it can read the refusal.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 64 * 1024;

/// Label of the exported value, of the form that RFC 5705 keeps for private use.
const BINDING_LABEL: &[u8] = b"EXPERIMENTAL muser handoff lane";

/// Settings of both ends of a lane.
#[derive(Clone)]
pub struct LaneSettings {
    /// The deny-list.
    pub revocations: Arc<Revocations>,
    /// Bounds the whole handshake, both admissions included.
    pub handshake_timeout: Duration,
    /// Seconds since 1970, for the validity of certificates.
    pub clock: UnixClock,
}

/// Role and node id required of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The role its certificate must grant.
    pub role: Role,
    /// The only node to accept, if it is known which.
    pub id: Option<NodeId>,
}

/// Opens lanes.
pub struct Connector {
    tls: TlsConnector,
    settings: LaneSettings,
}

/// Takes connections and makes lanes of them.
pub struct Acceptor {
    tls: TlsAcceptor,
    settings: LaneSettings,
    wanted: Wanted,
}

/// An admitted connection: a byte stream in both directions, and the peer's certificate facts.
pub struct Lane {
    stream: TlsStream<TcpStream>,
    binding: LaneBinding,
    peer: NodeFacts,
    /// Deny-list and clock by which the peer was admitted, and may be cut off later.
    settings: LaneSettings,
}

impl Connector {
    /// A connector that proves `identity`.
    ///
    /// # Errors
    /// [`SetupError`] if the identity cannot be used for TLS.
    pub fn new(identity: &NodeIdentity, settings: LaneSettings) -> Result<Self, SetupError> {
        let config = config::client(identity, &settings.clock)?;
        Ok(Self { tls: TlsConnector::from(Arc::new(config)), settings })
    }

    /// Settings of the lanes that it opens.
    pub fn settings(&self) -> &LaneSettings {
        &self.settings
    }

    /// Opens a lane to the node at `address`.
    ///
    /// # Errors
    /// [`LaneError`], with the end that refused and the reason.
    pub async fn connect(&self, address: SocketAddr, wanted: Wanted) -> Result<Lane, LaneError> {
        let opening = async {
            let tcp = TcpStream::connect(address).await.map_err(|error| LaneError::Connect { address, error })?;
            tcp.set_nodelay(true).map_err(LaneError::Io)?;
            let stream = self.tls.connect(config::server_name(), tcp).await.map_err(LaneError::of_handshake)?;
            admit(stream.into(), &self.settings, wanted).await
        };
        let limit = self.settings.handshake_timeout;
        timeout(limit, opening).await.unwrap_or(Err(LaneError::Timeout { limit }))
    }
}

impl Acceptor {
    /// An acceptor that proves `identity` and takes `wanted`.
    ///
    /// # Errors
    /// [`SetupError`] if the identity cannot be used for TLS.
    pub fn new(identity: &NodeIdentity, settings: LaneSettings, wanted: Wanted) -> Result<Self, SetupError> {
        let config = config::server(identity, &settings.clock)?;
        Ok(Self { tls: TlsAcceptor::from(Arc::new(config)), settings, wanted })
    }

    /// Turns a connection into a lane. Meant to run in a task per connection: a peer may take the whole time limit.
    ///
    /// # Errors
    /// [`LaneError`], with the end that refused and the reason. The connection is closed then.
    pub async fn accept(&self, tcp: TcpStream) -> Result<Lane, LaneError> {
        self.accept_telling(tcp, || ()).await
    }

    /// As [`Self::accept`]; `greeted` is called once a whole TLS ClientHello was read, which a node sends at once.
    ///
    /// # Errors
    /// As of [`Self::accept`].
    pub async fn accept_telling(&self, tcp: TcpStream, greeted: impl FnOnce()) -> Result<Lane, LaneError> {
        let opening = async {
            tcp.set_nodelay(true).map_err(LaneError::Io)?;
            let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp);
            tokio::pin!(hello);
            let greeting = match hello.as_mut().await {
                Ok(greeting) => greeting,
                Err(error) => {
                    if let Some(tcp) = hello.take_io() {
                        linger(tcp).await;
                    }
                    return Err(LaneError::of_handshake(error));
                }
            };
            greeted();
            match greeting.into_stream(Arc::clone(self.tls.config())).into_fallible().await {
                Ok(stream) => admit(stream.into(), &self.settings, self.wanted).await,
                Err((error, tcp)) => {
                    linger(tcp).await;
                    Err(LaneError::of_handshake(error))
                }
            }
        };
        let limit = self.settings.handshake_timeout;
        timeout(limit, opening).await.unwrap_or(Err(LaneError::Timeout { limit }))
    }
}

impl Lane {
    /// Facts of the peer's certificate.
    pub fn peer(&self) -> &NodeFacts {
        &self.peer
    }

    /// Value that only the two ends of this connection know: what TLS exports (RFC 5705, RFC 8446 section 7.5) under the label
    /// `EXPERIMENTAL muser handoff lane`, without a context. It stays the same when TLS renews its keys.
    pub fn binding(&self) -> LaneBinding {
        self.binding
    }

    /// Settings by which the peer was admitted.
    pub fn settings(&self) -> &LaneSettings {
        &self.settings
    }

    /// The connection below, for its addresses and socket options. Reading or writing it would break the lane.
    pub fn tcp(&self) -> &TcpStream {
        self.stream.get_ref().0
    }
}

/// Checks the peer, sends it the verdict, and reads the peer's own verdict.
async fn admit(mut stream: TlsStream<TcpStream>, settings: &LaneSettings, wanted: Wanted) -> Result<Lane, LaneError> {
    let checked = check(&stream, settings, wanted).await;
    let verdict = checked.as_ref().map_or_else(Refusal::verdict, |_| refusal::WELCOME);
    let said = async {
        stream.write_all(&[verdict]).await?;
        stream.flush().await
    };
    let said = said.await;
    let peer = match checked {
        Ok(peer) => peer,
        Err(refusal) => {
            // The refusal stands, whether or not the peer can still be told.
            let _ = stream.shutdown().await;
            linger(stream).await;
            return Err(refusal.into());
        }
    };
    let heard = match said {
        Ok(()) => stream.read_u8().await,
        Err(error) => Err(error),
    };
    match heard.map_err(LaneError::of_handshake)? {
        refusal::WELCOME => {
            let binding = binding_of(&stream)?;
            Ok(Lane { stream, binding, peer, settings: settings.clone() })
        }
        verdict => Err(PeerRefusal::of_verdict(verdict).into()),
    }
}

/// Keying material exported by the TLS session, equal at both ends.
fn binding_of(stream: &TlsStream<TcpStream>) -> Result<LaneBinding, LaneError> {
    let exported = match stream {
        TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None),
        TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None),
    };
    exported.map(LaneBinding).map_err(|error| LaneError::Io(io::Error::other(error)))
}

async fn check(stream: &TlsStream<TcpStream>, settings: &LaneSettings, wanted: Wanted) -> Result<NodeFacts, Refusal> {
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() != Some(PROTOCOL) {
        return Err(Refusal::WrongProtocol);
    }
    let certificate = session.peer_certificates().and_then(<[_]>::first).ok_or(Refusal::NoCertificate)?;
    let facts = NodeFacts::of_certificate(certificate)?;
    if let Some(revoked) = settings.revocations.lookup(&facts).await? {
        return Err(Refusal::Revoked { id: facts.id, revoked });
    }
    if let Some(expected) = wanted.id.filter(|expected| *expected != facts.id) {
        return Err(Refusal::WrongNode { expected, found: facts.id });
    }
    if !facts.roles.contain(wanted.role) {
        return Err(Refusal::WrongRole { needed: wanted.role, has: facts.roles });
    }
    Ok(facts)
}

/// Closes a connection so that the last bytes sent arrive: closing with unread input would send a reset, which discards
/// data that the peer has not read yet.
pub async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let reading = async {
        let _ = stream.shutdown().await;
        let (mut bytes, mut read) = ([0; 4096], 0);
        while read < LINGER_BYTES {
            match stream.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(more) => read += more,
            }
        }
    };
    // The limit is the expected end for a peer that keeps the connection open.
    let _ = timeout(LINGER, reading).await;
}

impl AsyncRead for Lane {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Lane {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for Lane {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("peer", &self.peer).finish_non_exhaustive()
    }
}
