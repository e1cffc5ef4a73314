//! Bytes changed, left out or replayed on the way, under checksums that fit: none of it is ever decoded.

use std::sync::{Arc, Mutex};

use muser_cluster::handoff::{BringError, HandoffError, Remote};
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_wire::{
    Failure, Frame, FrameHeader, FrameKind, HandoffId, LaneBinding, Manifest, Message, Node, Pages, Request,
    RequestError,
};

use crate::middle::{Content, From, Meddler, stand_between};
use crate::models::{Attention, small, tokens};
use crate::world::{Cluster, Machine, answer, answer_remotely, nothing_is_left, request, run};

const ISOLATED: PrefixReuse = PrefixReuse::Isolate;

/// Forgery of a handoff's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgery {
    /// None: frames pass unchanged.
    Honest,
    /// Only the commit is called by the decoder's lane.
    Rename,
    /// A bit of the first page of the group is another, in its first frame.
    Flip(u8),
    /// The first two pages of the group's first frame that has two are exchanged.
    Exchange(u8),
    /// The layer group does not come.
    Omit(u8),
    /// It does not come, and one page less is announced.
    OmitAnnounced(u8),
    /// The handoff that came before this one is sent once more.
    Replay,
}

/// Forges until it is told to stop.
struct Forger {
    forgery: Arc<Mutex<Forgery>>,
    /// True if the commit names the forged pages instead of the honest ones.
    adjusts_commit: bool,
    /// The decoder's lane, by which a forged commit is called. An honest one names the producer's.
    near: LaneBinding,
    nodes: [Option<Node>; 2],
    request: Option<Request>,
    manifest: Option<Manifest>,
    touched: bool,
    /// Frames of the last honest handoff, from its acceptance on.
    recorded: Vec<Content>,
}

impl Forger {
    fn new(forgery: &Arc<Mutex<Forgery>>, adjusts_commit: bool) -> Self {
        let forgery = Arc::clone(forgery);
        let (nodes, request, manifest) = ([None, None], None, None);
        let (near, touched, recorded) = (LaneBinding([0; 32]), false, Vec::new());
        Self { forgery, adjusts_commit, near, nodes, request, manifest, touched, recorded }
    }

    /// Frames to pass on instead of a frame of the producer, once the producer has accepted.
    fn forge(&mut self, kind: FrameKind, body: &[u8]) -> Vec<Content> {
        let (forgery, mut body) = (*self.forgery.lock().unwrap(), body.to_vec());
        match message(kind, &body.clone()) {
            Message::Accept(mut accept) if matches!(forgery, Forgery::OmitAnnounced(_)) => {
                accept.page_count -= 1;
                return vec![(kind, content(&Message::Accept(accept)))];
            }
            Message::Accept(accept) => {
                let [Some(receiver), Some(sender)] = self.nodes else { panic!("no greeting was seen") };
                self.manifest = Some(Manifest::new(self.request.as_ref().unwrap(), &accept, &receiver, &sender));
                self.touched = false;
                if forgery == Forgery::Replay {
                    return self.replay(accept.handoff);
                }
            }
            _ if forgery == Forgery::Replay => return Vec::new(),
            Message::Pages(pages) => {
                let hits = |group: u8| group == pages.group && !self.touched;
                let first = Pages::FIXED_BYTES + Pages::ENTRY_BYTES;
                match forgery {
                    Forgery::Flip(group) if hits(group) => {
                        body[first + 5] ^= 16;
                        self.touched = true;
                    }
                    Forgery::Exchange(group) if hits(group) => {
                        if let [one, other, ..] = stored_bytes(&body)[..] {
                            assert_eq!(one, other, "pages of one size");
                            let (front, behind) = body.split_at_mut(first + one + Pages::ENTRY_BYTES);
                            front[first..first + one].swap_with_slice(&mut behind[..one]);
                            self.touched = true;
                        }
                    }
                    Forgery::Omit(group) | Forgery::OmitAnnounced(group) if group == pages.group => return Vec::new(),
                    _ => {}
                }
                let manifest = self.manifest.as_mut().unwrap();
                body[16..24].copy_from_slice(&manifest.frames().to_le_bytes());
                manifest.add(&blake3::hash(&body), stored_bytes(&body).iter().sum::<usize>() as u64);
            }
            Message::Commit(_) => body = self.commit(&body),
            _ => {}
        }
        if matches!(kind, FrameKind::Accept) {
            self.recorded.clear();
        }
        self.recorded.push((kind, body.clone()));
        vec![(kind, body)]
    }

