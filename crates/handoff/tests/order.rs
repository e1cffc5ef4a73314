//! The order of a handoff: what comes before what at either end, over two cores that are joined byte by byte.

use std::ops::Range;
use std::sync::Arc;

use muser_handoff::{
    CacheShape, DecoderCore, DecoderEffect, HandoffError, Order, ProducerCore, ProducerEffect, ReadyPages, SendStep,
};
use muser_wire::{
    CancelReason, Codecs, HandoffId, HandoffPlan, Identity, KeyState, LaneBinding, MacKeys, Node, ReceiverSettings,
    RefuseCode, Request, SenderSettings, SenderTimes,
};

const PAGE_BYTES: u32 = 32;
const TOKENS: [u32; 10] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3];
const TIMES: SenderTimes = SenderTimes { queue_us: 1, compute_us: 2, pack_us: 3, send_busy_us: None, send_wall_us: 4 };

/// Two layers, and pages of four rows that are named by their index.
struct Shape;

impl CacheShape for Shape {
    fn page_rows(&self) -> u32 {
        4
    }

    fn name(&self, _: &[u32], pages: u32) -> Option<[u8; 32]> {
        Some([u8::try_from(pages).ok()?; 32])
    }

    fn plan(&self, rows: u32, held_pages: u32) -> Option<HandoffPlan> {
        let pages = held_pages..rows.div_ceil(4);
        HandoffPlan::new(vec![vec![0, 1]], vec![pages.clone(), pages], PAGE_BYTES).ok()
    }
}

#[derive(Debug)]
struct Batch(Range<u32>, [u8; PAGE_BYTES as usize]);

impl ReadyPages for Batch {
    fn bytes(&self, _: u16, page: u32) -> Option<&[u8]> {
        self.0.contains(&page).then_some(&self.1[..])
    }
}

fn node(byte: u8) -> Node {
    Node { boot_id: [byte; 16], node_id: [byte; 32], identity: Identity([[7; 32]; 5]) }
}

fn keys() -> MacKeys {
    let mut keys = MacKeys::default();
    keys.set(1, [9; 32], KeyState::Active);
    keys
}

/// Both ends after the greeting.
fn greeted() -> (DecoderCore, ProducerCore) {
    let (lane, stall_limit_ms, pages_bytes_max) = (LaneBinding([1; 32]), 1000, 4096);
    let receiver = ReceiverSettings { node: node(1), lane, keys: MacKeys::default(), pages_bytes_max, stall_limit_ms };
    let sender = SenderSettings {
        node: node(2),
        lane,
        keys: keys(),
        codecs: Codecs::ALL,
        concurrent_max: 1,
        context_max: 100,
        pages_bytes_max,
        backlog_bytes_max: 4096,
        stall_limit_ms,
    };
    let mut decoder = DecoderCore::connect(receiver, node(2).node_id, 0);
    let mut producer = ProducerCore::new(sender, node(1).node_id, 100, 0);
    carry(&mut decoder, &mut producer);
    assert!(producer.poll_effect().is_none());
    carry(&mut decoder, &mut producer);
    assert!(matches!(decoder.poll_effect(), Some(DecoderEffect::Ready)));
    (decoder, producer)
}

/// Both ends after a request that the producer's engine has begun.
fn begun(held_pages: u32) -> (DecoderCore, ProducerCore) {
    let (mut decoder, mut producer) = greeted();
    let request = Request::new(HandoffId([5; 16]), 1, [6; 32], TOKENS.to_vec());
    let request = Request { held_pages, held_name: [u8::try_from(held_pages).unwrap(); 32], ..request };
    let plan = CacheShape::plan(&Shape, 10, held_pages).unwrap();
    decoder.request(Order { request, plan, expiry_unix_ms: 99 }, keys(), 0).unwrap();
    carry(&mut decoder, &mut producer);
    assert!(matches!(producer.poll_effect(), Some(ProducerEffect::AskTrust)));
    assert!(!producer.wants_event());
    assert_eq!(producer.trusted(&Shape).map(|request| request.tokens), Some(TOKENS.to_vec()));
    producer.submitted([8; 32]);
    producer.started(0, 0).unwrap();
    (decoder, producer)
}

/// Moves what both ends have to say, as far as they take it.
fn carry(decoder: &mut DecoderCore, producer: &mut ProducerCore) {
    loop {
        let up = producer.take_bytes(decoder.output(), 0);
        decoder.output_sent(up, 0);
        let down = decoder.take_bytes(producer.output(), 0);
        producer.output_sent(down, 0);
        if up + down == 0 {
            return;
        }
    }
}

