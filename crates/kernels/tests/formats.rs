//! Weight formats against golden vectors of an implementation that is not ours (`golden/formats/make.py`).

use muser_kernels::formats::{Block32, KBlock, WeightClass, WeightType, dequantise_row, first_non_finite};
use std::path::Path;

/// A file of `golden/formats`.
fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/formats")).join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The golden blocks of `ty` and the values they stand for.
fn golden_blocks(ty: WeightType) -> (Vec<u8>, Vec<f32>) {
    let values = golden(&format!("{ty}.values"));
    let values: Vec<f32> = values.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let blocks = golden(&format!("{ty}.blocks"));
    assert_eq!(Some(blocks.len()), ty.row_bytes(values.len()), "{ty}: golden files disagree");
    (blocks, values)
}

/// Equal to the bit, zero's sign included; any NaN equals any NaN.
fn assert_same(ty: WeightType, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (k, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{ty} weight {k}: got {got:e} ({:08x}), want {want:e} ({:08x})", got.to_bits(), want.to_bits());
    }
}

#[test]
fn dequantised_golden_blocks_equal_the_reference_bit_for_bit() {
    for ty in WeightType::ALL {
        let (blocks, values) = golden_blocks(ty);
        let mut got = vec![0.0; values.len()];
        dequantise_row(ty, &blocks, &mut got);
        assert_same(ty, &got, &values);
    }
}

#[test]
fn decoded_scales_and_codes_recompose_to_the_reference_values() {
    for ty in WeightType::ALL {
        let (blocks, values) = golden_blocks(ty);
        let got: Vec<f32> = match ty.class() {
            WeightClass::Float => continue,
            WeightClass::FloatScales => (0..values.len())
                .map(|k| {
                    let block = Block32::decode(ty, &blocks, k / 32);
                    let product = block.scales[k % 32 / 16] * f32::from(block.codes[k % 32]);
                    if block.min == 0.0 { product } else { product + block.min }
                })
                .collect(),
            WeightClass::IntegerScales => (0..values.len())
                .map(|k| {
                    let (block, sub) = (KBlock::decode(ty, &blocks, k / 256), k % 256 / 16);
                    let scale = block.d * f32::from(block.scales[sub]);
                    scale * f32::from(block.codes[k % 256]) - block.dmin * f32::from(block.mins[sub])
                })
                .collect(),
        };
        // Recomposing may lose the sign of a zero where a zero min was stored; the bit-exact test is the one above.
        let unsigned_zero = |values: &[f32]| values.iter().map(|v| v + 0.0).collect::<Vec<_>>();
        assert_same(ty, &unsigned_zero(&got), &unsigned_zero(&values));
    }
}

#[test]
fn every_type_has_golden_blocks_with_zero_subnormal_negative_and_greatest_scales() {
    for ty in WeightType::ALL.into_iter().filter(|ty| ty.class() != WeightClass::Float) {
        let (blocks, values) = golden_blocks(ty);
        assert!(values.len() >= 256, "{ty}");
        let scales: Vec<f32> = match ty.class() {
            WeightClass::FloatScales => {
                (0..values.len() / 32).flat_map(|index| Block32::decode(ty, &blocks, index).scales).collect()
            }
            _ => (0..values.len() / 256).map(|index| KBlock::decode(ty, &blocks, index).d).collect(),
        };
        if matches!(ty, WeightType::MXFP4 | WeightType::NVFP4) {
            assert!(scales.iter().all(|s| *s >= 0.0 && s.is_finite()), "{ty}");
            continue;
        }
        for wanted in [0.0, -0.0, 2f32.powi(-24), 65504.0, f32::from_bits(0xb87f_c000)] {
            assert!(scales.iter().any(|s| s.to_bits() == wanted.to_bits()), "{ty} lacks scale {wanted:e}");
        }
    }
}

#[test]
fn reserved_scale_bytes_of_mxfp4_and_nvfp4_decode_to_nan() {
    let mut block = [0x11; 36];
    for byte in 0..=255 {
        block[0] = byte;
        let mxfp4 = Block32::decode(WeightType::MXFP4, &block, 0).scales[0];
        assert_eq!(mxfp4.is_nan(), byte == 255, "MXFP4 scale byte {byte:#x} is {mxfp4}");
        let nvfp4 = Block32::decode(WeightType::NVFP4, &block, 0).scales[0];
        assert_eq!(nvfp4.is_nan(), byte >= 0x7f, "NVFP4 scale byte {byte:#x} is {nvfp4}");
    }
}

/// True if block `index` has a scale or min that is not finite, by its decoder or, for plain floats, its value.
fn is_bad(ty: WeightType, blocks: &[u8], index: usize) -> bool {
    match ty.class() {
        WeightClass::FloatScales => (0..ty.block_len() / 32).any(|group| {
            let block = Block32::decode(ty, blocks, index * ty.block_len() / 32 + group);
            block.scales.iter().chain([&block.min]).any(|s| !s.is_finite())
        }),
        WeightClass::IntegerScales => {
            let block = KBlock::decode(ty, blocks, index);
            !block.d.is_finite() || !block.dmin.is_finite()
        }
        WeightClass::Float => {
            let mut value = [0.0];
            dequantise_row(ty, &blocks[index * ty.block_bytes()..][..ty.block_bytes()], &mut value);
            !value[0].is_finite()
        }
    }
}

#[test]
fn the_first_block_with_a_non_finite_scale_is_found_wherever_it_is() {
    let mut rng = fastrand::Rng::with_seed(7);
    for ty in WeightType::ALL {
        let (count, size) = (4000, ty.block_bytes());
        let mut blocks = vec![0; count * size];
        rng.fill(&mut blocks);
        let mut found = Vec::new();
        loop {
            let clean = found.last().map_or(0, |last| last + 1);
            let bad = (clean..count).find(|&index| is_bad(ty, &blocks, index));
            assert_eq!(first_non_finite(ty, &blocks), bad, "{ty}");
            let Some(index) = bad else { break };
            found.push(index);
            // An all-zero block is finite in every type, so the search goes on to the next one.
            blocks[index * size..][..size].fill(0);
        }
        let planted = rng.usize(0..count);
        blocks[planted * size..][..size].fill(0xff);
        assert_eq!(first_non_finite(ty, &blocks), Some(planted), "{ty}");
        assert!(found.iter().any(|&index| index > 512), "{ty}: {found:?} tests too little");
    }
}
