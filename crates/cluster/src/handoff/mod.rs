//! Handoffs between two machines: pages that one computes and the other goes on with.
//!
//! The rules are `muser-wire`'s state machines; here they meet sockets, engines and the ledger. `producer` takes connections,
//! as many as `handshakes` and `lanes` let in, computes and sends, by a `session` on each lane, with `compression` where that is faster, and keeps the `timeline` of each handoff for
//! its `report`; `remote` asks and collects; an `inbox` holds what either end has read; `bytes` counts what travels. Both ends know the model they share by its
//! [`Shape`], and are of one node (`Member`), whose trust in a peer is asked of `trust`.

mod bytes;
mod compression;
mod handshakes;
mod inbox;
mod judgement;
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

use muser_kv::{CacheSpec, PAGE_ROWS};
use muser_model::{Component, Identity};
use muser_wire::{HandoffPlan, Node, layer_groups};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::identity::NodeFacts;
use crate::keys::KeyRing;
use crate::random::{self, NoRandomness};
use trust::Keys;

pub use bytes::{HandoffBytes, PlanRefused};
pub use compression::Compress;
pub use judgement::Evidence;
pub use producer::{Port, PrefixScope, Producer, ProducerSettings};
pub use remote::{BringError, Handoff, Listener, Milestone, Remote, RemoteSettings};
pub use report::{HandoffReport, KeptPace, ProducerNews};
pub use trust::{Trust, TrustError};

/// Where a node listens.
pub type Address = std::net::SocketAddr;

/// Longest `Pages` body that is made or taken, in bytes.
const PAGES_BYTES_MAX: u32 = 16 << 20;
/// Bytes of a frame of pages, if they are not fewer than a page of each layer: what is packed in one go.
const FRAME_BYTES: u32 = 512 << 10;

/// What two machines must have in common, and what follows from it for the pages.
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
    /// As they were at the beginning.
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

    /// What both ends of a handoff must have in common.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The digest that page names start from.
    fn name_identity(&self) -> [u8; 32] {
        self.identity.digest().0
    }

    /// What has to travel so that somebody who holds `held_pages` pages has `rows` rows; `None` beyond what can be counted.
    pub fn plan(&self, rows: usize, held_pages: usize) -> Option<HandoffPlan> {
        let missing = |layer| self.spec.pages_to_ship(layer, rows, held_pages * PAGE_ROWS);
        let pages: Vec<_> = (0..self.spec.layers().len()).map(missing).collect();
        bytes::plan(&self.groups, &pages, self.spec.layout().page_bytes())
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

    /// The same with the keys and the deny-list of a folder, as they are at any time.
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

/// Writes some of `output`, or without any sees to it that what was written is sent. Dropping the future loses nothing.
///
/// # Errors
/// What the lane says.
async fn push(writing: &mut (impl AsyncWrite + Unpin), output: &[u8]) -> io::Result<usize> {
    if output.is_empty() {
        return writing.flush().await.map(|()| 0);
    }
    match writing.write(output).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        bytes => Ok(bytes),
    }
}
