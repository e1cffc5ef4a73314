//! Quantisers against golden bytes of an implementation that is not ours, and against their own error bounds.

use muser_kernels::formats::{QuantiseError, WeightType, dequantise_row, quantise_row};
use std::path::Path;

/// A file of `golden/formats`.
fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/formats")).join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden_input() -> Vec<f32> {
    golden("quantise.input").as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn quantised(ty: WeightType, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(x.len()).unwrap()];
    quantise_row(ty, x, &mut bytes).unwrap_or_else(|error| panic!("{ty}: {error}"));
    bytes
}

fn dequantised(ty: WeightType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
    dequantise_row(ty, bytes, &mut values);
    values
}

/// Bell-shaped weights of standard deviation near `size`.
fn bell(rng: &mut fastrand::Rng, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|_| ((0..12).map(|_| rng.f32()).sum::<f32>() - 6.0) * size).collect()
}

#[test]
fn types_with_a_published_rule_get_the_bytes_every_other_tool_writes() {
    let x = golden_input();
    use WeightType::*;
    for ty in [F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1] {
        let (got, want) = (quantised(ty, &x), golden(&format!("{ty}.quantised")));
        assert_eq!(got.len(), want.len(), "{ty}");
        for (index, (got, want)) in got.chunks(ty.block_bytes()).zip(want.chunks(ty.block_bytes())).enumerate() {
            assert_eq!(got, want, "{ty} block {index}");
        }
    }
}

#[test]
fn every_weight_of_a_32_block_stays_within_the_rounding_of_its_type() {
    let mut rng = fastrand::Rng::with_seed(11);
    // Steps across the range of the block's extremes; one step more for the side that symmetric types cut off.
    for (ty, steps, symmetric) in [
        (WeightType::Q8_0, 254.0, false),
        (WeightType::Q4_0, 16.0, true),
        (WeightType::Q4_1, 15.0, false),
        (WeightType::Q5_0, 32.0, true),
        (WeightType::Q5_1, 31.0, false),
    ] {
        for _ in 0..500 {
            let size = 10f32.powi(rng.i32(-3..3));
            let x = bell(&mut rng, 32, size);
            let y = dequantised(ty, &quantised(ty, &x));
            let magnitude = x.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
            let step = match ty {
                WeightType::Q4_1 | WeightType::Q5_1 => {
                    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
                    (x.iter().copied().fold(f32::NEG_INFINITY, f32::max) - min) / steps
                }
                _ => 2.0 * magnitude / steps,
            };
            // Half a step (a whole one where the far end is cut off), plus f16's rounding of scale and min: relative,
            // or absolute where they are subnormal.
            let f16_rounding = magnitude * 2f32.powi(-10) + steps * 2f32.powi(-25);
            let bound = step * if symmetric { 1.0 } else { 0.5 } + f16_rounding;
            for (x, y) in x.iter().zip(&y) {
                assert!((x - y).abs() <= bound, "{ty}: {x} became {y}, step {step}");
            }
        }
    }
}

#[test]
fn quantising_what_a_32_block_stands_for_changes_nothing() {
    let mut rng = fastrand::Rng::with_seed(12);
    use WeightType::*;
    for ty in [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, F16, BF16, F32] {
        for _ in 0..500 {
            let size = 10f32.powi(rng.i32(-3..3));
            let bytes = quantised(ty, &bell(&mut rng, 32, size));
            let values = dequantised(ty, &bytes);
            let again = dequantised(ty, &quantised(ty, &values));
            assert_eq!(
                values.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                again.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                "{ty}"
            );
        }
    }
}

#[test]
fn a_value_that_is_not_finite_is_named_by_its_index() {
    let mut x = vec![0.5; 512];
    for (index, value) in [(511, f32::NAN), (300, f32::NEG_INFINITY), (7, f32::INFINITY)] {
        x[index] = value;
        for ty in WeightType::ALL {
            let mut bytes = vec![0; ty.row_bytes(x.len()).unwrap()];
            let Err(QuantiseError::NonFinite { index: got, .. }) = quantise_row(ty, &x, &mut bytes) else {
                panic!("{ty} took {value}");
            };
            assert_eq!(got, index, "{ty}");
        }
    }
}

#[test]
fn weights_beyond_the_range_of_a_type_are_refused_not_stored_as_infinity() {
    for ty in WeightType::ALL.into_iter().filter(|ty| !READ_ONLY.contains(ty) && *ty != WeightType::F32) {
        let mut x = vec![0.5; 512];
        x[300] = f32::MAX;
        let mut bytes = vec![0; ty.row_bytes(x.len()).unwrap()];
        let error = quantise_row(ty, &x, &mut bytes).unwrap_err();
        let QuantiseError::OutOfRange { ty: named, index, .. } = error else { panic!("{ty}: {error}") };
        assert_eq!((named, index), (ty, 300 / ty.block_len() * ty.block_len()));
    }
}

#[test]
fn weights_too_small_for_a_type_become_zero() {
    let x: Vec<f32> = (0..256).map(|k| if k % 2 == 0 { 1e-42 } else { -3e-41 }).collect();
    for ty in WeightType::ALL.into_iter().filter(|ty| !READ_ONLY.contains(ty)) {
        if matches!(ty, WeightType::F32 | WeightType::BF16) {
            continue;
        }
        assert!(dequantised(ty, &quantised(ty, &x)).iter().all(|v| *v == 0.0), "{ty}");
    }
}

/// The types muser reads and does not write.
const READ_ONLY: [WeightType; 7] = {
    use WeightType::*;
    [IQ4_XS, MXFP4, NVFP4, IQ4_NL, Q4_K, Q5_K, Q6_K]
};

#[test]
fn types_that_are_only_read_say_so() {
    for ty in READ_ONLY {
        let mut bytes = vec![0; ty.row_bytes(256).unwrap()];
        assert_eq!(quantise_row(ty, &[0.0; 256], &mut bytes), Err(QuantiseError::Unsupported { ty }));
    }
}

#[test]
fn slices_that_do_not_match_are_refused() {
    for ty in WeightType::ALL {
        let mut bytes = vec![0; ty.row_bytes(256).unwrap() + 1];
        let whole = bytes.len();
        let want = Err(QuantiseError::Length { ty, elements: 256, bytes: whole });
        assert_eq!(quantise_row(ty, &[0.0; 256], &mut bytes), want);
        if ty.block_len() > 1 {
            let want = Err(QuantiseError::Length { ty, elements: 255, bytes: whole - 1 });
            assert_eq!(quantise_row(ty, &[0.0; 255], &mut bytes[..whole - 1]), want);
        }
    }
}