#[test]
fn no_page_is_handed_out_before_the_entry_is_on_record_and_none_counts_before_the_last_judgement() {
    let (mut decoder, mut producer) = begun(1);
    carry(&mut decoder, &mut producer);
    let Some(DecoderEffect::Record(entry)) = decoder.poll_effect() else { panic!("the ledger is not asked") };
    let entry = entry.at(77);
    assert_eq!((entry.nonce, entry.rows, entry.first_page), ([6; 32], 10, 1));
    assert_eq!((entry.expiry_unix_ms, entry.time_unix_ms, entry.boot_id), (99, 77, node(1).boot_id));
    producer.computed(10, 0..3, Arc::new(Batch(0..3, [4; 32])), Codecs::ALL);
    assert!(matches!(producer.send(true, 0), SendStep::Frame { .. }));
    carry(&mut decoder, &mut producer);
    assert!(decoder.poll_effect().is_none(), "something comes before the entry is on record");
    assert!(decoder.trusted().is_err());
    decoder.recorded(0).unwrap();
    producer.finished();
    let (mut pages, mut key) = (Vec::new(), None);
    while key.is_none() {
        if matches!(producer.send(producer.output().is_empty(), 0), SendStep::Commit) {
            producer.commit(TIMES, 0).unwrap();
        }
        carry(&mut decoder, &mut producer);
        while let Some(effect) = decoder.poll_effect() {
            match effect {
                DecoderEffect::Install { layer, page, bytes } => {
                    assert_eq!(bytes, [4; 32]);
                    pages.push((layer, page));
                }
                DecoderEffect::AskTrust { key_id } => key = Some(key_id),
                DecoderEffect::Computed { rows } => assert_eq!(rows, 10),
                other => panic!("{other:?}"),
            }
        }
    }
    pages.sort_unstable();
    assert_eq!((key, pages), (Some(1), vec![(0, 1), (0, 2), (1, 1), (1, 2)]));
    assert!(producer.poll_effect().is_none(), "the producer is told before the judgement");
    assert_eq!(decoder.trusted().map(|stats| (stats.rows, stats.pages)), Ok((10, 4)));
    carry(&mut decoder, &mut producer);
    assert!(matches!(producer.poll_effect(), Some(ProducerEffect::Installed)));
    assert!(decoder.is_idle());
}

#[test]
fn a_handoff_that_is_given_up_tells_nothing_more_and_leaves_the_lane_usable() {
    let (mut decoder, mut producer) = begun(0);
    carry(&mut decoder, &mut producer);
    assert!(matches!(decoder.poll_effect(), Some(DecoderEffect::Record(_))));
    decoder.give_up(CancelReason::Internal, 0);
    assert!(decoder.recorded(0).is_err() && !decoder.is_idle());
    carry(&mut decoder, &mut producer);
    assert!(matches!(producer.poll_effect(), Some(ProducerEffect::Over(None))));
    carry(&mut decoder, &mut producer);
    assert!(matches!(decoder.poll_effect(), Some(DecoderEffect::Rested)));
    assert!(decoder.poll_effect().is_none() && decoder.is_idle() && !decoder.is_spent());
}

#[test]
fn a_claim_on_other_pages_and_a_producer_in_trouble_are_told_and_only_the_latter_ends_the_lane() {
    for (held_name, is_spent) in [([9; 32], false), ([1; 32], true)] {
        let (mut decoder, mut producer) = greeted();
        let request = Request::new(HandoffId([5; 16]), 1, [6; 32], TOKENS.to_vec());
        let request = Request { held_pages: 1, held_name, ..request };
        let plan = CacheShape::plan(&Shape, 10, 1).unwrap();
        decoder.request(Order { request, plan, expiry_unix_ms: 99 }, keys(), 0).unwrap();
        carry(&mut decoder, &mut producer);
        assert!(matches!(producer.poll_effect(), Some(ProducerEffect::AskTrust)));
        assert_eq!(producer.trusted(&Shape).is_some(), is_spent);
        if is_spent {
            producer.submitted([8; 32]);
            producer.give_up(CancelReason::Internal, 0);
        }
        carry(&mut decoder, &mut producer);
        let Some(DecoderEffect::End(HandoffError::Refused(refuse))) = decoder.poll_effect() else { panic!() };
        assert_eq!(refuse.code, if is_spent { RefuseCode::Internal } else { RefuseCode::StaleClaim });
        assert_eq!((decoder.is_spent(), decoder.is_idle()), (is_spent, !is_spent));
    }
}

#[test]
fn the_commit_waits_until_everything_before_it_is_with_the_kernel() {
    let (mut decoder, mut producer) = begun(0);
    carry(&mut decoder, &mut producer);
    assert!(matches!(decoder.poll_effect(), Some(DecoderEffect::Record(_))));
    decoder.recorded(0).unwrap();
    producer.computed(10, 0..3, Arc::new(Batch(0..3, [4; 32])), Codecs::NONE_ONLY);
    producer.finished();
    while matches!(producer.send(false, 0), SendStep::Frame { .. }) {}
    assert!(matches!(producer.send(false, 0), SendStep::Idle));
    assert!(matches!(producer.send(true, 0), SendStep::Commit));
    let mut installed = 0;
    while !producer.output().is_empty() {
        carry(&mut decoder, &mut producer);
        while let Some(effect) = decoder.poll_effect() {
            installed += u32::from(matches!(effect, DecoderEffect::Install { .. }));
        }
    }
    assert_eq!(installed, 6);
}
