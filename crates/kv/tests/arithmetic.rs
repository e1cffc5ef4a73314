//! Every KV figure of the 30B model, derived from its geometry.

use muser_kv::{CacheSpec, KvLayout, LayerSpec, PageLayout, PageSet};

const LAYERS: usize = 52;
const HIDDEN: u64 = 6656;
const FFN: u64 = 19968;
const VOCABULARY: u64 = 202_048;
const QUERY_HEADS: u64 = 32;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 128;
const WINDOW: u32 = 2048;
const CONTEXT: usize = 131_072;

/// Three local layers, then a global one, thirteen times.
fn spec(layout: KvLayout) -> CacheSpec {
    let layer = |index| if index % 4 == 3 { LayerSpec::GLOBAL } else { LayerSpec::local(WINDOW) };
    let layout = PageLayout::new(layout, KV_HEADS, HEAD_DIM).unwrap();
    CacheSpec::new((0..LAYERS).map(layer).collect(), layout, CONTEXT, CacheSpec::EXTRA_PAGES_DEFAULT).unwrap()
}

#[test]
fn the_model_has_39_local_and_13_global_layers() {
    let spec = spec(KvLayout::F16);
    let local = spec.layers().iter().filter(|layer| layer.window.is_some()).count();
    assert_eq!((local, spec.layers().len() - local), (39, 13));
    assert_eq!(spec.layers().last(), Some(&LayerSpec::GLOBAL));
}

#[test]
fn a_token_takes_1024_bytes_per_layer_in_f16_and_528_in_q8() {
    assert_eq!(spec(KvLayout::F16).layout().row_bytes(), 1024);
    assert_eq!(spec(KvLayout::Q8).layout().row_bytes(), 528);
    assert_eq!(spec(KvLayout::F16).layout().page_bytes(), 65_536);
    assert_eq!(spec(KvLayout::Q8).layout().page_bytes(), 33_792);
}

#[test]
fn the_handoff_of_130815_tokens_without_the_boundary_token_is_1823184896_bytes_of_rows() {
    let spec = spec(KvLayout::F16);
    let rows = 130_815 - 1;
    assert_eq!(LayerSpec::GLOBAL.rows_to_ship(rows, 0), 130_814);
    assert_eq!(LayerSpec::local(WINDOW).rows_to_ship(rows, 0), 2048);
    assert_eq!(spec.row_payload_bytes(rows, 0), 1_823_184_896);
    // In whole pages: 2044 per global layer, and 33 per local one, since positions 128,767 ..= 130,813 touch 33.
    assert_eq!(spec.pages_to_ship(3, rows, 0), 0..2044);
    assert_eq!(spec.pages_to_ship(0, rows, 0), 2011..2044);
    assert_eq!(spec.page_payload_bytes(rows, 0), (13 * 2044 + 39 * 33) * 65_536);
}

#[test]
fn a_delta_handoff_with_half_of_65536_tokens_held_sends_54_2851_percent() {
    let spec = spec(KvLayout::F16);
    let (total, held) = (65_536 - 1, 32_768);
    let (delta, full) = (spec.row_payload_bytes(total, held), spec.row_payload_bytes(total, 0));
    assert_eq!(delta, (13 * 32_767 + 39 * 2048) * 1024);
    assert_eq!(full, (13 * 65_535 + 39 * 2048) * 1024);
    // 54.2851 %, to the last digit given.
    assert_eq!((delta * 1_000_000 + full / 2) / full, 542_851);
    assert_eq!(spec.page_payload_bytes(total, held), (13 * 512 + 39 * 32) * 65_536);
}

#[test]
fn a_local_layer_sends_less_than_its_window_when_less_is_missing() {
    let local = LayerSpec::local(WINDOW);
    assert_eq!(local.rows_to_ship(100, 0), 100);
    assert_eq!(local.rows_to_ship(10_000, 9_000), 1000);
    assert_eq!(local.rows_to_ship(10_000, 10_000), 0);
    assert_eq!(local.rows_to_ship(10_000, 20_000), 0);
    let spec = spec(KvLayout::Q8);
    assert_eq!(spec.pages_to_ship(0, 10_000, 9_024), 141..157);
    assert_eq!(spec.pages_to_ship(0, 10_000, 9_023), 140..157);
    assert!(spec.pages_to_ship(0, 10_000, 20_000).is_empty());
    assert!(spec.pages_to_ship(3, 9_984, 9_984).is_empty());
    assert_eq!(spec.page_payload_bytes(9_984, 9_984), 0);
}

#[test]
fn held_pages_and_shipped_pages_together_are_the_window_of_the_receiver() {
    let spec = spec(KvLayout::Q8);
    for (total, held) in [(5000, 0), (5000, 64), (5000, 2944), (5000, 3008), (5000, 4992), (131_071, 65_536)] {
        for layer in [0, 3] {
            let needed = spec.pages_at(layer, total, PageSet::Window);
            let shipped = spec.pages_to_ship(layer, total, held);
            let from_receiver = spec.pages_at(layer, held, PageSet::Window);
            for page in needed {
                assert!(
                    shipped.contains(&page) || from_receiver.contains(&page),
                    "page {page} of {total}, {held} held"
                );
            }
        }
    }
}

#[test]
fn a_full_context_in_q8_takes_less_than_a_third_of_keeping_every_row() {
    let spec = spec(KvLayout::Q8);
    // The query at 131,072 would see 129,025 ..: page 2016, one extra page before it, so 33 of 2048 pages.
    assert_eq!(spec.predicted_bytes(CONTEXT), (13 * 2048 + 39 * 33) * 33_792);
    let every_row = LAYERS * CONTEXT * 528;
    assert!(spec.predicted_bytes(CONTEXT) * 3 < every_row);
    // The last chunk of 512: its first query, at 130,560, sees 128,513 .., page 2008; with the extra page, 41 pages.
    assert_eq!(spec.peak_bytes(CONTEXT - 512, 512), (13 * 2048 + 39 * 41) * 33_792);
}

#[test]
fn prefill_does_about_1619_operations_per_weight_byte_and_decode_about_3_2() {
    let attention = 3 * HIDDEN * QUERY_HEADS * HEAD_DIM as u64 + 2 * HIDDEN * (KV_HEADS * HEAD_DIM) as u64;
    let parameters = LAYERS as u64 * (attention + 3 * HIDDEN * FFN) + HIDDEN * VOCABULARY;
    assert_eq!(parameters, 26_508_558_336);
    let artifact_bytes = 16_756_681_056;
    // One multiply and one add per parameter and row; the weights are read once per chunk.
    assert_eq!(2 * parameters * 512 / artifact_bytes, 1619);
    assert_eq!((2 * parameters * 10 + artifact_bytes / 2) / artifact_bytes, 32);
}
