//! A decoder's trust in its producers: the lists on disk, the copy last read, and the orders to take pages back.
//!
//! Judgements are those of the real receiver: [`Evidence`] says if a peer is trusted, [`TakenBack`] if pages may become
//! visible. The log beside them is kept apart and says what must have come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muser_kv::{Maker, Provenance, TakenBack, Voucher};
use muser_trust::identity::{NodeFacts, NodeId, NodeName, Revoked, Roles, Serial};
use muser_trust::judgement::{Evidence, TrustError};
use muser_wire::MacKeys;

/// Number of a handoff among all that a decoder ever began.
pub(crate) type Arrival = u32;

/// Trust state of one decoder.
#[derive(Default)]
pub(crate) struct Trust {
    on_disk: Lists,
    known: Arc<Mutex<Known>>,
    pub(crate) taken_back: TakenBack,
    /// Nodes whose pages arrived.
    makers: BTreeSet<NodeId>,
    pub(crate) log: Log,
}

/// Lists of a cluster folder.
#[derive(Clone, Default)]
struct Lists {
    revoked: BTreeSet<NodeId>,
    quarantined: BTreeSet<NodeId>,
}

/// In-memory trust state of a decoder, shared with its vouchers.
#[derive(Default)]
struct Known {
    lists: Lists,
    /// Quarantined by this process, whatever is on the disk.
    condemned: BTreeSet<NodeId>,
    keys: MacKeys,
    certificates: BTreeMap<NodeId, NodeFacts>,
    now_unix_s: u64,
}

/// Losses of trust in order, as the world caused them.
#[derive(Default)]
pub(crate) struct Log {
    moment: u64,
    lost: Vec<(u64, Lost)>,
    /// Producer of each installation that was begun.
    begun: BTreeMap<Arrival, NodeId>,
    /// Handoffs whose pages arrived.
    came: BTreeSet<Arrival>,
    forbidden: BTreeSet<Arrival>,
    /// Handoffs whose pages were sent wrong.
    pub(crate) lying: BTreeSet<Arrival>,
}

/// A loss of trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// On a list on disk; counts from the next reading.
    Listed(NodeId),
    Key(u32),
    /// Quarantined in memory; counts at once.
    Condemned(NodeId),
    /// Certificate expired; counts at once.
    Ended(NodeId),
}

/// Claim of a handoff to publish its pages: sending node, key, and the moment of the last reading of the lists for it.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) node: NodeId,
    pub(crate) key_id: u32,
    pub(crate) read_at: u64,
}

impl Trust {
    /// Reads the lists and the keys; returns the moment of the reading.
    pub(crate) fn read(&mut self, keys: MacKeys) -> u64 {
        let mut known = lock(&self.known);
        (known.lists, known.keys) = (self.on_disk.clone(), keys);
        self.log.moment += 1;
        self.log.moment
    }

    /// Sets the time against which certificates are checked.
    pub(crate) fn set_time(&self, now_unix_s: u64) {
        lock(&self.known).now_unix_s = now_unix_s;
    }

    /// The judgement by what was read last.
    pub(crate) fn judge(&self, node: NodeId, key: Option<u32>) -> Result<(), TrustError> {
        lock(&self.known).judge(node, key)
    }

    /// Begins an installation of pages of `node`, which is vouched for as the real receiver does.
    pub(crate) fn begin(&mut self, arrival: Arrival, node: NodeId, key: u32) -> Provenance {
        self.log.begun.insert(arrival, node);
        let mut provenance = self.taken_back.begin();
        let known = Arc::clone(&self.known);
        provenance.vouched_for_by(Voucher::new(move || {
            lock(&known).judge(node, Some(key)).map_err(|error| error.to_string())
        }));
        provenance
    }

    /// Records the node whose pages arrived.
    pub(crate) fn came_from(&mut self, node: NodeId, arrival: Arrival) {
        self.makers.insert(node);
        self.log.came.insert(arrival);
    }

    /// Nodes whose pages must be taken back according to the last reading; each is returned once.
    pub(crate) fn lost_makers(&mut self) -> Vec<NodeId> {
        let known = lock(&self.known);
        let is_lost = |node: &NodeId| known.judge(*node, None).is_err_and(|error| error.concerns_earlier_pages());
        let lost: Vec<NodeId> = self.makers.iter().copied().filter(is_lost).collect();
        self.makers.retain(|node| !lost.contains(node));
        lost
    }

    /// Puts a node on the deny-list, as another process does.
    pub(crate) fn revoke(&mut self, node: NodeId) {
        self.on_disk.revoked.insert(node);
        self.log.lose(Lost::Listed(node));
    }

    /// Quarantines a node, as another process does.
    pub(crate) fn quarantine(&mut self, node: NodeId) {
        self.on_disk.quarantined.insert(node);
        self.log.lose(Lost::Listed(node));
    }

    /// Quarantines a node that an audit of this process caught.
    pub(crate) fn condemn(&mut self, node: NodeId) {
        lock(&self.known).condemned.insert(node);
        self.log.lose(Lost::Condemned(node));
        self.quarantine(node);
    }

    /// Expires a certificate now.
    pub(crate) fn end_certificate(&mut self, node: NodeId) {
        // Before any time that a clock which is set back may show.
        lock(&self.known).certificate(node).not_after_unix_s = 0;
        self.log.lose(Lost::Ended(node));
    }

    pub(crate) fn revoke_key(&mut self, key: u32) {
        self.log.lose(Lost::Key(key));
    }

