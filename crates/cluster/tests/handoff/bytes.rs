//! The planned byte counts of a handoff are those that it moves.

use std::num::NonZeroUsize;

use muser_cluster::handoff::{Compress, HandoffBytes};
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_kv::{CacheSpec, LayerSpec, PAGE_ROWS, PageLayout};

use crate::world::{CONTEXT, Cluster, answer_remotely, machine, random_tokens, run};

/// Rows of a chunk of Muse Glimmer 30B's producer.
const CHUNK: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// Muse Glimmer 30B: three layers with a window of 2048, then one without positions, thirteen times; 2 heads of 128.
fn muse_glimmer() -> CacheSpec {
    let layer = |index| if index % 4 == 3 { LayerSpec::GLOBAL } else { LayerSpec::local(2048) };
    let layout = PageLayout::new(KvLayout::F16, 2, 128).unwrap();
    CacheSpec::new((0..52).map(layer).collect(), layout, 131_072, CacheSpec::EXTRA_PAGES_DEFAULT).unwrap()
}

#[test]
fn a_prompt_of_130815_tokens_has_1823184896_bytes_of_rows_and_all_else_is_told_apart() {
    let bytes = HandoffBytes::of(&muse_glimmer(), 130_815 - 1, 0, CHUNK).unwrap();
    assert_eq!(bytes.row_bytes, 1_823_184_896);
    // 2044 pages of a global layer and 33 of a local one, 65,536 bytes each.
    let pages = 13 * 2044 + 39 * 33;
    assert_eq!((bytes.plan.page_count(), bytes.payload_bytes()), (pages, pages * 65_536));
    assert_eq!(bytes.rounding_bytes, pages * 65_536 - 1_823_184_896);
    // 13 layers of 64 KiB are more than the 512 KiB of other frames, so that a frame has one page of each: 2044 of the global
    // group, and 33 of each local one, as positions from 128,767 on lie in pages 2011 to 2043.
    assert_eq!(bytes.framing.frames, 2044 + 3 * 33);
    // A frame has a header of 24 bytes, a digest of 32 and 33 bytes in front of its entries; a page has 8 in front of it.
    let framing = &bytes.framing;
    assert_eq!((framing.header_bytes, framing.digest_bytes), (24 * framing.frames, 32 * framing.frames));
    assert_eq!((framing.range_bytes, framing.entry_bytes), (33 * framing.frames, 8 * pages));
    let sum = bytes.row_bytes + bytes.rounding_bytes + framing.total_bytes();
    assert_eq!((bytes.wire_bytes(), bytes.plan.groups().len()), (sum, 4));
}

#[test]
fn with_half_of_65536_tokens_held_54_2851_percent_of_the_rows_travel() {
    let held_pages = 32_768 / PAGE_ROWS;
    let (delta, full) = (
        HandoffBytes::of(&muse_glimmer(), 65_536 - 1, held_pages, CHUNK).unwrap(),
        HandoffBytes::of(&muse_glimmer(), 65_536 - 1, 0, CHUNK).unwrap(),
    );
    assert_eq!(delta.row_bytes, (13 * 32_767 + 39 * 2048) * 1024);
    assert_eq!(format!("{:.4}", 100.0 * delta.row_bytes as f64 / full.row_bytes as f64), "54.2851");
}

#[test]
fn handoffs_have_the_frames_pages_and_bytes_that_were_planned() {
    run(async {
        for kv in [KvLayout::Q8, KvLayout::F16] {
            // What a plan counts is pages as they are.
            let mut cluster = Cluster::new();
            cluster.compress = Compress::Never;
            let decoder = machine(kv);
            let producing = cluster.produce("producer", machine(kv), None).await;
            let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
            let spec = {
                let installation = decoder.host.begin_installation(vec![3; 4], PrefixReuse::Isolate).await.unwrap();
                installation.spec().clone()
            };
            assert_eq!(spec.context(), CONTEXT);
            for (seed, length) in [(1, 2), (2, 65), (3, 300), (4, 1000), (4, 1500), (5, 2000)] {
                let prompt = random_tokens(seed, length);
                let (handoff, ..) = answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Share).await.unwrap();
                // The engine of the test's machines computes 256 rows at a time, and what it has is not computed again.
                let chunk = NonZeroUsize::new(256).unwrap();
                let bytes = HandoffBytes::of(&spec, length - 1, handoff.held_pages, chunk).unwrap();
                let stats = &handoff.stats;
                assert_eq!(stats.pages, bytes.plan.page_count(), "{kv:?}, {length} tokens");
                assert_eq!(stats.stored_bytes, bytes.payload_bytes(), "{kv:?}, {length} tokens");
                assert_eq!(stats.frames, bytes.framing.frames, "{kv:?}, {length} tokens");
            }
        }
    });
}
