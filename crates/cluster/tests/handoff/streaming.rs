//! Pages that travel while later ones are computed are those that are there in the end.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use muser_cluster::handoff::{BringError, HandoffError};
use muser_engine::ChunkRows;
use muser_engine::engine::{Job, PrefixReuse, RequestEvent};
use muser_kernels::attention::KvLayout;
use muser_kv::CacheSpec;
use muser_wire::{Failure, Frame, FrameKind, HandoffPlan, Message, PageCodec, PagePacker, Pages, layer_groups};

use crate::middle::{From, honest, stand_between};
use crate::models::{Attention, company, small, small_file, tokens};
use crate::world::{Cluster, Machine, answer_remotely, machine_with, run};

/// A digest per page, by layer and index.
type Digests = BTreeMap<(usize, usize), blake3::Hash>;

/// Digests of the pages that `machine` exports for the first `rows` rows of a prompt.
async fn exported(machine: &Machine, prompt: &[u32], rows: usize) -> Digests {
    let mut answer = machine.host.submit(Job::export(&prompt[..rows], PrefixReuse::Share, 0)).await.unwrap();
    let mut digests = Digests::new();
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Progress { pages, .. } => {
                digests.extend(pages.iter().map(|page| ((page.layer, page.page), blake3::hash(page.bytes.as_ref()))));
            }
            RequestEvent::Finished(_) => break,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    digests
}

/// Adds the pages of a `Pages` body of a handoff of `rows` rows to a decoder that holds none.
fn collect(body: &[u8], (spec, rows): (&CacheSpec, usize), digests: &mut Digests) {
    let number = |index: usize| u32::try_from(index).unwrap();
    let (count, page_bytes) = (spec.layers().len(), spec.layout().page_bytes());
    let ranges = (0..count).map(|layer| spec.pages_to_ship(layer, rows, 0));
    let is_local: Vec<bool> = spec.layers().iter().map(|layer| layer.window.is_some()).collect();
    let ranges = ranges.map(|range| number(range.start)..number(range.end)).collect();
    let plan = HandoffPlan::new(layer_groups(&is_local), ranges, number(page_bytes)).unwrap();
    let frame = Frame { kind: FrameKind::Pages, body, digest: blake3::hash(body) };
    let Ok(Message::Pages(Pages { group, first_page, page_count, mut entries, .. })) = Message::decode(&frame) else {
        panic!("not a frame of pages");
    };
    let mut packer = PagePacker::default();
    for (layer, page) in plan.entries(group, first_page..first_page + page_count) {
        let stored = u32::from_le_bytes(entries[4..8].try_into().unwrap()) as usize;
        let (codec, bytes) = (entries[0], &entries[Pages::ENTRY_BYTES..][..stored]);
        let digest = match PageCodec::decode(codec).unwrap() {
            PageCodec::None => blake3::hash(bytes),
            PageCodec::PlanesLz4 => blake3::hash(packer.unpack(bytes, page_bytes).unwrap()),
        };
        assert_eq!(digests.insert((usize::from(layer), page as usize), digest), None, "page {page} of layer {layer}");
        entries = &entries[Pages::ENTRY_BYTES + stored..];
    }
    assert!(entries.is_empty());
}

#[test]
fn what_was_sent_while_the_rest_was_computed_has_the_digests_of_what_is_there_in_the_end() {
    run(async {
        let mut random = fastrand::Rng::with_seed(31);
        let mut chunks = 0;
        for round in 0..12 {
            let attention = [Attention::Full, Attention::Windowed][round % 2];
            let kv = [KvLayout::F16, KvLayout::Q8][round / 2 % 2];
            let cluster = Cluster::new();
            let rows = |count| NonZeroUsize::new(count).unwrap();
            let chunk = ChunkRows { alone: rows(random.usize(1..=200)), while_decoding: rows(random.usize(1..=90)) };
            let machine = machine_with(small_file(attention), kv, |settings| settings.chunk = chunk);
            let producing = cluster.produce("producer", machine, None).await;
            let frames = Arc::new(Mutex::new(Vec::new()));
            let kept = Arc::clone(&frames);
            let listen = move |from: From, kind: FrameKind, body: &[u8]| {
                if matches!(kind, FrameKind::Pages | FrameKind::Progress) {
                    kept.lock().unwrap().push((kind, body.to_vec()));
                }
                honest(from, kind, body)
            };
            let middle = stand_between(&cluster, producing.address, listen).await;
            let decoder = small(attention, kv);
            let remote = cluster.remote("decoder", &decoder, middle, &cluster.keys);
            let prompt = tokens(random.u64(..), random.usize(300..900));
            let busy = [company(&producing.machine.host, random.u64(..)), company(&producing.machine.host, 1)];
            // Refused once every page is there, since it came over another lane than the producer's.
            let refused = answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate).await.map(|_| ());
            assert!(
                matches!(refused, Err(BringError::Handoff(HandoffError::Failed(Failure::OtherLane)))),
                "round {round}: {refused:?}"
            );
            drop(busy);
            let (mut received, length) = (Digests::new(), prompt.len() - 1);
            for (kind, body) in frames.lock().unwrap().iter() {
                match kind {
                    FrameKind::Pages => collect(body, (&decoder.spec, length), &mut received),
                    _ => chunks += 1,
                }
            }
            let there = exported(&producing.machine, &prompt, length).await;
            let alone = exported(&small(attention, kv), &prompt, length).await;
            assert_eq!(there.len(), received.len(), "round {round}");
            assert!(received == there, "round {round}: other pages than the producer has now");
            assert!(received == alone, "round {round}: other pages than an engine without company computes");
        }
        assert!(chunks > 12 * 3, "{chunks} chunks: hardly anything was sent while something was computed");
    });
}
