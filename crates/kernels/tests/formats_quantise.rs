//! Quantisers against golden bytes of an implementation that is not ours, and against their own error bounds.

use muser_kernels::formats::{KBlock, QuantiseError, WeightType, dequantise_row, first_non_finite, quantise_row};
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
    for ty in [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, F16, BF16, F32] {
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
const READ_ONLY: [WeightType; 3] = [WeightType::IQ4_XS, WeightType::MXFP4, WeightType::NVFP4];

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

/// Types whose quantiser searches for the least squared error.
const SEARCHED: [WeightType; 4] = [WeightType::Q4_K, WeightType::Q5_K, WeightType::Q6_K, WeightType::IQ4_NL];

fn squared_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

#[test]
fn searched_types_lose_no_more_than_llama_cpp() {
    let x = golden_input();
    for ty in SEARCHED {
        let (ours, theirs) = (dequantised(ty, &quantised(ty, &x)), dequantised(ty, &golden(&format!("{ty}.rival"))));
        for (row, ((x, ours), theirs)) in x.chunks(256).zip(ours.chunks(256)).zip(theirs.chunks(256)).enumerate() {
            let (ours, theirs) = (squared_error(x, ours).sqrt(), squared_error(x, theirs).sqrt());
            assert!(ours <= theirs * 1.005, "{ty} row {row}: error {ours:e}, llama.cpp {theirs:e}");
        }
        let (ours, theirs) = (squared_error(&x[..256], &ours[..256]), squared_error(&x[..256], &theirs[..256]));
        assert!(ours < theirs, "{ty}: the search gains nothing");
    }
}

/// A row of 256 whose groups of 16 differ in size and offset, with outliers.
fn uneven(rng: &mut fastrand::Rng) -> Vec<f32> {
    let size = 10f32.powi(rng.i32(-1..4));
    let offset = [0.0, 0.0, 3.0, -3.0][rng.usize(0..4)] * size;
    let mut x = Vec::new();
    for _ in 0..16 {
        let size = size * 10f32.powf(-2.0 * rng.f32());
        x.extend(bell(rng, 16, size));
    }
    x.iter_mut().for_each(|v| *v += offset);
    for _ in 0..rng.usize(0..4) {
        x[rng.usize(0..256)] *= 10.0;
    }
    x
}

/// Range of the weights of `group`: from the least, or zero if that is less (mins only lower), to the greatest; for
/// `Q6_K`, which has no min, across the greatest magnitude both ways.
fn span(ty: WeightType, group: &[f32]) -> f32 {
    let least = group.iter().fold(0.0, |least: f32, v| least.min(*v));
    let greatest = group.iter().fold(f32::NEG_INFINITY, |greatest, v| greatest.max(*v));
    if ty == WeightType::Q6_K { 2.0 * greatest.max(-least) } else { greatest - least }
}

#[test]
fn the_error_of_a_k_block_stays_within_the_rounding_of_its_steps() {
    let mut rng = fastrand::Rng::with_seed(13);
    for (ty, group, steps, units) in
        [(WeightType::Q4_K, 32, 15.0, 63.0), (WeightType::Q5_K, 32, 31.0, 63.0), (WeightType::Q6_K, 16, 63.0, 127.0)]
    {
        for _ in 0..1000 {
            let x = uneven(&mut rng);
            let y = dequantised(ty, &quantised(ty, &x));
            let magnitude = x.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
            let widest = x.chunks(group).map(|x| span(ty, x)).fold(0.0, f32::max);
            for (x, y) in x.chunks(group).zip(y.chunks(group)) {
                // Half a step of the codes, half a step of the integer scale at the far end, half one of the min, f16.
                let each = span(ty, x) / steps / 2.0 + widest / units / 2.0 + magnitude / 63.0 / 2.0 + 2f32.powi(-24);
                let bound = f64::from(each).powi(2) * x.len() as f64;
                let error = squared_error(x, y);
                assert!(error <= bound, "{ty}: squared error {error:e} above {bound:e}: {x:?} became {y:?}");
            }
        }
    }
}

#[test]
fn quantising_what_a_k_block_stands_for_loses_little() {
    let mut rng = fastrand::Rng::with_seed(14);
    for ty in [WeightType::Q4_K, WeightType::Q5_K, WeightType::Q6_K] {
        let (mut first, mut second) = (0.0, 0.0);
        for _ in 0..300 {
            let x = bell(&mut rng, 256, 0.02);
            let once = dequantised(ty, &quantised(ty, &x));
            let twice = dequantised(ty, &quantised(ty, &once));
            first += squared_error(&x, &once);
            second += squared_error(&once, &twice);
        }
        assert!(second < first * 0.1, "{ty}: {first:e}, then {second:e}");
    }
}

#[test]
fn a_min_is_never_stored_without_a_step_to_express_it_in() {
    // The contract folds mins into integers of d; d = 0, or one far below dmin, would force a whole tensor off that path.
    let mut rng = fastrand::Rng::with_seed(15);
    for ty in [WeightType::Q4_K, WeightType::Q5_K] {
        for _ in 0..300 {
            let size = 10f32.powi(rng.i32(-7..4));
            let noise = 10f32.powi(rng.i32(-9..0));
            let x: Vec<f32> = bell(&mut rng, 256, size * noise).iter().map(|v| v - size).collect();
            let block = KBlock::decode(ty, &quantised(ty, &x), 0);
            assert!(block.d >= block.dmin / 512.0, "{ty}: d {:e}, dmin {:e}", block.d, block.dmin);
            assert!(block.d > 0.0 || block.dmin == 0.0, "{ty}");
        }
    }
}

#[test]
fn any_mixture_of_magnitudes_gives_finite_blocks() {
    let mut rng = fastrand::Rng::with_seed(16);
    for ty in WeightType::ALL.into_iter().filter(|ty| !READ_ONLY.contains(ty)) {
        for _ in 0..300 {
            let (low, high) = (rng.i32(-149..2), rng.i32(0..14));
            let x: Vec<f32> = (0..256).map(|_| (rng.f32() - 0.5) * 2f32.powi(rng.i32(low..low + high + 1))).collect();
            let bytes = quantised(ty, &x);
            assert_eq!(first_non_finite(ty, &bytes), None, "{ty}: {x:?}");
            // Zero everywhere is always within reach, so a search that ends with a greater error went astray. (The
            // published rules do, where f16 is subnormal.)
            let (error, zero) = (squared_error(&x, &dequantised(ty, &bytes)), squared_error(&x, &[0.0; 256]));
            assert!(
                error <= zero || !SEARCHED.contains(&ty),
                "{ty}: error {error:e}, zeros would give {zero:e}: {x:?}"
            );
        }
    }
}

#[test]
fn searched_bytes_are_the_same_on_every_machine() {
    // FNV-1a of the blocks of `quantise.input`. A better search may change them; a compiler or an instruction set may not.
    let fnv = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    };
    let x = golden_input();
    let digests = SEARCHED.map(|ty| fnv(&quantised(ty, &x)));
    assert_eq!(
        digests,
        [0x0759_1067_7bdc_07b9, 0x7e47_468c_517d_0186, 0x94db_f3c3_6040_7609, 0x2b17_b170_5c7f_ce57],
        "{digests:#x?}"
    );
}