    /// The commit's body, with the forged pages if `adjusts_commit`.
    fn commit(&self, body: &[u8]) -> Vec<u8> {
        let Message::Commit(mut commit) = message(FrameKind::Commit, body) else { unreachable!() };
        let manifest = self.manifest.as_ref().unwrap();
        if *self.forgery.lock().unwrap() == Forgery::Honest {
            return body.to_vec();
        }
        commit.lane = self.near;
        if self.adjusts_commit {
            (commit.frames, commit.stored_bytes, commit.root) =
                (manifest.frames(), manifest.stored_bytes(), manifest.root());
        }
        content(&Message::Commit(commit))
    }

    /// Recorded frames, under the id of the handoff under way.
    fn replay(&mut self, handoff: HandoffId) -> Vec<Content> {
        let mut frames = std::mem::take(&mut self.recorded);
        assert!(frames.len() > 3, "nothing was recorded");
        for (kind, body) in &mut frames {
            // The name is in front of all of these messages.
            if !matches!(kind, FrameKind::Ping | FrameKind::Pong) {
                body[..16].copy_from_slice(&handoff.0);
            }
            match message(*kind, &body.clone()) {
                Message::Accept(accept) => {
                    let [Some(receiver), Some(sender)] = self.nodes else { panic!("no greeting was seen") };
                    let request = self.request.as_ref().unwrap();
                    self.manifest = Some(Manifest::new(request, &accept, &receiver, &sender));
                }
                Message::Pages(_) => {
                    let stored = stored_bytes(body).iter().sum::<usize>() as u64;
                    self.manifest.as_mut().unwrap().add(&blake3::hash(body), stored);
                }
                Message::Commit(_) => *body = self.commit(body),
                _ => {}
            }
        }
        frames
    }
}

impl Meddler for Forger {
    fn opened(&mut self, near: LaneBinding) {
        self.near = near;
    }

    fn meddle(&mut self, from: From, kind: FrameKind, body: &[u8]) -> Vec<Content> {
        match message(kind, body) {
            Message::Hello(hello) => self.nodes[0] = Some(hello.node),
            Message::HelloAck(ack) => self.nodes[1] = Some(ack.node),
            Message::Request(request) => self.request = Some(request),
            _ if from == From::Producer && self.request.is_some() => return self.forge(kind, body),
            _ => {}
        }
        vec![(kind, body.to_vec())]
    }
}

fn message(kind: FrameKind, body: &[u8]) -> Message<'_> {
    Message::decode(&Frame { kind, body, digest: blake3::hash(body) }).unwrap()
}

/// A message's body.
fn content(message: &Message<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    message.write_frame(&mut frame);
    frame[FrameHeader::BYTES..frame.len() - FrameHeader::DIGEST_BYTES].to_vec()
}

/// Bytes of each page in a `Pages` body.
fn stored_bytes(body: &[u8]) -> Vec<usize> {
    let (mut at, mut stored) = (Pages::FIXED_BYTES, Vec::new());
    while at < body.len() {
        stored.push(u32::from_le_bytes(body[at + 4..at + 8].try_into().unwrap()) as usize);
        at += Pages::ENTRY_BYTES + stored.last().unwrap();
    }
    stored
}

/// A decoder, a producer, and a forger between them.
struct Scene {
    cluster: Cluster,
    decoder: Machine,
    /// By way of the forger; `None` while the decoder is restarted.
    remote: Option<Remote>,
    /// To the producer itself.
    direct: Remote,
    forgery: Arc<Mutex<Forgery>>,
    middle: std::net::SocketAddr,
    _producing: crate::world::Producing,
}

impl Scene {
    async fn new(attention: Attention, adjusts_commit: bool) -> Self {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", small(attention, KvLayout::Q8), None).await;
        let decoder = small(attention, KvLayout::Q8);
        let forgery = Arc::new(Mutex::new(Forgery::Honest));
        let middle = stand_between(&cluster, producing.address, Forger::new(&forgery, adjusts_commit)).await;
        let remote = Some(cluster.remote("decoder", &decoder, middle, &cluster.keys));
        let direct = cluster.remote("direct", &decoder, producing.address, &cluster.keys);
        Self { cluster, decoder, remote, direct, forgery, middle, _producing: producing }
    }

