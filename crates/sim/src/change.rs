//! Changes of trust, each at a step of a handoff that the seed chose, and what they do.

use muser_kv::Realm;
use muser_trust::identity::NodeId;
use muser_wire::KeyState;

use crate::attempt::Excuse;
use crate::context::Context;
use crate::coverage::Mark;
use crate::decoder::Decoder;
use crate::world::World;

/// Ids of keys that every producer has; a decoder takes the next one when its active key is rotated.
pub(crate) const SPARE_KEYS: std::ops::Range<u32> = 20..26;

/// Change of trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The producer is put on the deny-list.
    Revoke,
    /// Another process quarantines the producer.
    Quarantine,
    /// The producer's certificate expires.
    EndCertificate,
    /// The decoder's MAC key is revoked, and another one becomes active.
    RotateKey,
    /// The secret of the decoder's realm is replaced.
    NewRealm,
    /// The decoder is ordered to drop the producer's pages.
    TakeBack,
    /// The decoder is ordered to drop all pages.
    ForgetAll,
    /// The producer sends wrong pages from now on.
    Lie,
}

/// Step of a handoff at which an [`Armed`] change fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The lane was opened.
    Connected,
    /// The request was sent.
    Asked,
    /// The ledger entry was written.
    Recorded,
    /// A page arrived.
    Page,
    /// All pages arrived; trust is not checked yet.
    Complete,
    /// Trust was checked, and the pages wait for the engine.
    Arrived,
    /// The lists were read again for the engine's admission.
    Renewed,
    /// The request runs.
    Running,
    /// The pages are kept for other requests.
    Kept,
}

/// A change that waits for a step of a handoff with a producer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armed {
    change: Change,
    step: Step,
    producer: usize,
}

impl Change {
    const ALL: [Self; 8] = [
        Self::Revoke,
        Self::Quarantine,
        Self::EndCertificate,
        Self::RotateKey,
        Self::NewRealm,
        Self::TakeBack,
        Self::ForgetAll,
        Self::Lie,
    ];

    fn mark(self) -> Mark {
        match self {
            Self::Revoke => Mark::TrustRevoked,
            Self::Quarantine => Mark::TrustQuarantined,
            Self::EndCertificate => Mark::TrustCertificateEnded,
            Self::RotateKey => Mark::TrustKeyRotatedAway,
            Self::NewRealm => Mark::TrustRealmChanged,
            Self::TakeBack => Mark::TrustTakenBack,
            Self::ForgetAll => Mark::TrustAllForgotten,
            Self::Lie => Mark::TrustLieBegun,
        }
    }
}

impl Step {
    const ALL: [Self; 9] = [
        Self::Connected,
        Self::Asked,
        Self::Recorded,
        Self::Page,
        Self::Complete,
        Self::Arrived,
        Self::Renewed,
        Self::Running,
        Self::Kept,
    ];

    fn mark(self) -> Mark {
        match self {
            Self::Connected => Mark::ChangedWhenConnected,
            Self::Asked => Mark::ChangedWhenAsked,
            Self::Recorded => Mark::ChangedWhenRecorded,
            Self::Page => Mark::ChangedBetweenPages,
            Self::Complete => Mark::ChangedWhenComplete,
            Self::Arrived => Mark::ChangedWhenArrived,
            Self::Renewed => Mark::ChangedWhenRenewed,
            Self::Running => Mark::ChangedWhileRunning,
            Self::Kept => Mark::ChangedWhenKept,
        }
    }
}

impl Armed {
    /// Some changes, for handoffs with so many producers.
    pub(crate) fn some(producers: usize, random: &mut fastrand::Rng) -> Vec<Self> {
        let one = |random: &mut fastrand::Rng| Self {
            // A lie more often than others, as it takes two handoffs and an audit to show.
            change: *Change::ALL.get(random.usize(0..12)).unwrap_or(&Change::Lie),
            step: Step::ALL[random.usize(0..Step::ALL.len())],
            producer: random.usize(0..producers),
        };
        (0..random.usize(1..5)).map(|_| one(random)).collect()
    }
}

impl Decoder {
    /// Reports that a handoff with `producer` is at a step. A change armed for it fires before anything else happens.
    pub(crate) fn reach(&mut self, step: Step, producer: usize) {
        let waits = |armed: &Armed| armed.step == step && armed.producer == producer;
        if let Some(place) = self.armed.iter().position(waits) {
            self.fired.push(self.armed.remove(place));
        }
    }

    /// Drops the pages that depend on a node, or all pages, as the engine does.
    pub(crate) fn forget(&mut self, node: Option<NodeId>, context: &Context) {
        self.trust.order(node);
        match node {
            Some(node) => self.stores.values_mut().for_each(|store| store.take_back(&context.shape, node)),
            None => self.stores.clear(),
        }
    }
}

impl World {
    /// Applies the changes that a decoder's handoffs have triggered.
    pub(crate) fn fire(&mut self, index: usize) {
        for armed in std::mem::take(&mut self.decoders[index].fired) {
            let Armed { change, step, producer } = armed;
            let (decoder, context) = (&mut self.decoders[index], &mut self.context);
            let node = NodeId(self.producers[producer].node.node_id);
            context.say(|| format!("decoder {index}, producer {producer}: {change:?} when {step:?}"));
            context.mark(change.mark());
            context.mark(step.mark());
            let mut excuse = Some(Excuse::Trust);
            match change {
                Change::Revoke => decoder.trust.revoke(node),
                Change::Quarantine => decoder.trust.quarantine(node),
                Change::EndCertificate => decoder.trust.end_certificate(node),
                Change::RotateKey => {
                    self.rotate_key(index);
                    excuse = None;
                }
                Change::NewRealm => {
                    let number = decoder.realm.0.max(1000 * (1 + u32::try_from(index).unwrap_or(0))) + 1;
                    decoder.realm = (number, Realm::from_secret(context.trust_bytes()));
                    excuse = None;
                }
                Change::TakeBack => {
                    decoder.forget(Some(node), context);
                    excuse = None;
                }
                Change::ForgetAll => {
                    decoder.forget(None, context);
                    excuse = None;
                }
                Change::Lie => {
                    self.producers[producer].lies = true;
                    context.liars.insert(node.0);
                    excuse = None;
                }
            }
            let lanes = self.lanes.iter_mut().filter(|lane| lane.decoder == index && lane.producer == producer);
            lanes.for_each(|lane| lane.excuses.extend(excuse));
        }
    }

    /// The decoder's active key is revoked, and one that all producers know becomes active.
    fn rotate_key(&mut self, index: usize) {
        let decoder = &mut self.decoders[index];
        let (Some(old), Some(new)) = (decoder.keys.active(), decoder.spare_keys.next()) else { return };
        decoder.keys.set(old, KeyState::Revoked);
        decoder.keys.set(new, KeyState::Active);
        decoder.trust.revoke_key(old);
        for lane in self.lanes.iter_mut().filter(|lane| lane.decoder == index && lane.key_id() == Some(old)) {
            lane.excuse_attempt(Excuse::Keys);
        }
    }
}
