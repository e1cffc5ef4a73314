//! Quantisation of activation rows, and products with matrices of every weight type.

use muser_kernels::activations::{ActivationFormat, Activations, FormatSet};
use muser_kernels::cpu::Kernels;
use muser_kernels::dot::reference::{self, Quantisation};
use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::{Matrix, PANEL_ROWS};
use muser_kernels::samples::{Flavour, activation_row, raw_tensor};

use crate::tally::BitTally;

/// Elements of the rows: widths of models, and awkward ones.
const WIDTHS: [usize; 7] = [32, 96, 512, 576, 1023, 1536, 6656];

/// Codes and scales of both groupings, and the floats.
pub(super) fn quantise(seeds: u64, tally: &mut BitTally) {
    for Kernels { isa, dot, .. } in Kernels::available() {
        for (number, cols) in WIDTHS.into_iter().enumerate() {
            for seed in 0..4 * seeds {
                let mut rng = fastrand::Rng::with_seed(seed * 100 + number as u64);
                let x = activation_row(cols, &mut rng);
                let mut activations = Activations::new(1, cols);
                let row = &mut activations.rows_mut()[0];
                let what = format!("{} quantise {cols} columns, seed {seed}", isa.name());
                let is_finite = (dot.quantise_row)(&x, FormatSet::ALL, row);
                tally.equal(&format_args!("{what}: finite"), &true, &is_finite);
                for (format, quantisation) in [
                    (ActivationFormat::Int8x256, Quantisation::INT8X256),
                    (ActivationFormat::Int8x32, Quantisation::INT8X32),
                ] {
                    let Some(want) = reference::quantise(&x, quantisation) else {
                        tally.failed(&what, &"the reference refuses finite values");
                        continue;
                    };
                    let codes: Vec<f32> = row.codes(format).map(f32::from).collect();
                    let want_codes: Vec<f32> = want.codes.iter().map(|code| *code as f32).collect();
                    tally.compare(&format_args!("{what} {format:?} codes"), cols, &want_codes, &codes);
                    let scales: Vec<f32> = row.scales(format).collect();
                    tally.compare(&format_args!("{what} {format:?} scales"), scales.len(), &want.scales, &scales);
                }
                tally.compare(&format_args!("{what} floats"), cols, &x, row.floats());
            }
        }
    }
}

/// Sizes of a product.
#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    cols: usize,
    outputs: usize,
}

/// Products of every weight type and flavour, for one row, for few and for more than a tile; and long rows.
pub(super) fn matmul(seeds: u64, tally: &mut BitTally) {
    let size = |rows, cols, outputs| Size { rows, cols, outputs };
    for ty in WeightType::ALL {
        for flavour in Flavour::ALL {
            for seed in 0..seeds {
                for size in [size(1, 576, 70), size(7, 512, 33), size(33, 1500, 17)] {
                    product(ty, flavour, size, seed, tally);
                }
            }
        }
        for seed in 0..seeds {
            // More than the part of a panel that is multiplied at once.
            let cols = if ty.class() == WeightClass::Float { 1664 } else { 6656 };
            product(ty, Flavour::Ordinary, size(65, cols, 4), seed, tally);
        }
    }
}

fn product(ty: WeightType, flavour: Flavour, size: Size, seed: u64, tally: &mut BitTally) {
    let Size { rows, cols, outputs } = size;
    let cols = cols.next_multiple_of(ty.block_len());
    let mut rng = fastrand::Rng::with_seed(seed);
    let what = format!("{ty} {flavour:?} {rows} x {cols} -> {outputs}, seed {seed}");
    let raw = raw_tensor(ty, outputs, cols, flavour, &mut rng);
    let matrix = match Matrix::packed(ty, outputs, cols, &raw) {
        Ok(matrix) => matrix,
        Err(refused) => return tally.failed(&what, &refused),
    };
    let quantisation = match ty.class() {
        WeightClass::IntegerScales => Quantisation::INT8X256,
        _ => Quantisation::INT8X32,
    };
    let x: Vec<Vec<f32>> = (0..rows).map(|_| activation_row(cols, &mut rng)).collect();
    let mut want = Vec::with_capacity(rows * outputs);
    for x in &x {
        match reference::multiply(ty, cols, &raw, x, quantisation) {
            Ok(Some(row)) => want.extend(row),
            _ => return tally.failed(&what, &"the reference refuses the product"),
        }
    }
    for Kernels { isa, dot, .. } in Kernels::available() {
        let mut activations = Activations::new(rows, cols);
        activations.resize(rows, cols);
        for (row, x) in activations.rows_mut().iter_mut().zip(&x) {
            (dot.quantise_row)(x, FormatSet::EMPTY.with(matrix.activation()), row);
        }
        let mut got = vec![f32::NAN; rows * outputs];
        let mut tile = vec![[f32::NAN; PANEL_ROWS]; rows];
        for panel in 0..matrix.panels() {
            (dot.panel)(&matrix, panel, &activations, 0..rows, &mut tile);
            for (row, lanes) in tile.iter().enumerate() {
                let first = panel * PANEL_ROWS;
                let out = &mut got[row * outputs..][first..outputs.min(first + PANEL_ROWS)];
                out.copy_from_slice(&lanes[..out.len()]);
            }
        }
        tally.compare(&format_args!("{} {what}", isa.name()), outputs, &want, &got);
    }
}
