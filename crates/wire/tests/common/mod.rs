//! Random handoffs, and callers of both ends that behave.

use std::collections::BTreeMap;

use muser_wire::{
    Acceptance, Codecs, Failure, HandoffId, HandoffPlan, HelloAck, Identity, KeyState, LaneBinding, MacKeys, Node,
    Receiver, ReceiverEvent, ReceiverSettings, Request, Sender, SenderSettings, SenderTimes, Stats, layer_groups,
};

pub const KEY_ID: u32 = 4;
/// Times in every sender's commit.
pub const TIMES: SenderTimes =
    SenderTimes { queue_us: 1, compute_us: 20_000, pack_us: 300, send_busy_us: Some(4000), send_wall_us: 50_000 };
/// The connection of both ends.
pub const LANE: LaneBinding = LaneBinding([0x1A; 32]);
pub type PageBytes = BTreeMap<(u16, u32), Vec<u8>>;

/// Inputs of one handoff.
pub struct Scene {
    pub request: Request,
    pub plan: HandoffPlan,
    pub first_page: u32,
    pub pages: PageBytes,
    pub body_bytes_max: u32,
}

/// Events that a receiver's caller saw.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub ready: Option<HelloAck>,
    pub pages: PageBytes,
    pub progress: Vec<u32>,
    pub complete: Option<Stats>,
    pub failed: Option<Failure>,
    pub other: Vec<String>,
}

pub fn node(boot: u8) -> Node {
    Node { boot_id: [boot; 16], node_id: [boot ^ 0x80; 32], identity: Identity([[7; 32]; 5]) }
}

pub fn keys(byte: u8, state: KeyState) -> MacKeys {
    let mut keys = MacKeys::default();
    keys.set(KEY_ID, [byte; 32], state);
    keys
}

pub fn receiver_settings(scene: &Scene) -> ReceiverSettings {
    let (node, keys) = (node(1), keys(9, KeyState::Active));
    ReceiverSettings { node, lane: LANE, keys, pages_bytes_max: scene.body_bytes_max, stall_limit_ms: 1000 }
}

pub fn sender_settings() -> SenderSettings {
    SenderSettings {
        node: node(2),
        lane: LANE,
        keys: keys(9, KeyState::VerifyOnly),
        codecs: Codecs::ALL,
        concurrent_max: 1,
        context_max: 1 << 16,
        pages_bytes_max: 1 << 24,
        backlog_bytes_max: 4000,
        stall_limit_ms: 1000,
    }
}

impl Scene {
    pub fn random(random: &mut fastrand::Rng) -> Self {
        let is_local: Vec<bool> = (0..random.usize(1..9)).map(|_| random.bool()).collect();
        let rows = random.u32(1..1500);
        let held_pages = random.u32(0..=rows / 64);
        let first_page = random.u32(0..=held_pages);
        let (window, end) = (random.u32(1..400), rows.div_ceil(64));
        let oldest = (rows + 1).saturating_sub(window) / 64;
        let start = |local: &bool| if *local { first_page.max(oldest).min(end) } else { first_page };
        let ranges = is_local.iter().map(|local| start(local)..end).collect();
        let plan = HandoffPlan::new(layer_groups(&is_local), ranges, random.u32(1..300)).unwrap();
        let values = random.u32(1..=256);
        let mut pages = PageBytes::new();
        for (layer, range) in (0u16..).zip(plan.layers()) {
            for page in range.clone() {
                let bytes = (0..plan.page_bytes()).map(|_| (random.u32(0..values) & 255) as u8).collect();
                pages.insert((layer, page), bytes);
            }
        }
        let body_bytes_max = u32::try_from(plan.body_bytes_min()).unwrap() + random.u32(0..2000);
        let (handoff, nonce) =
            (HandoffId(std::array::from_fn(|_| random.u8(..))), std::array::from_fn(|_| random.u8(..)));
        let codecs = if random.bool() { Codecs::ALL } else { Codecs::NONE_ONLY };
        let realm = std::array::from_fn(|_| random.u8(..));
        let request = Request::new(handoff, KEY_ID, nonce, (0..rows).map(|_| random.u32(..)).collect());
        let request = Request { expires_in_ms: 5000, held_pages, held_name: [3; 32], codecs, realm, ..request };
        Self { request, plan, first_page, pages, body_bytes_max }
    }

    pub fn acceptance(&self) -> Acceptance {
        Acceptance { nonce: [0x5A; 32], first_page: self.first_page, reused_rows: 0, plan: self.plan.clone() }
    }

    /// Sends all pages in random order, takes the output after each frame, and commits.
    pub fn send_all(&self, sender: &mut Sender, random: &mut fastrand::Rng, mut sent: impl FnMut(&mut Sender)) {
        let mut frames = Vec::new();
        for group in 0..u8::try_from(self.plan.groups().len()).unwrap() {
            let ranges = self.plan.frames(group, 0..u32::MAX, sender.frame_bytes_max());
            frames.extend(ranges.into_iter().map(|range| (group, range)));
        }
        random.shuffle(&mut frames);
        for (index, (group, range)) in frames.into_iter().enumerate() {
            let (before, packed) = (sender.sent(), random.bool());
            sender.use_codecs(if packed { Codecs::ALL } else { Codecs::NONE_ONLY });
            sender.send_pages(group, range, |layer, page| &self.pages[&(layer, page)]).unwrap();
            let (payload, stored) =
                (sender.sent().payload_bytes - before.payload_bytes, sender.sent().stored_bytes - before.stored_bytes);
            assert!(stored == payload || packed && stored < payload && self.request.codecs == Codecs::ALL);
            if index == 0 {
                sender.progress(0).unwrap();
            }
            sent(sender);
        }
        sender.commit(TIMES, 0).unwrap();
        let (of_sender, rows) = (sender.sent(), u32::try_from(self.request.tokens.len()).unwrap());
        assert_eq!((of_sender.rows, of_sender.payload_bytes), (rows, self.plan.payload_bytes()));
        assert!(of_sender.stored_bytes <= of_sender.payload_bytes, "{of_sender:?}");
        sent(sender);
    }

    /// Handles every event of `receiver` as a well-behaved caller does.
    pub fn serve(&self, receiver: &mut Receiver, seen: &mut Seen, now_ms: u64) {
        loop {
            let Some(event) = receiver.poll_event() else { return };
            match event {
                ReceiverEvent::Page { layer, page, bytes } => {
                    assert!(seen.pages.insert((layer, page), bytes.to_vec()).is_none(), "a page was handed out twice");
                }
                ReceiverEvent::Ready(ack) => {
                    seen.ready = Some(ack);
                    receiver.request(self.request.clone(), now_ms).unwrap();
                }
                ReceiverEvent::Accepted(_) => {
                    let _ = receiver.ledger_recorded(self.plan.clone(), now_ms);
                }
                ReceiverEvent::Progress(progress) => seen.progress.push(progress.rows_done),
                ReceiverEvent::Complete(stats) => seen.complete = Some(stats),
                ReceiverEvent::Failed(failure) => seen.failed = Some(failure),
                other => seen.other.push(format!("{other:?}")),
            }
        }
    }
}
