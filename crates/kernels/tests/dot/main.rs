//! Every instruction set against the definition, bit by bit, for all weight types.

mod golden;

use muser_kernels::activations::{ActivationFormat, ActivationRow, Activations, FormatSet};
use muser_kernels::cpu::{Isa, Kernels};
use muser_kernels::dot::reference::{self, IntegerForm, Quantisation};
use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::{Matrix, MatrixError, MatrixPlan, PANEL_ROWS, Scan};
use muser_kernels::samples::{self, Flavour, activation_row, raw_tensor};

/// The kernels of this machine; says which are absent.
fn available() -> Vec<Kernels> {
    let available = Kernels::available();
    for isa in [Isa::Avx2, Isa::Avx512] {
        if !available.iter().any(|kernels| kernels.isa == isa) {
            eprintln!("SKIPPED: this processor lacks {}; its twins are not tested here", isa.name());
        }
    }
    available
}

fn quantisation_of(ty: WeightType) -> Quantisation {
    match ty.class() {
        WeightClass::IntegerScales => Quantisation::INT8X256,
        _ => Quantisation::INT8X32,
    }
}

/// Equal bits, or both NaN: a NaN is an error whatever its payload.
fn same(left: f32, right: f32) -> bool {
    left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
}

/// Largest rows, blocks (or columns of float types) and tokens of a random product.
#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    blocks: usize,
    floats: usize,
    tokens: usize,
}

