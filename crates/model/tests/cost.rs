//! Costs of steps of Muse Glimmer 30B against figures worked out by hand.

use muser_kernels::attention::AttentionShape;
use muser_kernels::formats::WeightType;
use muser_kv::KvLayout;
use muser_model::cost::{AddendCost, AttentionCost, Cost, GraphProducts, ProductShape, SequenceRows, StepCost};
use muser_model::read_config;
use muser_synthetic::small::{glimmer_30b, header};
use muser_weights::gguf::HeaderOnly;

/// Layers with a window of 2048, and without one.
const LOCAL: u64 = 39;
const GLOBAL: u64 = 13;

/// The cost of a step of the 30B model, with all weights in `Q4_K`.
fn step(layout: KvLayout, sequences: &[SequenceRows]) -> StepCost {
    let bytes = header(&glimmer_30b(), &|_| WeightType::Q4_K).unwrap();
    let config = read_config(&HeaderOnly::parse(&bytes).unwrap().metadata()).unwrap();
    GraphProducts::new(&config, &|_| Some(WeightType::Q4_K)).unwrap().step_cost(&config, layout, sequences)
}

fn decode(position: usize) -> SequenceRows {
    SequenceRows { position, rows: 1, logits: 1 }
}

#[test]
fn products_of_one_token_are_twice_the_multiplied_weights_and_read_each_once() {
    let cost = step(KvLayout::Q8, &[decode(0)]);
    // 2 * 52 * (3 * 6656 * 4096 + 2 * 6656 * 256 + 3 * 6656 * 19968).
    assert_eq!(cost.products.operations, 50_327_453_696);
    // 144 bytes for 256 weights; floats out, and codes with a scale per 256 in.
    let vectors = 52 * (4 * 61_952 + 6760 + 4160 + 6760 + 20_280);
    assert_eq!(cost.products.bytes, 14_154_596_352 + vectors);
    // 2 * 202048 * 6656, a norm and a quantisation of 6656 values, and four operations on each logit.
    assert_eq!(cost.head.operations, 2_689_662_976 + 7 * 6656 + 4 * 202_048);
    assert_eq!(cost.silu.operations, 52 * 7 * 19_968);
    assert_eq!(cost.embed.bytes, 6656 / 256 * 144 + 4 * 6656);
    // A row without logits has no head.
    let silent = step(KvLayout::Q8, &[SequenceRows { logits: 0, ..decode(0) }]);
    assert_eq!((silent.head, silent.products), (Cost::default(), cost.products));
}

#[test]
fn attention_sees_the_window_and_reads_the_stored_rows_of_its_layout() {
    let seen = GLOBAL * 32_768 + LOCAL * 2048;
    for (layout, row_bytes) in [(KvLayout::Q8, 2 * (2 * 128 + 8)), (KvLayout::F16, 1024)] {
        let cost = step(layout, &[decode(32_767)]);
        assert_eq!(cost.attention.operations, 4 * 4096 * seen);
        assert_eq!(cost.attention.bytes, seen * row_bytes + 52 * 2 * 4096 * 4);
    }
    // Within the window both kinds of layers see the same.
    let cost = step(KvLayout::Q8, &[SequenceRows { position: 0, rows: 2048, logits: 0 }]);
    assert_eq!(cost.attention.operations, 4 * 4096 * 52 * (2048 * 2049 / 2));
}

#[test]
fn visible_pairs_are_those_counted_one_by_one() {
    let shape = AttentionShape::new(32, 2, 128).unwrap();
    for window in [None, Some(1), Some(5), Some(64), Some(1000)] {
        let layer = AttentionCost { shape, layout: KvLayout::Q8, window };
        for (start, end) in [(0, 1), (0, 5), (3, 9), (4, 5), (5, 6), (63, 200), (900, 1100), (2000, 2001)] {
            let visible = |position: usize| window.map_or(position + 1, |window| (position + 1).min(window as usize));
            let counted: usize = (start..end).map(visible).sum();
            assert_eq!(layer.pairs(start..end), counted, "{window:?}, {start}..{end}");
        }
    }
    let layer = AttentionCost { shape, layout: KvLayout::Q8, window: Some(2048) };
    // 2001 + ... + 2048, and 464 windows.
    assert_eq!(layer.pairs(2000..2512), 97_176 + 950_272);
}

#[test]
fn a_step_costs_the_arithmetic_of_its_sequences_and_reads_the_weights_once_for_all() {
    let (one, other) = (decode(1000), SequenceRows { position: 0, rows: 64, logits: 0 });
    let [first, second] = [one, other].map(|sequence| step(KvLayout::Q8, &[sequence]));
    let both = step(KvLayout::Q8, &[one, other]);
    assert_eq!(both.total().operations, first.total().operations + second.total().operations);
    assert_eq!(both.products.bytes + 14_154_596_352, first.products.bytes + second.products.bytes);
    assert_eq!(both.attention, first.attention + second.attention);
}

#[test]
fn operations_on_elements_count_what_they_read_and_write() {
    let q8_0 = ProductShape { ty: WeightType::Q8_0, outputs: 96, inputs: 64 };
    let f16 = ProductShape { ty: WeightType::F16, ..q8_0 };
    // 34 bytes for 32 weights, codes with a scale per 32; two bytes a weight, floats. Activations are read once, in the longer
    // form.
    assert_eq!(Cost::products(&[q8_0], 3), Cost { operations: 2 * 3 * 96 * 64, bytes: 96 * 68 + 3 * (72 + 4 * 96) });
    assert_eq!(Cost::products(&[q8_0, f16], 1).bytes, 96 * 68 + 96 * 128 + 2 * 4 * 96 + 4 * 64);
    let plain = Cost::norm_quantise([2, 256], None, WeightType::Q4_K);
    assert_eq!(plain, Cost { operations: 2 * 256 * 7, bytes: 2 * (4 * 256 + 256 + 4) });
    let summed = Cost::norm_quantise([2, 256], Some(AddendCost::Normed), WeightType::Q4_K);
    assert_eq!(summed, Cost { operations: 2 * 256 * 12, bytes: 2 * (12 * 256 + 256 + 4) });
}
