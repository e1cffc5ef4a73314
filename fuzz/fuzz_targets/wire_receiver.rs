//! Any frames to a receiver in the middle of a handoff: it never panics, hands out only pages of the plan, once each,
//! and completes nothing, because the fuzzer does not know the key.
//!
//! Run in this folder: `cargo +nightly fuzz run wire_receiver -- -max_len=4096 -malloc_limit_mb=64`

#![no_main]

use std::collections::BTreeSet;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use muser_wire::{
    Accept, CancelReason, Codecs, FrameKind, HandoffId, HandoffPlan, HelloAck, Identity, KeyState, LaneBinding, MacKeys,
    Message, Node, PageCodec, Pages, Receiver, ReceiverEvent, ReceiverSettings, Request, VERSIONS, write_frame,
};

#[derive(Arbitrary, Debug)]
enum Step {
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// A whole frame of a kind.
    Frame(u8, Vec<u8>),
    /// A `Pages` frame of this handoff.
    Pages { sequence: u8, group: u8, first_page: u8, page_count: u8, entries: Vec<(bool, Vec<u8>)> },
    /// The receiver's caller gives up.
    Cancel,
    /// Time passes.
    Wait(u16),
}

const HANDOFF: HandoffId = HandoffId([5; 16]);
/// No input is made from it.
const KEY: [u8; 32] = *b"known to the receiver, not to us";
const PAGE_BYTES: u32 = 16;

fuzz_target!(|steps: Vec<Step>| {
    let plan = HandoffPlan::new(vec![vec![1], vec![0, 2]], vec![2..4, 0..4, 3..4], PAGE_BYTES).expect("a sound plan");
    let (mut receiver, mut handed_out, mut now_ms) = (started(&plan), BTreeSet::new(), 0);
    for step in steps {
        let bytes = match step {
            Step::Raw(bytes) => bytes,
            Step::Frame(kind, body) => {
                let kind = FrameKind::ALL[usize::from(kind) % FrameKind::ALL.len()];
                let mut out = Vec::new();
                write_frame(&mut out, kind, |out| out.extend_from_slice(&body));
                out
            }
            Step::Pages { sequence, group, first_page, page_count, entries } => {
                pages_frame([sequence, group, first_page, page_count], &entries)
            }
            Step::Cancel => {
                let _ = receiver.cancel(CancelReason::ClientGone, now_ms);
                continue;
            }
            Step::Wait(wait_ms) => {
                now_ms += u64::from(wait_ms);
                receiver.tick(now_ms);
                continue;
            }
        };
        let mut at = 0;
        while at < bytes.len() {
            at += receiver.take_bytes(&bytes[at..], now_ms);
            drain(&mut receiver, &plan, &mut handed_out);
        }
    }
    receiver.ended();
    drain(&mut receiver, &plan, &mut handed_out);
    assert!(receiver.is_closed());
});

fn drain(receiver: &mut Receiver, plan: &HandoffPlan, handed_out: &mut BTreeSet<(u16, u32)>) {
    while let Some(event) = receiver.poll_event() {
        match event {
            ReceiverEvent::Page { layer, page, bytes } => {
                assert!(plan.layers()[usize::from(layer)].contains(&page));
                assert_eq!(bytes.len(), PAGE_BYTES as usize);
                assert!(handed_out.insert((layer, page)), "a page came twice");
            }
            ReceiverEvent::Complete(stats) => panic!("complete without the key: {stats:?}"),
            _ => {}
        }
    }
}

fn pages_frame([sequence, group, first_page, page_count]: [u8; 4], given: &[(bool, Vec<u8>)]) -> Vec<u8> {
    let mut entries = Vec::new();
    for (packed, bytes) in given {
        let codec = if *packed { PageCodec::PlanesLz4 } else { PageCodec::None };
        entries.extend_from_slice(&[codec as u8, 0, 0, 0]);
        entries.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        entries.extend_from_slice(bytes);
    }
    let (first_page, page_count, sequence) = (first_page.into(), page_count.into(), sequence.into());
    let mut out = Vec::new();
    Message::Pages(Pages { handoff: HANDOFF, sequence, group, first_page, page_count, entries: &entries })
        .write_frame(&mut out);
    out
}

/// A receiver that awaits the pages of `plan`.
fn started(plan: &HandoffPlan) -> Receiver {
    let node = Node { boot_id: [1; 16], node_id: [2; 32], identity: Identity([[3; 32]; 5]) };
    let mut keys = MacKeys::default();
    keys.set(1, KEY, KeyState::Active);
    let settings = ReceiverSettings { node, lane: LaneBinding([4; 32]), keys, pages_bytes_max: 1 << 16, stall_limit_ms: 1000 };
    let mut receiver = Receiver::connect(settings, 0);
    let (version, codecs) = (VERSIONS.1, Codecs::ALL);
    let ack = HelloAck { version, node, concurrent_max: 1, codecs, frame_bytes_max: 1 << 16 };
    give(&mut receiver, &Message::HelloAck(ack));
    let request = Request { expires_in_ms: 10_000, ..Request::new(HANDOFF, 1, [6; 32], vec![1; 200]) };
    receiver.request(request, 0).expect("a greeted receiver requests");
    let (page_count, payload_bytes) = (plan.page_count(), plan.payload_bytes());
    let (nonce, first_page, rows, reused_rows) = ([7; 32], 0, 200, 0);
    let accept = Accept { handoff: HANDOFF, nonce, first_page, rows, page_count, payload_bytes, reused_rows };
    give(&mut receiver, &Message::Accept(accept));
    receiver.ledger_recorded(plan.clone(), 0).expect("the plan is the accepted one");
    receiver
}

fn give(receiver: &mut Receiver, message: &Message<'_>) {
    let mut bytes = Vec::new();
    message.write_frame(&mut bytes);
    assert_eq!(receiver.take_bytes(&bytes, 0), bytes.len());
    while receiver.poll_event().is_some() {}
}
