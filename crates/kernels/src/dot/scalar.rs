//! Portable panels: the packed layout read one value at a time. The definition of the layout, not of the product.

use std::ops::Range;

use half::{bf16, f16};

use super::float_weights::{FloatWeights, halving_tree, with_float_weights};
use super::tile::{self, Lanes};
use crate::activations::{ActivationRow, Activations};
use crate::matrix::format::{Format, HALVES, LINE, Storage, with_format};
use crate::matrix::{Form, Matrix, PANEL_ROWS};

/// See [`super::PanelFn`].
pub(crate) fn panel(matrix: &Matrix, panel: usize, x: &Activations, rows: Range<usize>, tile: &mut [Lanes]) {
    let bytes = matrix.panel(panel);
    let rows_of = |rows: &Range<usize>, i: usize| x.row(rows.start + i);
    tile::fill(
        (matrix, panel),
        (x, rows.clone()),
        tile,
        |tile| {
            with_format!(matrix.weight_type(), F => {
                for (index, unit) in bytes.chunks_exact(F::UNIT_BYTES).enumerate() {
                    let unit_codes = expand::<F>(unit);
                    for (i, lanes) in tile.iter_mut().enumerate() {
                        if F::INTEGER_SCALES {
                            integer_unit::<F>(unit, &unit_codes, matrix.form(), (rows_of(&rows, i), index), lanes);
                        } else {
                            float_unit::<F>(unit, &unit_codes[0], (rows_of(&rows, i), index), lanes);
                        }
                    }
                }
            }, unreachable!("packed types only"));
        },
        |tile| {
            let row_bytes = bytes.len() / PANEL_ROWS;
            for (i, lanes) in tile.iter_mut().enumerate() {
                let x = rows_of(&rows, i).floats();
                for (lane, row) in lanes.iter_mut().zip(bytes.chunks_exact(row_bytes)) {
                    *lane = with_float_weights!(matrix.weight_type(), W => dot_floats::<W>(row, x));
                }
            }
        },
    );
}

/// Codes of 32 columns by 16 rows, before the offset.
type BlockCodes = [[i16; PANEL_ROWS]; 32];

/// The codes of a unit: up to 8 blocks.
fn expand<F: Format>(unit: &[u8]) -> [BlockCodes; 8] {
    let mut codes = [[[0; PANEL_ROWS]; 32]; 8];
    for (block, lines) in codes.iter_mut().zip(unit[F::CODES_AT..].chunks_exact(F::BLOCK_BYTES)) {
        for (k, column) in block.iter_mut().enumerate() {
            for (lane, code) in column.iter_mut().enumerate() {
                *code = stored::<F>(lines, k / 4, 4 * lane + k % 4);
            }
        }
    }
    codes
}

/// The stored value of quad `c` at byte `at` of its line, after the table.
fn stored<F: Format>(lines: &[u8], c: usize, at: usize) -> i16 {
    let line = |line: usize| lines[line * LINE + at];
    let nibble = || if c < 4 { line(c) & 15 } else { line(c - 4) >> 4 };
    let value = match F::STORAGE {
        Storage::Bytes => line(c),
        Storage::Nibbles => nibble(),
        Storage::NibblesAndBit => nibble() | (line(4) >> c & 1) << 4,
        Storage::NibblesAndPair => nibble() | (line(4 + c / 4) >> (2 * (c % 4)) & 3) << 4,
    };
    match F::TABLE {
        Some(table) => i16::from(table[usize::from(value)]),
        None => i16::from(value),
    }
}

/// Products of codes `columns` of a block with as many activation codes, per lane.
fn products<F: Format>(block: &[[i16; PANEL_ROWS]], codes: &[i8]) -> [i32; PANEL_ROWS] {
    let mut sums = [0; PANEL_ROWS];
    for (column, &code) in block.iter().zip(codes) {
        for (sum, &stored) in sums.iter_mut().zip(column) {
            *sum += i32::from(stored - F::OFFSET) * i32::from(code);
        }
    }
    sums
}

/// Rule 3: adds group `index` of `x` to `lanes`.
fn integer_unit<F: Format>(
    unit: &[u8],
    codes: &[BlockCodes; 8],
    form: Form,
    (x, index): (&ActivationRow, usize),
    lanes: &mut Lanes,
) {
    let x = &x.int8x256()[index];
    let mut sums = [0i32; PANEL_ROWS];
    for sub in 0..256 / F::SUB {
        let first = sub * F::SUB % 32;
        let block = &codes[sub * F::SUB / 32][first..first + F::SUB];
        let products = products::<F>(block, &x.codes[sub * F::SUB..]);
        for (lane, sum) in sums.iter_mut().enumerate() {
            let scale = unit[F::SUB_SCALES_AT + sub / 2 * HALVES + 2 * lane + sub % 2].cast_signed();
            *sum += i32::from(scale) * products[lane];
        }
    }
    if F::MINS {
        for (j, &x_sum) in x.sums32.iter().enumerate() {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let at = F::MINS_AT + j / 2 * 2 * HALVES + 4 * lane + j % 2 * 2;
                *sum += i32::from(i16::from_le_bytes([unit[at], unit[at + 1]])) * i32::from(x_sum);
            }
        }
    }
    let step = if F::MINS && form.exponent() == 1 { 0.5 } else { 1.0 };
    for (lane, acc) in lanes.iter_mut().enumerate() {
        let d = half_at(unit, 2 * lane) * step;
        *acc = (d * x.scale).mul_add(to_f32(sums[lane]), *acc);
    }
}

/// Rule 4: adds group `index` of `x` to `lanes`.
fn float_unit<F: Format>(unit: &[u8], codes: &BlockCodes, (x, index): (&ActivationRow, usize), lanes: &mut Lanes) {
    let x = &x.int8x32()[index];
    let mut group_sums = [0.0f32; PANEL_ROWS];
    for sub in 0..32 / F::SUB {
        let products = products::<F>(&codes[sub * F::SUB..][..F::SUB], &x.codes[sub * F::SUB..]);
        for (lane, group_sum) in group_sums.iter_mut().enumerate() {
            let at = sub * HALVES + 2 * lane;
            let scale = if F::BRAIN_FLOATS {
                bf16::from_le_bytes([unit[at], unit[at + 1]]).to_f32()
            } else {
                half_at(unit, at)
            };
            *group_sum = scale.mul_add(to_f32(products[lane]), *group_sum);
        }
    }
    for (lane, (acc, group_sum)) in lanes.iter_mut().zip(&mut group_sums).enumerate() {
        if F::MINS {
            *group_sum = half_at(unit, F::MINS_AT + 2 * lane).mul_add(x.sum, *group_sum);
        }
        *acc = x.scale.mul_add(*group_sum, *acc);
    }
}

/// Rule 4b for one row.
fn dot_floats<W: FloatWeights>(row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 32];
    for (weights, values) in row.chunks(32 * W::BYTES).zip(x.chunks(32)) {
        for ((lane, weight), value) in lanes.iter_mut().zip(weights.chunks_exact(W::BYTES)).zip(values) {
            *lane = W::widen(weight).mul_add(*value, *lane);
        }
    }
    halving_tree(lanes)
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// `f(I)`.
#[expect(clippy::cast_precision_loss, reason = "the one rounding of the rule")]
fn to_f32(sum: i32) -> f32 {
    sum as f32
}
