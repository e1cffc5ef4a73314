//! A man in the middle who terminates both encryptions: he reads every frame, and may replace it by others with
//! checksums that fit.
//!
//! He has the certificates of both ends, or only one of his own, and no MAC key.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use muser_lane::{Acceptor, Connector, Lane, Wanted};
use muser_trust::identity::{ClusterFolder, Role};
use muser_wire::{Frame, FrameKind, FrameReader, LaneBinding, Limits, write_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpListener;

use crate::world::Cluster;

/// Sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Decoder,
    Producer,
}

/// A frame's kind and its body.
pub type Content = (FrameKind, Vec<u8>);

/// Replaces frames on their way.
pub trait Meddler: Send {
    /// Receives the binding of a decoder's lane that was opened.
    fn opened(&mut self, _near: LaneBinding) {}

    fn meddle(&mut self, from: From, kind: FrameKind, body: &[u8]) -> Vec<Content>;
}

impl<F: FnMut(From, FrameKind, &[u8]) -> Vec<Content> + Send> Meddler for F {
    fn meddle(&mut self, from: From, kind: FrameKind, body: &[u8]) -> Vec<Content> {
        self(from, kind, body)
    }
}

/// Sends every frame on as it is.
pub fn honest(_: From, kind: FrameKind, body: &[u8]) -> Vec<Content> {
    vec![(kind, body.to_vec())]
}

/// Stands between decoders and the producer at `producer`, with the stolen certificates of the nodes of these names.
/// Returns the address to give to decoders as the producer's.
pub async fn stand_between(cluster: &Cluster, producer: SocketAddr, meddler: impl Meddler + 'static) -> SocketAddr {
    let stolen = (cluster.folder("producer"), cluster.folder("decoder"));
    stand_between_as(cluster, producer, stolen, meddler).await
}

/// Stands between decoders and the producer at `producer`, with the certificates of two folders: of the first for decoders,
/// of the second for the producer.
pub async fn stand_between_as(
    cluster: &Cluster,
    producer: SocketAddr,
    (near, far): (ClusterFolder, ClusterFolder),
    meddler: impl Meddler + 'static,
) -> SocketAddr {
    let decoders = Wanted { role: Role::Decoder, id: None };
    let acceptor = Acceptor::new(&near.load_identity().unwrap(), cluster.lane_settings(&near), decoders).unwrap();
    let settings = cluster.lane_settings(&near);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let meddler: Arc<Mutex<dyn Meddler>> = Arc::new(Mutex::new(meddler));
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let near = acceptor.accept(tcp).await.unwrap();
            meddler.lock().unwrap().opened(near.binding());
            let connector = Connector::new(&far.load_identity().unwrap(), settings.clone()).unwrap();
            let far = connector.connect(producer, Wanted { role: Role::Producer, id: None }).await.unwrap();
            let ((from_near, to_near), (from_far, to_far)) = (split(near), split(far));
            let meddlers = (Arc::clone(&meddler), Arc::clone(&meddler));
            tokio::spawn(async move {
                // The first end that leaves takes the other with it.
                tokio::select! {
                    () = pass_on(From::Decoder, from_near, to_far, meddlers.0) => {}
                    () = pass_on(From::Producer, from_far, to_near, meddlers.1) => {}
                }
            });
        }
    });
    address
}

/// Passes on until an end leaves.
async fn pass_on(
    from: From,
    mut reading: ReadHalf<Lane>,
    mut writing: WriteHalf<Lane>,
    meddler: Arc<Mutex<dyn Meddler>>,
) {
    let mut reader = FrameReader::new(Limits { request_bytes_max: 1 << 20, pages_bytes_max: 1 << 26 });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read) = reading.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            rest = &rest[reader.take(rest).unwrap()..];
            let Some(Frame { kind, body, .. }) = reader.frame() else { continue };
            let mut out = Vec::new();
            for (kind, body) in meddler.lock().unwrap().meddle(from, kind, body) {
                write_frame(&mut out, kind, |out| out.extend_from_slice(&body));
            }
            reader.release();
            if writing.write_all(&out).await.is_err() || writing.flush().await.is_err() {
                return;
            }
        }
    }
}