/// One random product in every table against the reference.
fn check_product(ty: WeightType, flavour: Flavour, size: Size, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (rows, tokens) = (rng.usize(1..=size.rows), rng.usize(1..=size.tokens));
    let cols = match ty.class() {
        WeightClass::Float => rng.usize(1..=size.floats),
        _ => ty.block_len() * rng.usize(1..=size.blocks),
    };
    let raw = raw_tensor(ty, rows, cols, flavour, &mut rng);
    let x: Vec<Vec<f32>> = (0..tokens).map(|_| activation_row(cols, &mut rng)).collect();
    let matrix = Matrix::packed(ty, rows, cols, &raw).unwrap();
    let expected: Vec<Vec<f32>> = x
        .iter()
        .map(|x| reference::multiply(ty, cols, &raw, x, quantisation_of(ty)).unwrap().expect("finite values"))
        .collect();
    for Kernels { isa, dot, .. } in available() {
        let mut activations = Activations::new(tokens + 1, cols + 3);
        activations.resize(tokens, cols);
        for (row, x) in activations.rows_mut().iter_mut().zip(&x) {
            assert!((dot.quantise_row)(x, FormatSet::EMPTY.with(matrix.activation()), row));
        }
        // Any part of the rows gives the same values.
        let first = rng.usize(0..tokens);
        for range in [0..tokens, first..tokens] {
            let mut tile = vec![[f32::NAN; PANEL_ROWS]; range.len()];
            for panel in 0..matrix.panels() {
                (dot.panel)(&matrix, panel, &activations, range.clone(), &mut tile);
                for (token, lanes) in range.clone().zip(&tile) {
                    for (lane, &value) in lanes.iter().enumerate() {
                        let row = panel * PANEL_ROWS + lane;
                        let expected = expected[token].get(row).copied().unwrap_or(0.0);
                        assert!(
                            same(value, expected),
                            "{} {ty} {flavour:?} seed {seed}: {rows} x {cols}, token {token} of {tokens}, row {row}: \
                             {value:e} for {expected:e}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_table_gives_the_bits_of_the_reference() {
    for ty in WeightType::ALL {
        for flavour in Flavour::ALL {
            for seed in 0..12 {
                check_product(ty, flavour, Size { rows: 40, blocks: 5, floats: 150, tokens: 9 }, seed);
            }
        }
    }
}

#[test]
fn long_rows_and_many_tokens_give_the_bits_of_the_reference() {
    for ty in WeightType::ALL {
        // More than the part of a panel that is multiplied at once.
        let blocks = 5000 / ty.block_len();
        for seed in 0..6 {
            check_product(ty, Flavour::Ordinary, Size { rows: 4, blocks, floats: 1000, tokens: 24 }, seed);
        }
    }
}

#[test]
fn the_samples_reach_every_integer_form() {
    let mut seen = [0; 3];
    for ty in [WeightType::Q4_K, WeightType::Q5_K] {
        for flavour in Flavour::ALL {
            for seed in 0..12 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let raw = raw_tensor(ty, 3, 512, flavour, &mut rng);
                match reference::integer_form(ty, 512, &raw, Quantisation::INT8X256) {
                    IntegerForm::Exponent(1) => seen[0] += 1,
                    IntegerForm::Exponent(_) => seen[1] += 1,
                    IntegerForm::General => seen[2] += 1,
                }
            }
        }
    }
    assert!(seen.iter().all(|&count| count >= 10), "half steps, whole steps, general: {seen:?}");
}

/// The codes and scales of `row` in `format` against the reference.
fn check_quantised(row: &ActivationRow, format: ActivationFormat, x: &[f32], what: &str) {
    let quantisation = match format {
        ActivationFormat::Int8x256 => Quantisation::INT8X256,
        _ => Quantisation::INT8X32,
    };
    let expected = reference::quantise(x, quantisation).expect("finite values");
    let codes: Vec<i32> = row.codes(format).map(i32::from).collect();
    assert_eq!(codes, expected.codes, "{what} {format:?}");
    let scales = row.scales(format).map(f32::to_bits);
    assert!(scales.eq(expected.scales.iter().map(|scale| scale.to_bits())), "{what} {format:?}");
}

#[test]
fn every_table_quantises_as_the_reference() {
    for Kernels { isa, dot, .. } in available() {
        for seed in 0..400 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let cols = rng.usize(1..=1100);
            let x = activation_row(cols, &mut rng);
            let mut activations = Activations::new(1, 1100);
            let row = &mut activations.rows_mut()[0];
            // Leaves codes behind that the next, shorter row must not show.
            assert!((dot.quantise_row)(&activation_row(1100, &mut rng), FormatSet::ALL, row));
            activations.resize(1, cols);
            let row = &mut activations.rows_mut()[0];
            assert!((dot.quantise_row)(&x, FormatSet::ALL, row));
            let what = format!("{} seed {seed}, {cols} columns", isa.name());
            check_quantised(row, ActivationFormat::Int8x256, &x, &what);
            check_quantised(row, ActivationFormat::Int8x32, &x, &what);
            assert!(row.floats().iter().zip(&x).all(|(left, right)| left.to_bits() == right.to_bits()), "{what}");
        }
    }
}

#[test]
fn a_nan_or_an_infinity_is_reported_and_leaves_zeros() {
    for Kernels { isa, dot, .. } in available() {
        for (seed, bad) in
            [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().cycle().take(40).enumerate()
        {
            let mut rng = fastrand::Rng::with_seed(u64::try_from(seed).unwrap());
            let cols = rng.usize(1..=700);
            let mut x = activation_row(cols, &mut rng);
            for needs in [ActivationFormat::Int8x256, ActivationFormat::Int8x32, ActivationFormat::Float] {
                let mut activations = Activations::new(1, cols);
                let row = &mut activations.rows_mut()[0];
                assert!((dot.quantise_row)(&x, FormatSet::ALL, row));
                let at = rng.usize(0..cols);
                let kept = std::mem::replace(&mut x[at], bad);
                assert!(!(dot.quantise_row)(&x, FormatSet::EMPTY.with(needs), row), "{} {bad} at {at}", isa.name());
                x[at] = kept;
                assert!(row.codes(needs).all(|code| code == 0));
                assert!(row.scales(needs).chain(row.floats().iter().copied()).all(|scale| scale == 0.0));
            }
        }
    }
}

#[test]
fn a_tensor_scale_multiplies_the_finished_element() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (rows, cols) = (20, 192);
    let raw = raw_tensor(WeightType::NVFP4, rows, cols, Flavour::Ordinary, &mut rng);
    let x = activation_row(cols, &mut rng);
    let expected = reference::multiply(WeightType::NVFP4, cols, &raw, &x, Quantisation::INT8X32).unwrap().unwrap();
    let matrix = Matrix::packed(WeightType::NVFP4, rows, cols, &raw).unwrap().with_scale(0.013);
    for Kernels { isa, dot, .. } in available() {
        let mut activations = Activations::new(1, cols);
        assert!((dot.quantise_row)(&x, FormatSet::ALL, &mut activations.rows_mut()[0]));
        let mut tile = [[0.0; PANEL_ROWS]];
        for panel in 0..2 {
            (dot.panel)(&matrix, panel, &activations, 0..1, &mut tile);
            for (lane, row) in (panel * PANEL_ROWS..rows).take(PANEL_ROWS).enumerate() {
                assert_eq!(tile[0][lane].to_bits(), (expected[row] * 0.013).to_bits(), "{} row {row}", isa.name());
            }
        }
    }
}

#[test]
fn scans_of_parts_merge_to_the_scan_of_the_whole() {
    for flavour in Flavour::ALL {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let raw = raw_tensor(WeightType::Q4_K, 6, 256, flavour, &mut rng);
            let scan = |raw: &[u8]| Scan::of(WeightType::Q4_K, 256, 0, raw).unwrap();
            let (first, second) = raw.split_at(2 * 144);
            assert_eq!(scan(first).merge(scan(second)), scan(&raw));
            assert_eq!(scan(second).merge(scan(first)), scan(&raw));
        }
    }
}

#[test]
fn a_scale_that_is_no_number_refuses_the_matrix() {
    for ty in WeightType::ALL {
        let cols = ty.block_len() * 3;
        let raw = raw_tensor(ty, 5, cols, Flavour::Ordinary, &mut fastrand::Rng::with_seed(7));
        for (at, bytes) in samples::non_finite_values(ty) {
            let mut bad = raw.clone();
            let block = 3 * 3 + 2;
            bad[block * ty.block_bytes() + at..][..bytes.len()].copy_from_slice(&bytes);
            let error = MatrixPlan::new(ty, 5, cols, &bad).unwrap_err();
            assert_eq!(error, MatrixError::NonFinite { ty, row: 3, block: 2 }, "{ty} at {at}");
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let columns = MatrixPlan::new(WeightType::Q4_K, 1, 128, &[0; 72]).unwrap_err();
    assert_eq!(columns, MatrixError::Columns { ty: WeightType::Q4_K, cols: 128 });
    let none = MatrixPlan::new(WeightType::F32, 1, 0, &[]).unwrap_err();
    assert_eq!(none, MatrixError::Columns { ty: WeightType::F32, cols: 0 });
    let short = MatrixPlan::new(WeightType::Q8_0, 2, 32, &[0; 67]).unwrap_err();
    assert_eq!(short, MatrixError::Bytes { expected: 68, got: 67 });
    let huge = MatrixPlan::new(WeightType::F32, usize::MAX / 2, usize::MAX / 16, &[]).unwrap_err();
    assert_eq!(huge, MatrixError::Bytes { expected: usize::MAX, got: 0 });
}