    /// Orders to take back the pages of a node, or of all nodes.
    pub(crate) fn order(&mut self, node: Option<NodeId>) {
        self.taken_back.order(node.map(|node| Maker(node.0)));
        let Log { begun, forbidden, .. } = &mut self.log;
        let concerned = begun.iter().filter(|(_, maker)| node.is_none_or(|node| node == **maker));
        forbidden.extend(concerned.map(|(arrival, _)| *arrival));
    }

    /// True if a node cannot be admitted again: it is revoked, or its certificate expired.
    pub(crate) fn needs_another(&self, node: NodeId) -> bool {
        self.on_disk.revoked.contains(&node) || self.log.lost.iter().any(|(_, lost)| *lost == Lost::Ended(node))
    }

    /// Lifts every quarantine, as an operator does.
    pub(crate) fn readmit_all(&mut self) {
        self.on_disk.quarantined.clear();
        let mut known = lock(&self.known);
        known.lists.quarantined.clear();
        known.condemned.clear();
        let revoked = &self.on_disk.revoked;
        self.log.lost.retain(|(_, lost)| match lost {
            Lost::Listed(node) => revoked.contains(node),
            Lost::Condemned(_) => false,
            Lost::Key(_) | Lost::Ended(_) => true,
        });
    }

    /// Resets the state that a process restart loses; certificates stay.
    pub(crate) fn restart(&mut self) {
        (self.taken_back, self.makers) = (TakenBack::default(), BTreeSet::new());
        let certificates = lock(&self.known).certificates.clone();
        // Vouchers of the previous process keep its state.
        self.known = Arc::new(Mutex::new(Known { certificates, ..Known::default() }));
        let Log { begun, forbidden, .. } = &mut self.log;
        begun.clear();
        forbidden.clear();
    }
}

impl Known {
    fn judge(&self, node: NodeId, key: Option<u32>) -> Result<(), TrustError> {
        let certificate = self.certificates.get(&node).cloned().unwrap_or_else(|| certificate_of(node));
        let evidence = Evidence {
            peer: &certificate,
            now_unix_s: self.now_unix_s,
            revoked: self.lists.revoked.contains(&node).then_some(Revoked::Node(node)),
            quarantined: self.condemned.contains(&node) || self.lists.quarantined.contains(&node),
            key: key.map(|id| (id, &self.keys)),
        };
        evidence.judge()
    }

    fn certificate(&mut self, node: NodeId) -> &mut NodeFacts {
        self.certificates.entry(node).or_insert_with(|| certificate_of(node))
    }
}

impl Log {
    fn lose(&mut self, lost: Lost) {
        self.moment += 1;
        self.lost.push((self.moment, lost));
    }

    /// True if trust was ever lost.
    pub(crate) fn is_eventful(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Forbids the pages of nodes that were listed before the reading at `read_at`.
    pub(crate) fn forbid_lost(&mut self, read_at: u64) {
        let lost: Vec<NodeId> = self.lost.iter().filter_map(|(at, lost)| lost.node_of_earlier(*at < read_at)).collect();
        let Self { begun, came, forbidden, .. } = self;
        let concerned = begun.iter().filter(|(arrival, maker)| lost.contains(maker) && came.contains(*arrival));
        forbidden.extend(concerned.map(|(arrival, _)| *arrival));
    }

    /// The first of `arrivals` whose pages are forbidden, if any is.
    pub(crate) fn forbidden(&self, arrivals: &BTreeSet<Arrival>) -> Option<Arrival> {
        arrivals.intersection(&self.forbidden).next().copied()
    }

    /// True if the pages must stay hidden, by the last reading or by a loss that counts at once.
    pub(crate) fn must_hide(&self, claim: &Claim, arrivals: &BTreeSet<Arrival>) -> bool {
        let counts = |at: u64, lost: &Lost| match lost {
            Lost::Listed(_) | Lost::Key(_) => at < claim.read_at,
            Lost::Condemned(_) | Lost::Ended(_) => true,
        };
        let lost = self.lost.iter().any(|(at, lost)| lost.concerns(claim) && counts(*at, lost));
        lost || self.forbidden(arrivals).is_some()
    }

    /// True if the pages may be refused: trust was lost in a way that a later reading may have shown.
    pub(crate) fn may_hide(&self, claim: &Claim, arrivals: &BTreeSet<Arrival>) -> bool {
        self.lost.iter().any(|(_, lost)| lost.concerns(claim)) || self.forbidden(arrivals).is_some()
    }
}

impl Lost {
    fn concerns(&self, claim: &Claim) -> bool {
        match self {
            Self::Listed(node) | Self::Condemned(node) | Self::Ended(node) => *node == claim.node,
            Self::Key(key) => *key == claim.key_id,
        }
    }

    /// The node whose earlier pages are lost too, if the entry was read.
    fn node_of_earlier(&self, is_read: bool) -> Option<NodeId> {
        match self {
            Self::Listed(node) if is_read => Some(*node),
            Self::Condemned(node) => Some(*node),
            _ => None,
        }
    }
}

fn certificate_of(id: NodeId) -> NodeFacts {
    let name = NodeName::new("node").unwrap_or_else(|_| unreachable!("a name of four letters"));
    let (roles, serial) = (Roles::Both, Serial([0; 16]));
    NodeFacts { id, name, roles, serial, not_before_unix_s: 0, not_after_unix_s: u64::MAX }
}

/// Locks the state. Poisoning is ignored, because no code panics while it holds the lock.
fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