    /// Tries a handoff under a forgery, and checks that nothing has come of it.
    async fn failure(&self, forgery: Forgery, prompt: &[u32]) -> Failure {
        *self.forgery.lock().unwrap() = forgery;
        let tried = answer_remotely(&self.decoder, self.remote.as_ref().unwrap(), prompt, ISOLATED).await;
        let failed = tried.map(|(handoff, ..)| handoff).expect_err("a forged handoff counts");
        nothing_is_left(&self.decoder).await;
        *self.forgery.lock().unwrap() = Forgery::Honest;
        match failed {
            BringError::Handoff(HandoffError::Failed(failure) | HandoffError::Request(RequestError::Plan(failure))) => {
                failure
            }
            other => panic!("{forgery:?}: {other:?}"),
        }
    }

    /// Answers with the producer, over a direct lane, and checks that the bits are those of a local answer.
    async fn is_right(&self, prompt: &[u32]) {
        let (_, reused, found) = answer_remotely(&self.decoder, &self.direct, prompt, ISOLATED).await.unwrap();
        let local = self.decoder.host.submit(request(prompt, 6, ISOLATED)).await.unwrap();
        assert!(found == answer(local).await.1 && reused == prompt.len() - 1);
    }
}

#[test]
fn a_page_changed_under_valid_checksums_never_counts_and_the_next_handoff_does() {
    run(async {
        for (attention, group_of_layer_0) in [(Attention::Full, 0), (Attention::Windowed, 1)] {
            for adjusts_commit in [false, true] {
                let scene = Scene::new(attention, adjusts_commit).await;
                for (seed, forgery) in
                    [(1, Forgery::Flip(group_of_layer_0)), (2, Forgery::Flip(0)), (3, Forgery::Exchange(0))]
                {
                    let prompt = tokens(seed, 500);
                    let failure = scene.failure(forgery, &prompt).await;
                    let right = match &failure {
                        Failure::Manifest { .. } => !adjusts_commit,
                        Failure::Mac(_) => adjusts_commit,
                        _ => false,
                    };
                    assert!(right, "{attention:?}, {forgery:?}, adjusts the commit: {adjusts_commit}: {failure:?}");
                    scene.is_right(&prompt).await;
                }
            }
        }
    });
}

#[test]
fn a_handoff_that_is_relayed_whole_by_the_thief_of_both_certificates_is_refused_as_of_another_lane() {
    run(async {
        let scene = Scene::new(Attention::Windowed, false).await;
        for seed in 1..4 {
            let prompt = tokens(seed, 300);
            assert_eq!(scene.failure(Forgery::Honest, &prompt).await, Failure::OtherLane);
            // He is at an end of both lanes, and knows what either is called.
            let failure = scene.failure(Forgery::Rename, &prompt).await;
            assert!(matches!(failure, Failure::Mac(_)), "{failure:?}");
            scene.is_right(&prompt).await;
        }
    });
}

#[test]
fn a_layer_group_that_does_not_come_is_noticed_whatever_the_commit_says() {
    run(async {
        for (attention, groups) in [(Attention::Full, 1), (Attention::Windowed, 4)] {
            for adjusts_commit in [false, true] {
                let scene = Scene::new(attention, adjusts_commit).await;
                for group in 0..groups {
                    let prompt = tokens(group.into(), 300);
                    let failure = scene.failure(Forgery::Omit(group), &prompt).await;
                    let missing = matches!(failure, Failure::Incomplete { missing } if missing > 0);
                    assert!(missing, "{attention:?} without group {group}: {failure:?}");
                    let failure = scene.failure(Forgery::OmitAnnounced(group), &prompt).await;
                    let fewer = matches!(failure, Failure::Accept { field: "pages", got, want } if got < want);
                    assert!(fewer, "{attention:?} without group {group}: {failure:?}");
                    scene.is_right(&prompt).await;
                }
            }
        }
    });
}

#[test]
fn a_handoff_that_is_sent_again_never_counts_not_even_behind_a_restart_of_the_decoder() {
    run(async {
        for adjusts_commit in [false, true] {
            let mut scene = Scene::new(Attention::Windowed, adjusts_commit).await;
            let prompt = tokens(5, 300);
            for restarted in [false, true] {
                assert_eq!(scene.failure(Forgery::Honest, &prompt).await, Failure::OtherLane);
                if restarted {
                    // Another run of the node: another boot id, the same folder, keys and ledger.
                    scene.remote = None;
                    scene.remote = Some(scene.cluster.remote_again("decoder", &scene.decoder, scene.middle).await);
                }
                let failure = scene.failure(Forgery::Replay, &prompt).await;
                let right = match &failure {
                    Failure::Manifest { .. } => !adjusts_commit,
                    Failure::Mac(_) => adjusts_commit,
                    _ => false,
                };
                assert!(right, "restarted: {restarted}, adjusts the commit: {adjusts_commit}: {failure:?}");
            }
            scene.is_right(&prompt).await;
        }
    });
}
