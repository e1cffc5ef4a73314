//! A wire that can be cut after any byte, or carry nothing for a while. It sees what is encrypted and changes nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    Producer,
    Decoder,
}

/// A wire to one address.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    target: watch::Sender<SocketAddr>,
    /// Bytes that went each way.
    passed: [AtomicU64; 2],
    /// Connections are cut once so many bytes have gone a way.
    cut_at: [AtomicU64; 2],
    /// From so many bytes towards the decoder on, nothing goes any more.
    hold_at: watch::Sender<u64>,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            target: watch::Sender::new(target),
            passed: [AtomicU64::new(0), AtomicU64::new(0)],
            cut_at: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
            hold_at: watch::Sender::new(u64::MAX),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let socket = TcpSocket::new_v4().unwrap();
                    // Little lies in the system's buffers, so that a stalled wire is felt at the producer.
                    socket.set_recv_buffer_size(1 << 16).unwrap();
                    let target = *state.target.borrow();
                    let Ok(far) = socket.connect(target).await else { return };
                    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                    // A cut takes both directions at once.
                    tokio::select! {
                        () = state.pass(Towards::Producer, from_near, to_far) => {}
                        () = state.pass(Towards::Decoder, from_far, to_near) => {}
                    }
                });
            }
        });
        Self { address, state }
    }

    /// Bytes that went a way so far.
    pub fn passed(&self, towards: Towards) -> u64 {
        self.state.passed[towards as usize].load(Ordering::Relaxed)
    }

    /// Cuts the connection that carries the byte after `bytes` more of them, once.
    pub fn cut_after(&self, towards: Towards, bytes: u64) {
        self.state.cut_at[towards as usize].store(self.passed(towards) + bytes, Ordering::Relaxed);
    }

    /// Carries nothing any more towards the decoder after `bytes` more bytes.
    pub fn hold_after(&self, bytes: u64) {
        self.state.hold_at.send_replace(self.passed(Towards::Decoder) + bytes);
    }

    /// Carries everything again.
    pub fn resume(&self) {
        self.state.hold_at.send_replace(u64::MAX);
    }

    /// Leads new connections to another address.
    pub fn lead_to(&self, target: SocketAddr) {
        self.state.target.send_replace(target);
    }
}

impl State {
    /// Passes bytes on until an end leaves or the wire is cut.
    async fn pass(&self, towards: Towards, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut buffer = vec![0; 1 << 14];
        let (passed, cut_at) = (&self.passed[towards as usize], &self.cut_at[towards as usize]);
        while let Ok(read) = from.read(&mut buffer).await {
            let before = passed.load(Ordering::Relaxed);
            if towards == Towards::Decoder {
                let mut held = self.hold_at.subscribe();
                held.wait_for(|hold_at| before < *hold_at).await.unwrap();
            }
            let cut = cut_at.load(Ordering::Relaxed);
            let left = usize::try_from(cut.saturating_sub(before)).unwrap_or(usize::MAX);
            if read == 0 || to.write_all(&buffer[..read.min(left)]).await.is_err() {
                return;
            }
            passed.fetch_add(read.min(left) as u64, Ordering::Relaxed);
            if read >= left {
                cut_at.store(u64::MAX, Ordering::Relaxed);
                return;
            }
        }
    }
}
