//! Handoffs between two machines: KV pages that a producer computes and a decoder continues from.
//!
//! The protocol is `muser-wire`'s, and `muser-handoff` says what each end does in which order; this module carries that out
//! with sockets, engines and the ledger.
//! `producer` accepts connections within the limits of `handshakes` and `lanes`, computes, and sends by a `session` per
//! lane, with `compression` where that is faster; `timeline` records the phases of a handoff for its `report`. `remote`
//! requests and collects; an `inbox` holds unread input of either end; `bytes` counts what travels. Both ends describe
//! the shared model by its [`Shape`], and each is a run of a node (`Member`), whose trust in a peer is decided by
//! `trust`.

mod bytes;
mod compression;
mod handshakes;
mod inbox;
mod lanes;
mod producer;
mod remote;
mod report;
mod session;
#[cfg_attr(target_os = "linux", path = "socket_linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "socket_other.rs")]
mod socket;
mod timeline;
mod trust;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muser_handoff::CacheShape;
use muser_kv::{CacheSpec, PAGE_ROWS, names_of};
use muser_model::{Component, Identity};
use muser_trust::identity::NodeFacts;
use muser_trust::judgement::TrustError;
use muser_trust::keys::KeyRing;
use muser_trust::random::{self, NoRandomness};
use muser_wire::{HandoffPlan, Node, layer_groups};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use trust::Keys;

pub use bytes::{HandoffBytes, PlanRefused};
pub use compression::Compress;
pub use muser_handoff::HandoffError;
pub use producer::{Port, Producer, ProducerSettings};
pub use remote::{BringError, Handoff, Listener, Remote, RemoteSettings};
pub use report::{HandoffReport, KeptPace, ProducerNews};
pub use trust::Trust;

/// Longest `Pages` body that is made or taken, in bytes.
const PAGES_BYTES_MAX: u32 = 16 << 20;
/// Target size of a frame of pages, bytes; a frame has at least one page of each layer. Packed in one go.
const FRAME_BYTES: u32 = 512 << 10;

/// KV cache shape and model identity that both ends of a handoff must share, with the layer groups that follow from
/// them.
#[derive(Clone, Debug)]
pub struct Shape {
    spec: Arc<CacheSpec>,
    identity: Identity,
    groups: Vec<Vec<u16>>,
}

/// This process as a member of its cluster.
#[derive(Clone, Debug)]
pub struct Member {
    node: Node,
    /// Keys as they were when this was made.
    keys: Arc<Keys>,
    trust: Option<Arc<Trust>>,
}

/// A model that handoffs cannot describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// More layers than can be numbered.
    #[error("{0} layers are more than handoffs can number")]
    Layers(usize),
    /// Pages longer than can be counted.
    #[error("a page of {0} bytes is longer than handoffs can carry")]
    PageBytes(usize),
}

impl Shape {
    /// The shape of caches like `spec`, for a model and layout with this identity.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub fn new(spec: Arc<CacheSpec>, identity: Identity) -> Result<Self, ShapeError> {
        let layers = spec.layers();
        if u16::try_from(layers.len()).is_err() {
            return Err(ShapeError::Layers(layers.len()));
        }
        let page_bytes = spec.layout().page_bytes();
        if u32::try_from(page_bytes).is_err() {
            return Err(ShapeError::PageBytes(page_bytes));
        }
        let is_local: Vec<bool> = layers.iter().map(|layer| layer.window.is_some()).collect();
        Ok(Self { groups: layer_groups(&is_local), spec, identity })
    }

    /// The shape of the caches.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Model and layout identity, which must be equal at both ends of a handoff.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Pages to transfer so that a decoder with `held_pages` pages has `rows` rows; `None` if they are too many to
    /// count.
    pub fn plan(&self, rows: usize, held_pages: usize) -> Option<HandoffPlan> {
        let missing = |layer| self.spec.pages_to_ship(layer, rows, held_pages * PAGE_ROWS);
        let pages: Vec<_> = (0..self.spec.layers().len()).map(missing).collect();
        bytes::plan(&self.groups, &pages, self.spec.layout().page_bytes())
    }
}

impl CacheShape for Shape {
    fn page_rows(&self) -> u32 {
        u32::try_from(PAGE_ROWS).unwrap_or(u32::MAX)
    }

    fn name(&self, tokens: &[u32], pages: u32) -> Option<[u8; 32]> {
        let last = (pages as usize).checked_sub(1)?;
        names_of(&self.identity.kv(), tokens).nth(last).map(|name| *name.as_bytes())
    }

    fn plan(&self, rows: u32, held_pages: u32) -> Option<HandoffPlan> {
        Self::plan(self, rows as usize, held_pages as usize)
    }
}

impl Member {
    /// This run of the node, with the keys of its ring as they are now.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn new(facts: &NodeFacts, keys: &KeyRing, shape: &Shape) -> Result<Self, NoRandomness> {
        let digests = Component::ALL.map(|component| shape.identity.component(component).0);
        let node = Node { boot_id: random::bytes()?, node_id: facts.id.0, identity: muser_wire::Identity(digests) };
        Ok(Self { node, keys: Arc::new(Keys::of(keys)), trust: None })
    }

    /// The same, following the keys and the deny-list of a folder as they change.
    pub fn following(self, trust: Arc<Trust>) -> Self {
        Self { trust: Some(trust), ..self }
    }

    /// The keys as they are now.
    async fn keys(&self) -> Result<Arc<Keys>, TrustError> {
        match &self.trust {
            Some(trust) => trust.keys().await,
            None => Ok(Arc::clone(&self.keys)),
        }
    }
}

/// The time since this was made; in milliseconds for the state machines.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now_ms(self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// Writes some of `output`, or flushes if that is empty. Dropping the future loses nothing.
///
/// # Errors
/// The lane's write error.
async fn push(writing: &mut (impl AsyncWrite + Unpin), output: &[u8]) -> io::Result<usize> {
    if output.is_empty() {
        return writing.flush().await.map(|()| 0);
    }
    match writing.write(output).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        bytes => Ok(bytes),
    }
}
